"""Where MariaDB, MySQL and SQLite differ, and nowhere else.

``base``          what is asked of a kind of server
``mysql``         connections, errors and databases of MySQL and MariaDB
``limits``        how long a driver waits for MySQL or MariaDB
``sqlite``        the same for SQLite files
``catalogue``     what is asked of a server about its tables
``mysql_catalogue``, ``sqlite_catalogue``  the answers
``mysql_information``  what is read of information_schema
``ddl``           what is needed to change tables of many databases
``mysql_ddl``, ``sqlite_ddl``  how it is done
``sql``           constructs that the three spell differently
``parts``         numbers that are sent to be computed with
``interrupting``  ending a driver's call from another thread
"""

from __future__ import annotations

from sqla_shard.dialects.base import Backend
from sqla_shard.dialects.base import check_driver
from sqla_shard.dialects.base import Failure
from sqla_shard.dialects.catalogue import Catalogue
from sqla_shard.dialects.ddl import DDL
from sqla_shard.dialects.interrupting import interrupt
from sqla_shard.dialects.mysql import MySQL
from sqla_shard.dialects.sqlite import SQLite

__all__ = [
    "DDL",
    "Backend",
    "Catalogue",
    "Failure",
    "backend_for",
    "check_driver",
    "interrupt",
]


def backend_for(
    drivername: str, *, driver: str, asynchronous: bool = False
) -> Backend:
    """Return the backend of a URL's scheme.

    :param drivername: such as ``mysql``, ``mysql+pymysql`` or ``sqlite``;
        the topology has checked that it is one of these.
    :param driver: the driver for MySQL URLs: where they name none, or for
        all of them if it is an asynchronous one.
    :param asynchronous: whether event loops are to wait for it.
    """
    if drivername.partition("+")[0] == "sqlite":
        return SQLite(asynchronous=asynchronous)
    return MySQL(driver, asynchronous=asynchronous)
