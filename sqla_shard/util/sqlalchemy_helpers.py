"""Ordered tables, listeners that are registered for a time, the kind of a dialect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import event, MetaData, Table
from sqlalchemy.schema import sort_tables_and_constraints


def stop_listening(target: Any, name: str, listener: Callable[..., Any]) -> None:
    """Remove a listener, unless an interrupt came before it was registered."""
    if event.contains(target, name, listener):
        event.remove(target, name, listener)


def is_mysql(dialect: Any) -> bool:
    """Return whether a dialect is of MySQL or MariaDB."""
    return dialect.name in ("mysql", "mariadb")


def sorted_tables(metadata: MetaData) -> list[Table]:
    """Return the tables, each after those that its foreign keys refer to.

    Unlike ``metadata.sorted_tables`` it does not warn of foreign keys in a
    circle, which are no mistake.
    """
    tables = sorted(metadata.tables.values(), key=lambda table: table.key)
    pairs = sort_tables_and_constraints(tables)  # type: ignore[no-untyped-call]  # SQLAlchemy's
    return [table for table, _ in pairs if table is not None]
