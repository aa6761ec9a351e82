"""What a new topology opens, and what forbids it.

First the two topologies are compared, which asks no server.  Then all
servers of both are asked which databases they have: a database of the right
name in the wrong place may hold the objects of the virtual shard, and an
empty one beside it would hide them.

What the accounts of the topologies may not see is not seen here.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from dataclasses import replace
from functools import lru_cache
from functools import partial

from sqlalchemy.exc import DBAPIError

from sqla_shard.engines import Engines
from sqla_shard.exc import Problem
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.schema.selecting import as_ranges
from sqla_shard.schema.selecting import Shard
from sqla_shard.topology import diff
from sqla_shard.topology import Keyspace
from sqla_shard.topology import Server
from sqla_shard.topology import Topology
from sqla_shard.topology.databases import Template
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.urls import Address
from sqla_shard.topology.urls import Url

__all__ = ["Holder", "elsewhere", "holders", "refusals"]


def refusals(current: Topology, new: Topology) -> Iterator[Problem]:
    """Yield why databases must not be made for a topology.

    :param current: what applications have now.
    :param new: what they shall have once the databases are there.
    """
    changes = diff(current, new)
    if new.version <= current.version:
        yield Problem(
            "epoch",
            f"{new.epoch} is not higher than {current.epoch}, that of the "
            "current topology, so no process would take it; raise it",
        )
    for name in changes.removed_keyspaces:
        yield Problem(
            f"keyspaces.{name}",
            "is not in the new topology, which would close all of its "
            "shards; leave it there",
        )
    for kind in changes.kinds:
        yield Problem(
            f"keyspaces.{kind.keyspace}.kind",
            f"{kind.old!r} -> {kind.new!r} would look for every row "
            "elsewhere; give another kind another keyspace",
        )
    for names in changes.databases:
        yield Problem(
            f"keyspaces.{names.keyspace}.database",
            f"{names.old!r} -> {names.new!r} would look for the databases "
            f"that are there under other names; leave it at {names.old!r}",
        )
    for count in (*changes.opened, *changes.closed):
        place = f"keyspaces.{count.keyspace}.shards"
        if new.keyspace(count.keyspace).kind == "mod":
            yield Problem(
                place,
                f"{count.old} -> {count.new}: it is the modulus, and "
                f"another would look for every key elsewhere; leave it at "
                f"{count.old}",
            )
        elif count.new < count.old:
            yield Problem(
                place,
                f"{count.old} -> {count.new}: the objects of {count.shards} "
                "could not be read any more; a shard that was opened stays",
            )
    yield from _moves(current, new)


def _moves(current: Topology, new: Topology) -> Iterator[Problem]:
    """Yield shards that are elsewhere, by address and not by name."""
    for name, before in current.keyspaces.items():
        after = new.keyspaces.get(name)
        moved: dict[tuple[str, str], list[int]] = {}
        common = min(before.shards, after.shards) if after else 0
        for shard_id in range(common):
            old = before.server_for(shard_id)
            now = after.server_for(shard_id) if after else old
            if old != now and _address(old.primary) != _address(now.primary):
                moved.setdefault((_shown(old), _shown(now)), []).append(
                    shard_id
                )
        for (here, there), ids in moved.items():
            yield Problem(
                f"keyspaces.{name}.servers",
                f"shards {as_ranges(ids)} are served by {here}, and would "
                f"be by {there}: that is a move or a failover of their data, "
                "which no new database replaces; leave them where they are",
            )


@lru_cache(maxsize=1024)
def _address(url: str) -> Address | None:
    return Url(url, Policy()).address


def _shown(server: Server) -> str:
    return f"{server.name!r} ({_address(server.primary)})"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A physical server, and the databases on it.

    :ivar label: its name, for messages.
    :ivar names: of the databases; on a standby those alone that its primary
        has not.
    :ivar error: why they cannot be told, or None.
    """

    label: str
    address: Address
    names: Collection[str] = field(repr=False)
    error: str | None = None


def holders(
    engines: Engines, topologies: Iterable[Topology]
) -> dict[Address, Holder]:
    """Ask every server of some topologies, standbys too, for its databases.

    All are asked at the same time; one that does not answer is in the
    result with its error.
    """
    asked: dict[Address, Callable[[], Holder]] = {}
    pairs: dict[Address, set[Address]] = {}
    standbys: dict[Address, Callable[[], Holder]] = {}
    for keyspace, server in _servers(topologies):
        address = _address(server.primary)
        assert address is not None  # noqa: S101 - the topology was checked
        asked.setdefault(
            address, partial(_ask, engines, keyspace, server, address)
        )
        other = server.standby and _address(server.standby)
        if other:
            pairs.setdefault(other, set()).add(address)
            standbys.setdefault(
                other,
                partial(_ask, engines, keyspace, server, other, standby=True),
            )
    jobs = [*asked.values()]
    jobs += [job for address, job in standbys.items() if address not in asked]
    found = {
        holder.address: holder for holder in engines.at_once(jobs, "databases")
    }
    return {
        address: holder
        if address in asked
        else _beside(holder, [found[one] for one in pairs[address]])
        for address, holder in found.items()
    }


def _servers(
    topologies: Iterable[Topology],
) -> Iterator[tuple[Keyspace, Server]]:
    for topology in topologies:
        for keyspace in topology.keyspaces.values():
            for server in keyspace.servers:
                yield keyspace, server


def _ask(
    engines: Engines,
    keyspace: Keyspace,
    server: Server,
    address: Address,
    *,
    standby: bool = False,
) -> Holder:
    engine, _, backend = engines.locate(
        server, keyspace.database_for(0), standby=standby
    )
    label = f"{server.name} (standby)" if standby else server.name
    found = backend.catalogue.databases
    try:
        names = {name.lower() for name in found(engine)}
    except (DBAPIError, ServerUnreachableError, OSError) as error:
        return Holder(label=label, address=address, names=(), error=str(error))
    return Holder(label=label, address=address, names=names)


def _beside(standby: Holder, primaries: Iterable[Holder]) -> Holder:
    """Return a standby without what it has as the copy of its primary."""
    copies = {name for primary in primaries for name in primary.names}
    return replace(standby, names=set(standby.names) - copies)


def elsewhere(
    shards: Sequence[Shard],
    keyspace: Keyspace,
    found: dict[Address, Holder],
    topologies: Sequence[Topology],
) -> Iterator[Problem]:
    """Yield the databases of shards that are where they do not belong.

    :param found: from :func:`holders`.
    :param topologies: whose other keyspaces may have databases of these
        names, on servers of their own.
    """
    for holder in found.values():
        if holder.error is not None:
            yield Problem(
                holder.label,
                "cannot be asked which databases it has, and one of a new "
                f"shard may be among them: {holder.error}",
            )
    for shard in shards:
        own = _address(keyspace.server_for(shard.shard_id).primary)
        name = shard.database.lower()
        for address, holder in found.items():
            if (
                address != own
                and name in holder.names
                and not _is_listed(name, address, topologies)
            ):
                yield Problem(
                    f"{shard.database} on {holder.label}",
                    f"is there already, where no topology has it; it may "
                    f"hold the objects of shard {shard.shard_id}, which the "
                    f"new topology puts on {shard.server}. Look at it; then "
                    "rename it or drop it",
                )


def _is_listed(
    name: str, address: Address, topologies: Iterable[Topology]
) -> bool:
    """Tell whether a database belongs to a server by right."""
    return any(
        shard_id in held
        for keyspace, server in _servers(topologies)
        if _address(server.primary) == address
        for shard_id in [_template(keyspace).shard_of(name)]
        if shard_id is not None
        for held in server.shards
    )


def _template(keyspace: Keyspace) -> Template:
    found = Template.parse(
        keyspace.database, sharded=keyspace.kind != "global"
    )
    assert isinstance(found, Template)  # noqa: S101 - the topology was checked
    return found
