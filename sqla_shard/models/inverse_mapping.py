"""Inverse mappings: reverse rows that follow the changes of a mapping.

A change of a list also changes the reverse rows of its targets: in the same
transaction if the target is on the shard of the source, otherwise by a pending
operation.  The operation contains the pairs, not their values: it locks the
reverse list, reads the current rows of the mapping and writes the reverse rows
accordingly.  The result is therefore correct in whatever order operations are
applied.

A reverse row has the sequence with which its pair was appended, the highest
if there were several.  Later moves in the mapping do not change it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import insert, inspect, update

from sqla_shard.engine.rendering import Place
from sqla_shard.exc import ClassDefinitionError
from sqla_shard.models.class_checks import name_of_class
from sqla_shard.models.mapping_definition import (
    check_change,
    check_changed,
    check_statement,
    End,
    MappingDefinition,
)
from sqla_shard.models.mapping_list import add_to_count, chunked, List
from sqla_shard.models.spread_list import is_moving, list_of, readdress
from sqla_shard.outbox.apply import operation_name, register_for
from sqla_shard.outbox.operations import add_pending
from sqla_shard.session import ShardSession
from sqla_shard.session.execute import OUR_OWN
from sqla_shard.session.get import refuse_cached_autocommit

#: Maximum number of pairs in an operation.
_PAIRS = 200

#: Source, target, and the sequence with which it was appended; None if it was
#: removed.
Pair = tuple[int, int, int | None]


# -- classes


def link_inverse(cls: Any) -> None:
    """Link a new class with its inverse, or the mapping that it reverses.

    :raises ClassDefinitionError: if the two do not match.
    """
    mappings: dict[Any, Any] = {}
    for mapper in list(cls.registry.mappers):
        other = mapper.class_
        if other.__dict__.get("__sqla_shard_mapping__") is None:
            continue
        for forward, reverse in {(cls, other), (other, cls)}:
            given = forward.__sqla_shard_mapping__.inverse
            if given is reverse or given == reverse.__name__:
                _check_pair(cls, forward, reverse, mappings.get(reverse))
                mappings[reverse] = forward
    # After all checks: a rejected class must not be the inverse of another.
    for reverse, forward in mappings.items():
        forward.__sqla_shard_mapping__.inverse_class = reverse
        reverse.__sqla_shard_mapping__.inverse_of = forward
        register_for("inverse", forward, sync_pairs)


def _check_pair(cls: Any, forward: Any, reverse: Any, keeper: Any) -> None:
    """Reject an inverse that does not match.

    :param keeper: another class with this inverse.
    """
    ours: MappingDefinition = forward.__sqla_shard_mapping__
    theirs: MappingDefinition = reverse.__sqla_shard_mapping__
    keepers = {keeper, theirs.inverse_of} - {None, forward}
    if keepers or theirs.inverse is not None:
        problem = (
            f"{reverse.__name__} is the inverse of another mapping, or has "
            "one; an inverse belongs to one mapping: set inverse= in one of "
            "the two only"
        )
    elif not (
        _is_same(cls, ours.source, theirs.target)
        and _is_same(cls, ours.target, theirs.source)
    ):
        problem = (
            f"{reverse.__name__} does not reverse {forward.__name__}: it must "
            f"have the target {ours.target.entity_name} as source, and the "
            f"source {ours.source.entity_name} as target"
        )
    else:
        _check_own_columns(cls, forward, reverse)
        return
    raise ClassDefinitionError(problem, class_name=cls.__name__)


def _check_own_columns(cls: Any, *both: Any) -> None:
    """Reject columns that a reverse row would need a value for.

    Its operation would fail on every attempt.
    """
    for one in both:
        for column in inspect(one).local_table.c:
            if not (
                column.nullable
                or column.primary_key
                or column.default is not None
                or column.server_default is not None
            ):
                raise ClassDefinitionError(
                    f"the column {column.name!r} of {one.__name__} has "
                    "neither a default nor NULL, and rows of a mapping with "
                    "an inverse are written without it; use default= or "
                    "nullable=True",
                    class_name=cls.__name__,
                )


def _is_same(cls: Any, one: End, other: End) -> bool:
    return name_of_class(cls, "", one.given) == name_of_class(cls, "", other.given)


# -- checks of changes


def writable_list(
    cls: Any, session: ShardSession, source_id: int, *, appends: bool = False
) -> List:
    """Return a list for a change, invalidated in the cache.

    :param appends: whether the caller updates the cached list.
    :raises KeptMappingError: if the class is the inverse of another.
    :raises CachedWriteError: if it is cached, and the engine is in
        autocommit mode.
    """
    rows = list_of(cls, session, source_id)
    check_change(cls)
    refuse_cached_autocommit(session, rows.place, rows.statements.table)
    if not appends:
        rows.invalidate()
    return rows


def refuse_rows(mapper: Any, connection: Any, row: Any) -> None:
    """Handle ``before_insert`` and ``before_delete``: check a single row.

    :raises KeptMappingError: if a reverse row would be needed, or the row is a
        reverse row.
    """
    check_statement(mapper.class_, None)


def refuse_changes(mapper: Any, connection: Any, row: Any) -> None:
    """Handle ``before_update``: check a row whose ids may have changed.

    :raises KeptMappingError: if the row is a reverse row, or its ids have
        changed and it has a reverse row.
    """
    attributes = inspect(row).attrs
    changed = {
        column.key
        for column in mapper.column_attrs
        if attributes[column.key].history.has_changes()
    }
    if changed:
        check_changed(mapper.class_, changed)


# -- writing reverse rows


def write_inverse(rows: List, sequences: Mapping[int, int | None]) -> None:
    """Write the reverse rows of a change, or add operations for them.

    :param sequences: by target id: the sequence with which the target was
        appended; None if it was removed.
    """
    definition = rows.statements.definition
    if definition.inverse_class is None:
        return
    by_place: dict[Place, list[Pair]] = {}
    for target_id, sequence in sequences.items():
        reverse = _reverse(rows.cls, rows.session, target_id, rows.source_id)
        place = reverse.place
        pair = rows.source_id, target_id, sequence
        by_place.setdefault(place, []).append(pair)
    here = next((p for p in by_place if p.address == rows.place.address), None)
    if here is not None and not is_moving(definition.inverse_class):
        # Write the lists in the order of sync_pairs(): two orders could
        # deadlock.
        ours = sorted(by_place.pop(here), key=lambda pair: pair[1])
        for _, target_id, sequence in ours:
            reverse = _reverse(rows.cls, rows.session, target_id, rows.source_id)
            current = _locked(reverse, rows.source_id)
            _write(reverse, rows.source_id, current, sequence)
    calls = [
        (place, {"pairs": pairs[start : start + _PAIRS]})
        for place, pairs in by_place.items()
        for start in range(0, len(pairs), _PAIRS)
    ]
    if calls:
        add_pending(
            rows.session, rows.place, operation_name("inverse", rows.cls), calls
        )


def sync_pairs(cls: Any, session: ShardSession, pairs: Iterable[Pair]) -> int:
    """Make the reverse rows of the given pairs agree with the mapping.

    :param cls: the mapping.
    :param pairs: source, target, and the sequence of a missing reverse row;
        None to use the sequence in the mapping.
    :returns: the number of rows written.
    """
    ours = readdress(
        session,
        operation_name("inverse", cls),
        sorted(pairs, key=lambda pair: (pair[1], pair[0])),
        lambda pair: _reverse(cls, session, pair[1], pair[0]),
    )
    for source_id, target_id, _ in ours:
        _reverse(cls, session, target_id, source_id).settle(source_id)
    held: list[tuple[List, Pair, int | None]] = []
    wanted: dict[int, list[int]] = {}
    # Lock in one order: otherwise two calls with common lists would deadlock.
    for pair in ours:
        source_id, target_id, _ = pair
        reverse = _reverse(cls, session, target_id, source_id)
        held.append((reverse, pair, _locked(reverse, source_id)))
        wanted.setdefault(source_id, []).append(target_id)
    # Read after all locks are held, so that a later call reads newer rows.
    truth: dict[tuple[int, int], int] = {}
    for source_id, target_ids in wanted.items():
        rows = list_of(cls, session, source_id)
        present = rows.statements.present
        for part in chunked(target_ids):
            for target, at in rows.limited_to(part).execute(present, ids=part):
                truth[source_id, target] = at
    count = 0
    for reverse, (source_id, target_id, sequence), current in held:
        wish = truth.get((source_id, target_id))
        if wish is not None and sequence is not None:
            wish = sequence
        count += _write(reverse, source_id, current, wish)
    return count


def _reverse(cls: Any, session: ShardSession, target_id: int, source_id: int) -> List:
    """Return the reverse list of a target, or its piece for a source."""
    definition: MappingDefinition = cls.__sqla_shard_mapping__
    reverse = list_of(definition.inverse_class, session, target_id)
    return reverse.part_of(source_id)


def _locked(reverse: List, source_id: int) -> int | None:
    """Return the sequence of a reverse row, whose list is locked."""
    current: int | None
    (current,) = reverse.locked(reverse.statements.lock_row, row=source_id)
    return current


def _write(
    reverse: List, source_id: int, current: int | None, sequence: int | None
) -> bool:
    """Write one reverse row; return whether it changed.

    :param current: the current sequence of the row; None if it does not exist.
    :param sequence: the new sequence of the row; None to delete the row.
    """
    statements = reverse.statements
    here = (statements.source == reverse.source_id, statements.target == source_id)
    if sequence is None:
        if current is None:
            return False
        reverse.invalidate()
        reverse.discard(source_id)
        return True
    changed: Sequence[List] = (reverse,)
    if current is None:
        definition = statements.definition
        change: Any = insert(statements.table).values(
            {
                definition.source.column: reverse.source_id,
                definition.target.column: source_id,
                "sequence": sequence,
            }
        )
    elif current < sequence:
        changed = reverse.holders
        change = update(reverse.cls).where(*here).values(sequence=sequence)
    else:
        return False
    reverse.invalidate()
    spread = statements.definition.spread > 1
    for piece in changed:
        reverse.session.execute(
            change,
            bind_arguments={"place": piece.place} if spread else None,
            execution_options=OUR_OWN,
        )
    if current is None:
        add_to_count(reverse, 1)
    return True
