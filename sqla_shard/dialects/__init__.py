"""Support of MariaDB, MySQL and SQLite; no other module depends on the kind.

``base``          the interface of a kind of server; passwords of an application
``mysql``         MySQL and MariaDB: driver, catalogue and DDL
``sqlite``        the same for SQLite files
``sql``           constructs that the three spell differently
``coding``        values beside a field, in the format of the field
``result_types``  types of functions, precision and scale of computed numbers
``sorting``       sort keys that compare in Python as on the server
``numbers``       numbers as servers compute and return them
``polling``       sockets of several servers, awaited in one thread
"""

from __future__ import annotations

from sqla_shard.dialects.base import (
    Backend,
    Batch,
    Catalogue,
    check_driver,
    DDL,
    Failure,
    interrupt,
    retry_conflicts,
)
from sqla_shard.dialects.mysql import MySQL
from sqla_shard.dialects.polling import PIPELINING, Pipelining
from sqla_shard.dialects.sqlite import SQLite

__all__ = [
    "DDL",
    "Backend",
    "Batch",
    "Catalogue",
    "Failure",
    "backend_for",
    "check_driver",
    "interrupt",
    "retry_conflicts",
]


def backend_for(
    drivername: str,
    *,
    driver: str,
    asynchronous: bool = False,
    pipelining: Pipelining = PIPELINING,
) -> Backend:
    """Return the backend of a URL's scheme.

    :param drivername: such as ``mysql``, ``mysql+pymysql`` or ``sqlite``;
        the topology has checked that it is one of these.
    :param driver: the driver for MySQL URLs that do not name one, or for all
        MySQL URLs if it is asynchronous.
    :param asynchronous: whether the driver must be asynchronous.
    :param pipelining: how connections wait for responses.
    """
    if drivername.partition("+")[0] == "sqlite":
        return SQLite(asynchronous=asynchronous)
    return MySQL(driver, asynchronous=asynchronous, pipelining=pipelining)
