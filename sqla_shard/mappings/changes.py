"""Adding rows to a list and taking them out."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete
from sqlalchemy import insert

from sqla_shard.exc import SequenceExhaustedError
from sqla_shard.mappings.inverse import follow
from sqla_shard.mappings.lists import chunked
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.ordering import next_on_top
from sqla_shard.mappings.ordering import STEP
from sqla_shard.session.contract import OUR_OWN
from sqla_shard.types.sequences import MAX_SEQUENCE

__all__ = ["append", "append_many", "clear", "remove"]


def append(rows: List, target_id: int) -> bool:
    """Put a target on top of the list."""
    present, top = rows.locked(
        rows.statements.lock_top, row=rows.readable(target_id)
    )
    if present is not None:
        return False
    _insert(rows, [target_id], next_on_top(top))
    return True


def append_many(rows: List, target_ids: Iterable[int]) -> list[int]:
    """Put targets on top of the list, one after the other."""
    wanted = list(dict.fromkeys(map(rows.readable, target_ids)))
    if not wanted:
        return []
    (top,) = rows.locked(rows.statements.lock_many)
    added = []
    for part in chunked(wanted):
        found = rows.execute(rows.statements.present_locked, ids=part)
        present = {target_id for target_id, _ in found}
        added += [i for i in part if i not in present]
    first = next_on_top(top)
    for part in chunked(added):
        _insert(rows, part, first)
        first += len(part) * STEP
    return added


def _insert(rows: List, target_ids: Sequence[int], first: int) -> None:
    definition = rows.statements.definition
    if first + (len(target_ids) - 1) * STEP > MAX_SEQUENCE:
        raise SequenceExhaustedError(
            mapping=rows.name, source_id=rows.source_id, rows=1
        )
    placed = {
        target_id: first + index * STEP
        for index, target_id in enumerate(target_ids)
    }
    try:
        rows.session.execute(
            insert(rows.cls),
            [
                {
                    definition.source.column: rows.source_id,
                    definition.target.column: target_id,
                    "sequence": sequence,
                }
                for target_id, sequence in placed.items()
            ],
            execution_options=OUR_OWN,
        )
    except BaseException:
        # Some of the rows may be there.
        rows.note()
        raise
    rows.note_appended(list(placed.items()))
    follow(rows, placed)


def remove(rows: List, target_id: int) -> bool:
    """Take a target out of the list."""
    (present,) = rows.locked(
        rows.statements.lock_row, row=rows.checked(target_id)
    )
    if present is None:
        return False
    statements = rows.statements
    rows.session.execute(
        delete(rows.cls).where(
            statements.source == rows.source_id,
            statements.target == target_id,
        ),
        execution_options=OUR_OWN,
    )
    follow(rows, {target_id: None})
    return True


def clear(rows: List) -> int:
    """Take everything out of the list."""
    rows.locked(rows.statements.lock_many)
    gone: dict[int, int | None] = {}
    if rows.statements.definition.inverse_class is not None:
        found = rows.execute(rows.statements.whole)
        gone = {target_id: None for target_id, _ in found}
    result: Any = rows.session.execute(
        delete(rows.cls).where(rows.statements.source == rows.source_id),
        execution_options=OUR_OWN,
    )
    follow(rows, gone)
    return int(result.rowcount)
