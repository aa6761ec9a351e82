"""Sights of primaries and the leader of the watchers, in ZooKeeper.

Below the path of the topology, ``/fleet/watch/votes/ID`` is what one watcher
sees, and ``/fleet/watch/leader`` names the one that acts.  Both end with the
session of their watcher.  The clocks of watchers may differ: a vote has
durations, and it counts while it is renewed.

A vote has the addresses of primaries, not the names of pairs: a watcher that
reads an old topology must not vote on the primary of a new one.  A vote that
is not valid is reported, and counts as one that is missing.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from sqla_shard.exc import FleetSetupError
from sqla_shard.fleet.fleet import Fleet
from sqla_shard.fleet.loss import Acknowledgements, SemiSyncProbe
from sqla_shard.topology.follow import is_zookeeper
from sqla_shard.topology.follow.locations import zookeeper_options
from sqla_shard.topology.zookeeper.publications import (
    FLEET,
    MAX_BYTES,
    OPERATION,
    TOPOLOGY,
)
from sqla_shard.topology.zookeeper.store import Create, Replace, ZooKeeperStore
from sqla_shard.util.json_values import JsonObject, parsed_object

_VOTES = f"{FLEET}/watch/votes"
_LEADER = f"{FLEET}/watch/leader"

#: Greatest number of seconds in a vote: 30 years.
_MAX_SECONDS = 1e9
#: Greatest length of a text in a vote.
_MAX_TEXT_CHARS = 1000


@dataclass(frozen=True, kw_only=True)
class Sight(JsonObject):
    """The state of a primary as a watcher sees it.

    :ivar lost_for: seconds since the first look that failed; None if the
        last look succeeded.
    :ivar seen_ago: seconds since the last look that succeeded; None if none
        has.
    :ivar acks: whether acknowledged writes were on the standby then.
    """

    lost_for: float | None
    seen_ago: float | None
    acks: Acknowledgements

    def later(self, seconds: float) -> Sight:
        """Return the part that still holds some seconds later."""
        if self.seen_ago is None:
            return self
        return replace(self, seen_ago=self.seen_ago + seconds)

    @classmethod
    def from_dict(cls, document: Any) -> Sight:
        """Return the sight of a JSON object with all of its attributes.

        :raises ValueError: if it has others, or values of other types.
        """
        _object(document, cls)
        _object(document["acks"], Acknowledgements)
        sight = super().from_dict(document)
        acks = sight.acks
        seconds = {"lost_for": sight.lost_for, "seen_ago": sight.seen_ago}
        for name, value in (
            *seconds.items(),
            *(("timeout", acks.timeout), ("waiting", acks.waiting)),
        ):
            if value is not None and not 0 <= value < _MAX_SECONDS:
                raise ValueError(f"{name} is not a number of seconds")
        if len(acks.doubt) > _MAX_TEXT_CHARS:
            raise ValueError("doubt is not a short text")
        return sight


def doubt(sights: Collection[Sight], *, watchers: int, dead_after: float) -> str | None:
    """Return why a primary is not certainly lost; None if it is.

    :param sights: of the watchers that respond.
    :param watchers: number of watchers, with those that do not respond.
    :param dead_after: seconds for which a majority must see it lost.
    """
    # More may run than were configured.
    watchers = max(watchers, len(sights))
    alive = sum(sight.lost_for is None for sight in sights)
    if alive:
        return f"{alive} of {watchers} watchers still see it"
    lost = [
        sight
        for sight in sights
        if sight.lost_for is not None and sight.lost_for >= dead_after
    ]
    if 2 * len(lost) <= watchers:
        return (
            f"{len(lost)} of {watchers} watchers have not seen it for "
            f"{dead_after:g} s, which is no majority"
        )
    return None


def probe_of(sights: Collection[Sight], now: float) -> SemiSyncProbe | None:
    """Return the last look at a lost primary, of any watcher.

    :param sights: of all watchers, which do not see it any more.
    :param now: seconds since the epoch; it is not seen until then.
    """
    seen = [sight for sight in sights if sight.seen_ago is not None]
    if not seen:
        return None
    last = min(seen, key=lambda sight: sight.seen_ago or 0.0)
    return SemiSyncProbe(seen=now - (last.seen_ago or 0.0), lost=now, acks=last.acks)


@dataclass(frozen=True, kw_only=True)
class Watched(JsonObject):
    """The watchers of a fleet, and their votes.

    :ivar leader: name of the watcher that leads; None if none does.
    :ivar votes: the vote of each, by its name and the address of the primary;
        None if its vote is not valid.
    """

    leader: str | None
    votes: Mapping[str, Mapping[str, Sight] | None]

    def __str__(self) -> str:
        if not self.votes:
            return "watchers: none"
        valid = [vote for vote in self.votes.values() if vote is not None]
        lines = [f"watchers: {len(valid)}, led by {self.leader or 'none'}"]
        for address in sorted({key for vote in valid for key in vote}):
            sights = [vote[address] for vote in valid if address in vote]
            seen = sum(sight.lost_for is None for sight in sights)
            lines.append(f"primary {address}: {seen} of {len(sights)} watchers see it")
        lines += [
            f"watcher {name}: its vote is not valid"
            for name, vote in self.votes.items()
            if vote is None
        ]
        return "\n".join(lines)


def watched(fleet: Fleet) -> Watched:
    """Return the votes of the watchers of a fleet.

    :param fleet: its topology must be in ZooKeeper.
    :raises TopologyUnavailableError: if ZooKeeper does not respond.
    """
    hosts, options = zookeeper_options(fleet.location)
    with closing(ZooKeeperStore(hosts, options=options)) as store:
        leader = store.read(_LEADER)
        votes: dict[str, Mapping[str, Sight] | None] = {}
        for name in sorted(store.names(_VOTES)):
            node = store.read(f"{_VOTES}/{name}")
            if node is not None:
                try:
                    votes[name] = vote_of(node.data)
                except ValueError:
                    votes[name] = None
    return Watched(
        leader=None if leader is None else leader.data.decode(errors="replace"),
        votes=votes,
    )


class Votes:
    """The votes at the location of a fleet.

    :param fleet: its topology must be in ZooKeeper.
    :param stale: seconds after which a vote that is not renewed is ignored.
    :raises FleetSetupError: if the topology is a file.
    """

    def __init__(self, fleet: Fleet, *, stale: float) -> None:
        if not is_zookeeper(fleet.location):
            raise FleetSetupError(
                f"{fleet.location} is not in ZooKeeper, where watchers vote; push the "
                "topology there: sqla-shard -t zookeeper://... topology push FILE"
            )
        hosts, options = zookeeper_options(fleet.location)
        self.name: str = uuid.uuid4().hex
        self._stale = stale
        self._mine = f"{_VOTES}/{self.name}"
        # Version of each vote, and when it was older.
        self._renewed: dict[str, tuple[int, float | None]] = {}
        self._collected = 0.0
        self._store = ZooKeeperStore(
            hosts, options={**options, "timeout": fleet.session_timeout}
        )

    def close(self) -> None:
        """End the session, and with it the vote."""
        self._store.close()

    def cast(self, sights: Mapping[str, Sight]) -> None:
        """Replace the vote of this watcher.

        :param sights: by the address of the primary.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        data = json.dumps(
            {name: asdict(sight) for name, sight in sights.items()}
        ).encode()
        node = self._store.read(self._mine)
        if node is not None:
            self._store.commit(Replace(self._mine, data, node.version))
            return
        self._store.prepare(_VOTES, like=TOPOLOGY)
        self._store.commit(Create(self._mine, data, is_ephemeral=True))

    def collect(self) -> tuple[list[dict[str, Sight]], list[str]]:
        """Return the votes that are renewed, and the problems of others.

        :returns: votes by the address of the primary, and a sentence for each
            that is not valid.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        now = time.monotonic()
        found = []
        problems = []
        renewed = {}
        for name in self._store.names(_VOTES):
            node = self._store.read(f"{_VOTES}/{name}")
            if node is None:
                continue
            version, when = self._renewed.get(name, (node.version, None))
            if name == self.name:
                when = now
            elif version != node.version:
                # It was cast since the last call, which may be a while ago.
                when = self._collected
            # One that was never seen to change may be of a dead process.
            renewed[name] = node.version, when
            try:
                vote = vote_of(node.data)
            except ValueError as error:
                problems.append(
                    f"the vote of the watcher {name[:40]!r} does not count: "
                    f"{str(error)[:100]}; update or stop that watcher, or "
                    f"delete {_VOTES}/{name[:40]}"
                )
                continue
            if when is not None and now - when <= self._stale:
                found.append({key: one.later(now - when) for key, one in vote.items()})
        self._renewed = renewed
        self._collected = now
        return found, problems

    def leads(self) -> bool:
        """Return whether this watcher leads; it does if no other one does.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        node = self._store.read(_LEADER)
        if node is not None:
            return node.data == self.name.encode()
        new = Create(_LEADER, self.name.encode(), is_ephemeral=True)
        return self._store.commit(new) is not None

    def is_pending(self) -> bool:
        """Return whether the fleet has a pending operation.

        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        node = self._store.read(OPERATION)
        return node is not None and bool(node.data)


def vote_of(data: bytes) -> dict[str, Sight]:
    """Return the vote in a node, by the address of the primary.

    :raises ValueError: if it is not valid.
    """
    document = parsed_object(data, MAX_BYTES)
    return {name: Sight.from_dict(one) for name, one in document.items()}


def _object(document: Any, kind: type[Any]) -> None:
    names = {one.name for one in fields(kind)}
    if not isinstance(document, dict) or document.keys() != names:
        raise ValueError("it is not of this version")
