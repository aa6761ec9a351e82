"""From keys to ids: one statement for each server, whatever number of keys."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Iterator
from typing import Any

from sqla_shard.lookup.keys import shard_of
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.statements import statements_of
from sqla_shard.paging import check_limit
from sqla_shard.scattering import scatter
from sqla_shard.types import LookupKey
from sqla_shard.types.binds import KeySlot

__all__ = ["read", "resolve_all", "resolve_many", "resolve_one"]

#: Far below the smallest max_allowed_packet in use, 16 MB: each byte of a
#: key takes two characters.
_MOST_BYTES = 2_000_000


def read(
    table: Table,
    texts: Iterable[str],
    statement: Any = None,
    timeout: float | None = None,
    **parameters: Any,
) -> list[Any]:
    """Return the rows of keys that were normalised.

    :param statement: reads them; all of their rows by default.
    :param timeout: of each statement, as for ``scatter()``.
    :param parameters: of the statement, but for ``the_keys``.
    """
    if statement is None:
        statement = statements_of(table.cls).read
    limits = None if timeout is None else scatter(timeout=timeout)
    places = table.session.places
    rows: list[Any] = []
    for groups in _groups(texts, table.keyspace.shards):
        result = table.session.execute(
            statement,
            {"the_keys": KeySlot(groups)(), **parameters},
            bind_arguments={
                "places": [
                    places.place(table.keyspace, shard_id)
                    for shard_id in sorted(groups)
                ],
                "limits": limits,
            },
        )
        rows += result.all()
    return rows


def _groups(
    texts: Iterable[str], modulus: int
) -> Iterator[dict[int, list[bytes]]]:
    """Yield keys by shard, as many as one statement takes."""
    groups: dict[int, list[bytes]] = {}
    size = 0
    for text in texts:
        key = LookupKey.encoded(text)
        groups.setdefault(shard_of(key, modulus), []).append(key)
        size += len(key)
        if size > _MOST_BYTES:
            yield groups
            groups, size = {}, 0
    if groups:
        yield groups


def resolve_one(
    table: Table, key: str, timeout: float | None = None
) -> int | None:
    """Return whose a key is; None for nobody's."""
    return resolve_many(table, [key], timeout).get(key)


def resolve_many(
    table: Table, keys: Iterable[str], timeout: float | None = None
) -> dict[str, int]:
    """Return whose keys are, of those that are somebody's."""
    forms = {key: table.forms(key) for key in keys}
    texts = dict.fromkeys(
        form.text for given in forms.values() for form in given
    )
    # A claim says nothing of whose the key will be.
    rows = {
        row.key: row
        for row in read(table, texts, timeout=timeout)
        if row.target_id is not None
    }
    found = {}
    for key, given in forms.items():
        row = table.choose(given, rows)
        if row is not None:
            found[key] = row.target_id
    return found


def resolve_all(
    table: Table, key: str, limit: int, after: int | None
) -> list[int]:
    """Return the ids of the objects that share a key, in their order."""
    check_limit(limit)
    statements = statements_of(table.cls)
    parameters: dict[str, Any] = {"the_number": limit}
    statement = statements.first
    if after is not None:
        table.check_id(after)
        parameters["the_id"] = after
        statement = statements.after
    found: set[int] = set()
    for text in dict.fromkeys(form.text for form in table.forms(key)):
        for row in table.execute(text, statement, the_key=text, **parameters):
            table.check_policy(row)
            found.add(row.target_id)
    return sorted(found)[:limit]
