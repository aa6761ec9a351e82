"""What the values of a topology must say together.

Each check takes drafts, says nothing where it would only repeat a problem
that is already noted, and adds the rest to the list.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator

from sqla_shard.exc import Problem
from sqla_shard.topology.databases import collisions
from sqla_shard.topology.databases import faults
from sqla_shard.topology.databases import Template
from sqla_shard.topology.databases import Tenant
from sqla_shard.topology.parse import Draft
from sqla_shard.topology.parse import ServerDraft
from sqla_shard.topology.ranges import bounds
from sqla_shard.topology.ranges import gaps
from sqla_shard.topology.ranges import ShardRange
from sqla_shard.topology.urls import Address

__all__ = ["validate"]


def validate(drafts: Iterable[Draft], problems: list[Problem]) -> None:
    """Note what is wrong between the values of keyspaces.

    :param drafts: every keyspace of the topology.
    :param problems: added to.
    """
    drafts = list(drafts)
    templates = {}
    for draft in drafts:
        template = _template(draft, problems)
        if template is not None:
            templates[draft.name] = template
        if draft.servers is None:
            continue
        problems += _names(draft.servers)
        problems += _addresses(draft.servers)
        if draft.kind == "global":
            problems += _single(draft, draft.servers)
        else:
            problems += _past_the_end(draft, draft.servers)
            problems += _overlaps(draft.servers)
            problems += _gaps(draft, draft.servers)
        if draft.kind == "objects":
            problems += _weights(draft, draft.servers)
    problems += _collisions(drafts, templates)


def _template(draft: Draft, problems: list[Problem]) -> Template | None:
    if draft.database is None or draft.kind is None:
        return None
    place = f"{draft.place}.database"
    template = Template.parse(draft.database, sharded=draft.kind != "global")
    if isinstance(template, str):
        problems.append(Problem(place, template))
        return None
    wrong = [*faults(draft.database, template, (draft.shards or 1) - 1)]
    problems += (Problem(place, fault) for fault in wrong)
    return None if wrong else template


def _names(servers: list[ServerDraft]) -> Iterator[Problem]:
    seen: dict[str, ServerDraft] = {}
    for server in servers:
        if server.name is None:
            continue
        if server.name in seen:
            yield Problem(
                f"{server.place}.name",
                f"{server.label} is the name of {seen[server.name].place} "
                "already; give each server a name of its own",
            )
        seen.setdefault(server.name, server)


def _addresses(servers: list[ServerDraft]) -> Iterator[Problem]:
    families: dict[str, str] = {}
    primaries: dict[Address, ServerDraft] = {}
    for server in servers:
        for role, url in (
            ("primary", server.primary),
            ("standby", server.standby),
        ):
            if url is None or url.address is None:
                continue
            family = url.address.family
            families.setdefault(family, f"the {role} of {server.label}")
            first = next(iter(families))
            if family != first:
                yield Problem(
                    f"{server.place}.{role}",
                    f"is on {family}, but {families[first]} is on {first}; "
                    "keep one keyspace on one kind of server",
                )
        if server.primary is None or server.primary.address is None:
            continue
        primary = server.primary.address
        if server.standby and server.standby.address == primary:
            yield Problem(
                f"{server.place}.standby",
                f"{primary} is the primary itself; name another server, or "
                "leave the standby out",
            )
        if primary in primaries:
            # Two pools to one machine would double its connections, and
            # a session would open two transactions on it.
            yield Problem(
                f"{server.place}.primary",
                f"{primary} is the primary of {primaries[primary].label} "
                "already; make the two one server with a list of ranges",
            )
        primaries.setdefault(primary, server)


def _single(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if len(servers) != 1:
        yield Problem(
            f"{draft.place}.servers",
            f"has {len(servers)} servers, but a global keyspace is one "
            "database; leave one server, and make the others keyspaces",
        )


def _past_the_end(
    draft: Draft, servers: list[ServerDraft]
) -> Iterator[Problem]:
    if draft.shards is None:
        return
    for server in servers:
        for place, item in server.ranges:
            if item.last >= draft.shards:
                rest = ShardRange(max(item.first, draft.shards), item.last)
                yield Problem(
                    place,
                    f"[{item.first}, {item.last}] goes past the last open "
                    f"shard, {draft.shards - 1}: end it there, or open "
                    f"{rest} with {draft.place}.shards = {item.last + 1}",
                )


def _overlaps(servers: list[ServerDraft]) -> Iterator[Problem]:
    # A range, its server and its number there, its place.
    held = sorted(
        (
            (item, (index, number), place)
            for index, server in enumerate(servers)
            for number, (place, item) in enumerate(server.ranges)
        ),
        key=lambda entry: bounds(entry[0]),
    )
    reach = held[:1]
    for entry in held[1:]:
        item, other = entry[0], reach[0][0]
        if item.first <= other.last:
            both = ShardRange(item.first, min(item.last, other.last))
            earlier, later = sorted((reach[0], entry), key=lambda one: one[1])
            one, two = (servers[found[1][0]] for found in (earlier, later))
            where = (
                f"twice on {one.label}"
                if one is two
                else f"on {one.label} and on {two.label}"
            )
            yield Problem(
                later[2],
                f"{both} {_is(both)} {where}; leave each shard on one "
                "server, the one that has its data",
            )
        if item.last > other.last:
            reach = [entry]


def _gaps(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if draft.shards is None or not all(one.is_complete for one in servers):
        # A range that could not be read leaves a gap that is not one.
        return
    ranges = [item for server in servers for _, item in server.ranges]
    for gap in gaps(ranges, draft.shards):
        yield Problem(
            f"{draft.place}.servers",
            f"{gap} of the {draft.shards} open {_is(gap)} on no server; add "
            f"[{gap.first}, {gap.last}] to the one that has the data",
        )


def _is(item: ShardRange) -> str:
    return "is" if len(item) == 1 else "are"


def _weights(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if all(server.weight == 0 for server in servers):
        yield Problem(
            f"{draft.place}.servers",
            "every weight is 0, so that no server would take new objects; "
            "give at least one a weight above 0",
        )


def _collisions(
    drafts: list[Draft], templates: dict[str, Template]
) -> Iterator[Problem]:
    tenants: dict[Address, dict[str, Tenant]] = {}
    for draft in drafts:
        if draft.name not in templates:
            continue
        for server in draft.servers or ():
            ranges = [item for _, item in server.ranges]
            if draft.kind == "global":
                ranges = [ShardRange(0, 0)]
            for address in server.addresses:
                tenant = tenants.setdefault(address, {}).setdefault(
                    draft.name, Tenant(draft.name, templates[draft.name], [])
                )
                tenant.ranges.extend(ranges)
    # By keyspace: the first with which it has a name in common, and where.
    found: dict[str, tuple[str, str, Address]] = {}
    for address, held in tenants.items():
        for later, earlier, name in collisions(held.values()):
            found.setdefault(later.keyspace, (earlier.keyspace, name, address))
    for draft in drafts:
        if draft.name in found:
            other, name, address = found[draft.name]
            yield Problem(
                f"{draft.place}.database",
                f"{draft.database!r} names {name!r} on {address}, and so "
                f"does keyspace {other!r}; give the two keyspaces different "
                "database names",
            )
