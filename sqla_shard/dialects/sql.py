"""SQL that MariaDB, MySQL and SQLite spell differently.

Each construct is one class here with one compile function per spelling, so
that no other module asks which server it is talking to.  MySQL 8 differs
from MariaDB in the JSON functions: its ``JSON_VALUE`` cuts text at 512
characters unless told, and MariaDB's takes no ``RETURNING``.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import DDL
from sqlalchemy import event
from sqlalchemy import String
from sqlalchemy import Table
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.visitors import InternalTraversal
from sqlalchemy.types import Boolean
from sqlalchemy.types import TypeEngine

__all__ = [
    "BlobActive",
    "BlobValue",
    "UpdatedAt",
    "json_path",
    "keep_updated",
]

_TEXT = String()


def json_path(key: str) -> str:
    """Return the JSON path of a key of the document's top level."""
    escaped = key.replace("\\", "\\\\").replace('"', '\\"')
    return f'$."{escaped}"'


class BlobValue(ColumnElement[Any]):
    """One key of a JSON column, as a typed SQL value.

    :param column: the JSON column.
    :param keys: the key at the top level of the document, and those that
        are looked at where it is missing.
    :param form: how the server shows it: ``text``, ``integer``, ``float``,
        ``boolean``, ``decimal`` or ``json``.
    :param type_: the type of the expression.

    A missing key and a JSON ``null`` are both NULL, except for ``json``.
    """

    __visit_name__ = "sqla_shard_blob_value"
    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement),
        ("keys", InternalTraversal.dp_string_list),
        ("form", InternalTraversal.dp_string),
        ("type", InternalTraversal.dp_type),
    ]

    def __init__(
        self,
        column: Any,
        keys: tuple[str, ...],
        form: str,
        type_: TypeEngine[Any],
    ) -> None:
        self.column = column
        self.keys = keys
        self.form = form
        self.type = type_
        # Tells select() that the statement is the ORM's.
        self._propagate_attrs = column._propagate_attrs

    @property
    def _from_objects(self) -> Any:
        # Without it a statement that selects nothing but a field would
        # have no FROM.
        return self.column._from_objects


def _spelled(element: BlobValue, compiler: Any, template: str, kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    column = compiler.process(element.column, **kw)
    values = [
        template.format(
            column, compiler.render_literal_value(json_path(key), _TEXT)
        )
        for key in element.keys
    ]
    return values[0] if len(values) == 1 else f"coalesce({', '.join(values)})"


@compiles(BlobValue)
def _blob_value(element: BlobValue, compiler: Any, **kw: Any) -> str:
    return _spelled(element, compiler, "json_value({0}, {1})", kw)


_SQLITE_FORMS = {
    "json": "json_quote(json_extract({0}, {1}))",
    "decimal": "CAST(json_extract({0}, {1}) AS REAL)",
}


@compiles(BlobValue, "sqlite")
def _blob_value_sqlite(element: BlobValue, compiler: Any, **kw: Any) -> str:
    template = _SQLITE_FORMS.get(element.form, "json_extract({0}, {1})")
    return _spelled(element, compiler, template, kw)


_MARIADB_FORMS = {
    "text": "JSON_VALUE({0}, {1})",
    "integer": "CAST(JSON_VALUE({0}, {1}) AS SIGNED)",
    "float": "CAST(JSON_VALUE({0}, {1}) AS DOUBLE)",
    "boolean": "CAST(JSON_VALUE({0}, {1}) AS SIGNED)",
    "decimal": "CAST(JSON_VALUE({0}, {1}) AS DECIMAL(65, 30))",
    "json": "JSON_EXTRACT({0}, {1})",
}
_MYSQL_FORMS = {
    "text": "JSON_UNQUOTE(NULLIF(JSON_EXTRACT({0}, {1}), "
    "CAST('null' AS JSON)))",
    "integer": "JSON_VALUE({0}, {1} RETURNING SIGNED)",
    "float": "JSON_VALUE({0}, {1} RETURNING DOUBLE)",
    "boolean": "JSON_VALUE({0}, {1} RETURNING SIGNED)",
    "decimal": "JSON_VALUE({0}, {1} RETURNING DECIMAL(65, 30))",
    "json": "CAST(JSON_EXTRACT({0}, {1}) AS CHAR)",
}


@compiles(BlobValue, "mysql", "mariadb")
def _blob_value_mysql(element: BlobValue, compiler: Any, **kw: Any) -> str:
    mariadb = getattr(compiler.dialect, "is_mariadb", False)
    forms = _MARIADB_FORMS if mariadb else _MYSQL_FORMS
    return _spelled(element, compiler, forms[element.form], kw)


class BlobActive(ColumnElement[bool]):
    """True unless the ``active`` key of a JSON column is false."""

    __visit_name__ = "sqla_shard_blob_active"
    inherit_cache = True
    _traverse_internals = [  # noqa: RUF012  # SQLAlchemy's own protocol
        ("column", InternalTraversal.dp_clauseelement),
    ]

    def __init__(self, column: Any) -> None:
        self.column = column
        self.type = Boolean()
        self._propagate_attrs = column._propagate_attrs

    @property
    def _from_objects(self) -> Any:
        return self.column._from_objects


@compiles(BlobActive)
def _blob_active(element: BlobActive, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    column = compiler.process(element.column, **kw)
    return f"json_extract({column}, '$.active') IS NOT 0"


@compiles(BlobActive, "mysql", "mariadb")
def _blob_active_mysql(element: BlobActive, compiler: Any, **kw: Any) -> str:
    kw.pop("within_columns_clause", None)
    column = compiler.process(element.column, **kw)
    return f"COALESCE(JSON_CONTAINS({column}, 'false', '$.active'), 0) = 0"


class UpdatedAt(ColumnElement[Any]):
    """The default of a column in which the server keeps the last change."""

    __visit_name__ = "sqla_shard_updated_at"
    inherit_cache = True
    _traverse_internals = []  # noqa: RUF012  # SQLAlchemy's own protocol


#: The current UTC time as SQLAlchemy reads and writes it on SQLite, with
#: six digits: text of unequal length would sort wrongly.
SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now') || '000'"


@compiles(UpdatedAt)
def _updated_at(element: UpdatedAt, compiler: Any, **kw: Any) -> str:
    return "CURRENT_TIMESTAMP"


@compiles(UpdatedAt, "sqlite")
def _updated_at_sqlite(element: UpdatedAt, compiler: Any, **kw: Any) -> str:
    return f"({SQLITE_NOW})"


@compiles(UpdatedAt, "mysql", "mariadb")
def _updated_at_mysql(element: UpdatedAt, compiler: Any, **kw: Any) -> str:
    return "CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)"


def keep_updated(table: Table, column: str) -> None:
    """Let SQLite keep a column of :class:`UpdatedAt` on UPDATE too.

    MySQL does it by the column's own definition, SQLite needs a trigger.
    """
    (key,) = table.primary_key
    trigger = DDL(
        "CREATE TRIGGER IF NOT EXISTS %(table)s_{column} "
        "AFTER UPDATE ON %(table)s FOR EACH ROW "
        "WHEN NEW.{column} IS OLD.{column} BEGIN "
        "UPDATE %(table)s SET {column} = {now} WHERE {key} = OLD.{key}; "
        "END".format(
            column=column, key=key.name, now=SQLITE_NOW.replace("%", "%%")
        )
    )
    event.listen(table, "after_create", trigger.execute_if(dialect="sqlite"))
