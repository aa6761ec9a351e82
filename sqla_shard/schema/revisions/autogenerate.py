"""Models against the tables that are there, for ``alembic revision``.

::

    context.configure(
        connection=connection,
        **comparing(Base.metadata, keyspace="objects", topology=topology),
    )

``alembic revision --autogenerate`` and ``alembic check`` then see the tables
of one keyspace.  A table that was moved to another keyspace in the models is
left where it is and never proposed for dropping: it has rows.

What alembic does not compare is not compared here either: primary keys,
collations that one side does not name, row formats and other options of
tables, checks, triggers.  Fields of blobs are no columns.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any
from typing import Literal

from alembic.autogenerate.api import AutogenContext
from alembic.operations.ops import AlterColumnOp
from alembic.operations.ops import CreateTableOp
from alembic.operations.ops import MigrationScript
from alembic.operations.ops import OpContainer
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Dialect
from sqlalchemy import MetaData
from sqlalchemy import Table
from sqlalchemy.orm import configure_mappers

from sqla_shard.dialects.sql import TRIGGER
from sqla_shard.exc import ReservedNameError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.internal import PREFIX
from sqla_shard.routing import name_of
from sqla_shard.routing import spec_of
from sqla_shard.schema.revisions.differences import default_differs
from sqla_shard.schema.revisions.differences import type_differs
from sqla_shard.schema.revisions.plain import drop_options
from sqla_shard.schema.revisions.plain import is_plain
from sqla_shard.schema.revisions.plain import render_item as render_plain
from sqla_shard.schema.revisions.portable import Listeners
from sqla_shard.schema.revisions.portable import render_item as render_portable
from sqla_shard.topology import Topology

__all__ = ["comparing"]

_VERSIONS = "alembic_version"


def comparing(
    metadata: MetaData | None,
    *,
    keyspace: str,
    topology: Topology,
    portable: bool = False,
) -> dict[str, Any]:
    """Return keyword arguments for alembic's ``context.configure()``.

    :param metadata: the tables of the models, of all keyspaces; None for
        commands that do not look at them, alembic refuses the others.
    :param keyspace: name of the keyspace that is compared.
    :param topology: tells which keyspace a table is in that names none.
    :param portable: whether revisions that are written on MySQL or MariaDB
        run on SQLite too; those that are written on SQLite always run on
        MariaDB.
    :raises UnknownKeyspaceError: when there is no such keyspace, or that of
        a table cannot be told.
    :raises ReservedNameError: when a table has a name of the package.
    """
    topology.keyspace(keyspace)
    tables: set[str] = set()
    if metadata is not None:
        # Classes that are given by name are looked up here; until then the
        # keyspace of a mapping table, and of a secondary one, is not known.
        configure_mappers()
        tables = _tables_of(metadata, keyspace, topology)

    def include_object(
        item: Any, name: str | None, kind: str, reflected: bool, other: Any
    ) -> bool:
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


def _tables_of(
    metadata: MetaData, keyspace: str, topology: Topology
) -> set[str]:
    found = set()
    for table in metadata.tables.values():
        if _is_reserved(table.name):
            raise ReservedNameError(table=table.name)
        if _keyspace_of(table, topology) == keyspace:
            found.add(table.key)
    return found


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
        # With include_schemas=True alembic would see all other shards of the
        # server, and propose to drop their tables.
        return name is None
    return kind != "table" or name is None or not _is_reserved(name)


def _is_portable(portable: bool, dialect: Dialect | None) -> bool:
    return portable or not is_plain(dialect)


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
    for script in directives:
        for container in (
            *script.upgrade_ops_list,
            *script.downgrade_ops_list,
        ):
            _complete_all(container, context, everywhere)


def _complete_all(
    container: OpContainer, context: MigrationContext, everywhere: bool
) -> None:
    kept = []
    for operation in container.ops:
        if not everywhere and hasattr(operation, "kw"):
            drop_options(operation.kw)
        if isinstance(operation, OpContainer):
            _complete_all(operation, context, everywhere)
            if operation.is_empty():
                continue
        elif isinstance(operation, CreateTableOp):
            _complete_table(operation, everywhere)
        elif isinstance(operation, AlterColumnOp):
            _forget_default(operation, context)
            if not operation.has_changes():
                continue
        kept.append(operation)
    container.ops[:] = kept


def _complete_table(operation: CreateTableOp, everywhere: bool) -> None:
    trigger = operation.info.get(TRIGGER)
    if trigger is not None and everywhere:
        operation.kw["listeners"] = Listeners(trigger)
    # A revision would show it, and could not be run.
    for key in [key for key in operation.info if _is_ours(key)]:
        del operation.info[key]


def _is_ours(key: object) -> bool:
    return isinstance(key, str) and key.startswith("sqla_shard")


def _forget_default(
    operation: AlterColumnOp, context: MigrationContext
) -> None:
    # Not with the hook compare_server_default: alembic fails before it calls
    # that for a table with a computed column.
    if operation.modify_server_default is not False and not default_differs(
        context.dialect,
        operation.existing_type,
        operation.existing_server_default,
        operation.modify_server_default,
    ):
        operation.modify_server_default = False
