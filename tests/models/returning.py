"""Objects of rows that an INSERT has made, also where RETURNING is absent."""

from __future__ import annotations

from functools import cache
from typing import Any

import pymysql
import pytest
from sqlalchemy import make_url, URL

from sqla_shard import Cluster
from sqla_shard.exc import UnsupportedStatementError


def has_returning(cluster: Cluster) -> bool:
    """Return whether the servers of a cluster return more than keys."""
    (server, *_) = cluster.topology.sole("objects").servers
    url = make_url(server.primary)
    return url.host is None or _is_mariadb(url)


@cache
def _is_mariadb(url: URL) -> bool:
    # Not with an engine, whose statements tests count.
    connection = pymysql.connect(
        host=url.host, port=url.port, user=url.username, password=url.password
    )
    with connection:
        return "MariaDB" in connection.get_server_info()


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
