"""Checks of the doctor: settings, versions, clocks, and usage."""

from __future__ import annotations

from sqla_shard.fleet.facts import FleetFacts, NotReadError, PairFacts, ServerFacts
from sqla_shard.fleet.findings import (
    critical,
    Findings,
    fleet_check,
    info,
    server_check,
    standby_check,
    warning,
)

BINLOG_SECONDS = 86_400
"""Age that binary logs should reach: a standby may be away for so long."""

CLOCK_SECONDS = 2.0
"""Seconds by which the clock of a server may differ."""

CONNECTIONS = 0.8
"""Part of ``max_connections`` that may be in use."""

#: The first MariaDB that a failover can attach to the new primary.
_DEMOTES = (10, 10)
#: What statements of applications mean, and which are accepted: a failover must
#: not change it.
_ALIKE = (
    "auto_increment_increment",
    "auto_increment_offset",
    "character_set_server",
    "collation_server",
    "explicit_defaults_for_timestamp",
    "innodb_strict_mode",
    "lower_case_table_names",
    "max_allowed_packet",
    "sql_mode",
    "transaction_isolation",
    "tx_isolation",
)
_DURABLE = (("sync_binlog", "1"), ("innodb_flush_log_at_trx_commit", "1"))


@server_check
def binary_log(server: ServerFacts, _: FleetFacts) -> Findings:
    """A server that cannot have a standby."""
    if not server.is_on("log_bin"):
        yield critical(
            server,
            "has no binary log, so it cannot have a standby",
            "set log_bin in its configuration, and restart it",
        )


@server_check
def settings(server: ServerFacts, _: FleetFacts) -> Findings:
    """Settings without which operations are refused."""
    for name, wanted in server.words.FIT.items():
        value = server.variables.get(name, "missing")
        if value != wanted:
            yield warning(
                server,
                f"has {name} = {value}: a failover or a split is refused, or "
                "replication can go wrong without an error",
                f"set {name} = {wanted} in its configuration, and restart it",
            )
    if server.version.is_mariadb and server.version.number < _DEMOTES:
        yield warning(
            server,
            f"is {server.version}: a former primary is attached with "
            "MASTER_DEMOTE_TO_SLAVE, which needs MariaDB 10.10",
            "upgrade it",
        )


@server_check
def id_step(server: ServerFacts, _: FleetFacts) -> Findings:
    """Ids that are left out: those of a shard are 36 bits."""
    name = "auto_increment_increment"
    step = server.number(name)
    if step > 1:
        yield warning(
            server,
            f"has {name} = {step}: it assigns one of {step} ids only",
            f"on {server.address}: SET GLOBAL {name} = 1, and in its configuration",
        )


@standby_check
def settings_of_pair(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """Settings that a failover would change for applications."""
    one, other = pair.primary.variables, standby.variables
    steps = {each.get("auto_increment_increment") for each in (one, other)}
    # It has no effect on ids without gaps.
    unused = "auto_increment_offset" if steps == {"1"} else None
    found = [
        f"{name} = {other[name]!r}, and its primary {one[name]!r}"
        for name in _ALIKE
        if name in one and name in other and one[name] != other[name]
        if name != unused
    ]
    if found:
        yield warning(
            standby,
            f"has {'; '.join(found)}: a failover would change what statements "
            "do, or whether they are accepted",
            "write the same into the configurations of both, and restart the standby",
        )


@fleet_check
def gtid_domains(fleet: FleetFacts) -> Findings:
    """Pairs of MariaDB that number their writes in one domain."""
    seen: dict[str, PairFacts] = {}
    for pair in fleet.pairs:
        servers = [one for one in (pair.primary, pair.standby) if one is not None]
        domains = [
            server.variables.get("gtid_domain_id") if server.has("variables") else None
            for server in servers
        ]
        if None in domains:
            # It is MySQL, or another check reports that they are unknown.
            continue
        if len(set(domains)) > 1:
            yield warning(
                servers[1],
                f"has the gtid_domain_id {domains[1]}, and its primary "
                f"{domains[0]}: a failover changes the domain of the writes",
                f"on {servers[1].address}: SET GLOBAL gtid_domain_id = "
                f"{domains[0]}, and in its configuration",
            )
        other = seen.setdefault(str(domains[0]), pair)
        if other is not pair:
            yield warning(
                pair.primary,
                f"has the gtid_domain_id {domains[0]} of {other.primary}: a "
                "server that gets writes of both, as in a split, stops "
                "replicating, or leaves some out",
                "give each pair its own gtid_domain_id, in the configuration of "
                "both of its servers, and restart them",
            )


@server_check
def durability(server: ServerFacts, _: FleetFacts) -> Findings:
    """Settings with which a power failure loses commits."""
    for name, wanted in _DURABLE:
        value = server.variables.get(name, wanted)
        if value != wanted:
            yield warning(
                server,
                f"has {name} = {value}: a power failure loses acknowledged writes",
                f"on {server.address}: SET GLOBAL {name} = {wanted}, and in "
                "its configuration",
            )


@server_check
def restarts_closed(server: ServerFacts, _: FleetFacts) -> Findings:
    """A former primary that takes writes as soon as it is back."""
    name = "read_only"
    # One that is closed now may only be so until its next restart.
    if server.configured.get(name) is False:
        yield warning(
            server,
            f"does not have {name} in its configuration: after a crash and a "
            "failover it comes back writable",
            f"set {name} = 1 in its configuration",
        )


@fleet_check
def skip_slave_start(fleet: FleetFacts) -> Findings:
    """Whether a restarted server replicates by itself."""
    silent = 0
    for server in fleet.servers:
        try:
            value = server.variables.get("skip_replica_start")
        except NotReadError:
            # Other checks report that its variables are unknown.
            continue
        silent += value is None
        if value == "OFF":
            yield warning(
                server,
                "replicates by itself after a restart",
                "set skip_replica_start = ON in its configuration",
            )
    if silent:
        yield info(
            "fleet",
            f"{silent} servers do not show whether skip-slave-start is in "
            "their configuration (MariaDB never does)",
        )


@standby_check
def versions_of_pair(standby: ServerFacts, pair: PairFacts, _: FleetFacts) -> Findings:
    """Versions between which replication is not supported."""
    one, other = pair.primary.version, standby.version
    if one.is_mariadb != other.is_mariadb:
        yield critical(
            standby,
            f"is {other}, and its primary is {one}: they cannot replace each other",
            f"{pair.rebuild()}, with a server of the same kind",
        )
    elif other.number < one.number:
        yield critical(
            standby,
            f"is {other}, older than its primary ({one}): it may not "
            "understand what it replicates",
            "upgrade it; always upgrade the standby first",
        )
    elif other.number > one.number:
        yield warning(
            standby,
            f"is {other}, and its primary {one}: after a failover the new "
            "standby is the older one",
            "upgrade the primary soon: fail over, and upgrade it then",
        )


@fleet_check
def versions_of_fleet(fleet: FleetFacts) -> Findings:
    """Servers of a fleet that a split could not move shards between."""
    found = sorted({str(s.version) for s in fleet.servers if s.has("version")})
    if len(found) > 1:
        yield info("fleet", f"has servers of {', '.join(found)}")


@fleet_check
def server_ids(fleet: FleetFacts) -> Findings:
    """Equal server ids, with which a standby ignores writes."""
    seen: dict[int, ServerFacts] = {}
    for server in fleet.servers:
        if not server.has("variables"):
            continue
        other = seen.setdefault(server.server_id, server)
        if other is not server:
            yield critical(
                server,
                f"has the server_id {server.server_id} of {other}: a standby "
                "of one ignores what the other has written",
                "give it another server_id in its configuration, and restart it",
            )


@fleet_check
def time_zones(fleet: FleetFacts) -> Findings:
    """Servers that return other values of TIMESTAMP columns."""
    found: dict[str, list[ServerFacts]] = {}
    for server in fleet.servers:
        if server.has("variables"):
            zone = server.variables.get("time_zone", "")
            if zone == "SYSTEM":
                zone = server.variables.get("system_time_zone", "")
            found.setdefault(_named(zone), []).append(server)
    usual = max(found, key=lambda one: len(found[one]), default="")
    for zone, servers in found.items():
        if zone == usual:
            continue
        for server in servers:
            yield warning(
                server,
                f"is in the time zone {zone}, others in {usual}: TIMESTAMP "
                "columns have other values there",
                f"on {server.address}: SET GLOBAL time_zone = '+00:00', and "
                "in the configuration of every server",
            )


def _named(zone: str) -> str:
    return "UTC" if zone in ("+00:00", "-00:00", "UTC", "Etc/UTC") else zone


@server_check
def clock(server: ServerFacts, _: FleetFacts) -> Findings:
    """A clock that differs from that of this machine."""
    if abs(server.clock) - server.clock_error > CLOCK_SECONDS:
        direction = "ahead of" if server.clock > 0 else "behind"
        yield warning(
            server,
            f"has a clock {abs(server.clock):.1f} s {direction} that of this machine",
            "synchronise both with NTP",
        )


@server_check
def binlog_expiry(server: ServerFacts, _: FleetFacts) -> Findings:
    """Binary logs that go too early, or never."""
    days = float(server.variables.get("expire_logs_days") or 0)
    seconds = server.number("binlog_expire_logs_seconds") or int(86_400 * days)
    if not seconds:
        yield info(
            server,
            "never deletes its binary logs",
            f"on {server.address}: SET GLOBAL binlog_expire_logs_seconds = "
            f"{7 * BINLOG_SECONDS}, and in its configuration",
        )
    elif seconds < BINLOG_SECONDS:
        yield warning(
            server,
            f"deletes binary logs after {seconds:,} s: a standby that is "
            "away for longer must be rebuilt",
            f"on {server.address}: SET GLOBAL binlog_expire_logs_seconds = "
            f"{7 * BINLOG_SECONDS}, and in its configuration",
        )


@server_check
def connections(server: ServerFacts, _: FleetFacts) -> Findings:
    """A server that will soon refuse connections."""
    most = server.number("max_connections")
    used = sum(one.user != "system user" for one in server.sessions)
    if used >= CONNECTIONS * most:
        yield warning(
            server,
            f"has {used:,} sessions of at most {most:,}",
            "make the pools of the application smaller, or raise max_connections",
        )
