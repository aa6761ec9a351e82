"""The tables of a MetaData, in the order of their creation."""

from __future__ import annotations

from sqlalchemy import MetaData, Table
from sqlalchemy.schema import sort_tables_and_constraints


def sorted_tables(metadata: MetaData) -> list[Table]:
    """Return the tables, each after those that its foreign keys refer to.

    Unlike ``metadata.sorted_tables`` it does not warn of foreign keys in a
    circle, which are no mistake.
    """
    tables = sorted(metadata.tables.values(), key=lambda table: table.key)
    pairs = sort_tables_and_constraints(tables)  # type: ignore[no-untyped-call]  # SQLAlchemy's
    return [table for table, _ in pairs if table is not None]
