"""Primary keys of new rows on MySQL, which has no RETURNING.

The server gives the rows of one INSERT, whose number is known before, ids that
are consecutive from ``LAST_INSERT_ID()``, with any
``innodb_autoinc_lock_mode`` and while other sessions insert.  So one statement
inserts many rows, and their keys are computed.  This is not true for rows of
which only some have an id, which are inserted one by one; nor for INSERT
IGNORE, ON DUPLICATE KEY UPDATE and INSERT .. SELECT, which return no keys.
Nor is it true where a trigger gives the ids.

The dialect of SQLAlchemy is given these classes in addition to its own, so
that the unit of work and ``insert().returning()`` of a key need not know.
MariaDB has RETURNING and keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from copy import copy
from functools import cache
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.mysql.base import MySQLDialect
from sqlalchemy.engine.cursor import FullyBufferedCursorFetchStrategy
from sqlalchemy.engine.default import DefaultExecutionContext
from sqlalchemy.engine.interfaces import ExecuteStyle
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Delete, Insert, Update
from sqlalchemy.types import NULLTYPE

from sqla_shard.exc import MissingIdError, UnsupportedStatementError
from sqla_shard.util import sqlalchemy_private as private

_READ_STEP = "SELECT @@SESSION.auto_increment_increment, LAST_INSERT_ID()"
#: What the message of MySQL's error 1064 has.
_REFUSED = re.compile(r"near 'RETURNING\b", re.IGNORECASE)
#: Maximum number of characters and bytes of the rows of one INSERT.  Escaped
#: they may be twice as long, and the smallest max_allowed_packet in use is
#: 16 MB.
_MAX_INSERT_BYTES = 4_000_000

_REMEDIES: dict[type, str] = {
    Insert: (
        "add objects instead: session.add_all(objects), then session.flush(); "
        "only returning() of the primary key is possible"
    ),
    Update: "select the rows first, with_for_update(), and change the objects",
    Delete: "select the rows first, with_for_update(), then delete them",
}


def number_new_rows(engine: Engine) -> None:
    """Let an engine insert many rows in one statement, and know their keys.

    :param engine: a new engine of MySQL or MariaDB.
    """
    dialect: Any = engine.dialect
    dialect.__class__ = _numbering(dialect.__class__)


@cache
def _numbering(dialect: Any) -> Any:
    """Return a class of dialects with the classes of this module."""
    members = {
        name: type(base.__name__, (ours, base), {})
        for name, ours, base in (
            ("statement_compiler", _KeyCompiler, dialect.statement_compiler),
            ("execution_ctx_cls", _Context, dialect.execution_ctx_cls),
        )
    }
    # SQLAlchemy looks for it in each class.
    members["supports_statement_cache"] = dialect.supports_statement_cache
    return type(dialect.__name__, (_Dialect, dialect), members)


class _Dialect(MySQLDialect):
    """A dialect that computes the keys of new rows on MySQL.

    :ivar computes_keys: whether the server has no RETURNING.
    :ivar joining: a copy, for the compilation of an INSERT of many rows.
    """

    computes_keys = False
    joining: Any

    def initialize(self, connection: Connection) -> None:
        """Prepare the dialect on the first connection."""
        super().initialize(connection)
        if not self.is_mariadb:
            # Otherwise the unit of work would insert objects one by one.
            self.insert_executemany_returning = True
            self.insert_executemany_returning_sort_by_parameter_order = True
            self.computes_keys = True
            self.joining = copy(self)
            self.joining.use_insertmanyvalues_wo_returning = True

    def do_execute(
        self, cursor: Any, statement: str, parameters: Any, context: Any = None
    ) -> None:
        """Execute a statement.

        :raises UnsupportedStatementError: for textual SQL with RETURNING.
        """
        execute: Any = super().do_execute
        if context is None or not context.is_text:
            execute(cursor, statement, parameters, context)
            return
        try:
            execute(cursor, statement, parameters, context)
        except self.loaded_dbapi.Error as error:
            if self.computes_keys and _REFUSED.search(str(error)):
                raise UnsupportedStatementError(
                    "MySQL has no RETURNING; leave it out of the text, and "
                    "select the rows before an UPDATE or DELETE. For the ids "
                    "of new rows use session.add_all() and flush, or "
                    "insert().returning() of the primary key",
                    construct="RETURNING",
                ) from error
            raise

    def _deliver_insertmanyvalues_batches(
        self,
        connection: Connection,
        cursor: Any,
        statement: str,
        parameters: Any,
        generic_setinputsizes: Any,
        context: Any,
    ) -> Iterator[Any]:
        deliver: Any = super()._deliver_insertmanyvalues_batches
        context.limit_rows()
        for batch in deliver(
            connection, cursor, statement, parameters, generic_setinputsizes, context
        ):
            context.expected = batch.current_batch_size
            yield batch
            if not context.compiled.numbers_rows:
                continue
            try:
                context.new_keys += context.keys_of(cursor)
            except self.loaded_dbapi.Error as error:
                # Otherwise it would be an error of the driver.
                private.handle_driver_error(
                    connection,
                    error,
                    batch.replaced_statement,
                    batch.replaced_parameters,
                    cursor,
                    context,
                    is_sub_exec=True,
                )


class _KeyCompiler(SQLCompiler):
    """Compiles RETURNING of primary keys to nothing.

    :ivar numbers_rows: whether the keys of many rows are computed.
    :ivar returned_keys: the positions in the primary key of the columns of
        RETURNING; None without RETURNING, or with that of MariaDB.
    """

    numbers_rows = False
    returned_keys: Sequence[int] | None = None

    def visit_insert(self, insert_stmt: Any, *args: Any, **kw: Any) -> str:
        """Compile an INSERT."""
        compile_insert: Any = super().visit_insert
        dialect: Any = self.dialect
        if (
            not dialect.computes_keys
            or not self.for_executemany
            or not private.return_defaults(insert_stmt)
            or private.returning(insert_stmt)
            or not _has_known_rows(insert_stmt)
        ):
            return str(compile_insert(insert_stmt, *args, **kw))
        # SQLAlchemy reads from the dialect whether to join the rows of an
        # INSERT; those whose keys nobody asks for are joined by the driver.
        self.dialect, self.numbers_rows = dialect.joining, True
        try:
            return str(compile_insert(insert_stmt, *args, **kw))
        finally:
            self.dialect = dialect

    def returning_clause(
        self, stmt: Any, returning_cols: Any, *, populate_result_map: bool, **kw: Any
    ) -> str:
        """Compile RETURNING; on MySQL to nothing.

        :raises UnsupportedStatementError: for what MySQL cannot return.
        """
        known = len(self._result_columns)
        text = super().returning_clause(
            stmt, returning_cols, populate_result_map=populate_result_map, **kw
        )
        dialect: Any = self.dialect
        if not dialect.computes_keys:
            return text
        keys = self._positions(stmt, returning_cols)
        if keys is None or not populate_result_map:
            (verb,) = [one for one in _REMEDIES if isinstance(stmt, one)]
            raise UnsupportedStatementError(
                f"MySQL has no RETURNING, which this {verb.__name__.upper()} "
                f"of {stmt.table.name} needs; {_REMEDIES[verb]}",
                construct="RETURNING",
            )
        self.returned_keys = keys
        # The keys are complete: no type may convert them a second time.
        self._result_columns[known:] = [
            result_column._replace(type=NULLTYPE)
            for result_column in self._result_columns[known:]
        ]
        return ""

    def _positions(self, stmt: Any, columns: Any) -> list[int] | None:
        """Return the positions of columns in the primary key.

        :returns: None if the value of one would not be known.
        """
        if not isinstance(stmt, Insert) or not _has_known_rows(stmt):
            return None
        key = {column: n for n, column in enumerate(stmt.table.primary_key)}
        wanted = [c for one in columns for c in private.selected(one)]
        if not {*wanted} <= {*key} or not all(map(self._is_known, key)):
            return None
        return [key[column] for column in wanted]

    def _is_known(self, column: Any) -> bool:
        """Return whether the server or the parameters tell a value."""
        if column is column.table.autoincrement_column and (not self.is_given(column)):
            return True
        return all(
            private.key_parameter(column, row) in self.binds
            for row in self.rows or [None]
        )

    @property
    def rows(self) -> range:
        """The numbers of the rows that are in the statement itself."""
        state: Any = self.compile_state
        many = private.multi_values(state.statement)
        return range(sum(map(len, many)))

    def is_given(self, column: Any) -> bool:
        """Return whether an INSERT has a value for a column."""
        state: Any = self.compile_state
        return column.key in (self.column_keys or ()) or (
            column.key in private.inserted_names(state)
        )


def _has_known_rows(statement: Any) -> bool:
    """Return whether a statement inserts all of its rows, as new ones."""
    return (
        _is_of_sqlalchemy(statement.__class__)
        and statement.select is None
        and not private.prefixes(statement)
        and private.post_values_clause(statement) is None
    )


@cache
def _is_of_sqlalchemy(statement: Any) -> bool:
    """Return whether a class of statements is SQLAlchemy's own.

    Other classes may append ON DUPLICATE KEY UPDATE.
    """
    rooms = {one.__module__.partition(".")[0] for one in statement.__mro__}
    return rooms <= {"sqlalchemy", "typing", "builtins"}


class _Context(DefaultExecutionContext):
    """Computes the keys of the rows of an INSERT.

    :ivar new_keys: the keys of the rows that were inserted.
    :ivar expected: the number of rows of the statement that is sent.
    """

    new_keys: list[Any]
    expected: int
    #: Number of parameter sets that were sent.
    _sent = 0

    @property
    def _computes_keys(self) -> bool:
        dialect: Any = self.dialect
        return bool(dialect.computes_keys)

    @property
    def _is_joined(self) -> bool:
        return self.execute_style is ExecuteStyle.INSERTMANYVALUES

    def limit_rows(self) -> None:
        """Limit the rows of one INSERT by their length.

        Rows of which only some have an id are inserted one by one.
        """
        self.new_keys = []
        compiled: Any = self.compiled
        most = self.execution_options.get(
            "insertmanyvalues_page_size", self.dialect.insertmanyvalues_page_size
        )
        column = self._numbered if self._computes_keys else None
        if column is not None and compiled.is_given(column):
            given = [row.get(column.key) for row in self.compiled_parameters]
            most = 1 if any(map(_is_numbered, given)) else most
        lengths = [
            sum([len(v) if isinstance(v, (str, bytes)) else 20 for v in row])
            for row in self.parameters
        ]
        while most > 1 and any(
            sum(lengths[start : start + most]) > _MAX_INSERT_BYTES
            for start in range(0, len(lengths), most)
        ):
            most //= 2
        self.execution_options = self.execution_options.union(
            {"insertmanyvalues_page_size": most}
        )

    @property
    def _numbered(self) -> Any:
        """The column that the server numbers; None if it numbers none."""
        compiled: Any = self.compiled
        return compiled.compile_state.dml_table.autoincrement_column

    def pre_exec(self) -> None:
        """Refuse rows in one statement of which only some have an id.

        :raises UnsupportedStatementError: if their ids are to be returned.
        """
        base: Any = super()
        base.pre_exec()
        compiled: Any = self.compiled
        if not self.isinsert or compiled.returned_keys is None or not compiled.rows:
            return
        # Whether the server replaces 0 is a matter of its sql_mode.
        kinds = {
            None if value is None else value == 0
            for value in self._given(self._rows_of_statement)
        }
        if len(kinds) > 1:
            raise UnsupportedStatementError(
                "MySQL does not tell the ids of the rows of one statement of "
                f"which only some have one (table {self._numbered.table.name})"
                "; pass the rows as a list to execute()",
                construct="RETURNING",
            )

    @property
    def _rows_of_statement(self) -> list[dict[str, Any]]:
        """The values of the key in the rows of VALUES."""
        compiled: Any = self.compiled
        (parameters,) = self.compiled_parameters
        return [
            {
                column.key: parameters.get(private.key_parameter(column, n))
                for column in compiled.compile_state.dml_table.primary_key
            }
            for n in compiled.rows
        ]

    def _given(self, rows: Sequence[Any]) -> list[Any]:
        """Return what an INSERT assigns to the column of numbers."""
        column = self._numbered
        return [] if column is None else [r.get(column.key) for r in rows]

    def keys_of(self, cursor: Any) -> list[Any]:
        """Return the primary keys of the rows that a cursor has inserted.

        :raises MissingIdError: if they are not known.
        """
        compiled: Any = self.compiled
        count, first = cursor.rowcount, cursor.lastrowid
        rows: Sequence[Any] = self.compiled_parameters
        if self._is_joined:
            rows = rows[self._sent : self._sent + self.expected]
            self._sent += self.expected
        elif compiled.rows:
            rows = self._rows_of_statement
        if count != len(rows):
            # Something has made it INSERT IGNORE or the like.
            raise self._unknown(f"it has taken {count} of {len(rows)} rows as new ones")
        given = self._given(rows)
        numbers: list[int | None] = [None] * count
        if given and all(map(_is_numbered, given)):
            column = self._numbered
            if not first and 0 not in given:
                raise self._unknown(
                    f"its column {column.name!r} has no AUTO_INCREMENT; "
                    "set the id, or alter the column"
                )
            step = self._step(first) if count > 1 else 1
            numbers = [first + n * step for n in range(count)]
            rows = [{**row, column.key: None} for row in rows]
        get = private.inserted_key(compiled)
        return [get(n, row) for n, row in zip(numbers, rows, strict=True)]

    def _unknown(self, reason: str) -> MissingIdError:
        compiled: Any = self.compiled
        table = compiled.compile_state.dml_table
        return MissingIdError(table=str(table.name), reason=reason)

    def _step(self, first: int) -> int:
        """Return the difference of two ids that follow each other.

        It is read after each INSERT: a procedure, a trigger or a cursor of
        the driver may have set it.  Not before: a proxy could send this query,
        and with it the transaction, to a standby.

        :param first: the id that the server has told.
        :raises MissingIdError: if the server has not made it.
        """
        cursor: Any = self.create_cursor()
        try:
            cursor.execute(_READ_STEP)
            step, count = cursor.fetchone()
        finally:
            cursor.close()
        if int(count) != first:
            raise self._unknown(
                "a trigger sets its ids; set them in the application, or "
                "insert single rows"
            )
        return int(step)

    def fetchall_for_returning(self, cursor: Any) -> Sequence[Any]:
        """Return the rows of RETURNING."""
        compiled: Any = self.compiled
        if compiled.returned_keys is None:
            base: Any = super()
            return list(base.fetchall_for_returning(cursor))
        return [
            tuple(key[n] for n in compiled.returned_keys)
            for key in self.keys_of(cursor)
        ]

    def post_exec(self) -> None:
        """Provide the rows of RETURNING."""
        base: Any = super()
        base.post_exec()
        compiled: Any = self.compiled
        if not self.isinsert or compiled.returned_keys is None:
            return
        self.cursor_fetch_strategy = FullyBufferedCursorFetchStrategy(
            self.cursor,
            alternate_description=[
                (column.keyname, *[None] * 6)
                for column in private.result_columns(compiled)
            ],
            initial_buffer=(
                [] if self._is_joined else self.fetchall_for_returning(self.cursor)
            ),
        )

    def _setup_ins_pk_from_lastrowid(self) -> list[Any]:
        base: Any = super()
        if self._is_joined:
            return self.new_keys
        if self.executemany:
            # The driver returns only one of the ids.
            return list(base._setup_ins_pk_from_empty())
        return list(base._setup_ins_pk_from_lastrowid())


def _is_numbered(value: Any) -> bool:
    """Return whether the server replaces an id by the next number."""
    return value is None or value == 0
