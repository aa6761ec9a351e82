"""Comparison of models with existing tables, for ``alembic revision``.

::

    context.configure(
        connection=connection,
        **comparing(Base.metadata, keyspace="objects", topology=topology),
    )

``alembic revision --autogenerate`` and ``alembic check`` then compare the
tables of one keyspace.  A table that the models move to another keyspace is
never dropped: it has rows.

As with alembic itself, these are not compared: primary keys, collations that
only one side names, row formats and other table options, CHECK constraints
and triggers.  Fields of blobs are not columns.

Corrections to alembic's comparison of columns:

Types, on MySQL and MariaDB: alembic compares arguments only if both types
have the same number of them, so it finds no difference between ``DATETIME``
and ``DATETIME(6)``, ``NUMERIC(12)`` and ``NUMERIC(10, 0)``, or ``BIGINT`` and
``BIGINT UNSIGNED``; older versions ignore the members of enumerations, and
all versions ignore their order.  alembic treats JSON, which is a LONGTEXT with
a CHECK constraint on MariaDB, as equal to any LONGTEXT.

Defaults: alembic compares strings, so it reports equal defaults: ``''`` and
strings with a quote, ``true()`` and 1, ``1.5`` and ``1.50``, ``now()`` and
``CURRENT_TIMESTAMP``.  MySQL and MariaDB rewrite other expressions: they are
asked how they show that of the model, for a temporary copy of the table.

Hooks of the application are called after those of this package, and only for
items that the latter do not decide: a table of another keyspace is never
compared.  Other arguments of the application replace those of this
package, except the ones that ``run_env()`` needs for itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any, Literal, TypeAlias

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import (
    AlterColumnOp,
    CreateTableOp,
    MigrationScript,
    OpContainer,
)
from alembic.runtime.migration import MigrationContext
from alembic.util import to_tuple
from sqlalchemy import (
    Boolean,
    ClauseElement,
    Column,
    Dialect,
    Float,
    Integer,
    literal,
    MetaData,
    Numeric,
    String,
    Table,
    text,
    TextClause,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import configure_mappers
from sqlalchemy.schema import CreateColumn
from sqlalchemy.types import TypeEngine

from sqla_shard.dialects.mysql.catalogue import is_generated_key
from sqla_shard.dialects.sql import TRIGGER
from sqla_shard.exc import ReservedNameError, SchemaOptionError, UnknownKeyspaceError
from sqla_shard.outbox.tables import PREFIX
from sqla_shard.planning import name_of, spec_of
from sqla_shard.schema.revisions.types import (
    drop_options,
    Listeners,
    render_item as render_portable,
    render_plain,
)
from sqla_shard.topology import Topology
from sqla_shard.util.sqlalchemy_helpers import is_mysql

__all__ = ["comparing", "default_differs", "is_portable", "merged", "type_differs"]


_TIMES = re.compile(r"(?:DATETIME|TIMESTAMP|TIME)(?:\((\d+)\))?$")
_DECIMALS = re.compile(r"(?:DECIMAL|NUMERIC)(?:\((\d+)(?:, (\d+))?\))?")
_INTEGERS = re.compile(r"\w*INT(?:EGER)?\b.*?( UNSIGNED)?(?: ZEROFILL)?$")
_CHOICES = re.compile(r"(?:ENUM|SET)\((.*)\)")
# Arguments that the server adds to types if they are omitted.
_DEFAULTS = (
    (_TIMES, ("0",)),
    (_DECIMALS, ("10", "0")),
    (_INTEGERS, ("",)),
    (_CHOICES, ("",)),
)

_CHECKED = text(
    "SELECT count(*) FROM information_schema.check_constraints "
    "WHERE constraint_schema = DATABASE() AND table_name = :table "
    "AND constraint_name = :column AND check_clause LIKE 'json_valid(%'"
)


def type_differs(
    context: MigrationContext,
    found: Column[Any],
    wanted: Column[Any],
    found_type: TypeEngine[Any],
    wanted_type: TypeEngine[Any],
) -> bool | None:
    """Return whether the type of a column has changed.

    This is the hook ``compare_type`` of alembic's ``configure()``.

    :param found: the existing column.
    :param wanted: the column of the model.
    :returns: True if it has changed; None to let alembic compare them.
    """
    if not is_mysql(context.dialect):
        return None
    process = context.dialect.type_compiler_instance.process
    texts = process(found_type), process(wanted_type)
    for pattern, defaults in _DEFAULTS:
        arguments = [_arguments(pattern, one, defaults) for one in texts]
        if None not in arguments and arguments[0] != arguments[1]:
            return True
    if texts[0].startswith(("LONGTEXT", "JSON")):
        # Alembic takes one for the other.  On MariaDB a JSON column is a
        # LONGTEXT with a CHECK; MySQL has a type, and its view of CHECKs has
        # other columns.
        dialect: Any = context.dialect
        was_json = texts[0] == "JSON"
        if dialect.is_mariadb:
            was_json = _is_json(context, found)
        return was_json != (texts[1] == "JSON") or None
    return None


def _arguments(
    pattern: re.Pattern[str], definition: str, defaults: tuple[str, ...]
) -> tuple[str, ...] | None:
    match = pattern.match(definition)
    if match is None:
        return None
    pairs = zip(match.groups(), defaults, strict=True)
    return tuple(default if one is None else one for one, default in pairs)


def _is_json(context: MigrationContext, column: Column[Any]) -> bool:
    # SQLAlchemy reflects only checks that have a name.
    names = {"table": column.table.name, "column": column.name}
    connection: Any = context.connection
    return bool(connection.scalar(_CHECKED, names))


_CURRENT = r"(?:now|localtime|localtimestamp|current_timestamp)(?:\((\d*)\))?"
_NOW = re.compile(rf"{_CURRENT}( on update {_CURRENT})?", re.IGNORECASE)
_BOOLEANS = {"true": "1", "false": "0"}
_NUMBERS = (Boolean, Integer, Numeric, Float)


def default_differs(dialect: Dialect, kind: Any, one: Any, other: Any) -> bool:
    """Return whether two defaults differ that alembic reports as different.

    :param kind: the type of the column.
    :param one: ``Column.server_default`` of the model, or as reflected from
        the server.
    :param other: the other default.
    """
    texts = [_text(dialect, getattr(each, "arg", None)) for each in (one, other)]
    if None in texts:
        return True
    bare = [_bare(str(each)) for each in texts]
    if bare[0] == bare[1]:
        return False
    forms: list[Any]
    if isinstance(kind, _NUMBERS):
        forms = [_number(each) for each in bare]
    else:
        # Without digits, MariaDB uses those of the column.
        digits = str(getattr(kind, "fsp", None) or "")
        forms = [_time(each, digits) for each in bare]
    return None in forms or forms[0] != forms[1]


def _text(dialect: Dialect, default: Any) -> str | None:
    """Return a default as SQL; None if it has no SQL, such as a sequence."""
    if isinstance(default, str):
        return _compiled(dialect, literal(default, String()))
    if isinstance(default, TextClause):
        return default.text
    if isinstance(default, ClauseElement):
        return _compiled(dialect, default)
    return None


def _compiled(dialect: Dialect, default: ClauseElement) -> str:
    compiled = default.compile(dialect=dialect, compile_kwargs={"literal_binds": True})
    # Drivers with %s for parameters require doubled percent signs.
    doubled = dialect.paramstyle in ("format", "pyformat")
    return str(compiled).replace("%%", "%") if doubled else str(compiled)


# MySQL adds the character set to a string of an expression.
_INTRODUCER = re.compile(r"('(?:[^'\\]|\\.|'')*'|'.*)|\b_[a-z0-9]+(?=')", re.S)
_NEGATIVE = re.compile(r"-\(([\d.]+)\)")


def _bare(default: str) -> str:
    """Return a default without what servers add to it.

    Alembic puts parentheses around defaults of SQLite, even around ``''``;
    MySQL writes ``-1`` as ``(-(1))``.
    """
    depth = min(
        len(default) - len(default.lstrip("(")), len(default) - len(default.rstrip(")"))
    )
    default = default[depth : len(default) - depth]
    default = _NEGATIVE.sub(r"-\1", default)
    return _INTRODUCER.sub(lambda found: found[1] or "", default)


def _number(default: str) -> Decimal | None:
    default = re.sub(r"^'(.*)'$", r"\1", default)
    try:
        return Decimal(_BOOLEANS.get(default.lower(), default))
    except InvalidOperation:
        return None


def _time(default: str, digits: str) -> tuple[str, bool, str] | None:
    match = _NOW.fullmatch(default)
    if match is None:
        return None
    return match[1] or digits, bool(match[2]), match[3] or digits


_VERSIONS = "alembic_version"

#: Name of a temporary copy of a table.
_COPY = f"{PREFIX}copy"
_KEY = f"{PREFIX}key"

#: Names of a table and a column.
_Place: TypeAlias = tuple[str, str]


def comparing(
    metadata: MetaData | None,
    *,
    keyspace: str,
    topology: Topology,
    portable: bool = False,
) -> dict[str, Any]:
    """Return keyword arguments for alembic's ``context.configure()``.

    :param metadata: the tables of the models, of all keyspaces; None for
        commands that do not need them; alembic refuses other commands.
    :param keyspace: name of the keyspace to compare.
    :param topology: determines the keyspace of tables that name no keyspace.
    :param portable: whether revisions that are generated on MySQL or MariaDB
        run on SQLite as well; revisions generated on SQLite always run on
        MariaDB.
    :raises UnknownKeyspaceError: if there is no such keyspace, or the
        keyspace of a table is ambiguous.
    :raises ReservedNameError: if a table has a name that is reserved for
        this package.
    """
    topology.keyspace(keyspace)
    tables: set[str] = set()
    if metadata is not None:
        # This resolves classes that are given by name; otherwise the keyspaces
        # of mapping tables and of secondary tables would be unknown.
        configure_mappers()
        tables = _tables_of(metadata, keyspace, topology)

    def include_object(
        item: Any, name: str | None, kind: str, reflected: bool, other: Any
    ) -> bool:
        if reflected and kind == "column" and other is None:
            return not is_generated_key(item)
        return reflected or kind != "table" or item.key in tables

    return {
        "target_metadata": metadata,
        "include_name": _include_name,
        "include_object": include_object,
        "render_item": partial(_render_item, portable),
        "compare_type": type_differs,
        "compare_server_default": True,
        "process_revision_directives": partial(_complete, portable),
        "sqlalchemy_module_prefix": "sa.",
    }


def _tables_of(metadata: MetaData, keyspace: str, topology: Topology) -> set[str]:
    tables = set()
    for table in metadata.tables.values():
        if _is_reserved(table.name):
            raise ReservedNameError(table=table.name)
        if _keyspace_of(table, topology) == keyspace:
            tables.add(table.key)
    return tables


def _keyspace_of(table: Table, topology: Topology) -> str:
    spec = spec_of(table)
    name = name_of(spec, topology)
    if name is not None:
        return name
    try:
        return topology.sole(spec.kind).name  # type: ignore[arg-type]  # checked there
    except UnknownKeyspaceError as error:
        raise UnknownKeyspaceError(
            f"table {table.name!r}: {error}", keyspace=None, known=error.known
        ) from error


def _is_reserved(name: str) -> bool:
    return name == _VERSIONS or name.startswith(PREFIX)


def _include_name(name: str | None, kind: str, parents: Any) -> bool:
    if kind == "schema":
        # With include_schemas=True alembic would find all other shards of the
        # server, and drop their tables in the revision.
        return name is None
    return kind != "table" or name is None or not _is_reserved(name)


def _is_portable(portable: bool, dialect: Dialect | None) -> bool:
    return portable or not is_mysql(dialect)


def _render_item(
    portable: bool, kind: str, item: Any, context: AutogenContext
) -> str | Literal[False]:
    """Handle ``render_item``."""
    if _is_portable(portable, context.dialect):
        return render_portable(kind, item, context)
    return render_plain(kind, item, context)


def _complete(
    portable: bool,
    context: MigrationContext,
    revision: Any,
    directives: Iterable[MigrationScript],
) -> None:
    """Handle ``process_revision_directives``."""
    everywhere = _is_portable(portable, context.dialect)
    equal: set[_Place] = set()
    for script in directives:
        for upgrade in script.upgrade_ops_list:
            _find_equal_defaults(upgrade, context, equal)
        for container in (*script.upgrade_ops_list, *script.downgrade_ops_list):
            _complete_all(container, equal, everywhere)


def _complete_all(
    container: OpContainer, equal: Collection[_Place], everywhere: bool
) -> None:
    operations = []
    for operation in container.ops:
        if not everywhere and hasattr(operation, "kw"):
            drop_options(operation.kw)
        if isinstance(operation, OpContainer):
            _complete_all(operation, equal, everywhere)
            if operation.is_empty():
                continue
        elif isinstance(operation, CreateTableOp):
            _complete_table(operation, everywhere)
        elif isinstance(operation, AlterColumnOp):
            if _place(operation) in equal:
                operation.modify_server_default = False
            if not operation.has_changes():
                continue
        operations.append(operation)
    container.ops[:] = operations


def _complete_table(operation: CreateTableOp, everywhere: bool) -> None:
    trigger = operation.info.get(TRIGGER)
    if trigger is not None and everywhere:
        operation.kw["listeners"] = Listeners(trigger)
    # The revision would contain it, and could not be executed.
    for key in list(operation.info):
        if isinstance(key, str) and key.startswith("sqla_shard"):
            del operation.info[key]


def _place(operation: AlterColumnOp) -> _Place:
    return operation.table_name, operation.column_name


def _find_equal_defaults(
    container: OpContainer, context: MigrationContext, equal: set[_Place]
) -> None:
    # The hook compare_server_default cannot do it: for a table with a computed
    # column alembic fails before it calls the hook.
    for operation in container.ops:
        if isinstance(operation, OpContainer):
            _find_equal_defaults(operation, context, equal)
        elif (
            isinstance(operation, AlterColumnOp)
            and operation.modify_server_default is not False
            and (
                not default_differs(
                    context.dialect,
                    operation.existing_type,
                    operation.existing_server_default,
                    operation.modify_server_default,
                )
                or _is_shown_alike(operation, context)
            )
        ):
            equal.add(_place(operation))


def _is_shown_alike(operation: AlterColumnOp, context: MigrationContext) -> bool:
    """Return whether the server shows the new default as the present one."""
    wanted = getattr(operation.modify_server_default, "arg", None)
    connection: Any = context.connection
    if not is_mysql(context.dialect) or _text(context.dialect, wanted) is None:
        return False
    if operation.modify_type is not None:
        # The copy has the present type.
        return False
    quote = context.dialect.identifier_preparer.quote
    column = quote(operation.column_name)
    spec = str(
        CreateColumn(
            Column(operation.column_name, Integer, server_default=wanted)
        ).compile(dialect=context.dialect)
    )
    default = spec.partition(" DEFAULT ")[2]
    table, copy = quote(operation.table_name), quote(_COPY)
    run = connection.exec_driver_sql

    # MySQL makes no LIKE of a table with FULLTEXT or partitions, or in a shared
    # file, and may demand a key; MariaDB's SELECT leaves out uuid().
    source = f"LIKE {table}"
    if not connection.dialect.is_mariadb:
        key = f"{quote(_KEY)} INT DEFAULT 0 PRIMARY KEY"
        source = f"({key}) SELECT * FROM {table} LIMIT 0"  # noqa: S608  # quoted

    def shown() -> str:
        return str(run(f"SHOW CREATE TABLE {copy}").one()[1])

    try:
        run(f"CREATE TEMPORARY TABLE {copy} {source}")
        present = shown()
        run(f"ALTER TABLE {copy} ALTER COLUMN {column} SET DEFAULT {default}")
        return shown() == present
    except DBAPIError:
        # The account may create no copy, or the operation says what the server
        # refuses.
        return False
    finally:
        run(f"DROP TEMPORARY TABLE IF EXISTS {copy}")


_BY_RUN_ENV = "run_env() opens the connections, from the topology; leave it out"
_BY_COMMAND = "the command of alembic sets it; leave it out"
_REFUSED = {
    "connection": _BY_RUN_ENV,
    "url": _BY_RUN_ENV,
    "dialect_name": _BY_RUN_ENV,
    "fn": _BY_COMMAND,
    "as_sql": _BY_COMMAND,
    "target_metadata": "pass the tables as run_env(context, metadata)",
    "version_table_schema": "each virtual shard has its own version table, in "
    "its own database; leave it out",
    "sqla_shard": "run_env() sets the shard; leave it out",
}
_PORTABLE = {"true": True, "false": False}


def is_portable(text: str | None, section: str) -> bool:
    """Return the option ``portable`` of a section of alembic.ini.

    :param text: the value of the option, or None.
    :raises SchemaOptionError: if it is neither true nor false.
    """
    if text is None:
        return False
    if text not in _PORTABLE:
        raise SchemaOptionError(
            f"write portable = true or portable = false below [{section}] "
            "of alembic.ini",
            option="portable",
            value=text,
        )
    return _PORTABLE[text]


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Any:
    """Return keyword arguments for ``context.configure()``.

    :param ours: the result of :func:`~sqla_shard.schema.comparing`.
    :param theirs: arguments of the application.
    :raises SchemaOptionError: for an argument that ``run_env()`` or alembic
        sets.
    """
    for name, remedy in _REFUSED.items():
        if name in theirs:
            # Do not show the value: a URL may contain a password.
            kind = type(theirs[name]).__name__
            raise SchemaOptionError(remedy, option=name, value=f"<{kind}>")
    both = {**ours, **theirs}
    for name, chain in _CHAINS.items():
        hooks = [of[name] for of in (ours, theirs) if of.get(name)]
        if len(hooks) == 2:
            both[name] = chain(*hooks)
        elif hooks:
            # The application can pass None for a hook.
            (both[name],) = hooks
    both["on_version_apply"] = to_tuple(theirs.get("on_version_apply"), default=())
    return both


_Hook = Callable[..., Any]


def _and_hook(first: _Hook, second: _Hook) -> _Hook:
    """Return a hook that includes an item if both hooks include it."""

    def include(*arguments: Any) -> bool:
        return bool(first(*arguments) and second(*arguments))

    return include


def _or_hook(first: _Hook, second: _Hook) -> _Hook:
    """Return a hook that calls the second if the first returns False."""

    def render(*arguments: Any) -> Any:
        found = first(*arguments)
        return second(*arguments) if found is False else found

    return render


def _one_by_one(first: _Hook, second: _Hook) -> _Hook:
    def process(*arguments: Any) -> None:
        first(*arguments)
        second(*arguments)

    return process


_CHAINS: dict[str, Callable[[_Hook, _Hook], _Hook]] = {
    "include_name": _and_hook,
    "include_object": _and_hook,
    "render_item": _or_hook,
    "process_revision_directives": _one_by_one,
}
