"""The same change on every shard: first the truth, then all copies."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from functools import partial
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.engines import by_server
from sqla_shard.engines import Places
from sqla_shard.exc import ReferenceIncompleteError
from sqla_shard.exc import ServerFencedError
from sqla_shard.exc import ServerRetiredError
from sqla_shard.exc import ServerUnreachableError
from sqla_shard.reference.copies import Copies
from sqla_shard.reference.copies import Difference
from sqla_shard.reference.copies import in_turn
from sqla_shard.reference.definition import table_of
from sqla_shard.reference.rows import check_kept
from sqla_shard.reference.rows import check_size
from sqla_shard.reference.rows import Rows
from sqla_shard.rendering import Place

__all__ = ["GONE", "PARALLEL", "Change", "write"]

#: Returns what the rows are to be, from what they are.
Change = Callable[[Rows], Rows]

#: Servers at the same time.  Each asks that of the truth now and then, whose
#: pool has few connections.
PARALLEL = 8

#: What a server raises that will raise it for its other shards, too.
GONE = (ServerUnreachableError, ServerFencedError, ServerRetiredError)


@dataclass
class _Outcome:
    done: list[int] = field(default_factory=list)
    errors: dict[int, Exception] = field(default_factory=dict)
    not_reached: list[int] = field(default_factory=list)


def write(cls: Any, change: Change, places: Places) -> None:
    """Change a reference table on every shard.

    :raises ReferenceSizeError: when there would be too many.
    :raises ReferenceIncompleteError: when some shards were not written.
    """
    copies = Copies(table_of(cls), places)
    try:
        in_turn(copies.truth, lambda: _write_truth(copies, change))
    except ServerUnreachableError as error:
        # It may have been COMMIT.
        raise _incomplete(
            copies,
            _Outcome(
                errors={copies.truth.shard_id: error},
                not_reached=[place.shard_id for place in copies.others],
            ),
        ) from error
    jobs = [
        partial(_on_server, copies, shards)
        for shards in by_server(copies.others)
    ]
    whole = _Outcome(done=[copies.truth.shard_id])
    for part in places.engines.at_once(jobs, "reference", PARALLEL):
        whole.done += part.done
        whole.errors.update(part.errors)
        whole.not_reached += part.not_reached
    if whole.errors:
        raise _incomplete(copies, whole) from next(iter(whole.errors.values()))


def _write_truth(copies: Copies, change: Change) -> None:
    place = copies.truth
    with place.engine.connect() as connection:
        there = copies.lock(connection, place)
        wanted = change(there)
        check_size(copies.name, wanted)
        found = Difference.between(there, wanted)
        copies.change(connection, place, found)
        if found.missing:
            check_kept(copies.name, wanted, copies.read(connection))
        connection.commit()


def _on_server(copies: Copies, shards: Sequence[Place]) -> _Outcome:
    outcome = _Outcome()
    for index, place in enumerate(shards, 1):
        try:
            copies.bring(place)
        except GONE as error:
            outcome.errors[place.shard_id] = error
            outcome.not_reached += [p.shard_id for p in shards[index:]]
            break
        except (SQLAlchemyError, OSError) as error:
            outcome.errors[place.shard_id] = error
        else:
            outcome.done.append(place.shard_id)
    return outcome


def _incomplete(copies: Copies, outcome: _Outcome) -> ReferenceIncompleteError:
    return ReferenceIncompleteError(
        reference=copies.name,
        keyspace=copies.keyspace.name,
        done=sorted(outcome.done),
        errors=dict(sorted(outcome.errors.items())),
        not_reached=sorted(outcome.not_reached),
    )
