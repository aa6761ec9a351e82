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
from typing import Any

from alembic.operations.ops import AlterColumnOp
from alembic.operations.ops import CreateTableOp
from alembic.operations.ops import MigrationScript
from alembic.operations.ops import OpContainer
from alembic.runtime.migration import MigrationContext
from sqlalchemy import MetaData
from sqlalchemy import Table
from sqlalchemy.orm import configure_mappers

from sqla_shard.dialects.sql import TRIGGER
from sqla_shard.exc import ReservedNameError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.routing import name_of
from sqla_shard.routing import spec_of
from sqla_shard.schema.differences import default_differs
from sqla_shard.schema.differences import type_differs
from sqla_shard.schema.portable import Listeners
from sqla_shard.schema.portable import render_item
from sqla_shard.topology import Topology

__all__ = ["comparing"]

_PREFIX = "sqla_shard_"
_VERSIONS = "alembic_version"


def comparing(
    metadata: MetaData | None, *, keyspace: str, topology: Topology
) -> dict[str, Any]:
    """Return keyword arguments for alembic's ``context.configure()``.

    :param metadata: the tables of the models, of all keyspaces; None for
        commands that do not look at them, alembic refuses the others.
    :param keyspace: name of the keyspace that is compared.
    :param topology: tells which keyspace a table is in that names none.
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
        "render_item": render_item,
        "compare_type": type_differs,
        "compare_server_default": True,
        "process_revision_directives": _complete,
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
    return name == _VERSIONS or name.startswith(_PREFIX)


def _include_name(name: str | None, kind: str, parents: Any) -> bool:
    return kind != "table" or name is None or not _is_reserved(name)


def _complete(
    context: MigrationContext,
    revision: Any,
    directives: Iterable[MigrationScript],
) -> None:
    """Handle ``process_revision_directives``."""
    for script in directives:
        for container in (
            *script.upgrade_ops_list,
            *script.downgrade_ops_list,
        ):
            _complete_all(container, context)


def _complete_all(container: OpContainer, context: MigrationContext) -> None:
    kept = []
    for operation in container.ops:
        if isinstance(operation, OpContainer):
            _complete_all(operation, context)
            if operation.is_empty():
                continue
        elif isinstance(operation, CreateTableOp):
            _complete_table(operation)
        elif isinstance(operation, AlterColumnOp):
            _forget_default(operation, context)
            if not operation.has_changes():
                continue
        kept.append(operation)
    container.ops[:] = kept


def _complete_table(operation: CreateTableOp) -> None:
    trigger = operation.info.get(TRIGGER)
    if trigger is not None:
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
