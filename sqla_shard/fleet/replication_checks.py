"""Checks of the doctor: write access, and replication of standbys."""

from __future__ import annotations

from sqla_shard.fleet.facts import FleetFacts, PairFacts, ServerFacts
from sqla_shard.fleet.findings import (
    critical,
    Findings,
    fleet_check,
    info,
    pair_check,
    server_check,
    standby_check,
    warning,
)

SEMI_SYNC_TIMEOUT = 25.0
"""Seconds that semi-sync should wait at least: afterwards it gives up."""

NET_TIMEOUT = 4
"""Seconds without a packet after which a standby should connect again."""

_CLOSE = "SET GLOBAL read_only = 1"


def _acknowledge(standby: ServerFacts) -> str:
    """Return the statements that let a standby acknowledge."""
    words = standby.words
    replica = words.REPLICA
    return (
        f"on {standby.address}: SET GLOBAL {words.SEMI_SYNC[1]}_enabled = 1; "
        f"STOP {replica} IO_THREAD; START {replica} IO_THREAD"
    )


def _change(standby: ServerFacts, option: str, thread: str, *before: str) -> str:
    """Return the statements that change how a standby replicates.

    :param thread: the only one that MySQL must stop for it.  If both are
        stopped, CHANGE deletes what was received and not applied.
    :param before: other statements, which come first.
    """
    words = standby.words
    change = words.CHANGE.partition(" TO ")[0]
    # MariaDB changes nothing while one of them runs.
    only = "" if standby.version.is_mariadb else f" {thread}"
    text = "; ".join(
        (
            *before,
            f"STOP {words.REPLICA}{only}",
            f"{change} TO {option}",
            f"START {words.REPLICA}{only}",
        )
    )
    if standby.version.is_mariadb:
        text += "; while its primary runs: it receives again what it has not applied"
    return f"on {standby.address}: {text}"


@standby_check
def two_writable(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """The worst that can be: both servers of a pair take writes."""
    if standby.is_on("read_only"):
        return
    verify = f"compare the servers: sqla-shard fleet verify {pair.name}"
    # A lost primary says nothing.
    if pair.primary.has("variables") and pair.primary.is_on("read_only"):
        yield critical(
            standby,
            "is writable, and its primary is read-only: a failover was not "
            "finished, or was done by hand",
            f"sqla-shard fleet status; else on {standby.address}: {_CLOSE}; " + verify,
        )
    else:
        yield critical(
            standby,
            "is writable, as only its primary may be: what applications write to "
            "it is lost, and its ids are assigned twice",
            f"on {standby.address}: {_CLOSE}; {verify}",
        )


@pair_check
def primary_closed(pair: PairFacts, _: FleetFacts) -> Findings:
    """A primary that does not take writes, such as after a restart."""
    if pair.primary.is_on("read_only"):
        yield critical(
            pair.primary,
            "is read-only: applications cannot write",
            f"sqla-shard fleet reopen {pair.name}",
        )


@server_check
def writable_outside(server: ServerFacts, fleet: FleetFacts) -> Findings:
    """A former server that still takes writes from old processes."""
    if server.role == "other" and not server.is_on("read_only"):
        shards = sum(fleet.shard_of(one) is not None for one in server.databases)
        if shards:
            yield critical(
                server,
                f"is writable, is not in the topology, and has {shards} "
                "databases with names of its shards",
                f"on {server.address}: {_CLOSE}",
            )


@fleet_check
def operation(fleet: FleetFacts) -> Findings:
    """An operation that is running, or was interrupted."""
    found = fleet.operation
    if found is None or found.pending is None:
        return
    title = found.pending.record.title
    if found.is_interrupted:
        yield critical("fleet", f"{title} was interrupted", " or ".join(found.commands))
    else:
        yield info(
            "fleet",
            f"{title} is running, so findings may be temporary",
            "wait for its end: sqla-shard fleet status",
        )


@pair_check
def no_standby(pair: PairFacts, _: FleetFacts) -> Findings:
    """A primary whose loss is the loss of its data."""
    if pair.standby is None:
        yield warning(
            pair.primary,
            "has no standby",
            f"sqla-shard fleet replica build {pair.name} HOST:PORT",
        )


@standby_check
def replication_stopped(
    standby: ServerFacts, pair: PairFacts, _: FleetFacts
) -> Findings:
    """A standby that does not receive, or does not apply."""
    status = standby.status
    if status is None:
        yield critical(standby, "does not replicate", pair.rebuild())
    elif not status.runs:
        reason = f": {status.error}" if status.error else ""
        yield critical(
            standby,
            f"does not replicate: receiver {status.receiver}, applier "
            f"{status.applier}{reason}",
            f"on {standby.address}: START {standby.words.REPLICA}; if it "
            f"stops again: {pair.rebuild()}",
        )


@standby_check
def other_source(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """A standby of another server than its primary."""
    status = standby.status
    if status and status.source_id and status.source_id != pair.primary.server_id:
        yield critical(
            standby,
            f"replicates from {status.source} (server_id {status.source_id}), "
            f"not from {pair.primary} (server_id {pair.primary.server_id})",
            pair.rebuild(),
        )


@standby_check
def errant(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """Writes that only the standby has."""
    if origins := pair.errant:
        yield critical(
            standby,
            f"has {sum(origins.values()):,} transactions that its primary does not "
            f"have (origins {', '.join(sorted(origins))})",
            f"save its binary log, then: {pair.rebuild('--discard-errant')}",
        )


@standby_check
def incomplete_replication(
    standby: ServerFacts, pair: PairFacts, _: FleetFacts
) -> Findings:
    """Filters, and positions in files."""
    status = standby.status
    if status is None:
        return
    rebuild = pair.rebuild()
    if status.filters:
        yield critical(
            standby,
            f"leaves out data: {', '.join(status.filters)}",
            f"remove the filters from its configuration, then: {rebuild}",
        )
    if not status.uses_gtid:
        yield critical(standby, "does not find its position by GTID", rebuild)


@standby_check
def relay_log(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """A standby of MySQL that a restart lets forget what it had received."""
    if standby.version.is_mariadb:
        # MariaDB forgets it with GTIDs whatever the variable is.
        return
    if standby.is_on("relay_log_recovery"):
        yield critical(
            standby,
            "deletes at a restart what it has received and not applied: "
            "acknowledged writes are lost if its primary is lost then",
            "set relay_log_recovery = OFF in its configuration, and restart "
            "it while it has applied everything",
        )


@pair_check
def chained_primary(pair: PairFacts, _: FleetFacts) -> Findings:
    """A primary that replicates: its source can write to it."""
    status = pair.primary.status
    if status is not None:
        replica = pair.primary.words.REPLICA
        yield critical(
            pair.primary,
            f"replicates from {status.source} although it is a primary",
            "sqla-shard fleet status; if no operation is running, on "
            f"{pair.primary.address}: STOP {replica}; RESET {replica} ALL",
        )


@standby_check
def lag(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """A standby that is late, measured and not as it says."""
    status = standby.status
    if status is not None and status.runs and pair.late:
        says = "unknown" if status.lag is None else f"{status.lag} s"
        yield warning(
            standby,
            f"has not applied within {pair.late:g} s what its primary had committed "
            f"(lag by its own account: {says}): a failover would wait or be refused",
            f"on {standby.address}: look for long statements and locks with "
            f"SHOW PROCESSLIST, and raise {standby.words.APPLIERS}; look for full "
            "disks in the error logs of both",
        )


@standby_check
def delay(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """A standby that is late on purpose."""
    if standby.status is None or not standby.status.delay:
        return
    words = standby.words
    yield warning(
        standby,
        f"applies everything {standby.status.delay:,} s late "
        f"({words.SOURCE}_DELAY): a failover waits for so long, or is undone",
        _change(standby, f"{words.SOURCE}_DELAY = 0", "SQL_THREAD"),
    )


@standby_check
def silent_primary(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """A standby that finds its primary silent too late, or while it is idle."""
    state = pair.primary.semi_sync
    words = standby.words
    limit = standby.number(words.NET_TIMEOUT)
    remedy = _change(
        standby,
        f"{words.SOURCE}_HEARTBEAT_PERIOD = {NET_TIMEOUT // 2}",
        "IO_THREAD",
        f"SET GLOBAL {words.NET_TIMEOUT} = {NET_TIMEOUT}",
    )
    beat = standby.heartbeat
    if beat is not None and limit and not 0 < beat < limit:
        yield warning(
            standby,
            f"has {words.NET_TIMEOUT} = {limit}, and its primary sends a "
            f"heartbeat every {beat:g} s: while nothing is written it loses its "
            "connection again and again, and semi-sync with it",
            remedy,
        )
    elif state is not None and state.source_enabled and 2 * limit > state.timeout:
        yield warning(
            standby,
            f"has {words.NET_TIMEOUT} = {limit}: if the machine of its primary "
            "is silent, no watcher replaces it before semi-sync stops waiting "
            f"after {state.timeout:g} s",
            f"{remedy}; and in its configuration",
        )


@standby_check
def semi_sync_lost(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """Semi-sync that has fallen back to asynchronous replication."""
    state = pair.primary.semi_sync
    if state and state.source_enabled and not state.source_on:
        yield critical(
            pair.primary,
            "has fallen back to asynchronous replication: the writes that "
            "it acknowledges now are lost if it dies "
            f"({state.standbys} standbys acknowledge)",
            f"make the standby replicate with semi-sync, {_acknowledge(standby)}; the "
            "next write then switches it on",
        )


@standby_check
def semi_sync(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """Semi-sync as a failover without loss needs it."""
    state = pair.primary.semi_sync
    source = pair.primary.words.SEMI_SYNC[0]
    on = f"on {pair.primary.address}: SET GLOBAL {source}_"
    if state is None and not pair.primary.version.is_mariadb:
        plugins = " and ".join(
            f"INSTALL PLUGIN rpl_semi_sync_{one} SONAME 'semisync_{one}.so'"
            for one in ("source", "replica")
        )
        yield warning(
            pair.primary,
            "has no semi-sync: acknowledged writes can be lost with it",
            f"{plugins}, on it and on its standby, then look again",
        )
        return
    if state is None or not state.source_enabled:
        yield warning(
            pair.primary,
            "has semi-sync switched off: acknowledged writes can be lost with it",
            # A configuration would apply to a server without a standby, too,
            # where each COMMIT waits for its timeout.
            f"{on}enabled = 1, and not in its configuration; failovers and "
            "splits pass it on",
        )
        return
    if not state.after_sync:
        yield warning(
            pair.primary,
            "shows rows to readers before the standby has them "
            f"({source}_wait_point is AFTER_COMMIT)",
            f"{on}wait_point = AFTER_SYNC, and in its configuration",
        )
    if state.timeout < SEMI_SYNC_TIMEOUT:
        yield warning(
            pair.primary,
            "falls back to asynchronous replication after "
            f"{state.timeout:g} s without its standby",
            f"{on}timeout = {1000 * SEMI_SYNC_TIMEOUT:.0f}, and in its configuration",
        )
    other = standby.semi_sync
    if other is None or not other.replica_on:
        yield warning(
            standby,
            "does not acknowledge as a standby of semi-sync",
            _acknowledge(standby),
        )
