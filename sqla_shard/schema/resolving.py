"""Ending a doubt: somebody has looked at the database and says what is true.

Four answers are possible, of the statement in doubt or of the revision as a
whole::

    statement-done     it took effect: the next run goes on after it
    statement-undone   it did not: the next run repeats it
    revision-done      all of the revision is there now: it is written down
    revision-undone    nothing of it is left: the next run begins it again
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection
from sqlalchemy import update

from sqla_shard.exc import SchemaError
from sqla_shard.internal import LEDGER
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.running.ledger import DONE
from sqla_shard.schema.running.ledger import Entry
from sqla_shard.schema.running.ledger import FINISHED
from sqla_shard.schema.running.ledger import open_entries
from sqla_shard.schema.running.ledger import UNDONE
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.selecting import shards_of
from sqla_shard.schema.versions import without_ledger

__all__ = ["Answer", "Resolution", "resolve_shard"]


class Answer(Enum):
    """What was found in the database of a shard in doubt."""

    STATEMENT_DONE = "statement-done"
    STATEMENT_UNDONE = "statement-undone"
    REVISION_DONE = "revision-done"
    REVISION_UNDONE = "revision-undone"


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """What was written down.

    :ivar step: the revision that was in doubt.
    :ivar statement: its last statement.
    """

    shard_id: int
    database: str
    step: str
    statement: str
    answer: Answer


def resolve_shard(
    environment: Environment, shard_id: int, answer: Answer
) -> Resolution:
    """Write down what is true of a shard.

    :raises SchemaError: when no revision is unfinished there, a runner is
        at work, or the server does not answer.
    """
    [shard] = shards_of(environment.places, environment.keyspace, [shard_id])
    [version] = environment.versions([shard])
    if version.is_missing:
        raise SchemaError(f"there is no such database: {shard}")
    if version.error is not None:
        raise SchemaError(
            f"{shard} could not be asked whether a revision is unfinished: "
            f"{version.error}"
        ) from version.cause
    if not version.has_ledger:
        raise SchemaError(without_ledger(version))
    if version.open is None:
        raise SchemaError(f"no revision is unfinished on {shard}")
    ddl = shard.place.backend.ddl
    with environment.places.engines.visit(shard.place.engine) as connection:
        ddl.enter(connection, shard.schema)
        holder = ddl.hold(connection, shard.database, 0)
        if holder is not None:
            raise SchemaError(
                f"{shard} is held by {holder}; wait until it has ended"
            )
        last = _written(environment, connection, shard, answer)
        ddl.release(connection, shard.database)
        connection.commit()
    return Resolution(
        shard_id=shard_id,
        database=shard.database,
        step=last.step,
        statement=last.statement,
        answer=answer,
    )


def _written(
    environment: Environment,
    connection: Connection,
    shard: Shard,
    answer: Answer,
) -> Entry:
    entries = open_entries(connection)
    if not entries:
        raise SchemaError(f"no revision is unfinished on {shard} any more")
    last = entries[-1]
    values: dict[str, Any] = {"is_open": False, "state": FINISHED}
    of_last = LEDGER.c.id == last.id
    if answer is Answer.REVISION_DONE:
        environment.stamp(connection, shard, last.direction, last.revision)
    elif answer is Answer.REVISION_UNDONE:
        values["state"] = UNDONE
    elif not last.statement:
        raise SchemaError(
            f"{last.step} has failed between two statements on {shard}; "
            "there is none in doubt. Answer for the revision as a whole"
        )
    else:
        state = DONE if answer is Answer.STATEMENT_DONE else UNDONE
        connection.execute(
            update(LEDGER).where(of_last).values(state=state, error=None)
        )
        return last
    connection.execute(
        update(LEDGER).where(LEDGER.c.is_open.is_(True)).values(**values)
    )
    return last
