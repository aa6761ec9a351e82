"""Checks that the values of a topology document agree with each other.

Each check takes drafts and yields problems; it skips values with problems of
their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.topology.databases import collisions, faults, Template, Tenant
from sqla_shard.topology.keyspaces import bounds, gaps, Keyspace, Server, ShardRange
from sqla_shard.topology.parse import (
    brief,
    Draft,
    in_document_order,
    parse,
    ServerDraft,
)
from sqla_shard.topology.shorthand import expand, is_short
from sqla_shard.topology.urls import Address, Policy


def validate(drafts: Iterable[Draft], problems: list[Problem]) -> None:
    """Record the problems between values of keyspaces.

    :param drafts: every keyspace of the topology.
    :param problems: list to which problems are appended.
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
            problems += _unnamed(draft)
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
                f"{server.label} is already the name of "
                f"{seen[server.name].place}; give each server its own name",
            )
        seen.setdefault(server.name, server)


def _addresses(servers: list[ServerDraft]) -> Iterator[Problem]:
    families: dict[str, str] = {}
    primaries: dict[Address, ServerDraft] = {}
    for server in servers:
        for role, url in (("primary", server.primary), ("standby", server.standby)):
            if url is None or url.address is None:
                continue
            family = url.address.family
            families.setdefault(family, f"the {role} of {server.label}")
            first = next(iter(families))
            if family != first:
                yield Problem(
                    f"{server.place}.{role}",
                    f"is on {family}, but {families[first]} is on {first}; "
                    "use one kind of server for all of a keyspace",
                )
        if server.primary is None or server.primary.address is None:
            continue
        primary = server.primary.address
        if server.standby and server.standby.address == primary:
            yield Problem(
                f"{server.place}.standby",
                f"{primary} is the primary itself; name another server, or "
                "omit the standby",
            )
        if primary in primaries:
            # Two pools would double the connections of the machine, and a
            # session would open two transactions on it.
            yield Problem(
                f"{server.place}.primary",
                f"{primary} is already the primary of "
                f"{primaries[primary].label}; write one server with a list of "
                "ranges",
            )
        primaries.setdefault(primary, server)


def _single(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if len(servers) != 1:
        yield Problem(
            f"{draft.place}.servers",
            f"has {len(servers)} servers, but a global keyspace is one "
            "database; write one server, and a keyspace for each other one",
        )


def _past_the_end(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if draft.shards is None:
        return
    for server in servers:
        for place, item in server.ranges:
            if item.last >= draft.shards:
                rest = ShardRange(max(item.first, draft.shards), item.last)
                yield Problem(
                    place,
                    f"[{item.first}, {item.last}] exceeds the last open "
                    f"shard, {draft.shards - 1}: end it there, or open "
                    f"{rest} with {draft.place}.shards = {item.last + 1}",
                )


def _overlaps(servers: list[ServerDraft]) -> Iterator[Problem]:
    # A range: its server, its index in that server's list, and its path in the
    # document.
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
                f"{both} {_is(both)} {where}; assign each shard to the one "
                "server that has its data",
            )
        if item.last > other.last:
            reach = [entry]


def _gaps(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if draft.shards is None or not all(one.is_complete for one in servers):
        # A range that could not be parsed would be reported as a gap.
        return
    ranges = [item for server in servers for _, item in server.ranges]
    for gap in gaps(ranges, draft.shards):
        yield Problem(
            f"{draft.place}.servers",
            f"{gap} of the {draft.shards} open {_is(gap)} on no server; add "
            f"[{gap.first}, {gap.last}] to the server that has the data",
        )


def _is(item: ShardRange) -> str:
    return "is" if len(item) == 1 else "are"


def _weights(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if all(server.weight == 0 for server in servers):
        yield Problem(
            f"{draft.place}.servers",
            "all weights are 0, so no server would get new objects; give at "
            "least one server a weight above 0",
        )


def _unnamed(draft: Draft) -> Iterator[Problem]:
    """Yield open shards that the ids of the keyspace cannot name."""
    if draft.id_layout is None or draft.shards is None:
        return
    most = draft.id_layout.max_shard_id + 1
    if draft.shards > most:
        yield Problem(
            f"{draft.place}.shards",
            f"{draft.shards} is out of range: {draft.id_layout} name {most} shards",
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
    # For each keyspace: the first keyspace with a common name, and the
    # address.
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


_T = TypeVar("_T")


class Checked(dict[str, Keyspace]):
    """Keyspaces that have passed all checks, and their epoch.

    Only :func:`load` creates it.

    :ivar epoch: epoch of the document.
    :ivar resets: resets of the document.
    """

    def __init__(self, epoch: int, resets: int, keyspaces: Iterable[Keyspace]) -> None:
        super().__init__((one.name, one) for one in keyspaces)
        self.epoch = epoch
        self.resets = resets


def load(document: object, *, source: str, policy: Policy, url: str) -> Checked:
    """Return the keyspaces by name, and the epoch.

    :param document: the full or the short form.
    :param source: origin of the document, for errors.
    :param policy: the placeholders that the document may use.
    :param url: template for the bare hosts of the short form.
    :raises TopologyError: if the document is not valid; lists all problems, in
        the order of the document.
    """
    problems: list[Problem] = []
    if not isinstance(document, Mapping):
        message = (
            f"{brief(document)} is not a table; a topology is one with the "
            "keys epoch and keyspaces"
        )
        raise TopologyError([Problem("document", message)], source=source)
    full, places = document, None
    if is_short(document):
        full, places = expand(document, url=url, problems=problems)
    known = len(problems)
    epoch, resets, drafts = parse(full, policy=policy, problems=problems)
    validate(drafts, problems)
    if places is not None:
        problems[known:] = map(places.restore, problems[known:])
    if problems:
        raise TopologyError(in_document_order(document, problems), source=source)
    return Checked(_given(epoch), _given(resets), map(_keyspace, drafts))


def _keyspace(draft: Draft) -> Keyspace:
    is_global = draft.kind == "global"
    return Keyspace(
        name=draft.name,
        kind=_given(draft.kind),
        shards=_given(draft.shards),
        database=_given(draft.database),
        servers=tuple(
            _server(server, is_global=is_global) for server in _given(draft.servers)
        ),
        id_layout=_given(draft.id_layout),
    )


def _server(draft: ServerDraft, *, is_global: bool) -> Server:
    return Server(
        name=_given(draft.name),
        primary=_given(draft.primary).text,
        standby=None if draft.standby is None else draft.standby.text,
        shards=(ShardRange(0, 0),)
        if is_global
        else tuple(item for _, item in draft.ranges),
        weight=_given(draft.weight),
        generation=draft.generation,
    )


def _given(value: _T | None) -> _T:
    if value is None:
        raise AssertionError("a draft without a value and without a problem")
    return value
