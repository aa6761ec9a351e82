"""Databases of one keyspace, compared with one of them."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from difflib import unified_diff

from sqla_shard.dialects.catalogue import DATABASE
from sqla_shard.schema.drift.reading import Copy
from sqla_shard.schema.drift.report import Copies
from sqla_shard.schema.drift.report import Role
from sqla_shard.schema.drift.report import TableDrift
from sqla_shard.schema.drift.report import Variant

__all__ = ["compared", "gathered"]

#: How many variants of a table are shown by their difference.
_SHOWN = 16


def compared(copies: Sequence[Copy], reference: Copy) -> Iterator[TableDrift]:
    """Yield the tables that are not the same everywhere.

    :param copies: all databases, the reference among them.
    """
    tables = {
        table
        for copy in copies
        # Equal databases of a server share one mapping.
        if copy.tables is not reference.tables
        and copy.tables != reference.tables
        for table in copy.tables.keys() | reference.tables.keys()
        if copy.tables.get(table) != reference.tables.get(table)
    }
    for table in sorted(tables):
        yield _drift(table, copies, reference)


def gathered(
    found: Mapping[tuple[str, Role], list[int]],
) -> tuple[Copies, ...]:
    """Return shards by server and role, in order."""
    return tuple(
        Copies(server=server, role=role, shards=tuple(sorted(shards)))
        for (server, role), shards in sorted(found.items())
    )


def _drift(table: str, copies: Sequence[Copy], reference: Copy) -> TableDrift:
    groups: dict[str | None, list[Copy]] = {}
    for copy in copies:
        groups.setdefault(copy.tables.get(table), []).append(copy)
    digest = reference.tables.get(table)
    same = groups.pop(digest)
    frequent = sorted(groups.items(), key=lambda group: -len(group[1]))
    text = reference.end.definition(reference.shard, table) if digest else ""
    others = [
        _variant(
            group,
            exists=other is not None,
            diff=_diff(table, group[0], reference, text)
            if digest and other and index < _SHOWN
            else "",
        )
        for index, (other, group) in enumerate(frequent)
    ]
    return TableDrift(
        table=None if table == DATABASE else table,
        suspect=others[0].count * 2 > len(copies),
        reference=_variant(same, exists=digest is not None),
        others=tuple(others),
    )


def _variant(group: list[Copy], *, exists: bool, diff: str = "") -> Variant:
    found: dict[tuple[str, Role], list[int]] = {}
    for copy in group:
        end = copy.end.server.name, copy.end.role
        found.setdefault(end, []).append(copy.shard)
    return Variant(
        exists=exists, count=len(group), copies=gathered(found), diff=diff
    )


def _diff(table: str, example: Copy, reference: Copy, text: str) -> str:
    """Return how the definition of an example differs from a text."""
    other = example.end.definition(example.shard, table)
    lines = list(
        unified_diff(
            text.split("\n"),
            other.split("\n"),
            reference.end.named(reference.shard),
            example.end.named(example.shard),
            lineterm="",
            n=1,
        )
    )
    if not lines:
        return (
            f"({example.end.named(example.shard)}: the texts of the "
            "definitions are equal by now)"
        )
    return "\n".join(lines)
