"""Checks of the servers of a topology, before it is published.

Publishing connects to no server: a topology with the address of a server that
is not there, or not ready, would be followed by every process at once.  These
checks use the accounts of the topology, as the applications do, and change
nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from sqlalchemy.engine import URL

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.registry import filled
from sqla_shard.exc.base import shortened_list
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.fleet import all_pairs, Pair
from sqla_shard.fleet.server_states import (
    all_answers,
    outage,
    read_states,
    reason_of,
    Role,
    ServerState,
)
from sqla_shard.schema.ledger import read_versions, revisions_text, Version
from sqla_shard.schema.selection import shards_of
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.json_values import JsonObject

#: Name of alembic's table.
_VERSION_TABLE = "alembic_version"
_SCHEMA = "sqla-shard schema"

#: The name of a pair and the role of a server in it.
_Key = tuple[str, Role]


@dataclass(frozen=True, kw_only=True)
class ServerFault(JsonObject):
    """A server because of which a topology must not be published.

    :ivar server: name of the server, such as ``server2 (standby)``.
    :ivar address: ``host:port``, or the directory of SQLite files.
    :ivar what: the problem, with the affected shards.
    :ivar remedy: the remedy.
    :ivar is_read: whether the server could be read.
    """

    server: str
    address: str
    what: str
    remedy: str
    is_read: bool = True

    def __str__(self) -> str:
        if not self.is_read:
            return f"{self.what}; {self.remedy}"
        return f"{self.server} ({self.address}) {self.what}; {self.remedy}"


def server_faults(
    cluster: Cluster, environ: Mapping[str, str], *, timeout: float
) -> list[ServerFault]:
    """Return the servers that are not ready, in the order of the topology.

    Each server must respond.  A primary must accept writes and have all its
    databases, with the revision that most shards of their keyspace have, and
    no unfinished one.  A standby must refuse writes, replicate, as far as the
    account may see that, and have the databases, too.

    :param cluster: a cluster of the topology, with time limits for its
        connections; nothing else uses it.
    :param environ: values of the placeholders in URLs.
    :param timeout: seconds for each server.
    """
    topology = cluster.topology
    pairs = all_pairs(topology)
    states = read_states(pairs, partial(filled, environ=environ), timeout=timeout)
    versions = _versions(cluster, pairs, states)
    missing = _missing_on_standbys(pairs, states, versions, environ, timeout)
    usual = _usual(versions)
    by_name = {pair.name: pair for pair in pairs}
    found = []
    for (name, role), state in states.items():
        pair = by_name[name]
        faults = list(_of_state(pair, state))
        if role == "primary":
            faults += _of_versions(versions.get(name, ()), usual)
        elif missing.get(name):
            remedy = f"sqla-shard fleet replica rebuild {name}"
            faults.append(
                (
                    f"lacks databases ({shortened_list(missing[name], 3)})",
                    f"wait until it has replicated them, or: {remedy}",
                )
            )
        if faults:
            found.append(_joined(state, faults))
    return found


#: A problem of a server, and the remedy.
_Fault = tuple[str, str]


def _joined(state: ServerState, faults: Iterable[_Fault]) -> ServerFault:
    """Return one line for all faults of a server."""
    whats, remedies = zip(*faults, strict=True)
    standby = " (standby)" if state.role == "standby" else ""
    return ServerFault(
        server=f"{state.name}{standby}",
        address=state.address,
        what=", and ".join(whats),
        remedy="; ".join(dict.fromkeys(remedies)),
        is_read=state.error is None,
    )


def _of_state(pair: Pair, state: ServerState) -> Iterator[_Fault]:
    if state.error is not None:
        yield (
            str(outage(pair, state.role, why=state.error, number=state.error_number)),
            "start it, or correct its address or account",
        )
        return
    for problem in state.problems:
        if problem == "is read-only":
            remedy = "if it is to be the primary: SET GLOBAL read_only = OFF there"
        elif problem == "is not read-only":
            remedy = "SET GLOBAL read_only = ON there"
        else:
            remedy = f"sqla-shard fleet replica rebuild {pair.name}"
        yield problem, remedy


def _versions(
    cluster: Cluster, pairs: Iterable[Pair], states: Mapping[_Key, ServerState]
) -> dict[str, list[Version]]:
    """Return the versions of the shards of each primary that was read."""
    places = cluster.places
    owners = {
        (keyspace.name, server.name): pair.name
        for pair in pairs
        for keyspace, server in pair.members
        if states[pair.name, "primary"].error is None
    }
    found: dict[str, list[Version]] = {}
    for keyspace in places.topology.keyspaces.values():
        shards = [
            shard
            for shard in shards_of(places, keyspace)
            if (keyspace.name, shard.server) in owners
        ]
        for version in read_versions(places, shards, _VERSION_TABLE):
            shard = version.shard
            owner = owners[shard.keyspace, shard.server]
            found.setdefault(owner, []).append(version)
    return found


def _usual(versions: Mapping[str, Iterable[Version]]) -> dict[str, tuple[str, ...]]:
    """Return the revisions that most shards of each keyspace have."""
    counts: dict[str, Counter[tuple[str, ...]]] = {}
    for on_server in versions.values():
        for one in on_server:
            if one.heads:
                count = counts.setdefault(one.shard.keyspace, Counter())
                count[one.heads] += 1
    return {keyspace: count.most_common(1)[0][0] for keyspace, count in counts.items()}


def _of_versions(
    versions: Iterable[Version], usual: Mapping[str, tuple[str, ...]]
) -> Iterator[_Fault]:
    """Yield the problems of the databases of one primary."""
    shards: dict[tuple[str, _Fault], list[int]] = {}
    versions = list(versions)
    has_several = len({one.shard.keyspace for one in versions}) > 1
    for one in versions:
        fault = _of_version(one, usual.get(one.shard.keyspace))
        if fault is not None:
            key = one.shard.keyspace, fault
            shards.setdefault(key, []).append(one.shard.shard_id)
    for (keyspace, (what, remedy)), ids in shards.items():
        count = f"{len(ids)} shard{'s' if ids[1:] else ''}"
        if has_several and _SCHEMA in remedy:
            # Without it the command would be about another keyspace.
            remedy += f" (with schema --name, the section of {keyspace})"
        yield f"has {count} {as_ranges(ids)} of {keyspace} {what}", remedy


def _of_version(version: Version, usual: tuple[str, ...] | None) -> _Fault | None:
    if version.error is not None:
        return (
            f"that could not be read ({' '.join(version.error.split())})",
            "grant the account of the topology what it needs there",
        )
    provision = f"{_SCHEMA} provision"
    if usual is None:
        provision += " --initial"
    if version.is_missing:
        return "without a database", f"create them: {provision}"
    if version.open is not None:
        return (f"with an unfinished {version.open.step}", f"see: {_SCHEMA} status")
    if not version.heads:
        others = "" if usual is None else f" (others: {revisions_text(usual)})"
        return f"without a revision{others}", f"create them: {provision}"
    if version.heads != usual:
        heads = revisions_text(version.heads)
        others = revisions_text(usual or ())
        return f"at {heads} (others: {others})", f"{_SCHEMA} upgrade"
    return None


def _missing_on_standbys(
    pairs: Iterable[Pair],
    states: Mapping[_Key, ServerState],
    versions: Mapping[str, Iterable[Version]],
    environ: Mapping[str, str],
    timeout: float,
) -> dict[str, list[str]]:
    """Return the databases of primaries that each standby lacks.

    One text says why a standby could not be read.

    A standby that was not read has a fault already.
    """
    standbys = [
        (pair, filled(pair.standby, environ))
        for pair in pairs
        if pair.standby is not None
        # A directory of SQLite files has no standby that is replicated.
        and not pair.standby.startswith("sqlite")
        and states[pair.name, "standby"].error is None
    ]

    def missing(pair: Pair, url: URL) -> list[str]:
        there = {
            one.shard.database
            for one in versions.get(pair.name, ())
            if not one.is_missing
        }
        with Admin(url, name=pair.name, timeout=timeout) as admin:
            return sorted(there - {*admin.databases()})

    found = all_answers(
        [partial(missing, pair, url) for pair, url in standbys], timeout
    )
    return {
        pair.name: result
        if isinstance(result, list)
        else [f"not known: {reason_of(result)}"]
        for (pair, _), result in zip(standbys, found, strict=True)
    }
