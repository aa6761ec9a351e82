"""The revisions of the tables of this package itself.

They have a version table of their own, apart from that of the application,
and every command that changes a shard brings them up to date first.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from alembic.operations import Operations
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection
from sqlalchemy import event
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from sqla_shard.schema.statements import Effect
from sqla_shard.schema.statements import read

__all__ = ["VERSION_TABLE", "head", "upgrade"]

VERSION_TABLE = "sqla_shard_version"


@lru_cache(maxsize=1)
def _scripts() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))


def head() -> str:
    """Return the newest revision of these tables."""
    found = _scripts().get_current_head()
    assert found is not None  # noqa: S101 - there is one, as shipped
    return found


#: What a database without these tables is sent, once it was sent to one.
_sent: dict[type[Dialect], list[str]] = {}


def upgrade(connection: Connection, version: str | None) -> None:
    """Bring these tables of the connection's database up to date.

    Each revision is one statement that does no harm when it is repeated,
    since there is no ledger to write it down in before the first.

    :param version: the revision that they are at, None without tables.
    """
    kind = type(connection.dialect)
    sent = _sent.get(kind) if version is None else None
    if sent is not None and _repeat(connection, sent):
        return
    sent = []

    def record(
        connection: Connection,
        cursor: Any,
        statement: str,
        *details: object,
    ) -> None:
        # PRAGMA, by which SQLAlchemy reads, is one for the session.
        if read(statement).effect not in (Effect.READS, Effect.SESSION):
            sent.append(statement)

    event.listen(connection, "before_cursor_execute", record)
    try:
        _run(connection)
    finally:
        event.remove(connection, "before_cursor_execute", record)
    # Nothing is sent where another runner was first: that is not what a
    # database without these tables needs.
    if version is None and sent:
        _sent[kind] = sent


def _repeat(connection: Connection, statements: Iterable[str]) -> bool:
    """Send statements, unless somebody has done part of it before."""
    try:
        for statement in statements:
            connection.exec_driver_sql(statement).close()
    except DBAPIError:
        # A runner that was killed, or another one since the version was
        # read: alembic looks at what is there.
        connection.rollback()
        return False
    connection.commit()
    return True


def _run(connection: Connection) -> None:

    def steps(heads: Any, _: MigrationContext) -> Any:
        return _scripts()._upgrade_revs("head", heads)

    context = MigrationContext.configure(
        connection, opts={"version_table": VERSION_TABLE, "fn": steps}
    )
    with Operations.context(context):
        context.run_migrations()
    connection.commit()
