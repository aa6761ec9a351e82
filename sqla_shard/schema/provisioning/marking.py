"""The mark of a database that provision made, in the ledger of this package.

A database that is there already may hold the objects of a virtual shard.
Whether an interrupted provision has made it is not guessed from what it
looks like: before the first revision runs, an entry is written into its
ledger, ``provision`` of an epoch.  Once the database was compared with
others, the entry is finished, and says how many rows the revisions
themselves have put into each table.  A row more is one of the application.

Only from CREATE DATABASE to that entry there is none; but a database
without tables, other than those of this package, has nothing to lose.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Collection
from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from datetime import timezone

from sqlalchemy import Connection
from sqlalchemy import func
from sqlalchemy import insert
from sqlalchemy import literal
from sqlalchemy import select
from sqlalchemy import table
from sqlalchemy import union_all
from sqlalchemy import update

from sqla_shard.internal import LEDGER
from sqla_shard.internal import PREFIX
from sqla_shard.schema.running.ledger import FINISHED
from sqla_shard.schema.running.ledger import STARTED
from sqla_shard.schema.selecting import Shard

__all__ = ["Mark", "begin_mark", "finish_mark", "read_marks", "written_since"]

_DIRECTION = "provision"
_IS_MARK = LEDGER.c.direction == _DIRECTION


@dataclass(frozen=True, kw_only=True)
class Mark:
    """What the ledger says of a database that provision made.

    :ivar epoch: of the topology that it was made for, such as ``"epoch 2"``.
    :ivar rows: how many rows the revisions have put into each table, where
        any; None until the database was compared with others.
    """

    epoch: str
    rows: Mapping[str, int] | None


def read_marks(shards: Sequence[Shard]) -> dict[int, Mark]:
    """Return the marks of databases that share an engine, by shard."""
    place = shards[0].place
    found = place.backend.ddl.rows(
        place.engine,
        [shard.schema for shard in shards],
        LEDGER.name,
        ["revision", "state", "tables_before"],
        f"direction = '{_DIRECTION}'",
    )
    return {
        shard.shard_id: Mark(
            epoch=epoch, rows=json.loads(rows) if state == FINISHED else None
        )
        for shard in shards
        for epoch, state, rows in found.get(shard.schema, ())
    }


def begin_mark(connection: Connection, epoch: int) -> None:
    """Write, and commit, that provision is at work on the database.

    :param connection: on the database, whose ledger is there.
    """
    values = {
        "revision": f"epoch {epoch}",
        "state": STARTED,
        "runner": f"{socket.gethostname()} {os.getpid()}"[:255],
        "started_at": _now(),
        "ended_at": None,
        "tables_before": None,
    }
    done = connection.execute(update(LEDGER).where(_IS_MARK).values(values))
    if not done.rowcount:
        connection.execute(
            insert(LEDGER).values(
                direction=_DIRECTION,
                number=0,
                statement="",
                digest="",
                # The journal, which looks for what is open, passes it over.
                is_open=False,
                **values,
            )
        )
    connection.commit()


def finish_mark(
    connection: Connection, names: Collection[str], version_table: str
) -> None:
    """Write that the database is as it should be, and the rows it has.

    It is left to be committed.

    :param names: of its tables.
    :param version_table: the name of alembic's.
    """
    rows = _counted(connection, dict.fromkeys(names), version_table)
    connection.execute(
        update(LEDGER)
        .where(_IS_MARK)
        .values(
            state=FINISHED,
            ended_at=_now(),
            tables_before=json.dumps(
                {name: count for name, count in rows.items() if count}
            ),
        )
    )


def written_since(
    connection: Connection,
    names: Collection[str],
    rows: Mapping[str, int],
    version_table: str,
) -> list[str]:
    """Return the tables with rows that no revision has put there.

    :param connection: on the database.
    :param names: of its tables.
    :param rows: how many the revisions have put into each.
    """
    limits = {name: rows.get(name, 0) + 1 for name in names}
    found = _counted(connection, limits, version_table)
    return sorted(name for name in found if found[name] > rows.get(name, 0))


def _counted(
    connection: Connection,
    limits: Mapping[str, int | None],
    version_table: str,
) -> dict[str, int]:
    """Count the rows of tables of the application.

    :param limits: by table, where to stop counting.
    """
    counts = [
        select(
            literal(name),
            select(func.count())
            .select_from(
                select(literal(1).label("one"))
                .select_from(table(name))
                .limit(limit)
                .subquery()
            )
            .scalar_subquery(),
        )
        for name, limit in sorted(limits.items())
        if name != version_table and not name.startswith(PREFIX)
    ]
    if not counts:
        return {}
    return {row[0]: row[1] for row in connection.execute(union_all(*counts))}


def _now() -> datetime:
    return datetime.now(timezone.utc).replace(tzinfo=None)
