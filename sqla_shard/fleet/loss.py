"""Acknowledged writes that are lost with a primary.

With semi-synchronous replication a COMMIT is acknowledged when the standby
has received it.  So none is lost, if at the last look at the primary

* it waited for one standby only, which was the one that is promoted;
* it would also have waited if that standby had been disconnected;
* no COMMIT had waited for so long that the time-out of semi-sync could have
  ended the waiting before the primary was found lost;

and if the thread of the standby that received then was not started again
since, which deletes what was received and not applied.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqla_shard.fleet.replication import Replication
from sqla_shard.util.json_values import JsonObject

NONE = "none"
"""The loss statement begins with this if nothing is lost."""

#: Seconds by which the start of a server, as it is computed, may differ.
_ROUNDED = 2


@dataclass(frozen=True, kw_only=True)
class Acknowledgements:
    """Whether acknowledged writes are on the standby, as of one look.

    :ivar doubt: why they may not be; empty if they are.
    :ivar timeout: seconds after which a COMMIT stops waiting.
    :ivar waiting: seconds for which one had waited.
    :ivar receiver: :meth:`.Replication.receiver` of the standby.
    """

    doubt: str = ""
    timeout: float = 0.0
    waiting: float = 0.0
    receiver: tuple[int, int] | None = None


@dataclass(frozen=True, kw_only=True)
class SemiSyncProbe(JsonObject):
    """The last look at semi-synchronous replication before the loss.

    :ivar seen: seconds since the epoch of the last look that succeeded.
    :ivar lost: those of the last look that failed, not of the first: until
        then a primary that was only unreachable may have served clients.
    :ivar acks: the result of the look that succeeded.
    """

    seen: float
    lost: float
    acks: Acknowledgements

    def compared(self, receiver: tuple[int, int] | None) -> SemiSyncProbe:
        """Return the probe, in doubt if the standby has started again.

        :param receiver: :meth:`.Replication.receiver` of the standby now.
        """
        then = self.acks.receiver
        if self.acks.doubt or (
            then is not None
            and receiver is not None
            and then[0] == receiver[0]
            and abs(then[1] - receiver[1]) <= _ROUNDED
        ):
            return self
        doubt = (
            "the standby was restarted, or its replication, which may have "
            "deleted what it had received, after semi-sync was on"
        )
        return replace(self, acks=replace(self.acks, doubt=doubt))


@dataclass(frozen=True, kw_only=True)
class Receiving:
    """Whether a standby acknowledges received transactions.

    :ivar doubt: why it does not; empty if it does.
    :ivar source_id: ``server_id`` of its primary.
    :ivar receiver: see :meth:`.Replication.receiver`.
    """

    doubt: str
    source_id: int
    receiver: tuple[int, int] | None


def receiving(standby: Replication) -> Receiving:
    """Look at a standby, before :func:`acknowledgements`.

    In this order a standby that notices the end of its primary in between
    does not seem to have stopped receiving by itself.
    """
    status = standby.status()
    semi_sync = standby.semi_sync()
    doubt = ""
    if status is None or status.receiver != "Yes":
        doubt = "the standby did not receive"
    elif semi_sync is None or not semi_sync.acknowledges:
        doubt = "the standby did not acknowledge"
    return Receiving(
        doubt=doubt,
        source_id=0 if status is None else status.source_id,
        receiver=standby.receiver(),
    )


def acknowledgements(
    primary: Replication, standby: Receiving | None
) -> Acknowledgements:
    """Look at a primary.

    :param standby: the standby of the topology; None if it did not respond.
    """
    # Before the status of semi-sync: a COMMIT that has stopped waiting in
    # between has switched it off.
    waiting = primary.longest_wait()
    semi_sync = primary.semi_sync()
    if semi_sync is None or not semi_sync.source_on:
        return Acknowledgements(doubt="semi-sync was off")
    if standby is None:
        doubt = "the standby did not respond"
    elif standby.doubt:
        doubt = standby.doubt
    elif standby.source_id != primary.server_id():
        doubt = "the standby received from another server"
    elif semi_sync.standbys != 1:
        doubt = f"{semi_sync.standbys} standbys acknowledged"
    elif not semi_sync.waits_alone:
        doubt = "semi-sync did not wait for a standby that is disconnected"
    else:
        doubt = ""
    return Acknowledgements(
        doubt=doubt,
        timeout=semi_sync.timeout,
        waiting=waiting,
        receiver=None if standby is None else standby.receiver,
    )


def loss_of(probe: SemiSyncProbe | None) -> str:
    """Return a statement about lost writes: ``"none: ..."`` or else.

    :param probe: the last look at the primary, if there was one.
    """
    rest = "writes that the standby had not received are lost"
    if probe is None:
        return f"unknown: nobody has looked whether semi-sync was on; {rest}"
    acks = probe.acks
    seconds = probe.lost - probe.seen
    when = f"at the last look, {seconds:.1f} s ago"
    if acks.doubt:
        return f"unknown: {acks.doubt} {when}; {rest}"
    if seconds < 0:
        return (
            "unknown: the clocks of the processes that have looked differ by "
            f"{-seconds:.1f} s; {rest}"
        )
    if seconds + acks.waiting >= acks.timeout:
        waited = ""
        if acks.waiting:
            waited = f", when a COMMIT had waited for {acks.waiting:.1f} s"
        return (
            f"unknown: semi-sync was on {when}{waited}, but it stops waiting "
            f"after {acks.timeout:g} s; {rest}"
        )
    return f"{NONE}: semi-sync was on {when}"
