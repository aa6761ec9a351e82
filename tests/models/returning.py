"""Objects of rows that an INSERT has made, also where RETURNING is absent."""

from __future__ import annotations

from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.exc import UnsupportedStatementError

__all__ = ["has_returning", "inserted"]


def has_returning(cluster: Cluster) -> bool:
    """Return whether the servers of a cluster return more than keys."""
    # Those that have not been connected to are not known.
    return any(
        place.engine.dialect.insert_returning
        for _, place in cluster.places.servers()
    )


def inserted(
    session: Any, statement: Any, rows: Any = None, **kwargs: Any
) -> list[Any]:
    """Execute an INSERT of a class, and return the objects of its rows.

    On MySQL, RETURNING of them is refused; that of their ids is not.
    """
    cls = statement.entity_description["entity"]
    returning = statement.returning(cls)
    if has_returning(session.cluster):
        return session.scalars(returning, rows, **kwargs).all()
    with pytest.raises(UnsupportedStatementError, match=r"session\.add_all"):
        session.scalars(returning, rows, **kwargs)
    made = statement.returning(cls.id)
    ids = session.scalars(made, rows, **kwargs).all()
    hidden = {"include_inactive": True}
    return session.get_many(cls, ids, execution_options=hidden)
