"""SQL that MariaDB, MySQL and SQLite spell differently.

Each construct is a class with one compile function per spelling, so that no
other module depends on the server.  MySQL differs from MariaDB in the JSON
functions: they parse the whole document, and all but ``JSON_VALUE`` refuse
the statement for one document that they cannot parse.  Numbers above 64 bits
are doubles there.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import DDL, event, select, String, Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import BindParameter, ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import Boolean, TypeEngine

from sqla_shard.types.columns import UTCTimestamp
from sqla_shard.types.compression import MARKER
from sqla_shard.util import sqlalchemy_private as private

_TEXT = String()


def json_path(key: str) -> str:
    """Return the JSON path of a key of the document's top level.

    :param key: without double quotes and control characters: SQLite
        compares the path with the text of the document, including escapes.
    """
    escaped = key.replace("\\", "\\\\")
    return f'$."{escaped}"'


class BlobValue(ColumnElement[Any]):
    """One key of a JSON column, as a typed SQL value.

    :param column: the JSON column.
    :param keys: the key at the top level of the document, and the keys to read
        if it is missing.
    :param form: the form that the server returns: ``text``, ``integer``,
        ``id``, ``float``, ``boolean``, ``decimal`` or ``json``.
    :param type_: the type of the expression.
    :param nullable: whether a key may hold JSON ``null``, a value that takes
        precedence over the next key and the default.
    :param default: the value if all keys are missing; None for NULL.

    A missing key without a default and a JSON ``null`` are both NULL.
    """

    __visit_name__ = "sqla_shard_blob_value"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement),
        ("keys", InternalTraversal.dp_string_list),
        ("form", InternalTraversal.dp_string),
        ("type", InternalTraversal.dp_type),
        ("nullable", InternalTraversal.dp_boolean),
        ("default", InternalTraversal.dp_clauseelement),
    ]

    def __init__(
        self,
        column: Any,
        keys: tuple[str, ...],
        form: str,
        type_: TypeEngine[Any],
        *,
        nullable: bool,
        default: Any = None,
    ) -> None:
        self.column = column
        self.keys = keys
        self.form = form
        self.type: Any = type_
        self.nullable = nullable
        self.default: BindParameter[Any] | None = (
            None
            if default is None
            else BindParameter(None, default, type_=type_, unique=True)
        )
        # Makes select() an ORM statement.
        self._propagate_attrs = private.propagate_attrs(column)

    @property
    def _from_objects(self) -> Any:
        # Without it a statement that selects nothing but a field would
        # have no FROM.
        return private.from_objects(self.column)


def _spelled(
    element: BlobValue,
    compiler: Any,
    template: str,
    exists: str,
    kw: Any,
    default: str = "{1}",
) -> str:
    kw.pop("within_columns_clause", None)
    column = compiler.process(element.column, **kw)
    paths = [
        compiler.render_literal_value(json_path(key), _TEXT) for key in element.keys
    ]
    values = [template.format(column, path) for path in paths]
    last = "NULL"
    if element.default is not None:
        last = compiler.process(element.default, **kw)
        last = default.format(column, last)
    elif element.nullable or len(values) == 1:
        # A missing last key and null are both NULL.
        last = values.pop()
    if not values:
        return last
    if not element.nullable:
        shown = values if last == "NULL" else [*values, last]
        return f"coalesce({', '.join(shown)})"
    cases = "".join(
        f" WHEN {exists.format(column, path)} THEN {value}"
        for path, value in zip(paths, values, strict=False)
    )
    return f"CASE{cases} ELSE {last} END"


@compiles(BlobValue)
def _blob_value(element: BlobValue, compiler: Any, **kw: Any) -> str:
    exists = "json_exists({0}, {1})"
    return _spelled(element, compiler, "json_value({0}, {1})", exists, kw)


# With two paths json_extract() returns a JSON array; with one it converts a
# number to a float, and true to 1.  A blob is not an array.
_SQLITE_ARRAY = "json_extract({0}, {1}, '$[0]')"  # '[value,null]'
_SQLITE_FORMS = {
    # More than 64 bits are a text, which is greater than all numbers.
    "integer": "CAST(json_extract({0}, {1}) AS NUMERIC)",
    "float": "CAST(json_extract({0}, {1}) AS REAL)",
    "decimal": "CAST(json_extract({0}, {1}) AS REAL)",
    "json": f"NULLIF(substr({_SQLITE_ARRAY}, 2, length({_SQLITE_ARRAY}) - 7), 'null')",
}


@compiles(BlobValue, "sqlite")
def _blob_value_sqlite(element: BlobValue, compiler: Any, **kw: Any) -> str:
    template = _SQLITE_FORMS.get(element.form, "json_extract({0}, {1})")
    exists = "json_type({0}, {1}) IS NOT NULL"
    return _spelled(element, compiler, template, exists, kw)


# DECIMAL for integers: CAST AS SIGNED of more than 64 bits is -1.
_MARIADB_FORMS = {
    "text": "JSON_VALUE({0}, {1})",
    "integer": "CAST(JSON_VALUE({0}, {1}) AS DECIMAL(65, 0))",
    "id": "CAST(JSON_VALUE({0}, {1}) AS SIGNED)",
    "float": "CAST(JSON_VALUE({0}, {1}) AS DOUBLE)",
    "boolean": "CAST(JSON_VALUE({0}, {1}) AS SIGNED)",
    "decimal": "CAST(JSON_VALUE({0}, {1}) AS DECIMAL(65, 30))",
    # A comparison takes the quotes off a JSON text, and "null" would be NULL.
    "json": "NULLIF(CONCAT(JSON_EXTRACT({0}, {1})), 'null')",
}
# JSON_VALUE() returns NULL for a document that MySQL cannot parse; other
# functions refuse the statement.  Without a length it returns NULL for texts
# of more than 512 characters; this is the maximum.
_MYSQL_TEXT = "JSON_VALUE({0}, {1} RETURNING CHAR(1073741823))"


def _mysql_decimal(places: int, text: str, least: str) -> str:
    """Return the text of a JSON value as a DECIMAL of 65 digits.

    CAST() of a text that is no such number is refused in an UPDATE.  Numbers
    beyond the DECIMAL are its least or greatest, as on MariaDB.

    :param places: digits after the point.
    :param text: the expression to convert.
    :param least: an expression for most numbers, which is faster; or nothing.
    """
    most = "9" * (65 - places) + "." + "9" * places
    return (
        f"COALESCE({least}JSON_VALUE(JSON_QUOTE({text}), '$' "
        f"RETURNING DECIMAL(65, {places})), CASE "
        f"WHEN {_MYSQL_TEXT} REGEXP '[eE]-' THEN 0 "
        f"WHEN {_MYSQL_TEXT} REGEXP '^-[.0-9]' THEN -{most} "
        f"WHEN {_MYSQL_TEXT} REGEXP '^[+.0-9]' THEN {most} END)"
    )


_MYSQL_FORMS = {
    # This collation, like that of the column on MariaDB, compares trailing
    # spaces.
    "text": f"{_MYSQL_TEXT} COLLATE utf8mb4_0900_bin",
    # RETURNING DECIMAL of a number of 64 bits is negative.  A number above
    # them is a double, which has lost digits: with another exponent it is
    # beyond the DECIMAL.
    "integer": _mysql_decimal(
        0,
        f"REPLACE({_MYSQL_TEXT}, 'e', 'e9')",
        "JSON_VALUE({0}, {1} RETURNING SIGNED), ",
    ),
    "id": "JSON_VALUE({0}, {1} RETURNING SIGNED)",
    "float": "JSON_VALUE({0}, {1} RETURNING DOUBLE)",
    "boolean": "JSON_VALUE({0}, {1} RETURNING SIGNED)",
    "decimal": _mysql_decimal(30, _MYSQL_TEXT, ""),
    "json": "CAST(JSON_VALUE({0}, {1} RETURNING JSON) AS CHAR) "
    "COLLATE utf8mb4_0900_bin",
}


@compiles(BlobValue, "mysql")
def _blob_value_mysql(element: BlobValue, compiler: Any, **kw: Any) -> str:
    if getattr(compiler.dialect, "is_mariadb", False):
        return _blob_value_mariadb(element, compiler, **kw)
    exists = "IF(JSON_VALID({0}), JSON_CONTAINS_PATH({0}, 'one', {1}), FALSE)"
    # A document that is not parsed has no default.
    default = "IF(JSON_VALID({0}), {1}, NULL)"
    template = _MYSQL_FORMS[element.form]
    return _spelled(element, compiler, template, exists, kw, default)


@compiles(BlobValue, "mariadb")
def _blob_value_mariadb(element: BlobValue, compiler: Any, **kw: Any) -> str:
    exists = "JSON_CONTAINS_PATH({0}, 'one', {1})"
    template = _MARIADB_FORMS[element.form]
    return _spelled(element, compiler, template, exists, kw)


class BlobActive(ColumnElement[bool]):
    """True unless the ``active`` key of a JSON column is false.

    In a compressed column it is true for compressed blobs: those of inactive
    objects are not compressed.
    """

    __visit_name__ = "sqla_shard_blob_active"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement)
    ]

    def __init__(self, column: Any) -> None:
        self.column = column
        self.type: Any = Boolean()
        self._propagate_attrs = private.propagate_attrs(column)

    @property
    def _from_objects(self) -> Any:
        return private.from_objects(self.column)


def _is_compressed(element: BlobActive) -> bool:
    return getattr(element.column.type, "compression", None) is not None


@compiles(BlobActive)
def _blob_active(element: BlobActive, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    column = compiler.process(element.column, **kw)
    if _is_compressed(element):
        column = f"CASE typeof({column}) WHEN 'text' THEN {column} END"
    return f"(json_type({column}, '$.active') IS NOT 'false')"


@compiles(BlobActive, "mysql", "mariadb")
def _blob_active_mysql(element: BlobActive, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    column = compiler.process(element.column, **kw)
    if _is_compressed(element):
        marker = f"0x{MARKER.hex()}"
        column = (
            f"CASE WHEN LEFT({column}, 1) <> {marker} "
            f"THEN CONVERT({column} USING utf8mb4) END"
        )
    if getattr(compiler.dialect, "is_mariadb", False):
        condition = f"JSON_CONTAINS({column}, 'false', '$.active')"
    else:
        # JSON_CONTAINS() refuses documents that MySQL cannot parse.
        value = f"JSON_VALUE({column}, '$.active' RETURNING JSON)"
        condition = f"{value} = CAST('false' AS JSON)"
    return f"(COALESCE({condition}, 0) = 0)"


class IsBinary(ColumnElement[bool]):
    """Whether a column of a table stores bytes that are not text."""

    __visit_name__ = "sqla_shard_is_binary"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement)
    ]

    def __init__(self, column: Any) -> None:
        self.column: Any = select(column).limit(1).scalar_subquery()
        self.type: Any = Boolean()


@compiles(IsBinary)
def _is_binary(element: IsBinary, compiler: Any, **kw: Any) -> str:
    return "1"


@compiles(IsBinary, "mysql", "mariadb")
def _is_binary_mysql(element: IsBinary, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    # The type of an empty table's column is known as well.
    return f"(CHARSET({compiler.process(element.column, **kw)}) = 'binary')"


class UpdatedAt(ColumnElement[Any]):
    """The default of a column with the time of the last change."""

    __visit_name__ = "sqla_shard_updated_at"
    inherit_cache: bool | None = True
    _traverse_internals = []  # noqa: RUF012  # SQLAlchemy's own protocol


_NOW = "'now'"
#: The current UTC time as SQLAlchemy reads and writes it on SQLite, with
#: six digits: text of unequal length would sort wrongly.
SQLITE_NOW = f"strftime('%Y-%m-%d %H:%M:%f', {_NOW}) || '000'"


@compiles(UpdatedAt)
def _updated_at(element: UpdatedAt, compiler: Any, **kw: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(UpdatedAt, "sqlite")
def _updated_at_sqlite(element: UpdatedAt, compiler: Any, **kw: Any) -> str:
    return f"({SQLITE_NOW})"


@compiles(UpdatedAt, "mysql", "mariadb")
def _updated_at_mysql(element: UpdatedAt, compiler: Any, **kw: Any) -> str:
    return "CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"


#: Key of ``Table.info`` with the text of the trigger, for :class:`DDL`.
TRIGGER = "sqla_shard_trigger"
_TRIGGER = (
    "CREATE TRIGGER IF NOT EXISTS {name} AFTER UPDATE ON %(table)s "
    "FOR EACH ROW WHEN NEW.{column} IS OLD.{column} BEGIN "
    "UPDATE %(table)s SET {column} = {now} WHERE {key} = OLD.{key}; END"
)


def keep_updated(table: Table, column: str) -> None:
    """Let SQLite set a column of :class:`UpdatedAt` on UPDATE.

    On MySQL the definition of the column does it; SQLite needs a trigger.
    """
    (key,) = table.primary_key
    name = '"{}_{}"'.format(table.name.replace('"', '""'), column)
    text = _TRIGGER.format(
        name=name.replace("%", "%%"),
        column=column,
        key=key.name,
        now=SQLITE_NOW.replace("%", "%%"),
    )
    trigger: Any = DDL(text)  # type: ignore[no-untyped-call]  # SQLAlchemy's
    event.listen(table, "after_create", trigger.execute_if(dialect="sqlite"))
    table.info[TRIGGER] = text


class ServerTime(ColumnElement[Any]):
    """The time of the server's clock in UTC, with microseconds.

    :param later: number of microseconds to add, an expression or a parameter;
        None for the current time.
    """

    __visit_name__ = "sqla_shard_moment"
    inherit_cache: bool | None = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("later", InternalTraversal.dp_clauseelement)
    ]

    def __init__(self, later: ColumnElement[int] | None = None) -> None:
        self.later = later
        self.type: Any = UTCTimestamp()


@compiles(ServerTime)
def _moment(element: ServerTime, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    if element.later is None:
        return "CURRENT_TIMESTAMP(6)"
    later = compiler.process(element.later, **kw)
    return f"(CURRENT_TIMESTAMP(6) + INTERVAL {later} MICROSECOND)"


@compiles(ServerTime, "sqlite")
def _moment_sqlite(element: ServerTime, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    if element.later is None:
        return f"({SQLITE_NOW})"
    later = compiler.process(element.later, **kw)
    seconds = f"printf('%+.6f seconds', {later} / 1000000.0)"
    return f"({SQLITE_NOW.replace(_NOW, f'{_NOW}, {seconds}')})"


class InsertMissing(Insert):
    """An INSERT that does nothing if the primary key exists.

    The row is locked on MySQL and MariaDB, as by an UPDATE.  INSERT IGNORE
    would acquire a shared lock, which can deadlock with other writers, and
    truncate values that are too long.
    """

    inherit_cache: bool | None = True


@compiles(InsertMissing)
def _insert_missing(element: Any, compiler: Any, **kw: Any) -> str:
    return f"{compiler.visit_insert(element, **kw)} ON CONFLICT DO NOTHING"


@compiles(InsertMissing, "mysql", "mariadb")
def _insert_missing_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    first = next(iter(element.table.primary_key))
    key = compiler.preparer.format_column(first)
    return f"{text} ON DUPLICATE KEY UPDATE {key} = {key}"


class Upsert(Insert):
    """An INSERT that sets all columns if the primary key exists."""

    inherit_cache: bool | None = True


@compiles(Upsert)
def _upsert(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    quoted = compiler.preparer.format_column
    keys = ", ".join(quoted(one) for one in element.table.primary_key)
    names = [quoted(one) for one in element.table.c]
    values = ", ".join(f"{name} = excluded.{name}" for name in names)
    return f"{text} ON CONFLICT ({keys}) DO UPDATE SET {values}"


@compiles(Upsert, "mysql", "mariadb")
def _upsert_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    names = [compiler.preparer.format_column(one) for one in element.table.c]
    # Deprecated on MySQL, and the only spelling on MariaDB.
    values = ", ".join(f"{name} = VALUES({name})" for name in names)
    return f"{text} ON DUPLICATE KEY UPDATE {values}"


#: Key of ``Table.info``: the name of the column that :class:`UpsertNewer`
#: compares.
VERSION = "sqla_shard_version"


class UpsertNewer(Insert):
    """An INSERT that sets all columns, unless the row there is newer.

    ``Table.info`` has the name of the column with the version under
    :data:`VERSION`.  A row of the same version is set again.
    """

    inherit_cache: bool | None = True


@compiles(UpsertNewer)
def _upsert_newer(element: Any, compiler: Any, **kw: Any) -> str:
    text = _upsert(element, compiler, **kw)
    quoted = compiler.preparer.format_column
    version = quoted(element.table.c[element.table.info[VERSION]])
    table = compiler.preparer.format_table(element.table, use_schema=False)
    return f"{text} WHERE excluded.{version} >= {table}.{version}"


@compiles(UpsertNewer, "mysql", "mariadb")
def _upsert_newer_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    quoted = compiler.preparer.format_column
    column = element.table.c[element.table.info[VERSION]]
    version = quoted(column)
    # The version is the last: assignments are made from left to right, and
    # those after it would compare with the new one.
    others = [
        quoted(one)
        for one in element.table.c
        if one is not column and not one.primary_key
    ]
    values = [
        f"{name} = IF(VALUES({version}) >= {version}, VALUES({name}), {name})"
        for name in others
    ]
    values.append(f"{version} = GREATEST({version}, VALUES({version}))")
    return f"{text} ON DUPLICATE KEY UPDATE {', '.join(values)}"


class InsertCounting(Insert):
    """An INSERT that adds 1 to a column if a unique key exists.

    ``Table.info`` has the columns of the key, and the column that counts,
    under :data:`COUNTING`.
    """

    inherit_cache: bool | None = True


#: Key of ``Table.info``: the names of the columns of a unique key, and the
#: name of the column that :class:`InsertCounting` and :class:`InsertAdding`
#: count in.
COUNTING = "sqla_shard_counting"


@compiles(InsertCounting)
def _insert_counting(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    key, counter = element.table.info[COUNTING]
    return (
        f"{text} ON CONFLICT ({', '.join(key)}) DO UPDATE SET {counter} = {counter} + 1"
    )


@compiles(InsertCounting, "mysql", "mariadb")
def _insert_counting_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    _, counter = element.table.info[COUNTING]
    return f"{text} ON DUPLICATE KEY UPDATE {counter} = {counter} + 1"


class InsertAdding(Insert):
    """An INSERT that adds its value to a column if a unique key exists.

    ``Table.info`` is as for :class:`InsertCounting`.
    """

    inherit_cache: bool | None = True


@compiles(InsertAdding)
def _insert_adding(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    key, counter = element.table.info[COUNTING]
    return (
        f"{text} ON CONFLICT ({', '.join(key)}) "
        f"DO UPDATE SET {counter} = {counter} + excluded.{counter}"
    )


@compiles(InsertAdding, "mysql", "mariadb")
def _insert_adding_mysql(element: Any, compiler: Any, **kw: Any) -> str:
    text = compiler.visit_insert(element, **kw)
    _, counter = element.table.info[COUNTING]
    # VALUES() is deprecated on MySQL, and the only spelling on MariaDB.
    return f"{text} ON DUPLICATE KEY UPDATE {counter} = {counter} + VALUES({counter})"


class SkipLocked(ColumnElement[Any]):
    """The suffix of a SELECT that locks its rows and skips locked ones.

    Empty where the server cannot skip them: the caller must check with its
    UPDATE which of the rows it has got.
    """

    __visit_name__ = "sqla_shard_skip_locked"
    inherit_cache: bool | None = True
    _traverse_internals = []  # noqa: RUF012  # SQLAlchemy's own protocol


@compiles(SkipLocked)
def _skip_locked(element: SkipLocked, compiler: Any, **kw: Any) -> str:
    return ""


@compiles(SkipLocked, "mysql", "mariadb")
def _skip_locked_mysql(element: SkipLocked, compiler: Any, **kw: Any) -> str:
    dialect = compiler.dialect
    since = (10, 6) if getattr(dialect, "is_mariadb", False) else (8, 0, 1)
    version = dialect.server_version_info or ()
    return "FOR UPDATE SKIP LOCKED" if version >= since else ""
