"""The reverse of a mapping, kept with it.

A change of a list goes to the reverse rows of its targets: in the same
transaction where a target is on the shard of the source, and through an
intent otherwise.  An intent does not say what to write, but which pairs to
look at: whoever applies it locks the reverse list, reads after that what the
mapping has, and writes the same.  So the last one that is applied leaves the
truth, in whatever order they come.

A reverse row has the sequence that its pair was appended with; of several,
the highest.  Later moves in the mapping do not move it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import Any

from sqlalchemy import delete
from sqlalchemy import insert
from sqlalchemy import inspect
from sqlalchemy import update

from sqla_shard.exc import ClassDefinitionError
from sqla_shard.intents.registry import name_of
from sqla_shard.intents.registry import register_for
from sqla_shard.intents.writing import leave
from sqla_shard.mappings.definition import check_change
from sqla_shard.mappings.definition import check_changed
from sqla_shard.mappings.definition import check_statement
from sqla_shard.mappings.definition import Definition
from sqla_shard.mappings.definition import End
from sqla_shard.mappings.lists import chunked
from sqla_shard.mappings.lists import List
from sqla_shard.mappings.lists import place_of
from sqla_shard.orm.creation import name_of_class
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.session.autocommit import refuse_autocommit
from sqla_shard.session.contract import OUR_OWN

__all__ = [
    "changing",
    "follow",
    "refuse_changes",
    "refuse_rows",
    "settle",
    "tie",
]

#: How many pairs an intent names at most.
_PAIRS = 200

#: Source, target, and the sequence that it was appended with; None where it
#: was removed.
Pair = tuple[int, int, int | None]


# -- classes


def tie(cls: Any) -> None:
    """Find the reverse of a new class, and the class that it reverses.

    :raises ClassDefinitionError: when the two do not fit.
    """
    found: dict[Any, Any] = {}
    for mapper in list(cls.registry.mappers):
        other = mapper.class_
        if other.__dict__.get("__sqla_shard_mapping__") is None:
            continue
        for forward, reverse in {(cls, other), (other, cls)}:
            given = forward.__sqla_shard_mapping__.inverse
            if given is reverse or given == reverse.__name__:
                _check_pair(cls, forward, reverse, found.get(reverse))
                found[reverse] = forward
    # Not before all are checked: one that is refused must not stay with
    # another.
    for reverse, forward in found.items():
        forward.__sqla_shard_mapping__.inverse_class = reverse
        reverse.__sqla_shard_mapping__.kept_by = forward
        register_for("inverse", forward, _settle_pairs)


def _check_pair(cls: Any, forward: Any, reverse: Any, keeper: Any) -> None:
    """Refuse an inverse that does not fit.

    :param keeper: another class that has it.
    """
    ours: Definition = forward.__sqla_shard_mapping__
    theirs: Definition = reverse.__sqla_shard_mapping__
    keepers = {keeper, theirs.kept_by} - {None, forward}
    if keepers or theirs.inverse is not None:
        problem = (
            f"{reverse.__name__} is the inverse of another, or has one; one "
            "class is written, and keeps one other: say inverse= of one of "
            "the two alone"
        )
    elif not (
        _is_same(cls, ours.source, theirs.target)
        and _is_same(cls, ours.target, theirs.source)
    ):
        problem = (
            f"{reverse.__name__} does not reverse {forward.__name__}: it has "
            f"to have the target {ours.target.entity_name} as source, and "
            f"the source {ours.source.entity_name} as target"
        )
    else:
        _check_own_columns(cls, forward, reverse)
        return
    raise ClassDefinitionError(problem, class_name=cls.__name__)


def _check_own_columns(cls: Any, *both: Any) -> None:
    """Refuse columns that nobody could give a value.

    A reverse row could never be written, and its intent would be tried for
    ever.
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
                    "an inverse are written without it; say default= or "
                    "nullable=True",
                    class_name=cls.__name__,
                )


def _is_same(cls: Any, one: End, other: End) -> bool:
    return name_of_class(cls, "", one.given) == name_of_class(
        cls, "", other.given
    )


def _settle_pairs(
    cls: Any, session: ShardSession, pairs: list[list[Any]]
) -> None:
    """Settle the pairs of an intent, which JSON has as lists."""
    settle(cls, session, [(pair[0], pair[1], pair[2]) for pair in pairs])


# -- refusing what would not be followed


def changing(
    cls: Any, session: ShardSession, source_id: int, *, appends: bool = False
) -> List:
    """Return a list that is to be changed.

    :param appends: whether the change says itself what was put on top.
    :raises KeptMappingError: when another mapping keeps it.
    :raises CachedWriteError: when it is cached, and the engine commits each
        statement by itself.
    """
    rows = List(cls, session, source_id)
    check_change(cls)
    refuse_autocommit(session, rows.place, rows.statements.table)
    if not appends:
        rows.note()
    return rows


def refuse_rows(mapper: Any, connection: Any, row: Any) -> None:
    """Handle ``before_insert`` and ``before_delete``: rows on their own.

    :raises KeptMappingError: when a reverse row would be needed, or the row
        is one.
    """
    check_statement(mapper.class_, None)


def refuse_changes(mapper: Any, connection: Any, row: Any) -> None:
    """Handle ``before_update``: a row that becomes another one.

    :raises KeptMappingError: when the row is a reverse row, or its ids have
        changed and it has one.
    """
    attributes = inspect(row).attrs
    changed = {
        column.key
        for column in mapper.column_attrs
        if attributes[column.key].history.has_changes()
    }
    if changed:
        check_changed(mapper.class_, changed)


# -- following


def follow(rows: List, sequences: Mapping[int, int | None]) -> None:
    """Let the reverse rows follow a change, in the same transaction.

    :param sequences: by target, that with which it was appended; None where
        it was removed.
    """
    definition = rows.statements.definition
    if definition.inverse_class is None:
        return
    by_place: dict[Place, list[Pair]] = {}
    for target_id, sequence in sequences.items():
        place = place_of(rows.cls, rows.session, definition.target, target_id)
        pair = rows.source_id, target_id, sequence
        by_place.setdefault(place, []).append(pair)
    here = next((p for p in by_place if p.address == rows.place.address), None)
    if here is not None:
        # In one order, as those of settle().
        ours = sorted(by_place.pop(here), key=lambda pair: pair[1])
        for _, target_id, sequence in ours:
            reverse = _reverse(rows.cls, rows.session, target_id)
            present = _locked(reverse, rows.source_id)
            _write(reverse, rows.source_id, present, sequence)
    calls = [
        (place, {"pairs": pairs[start : start + _PAIRS]})
        for place, pairs in by_place.items()
        for start in range(0, len(pairs), _PAIRS)
    ]
    if calls:
        leave(rows.session, rows.place, name_of("inverse", rows.cls), calls)


def settle(cls: Any, session: ShardSession, pairs: Iterable[Pair]) -> int:
    """Write the reverse rows of some pairs as the mapping has them.

    :param cls: the mapping.
    :param pairs: source, target, and the sequence of a row that is missing;
        None for that of the mapping's.
    :returns: how many rows were written.
    """
    held: list[tuple[List, Pair, int | None]] = []
    wanted: dict[int, list[int]] = {}
    # In one order, so that two that have some lists in common do not wait
    # for each other.
    for pair in sorted(pairs, key=lambda pair: (pair[1], pair[0])):
        source_id, target_id, _ = pair
        reverse = _reverse(cls, session, target_id)
        held.append((reverse, pair, _locked(reverse, source_id)))
        wanted.setdefault(source_id, []).append(target_id)
    # Not before all locks are held: what is read then is not older than
    # what anybody has written who comes after us.
    truth: dict[tuple[int, int], int] = {}
    for source_id, target_ids in wanted.items():
        rows = List(cls, session, source_id)
        for part in chunked(target_ids):
            for found, at in rows.execute(rows.statements.present, ids=part):
                truth[source_id, found] = at
    count = 0
    for reverse, (source_id, target_id, sequence), present in held:
        wish = truth.get((source_id, target_id))
        if wish is not None and sequence is not None:
            wish = sequence
        count += _write(reverse, source_id, present, wish)
    return count


def _reverse(cls: Any, session: ShardSession, target_id: int) -> List:
    """Return the reverse list of a target."""
    definition: Definition = cls.__sqla_shard_mapping__
    return List(definition.inverse_class, session, target_id)


def _locked(reverse: List, source_id: int) -> int | None:
    """Return the sequence of a reverse row; its list is locked."""
    present: int | None
    (present,) = reverse.locked(reverse.statements.lock_row, row=source_id)
    return present


def _write(
    reverse: List, source_id: int, present: int | None, sequence: int | None
) -> bool:
    """Write one reverse row; return whether it was not so already.

    :param present: the sequence that it has; None where it is not there.
    :param sequence: the one that it is to have; None for none.
    """
    statements = reverse.statements
    here = (
        statements.source == reverse.source_id,
        statements.target == source_id,
    )
    if sequence is None:
        if present is None:
            return False
        change: Any = delete(reverse.cls).where(*here)
    elif present is None:
        definition = statements.definition
        change = insert(reverse.cls).values(
            {
                definition.source.column: reverse.source_id,
                definition.target.column: source_id,
                "sequence": sequence,
            }
        )
    elif present < sequence:
        change = update(reverse.cls).where(*here).values(sequence=sequence)
    else:
        return False
    reverse.note()
    reverse.session.execute(change, execution_options=OUR_OWN)
    return True
