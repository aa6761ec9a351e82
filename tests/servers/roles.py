"""Exchanged roles of a pair, for tests of what an application reads then.

The failover of the package publishes by itself and does not lock accounts:
tests of caches need a function of their own at that moment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.constants import ER

from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import wait_until
from sqla_shard.testing.server_fleet import ServerPair


def exchange_roles(pair: ServerPair[Any], publish: Callable[[], object]) -> bool:
    """Make the standby of a pair its primary, and the primary its standby.

    :param publish: is called while neither of them can be written.
    :returns: False, with all as before, if a statement of the primary runs
        for longer than 1 s.
    """
    old, new = pair.primary, pair.standby
    try:
        with old.root_connect() as connection:
            cursor = connection.cursor()
            cursor.execute("SET SESSION lock_wait_timeout = 1")
            cursor.execute("SET GLOBAL read_only = 1")
    except pymysql.err.OperationalError as error:
        if error.args[0] != ER.LOCK_WAIT_TIMEOUT:
            raise
        return False
    pair.wait_caught_up()
    new.root_execute("STOP REPLICA")
    publish()
    new.root_execute("SET GLOBAL read_only = 0")
    new.root_execute("RESET REPLICA ALL")
    pair.name_primary(new)
    pair.attach(old, demote=True)
    kill_application(old)
    return True


def kill_application(server: DatabaseServer) -> None:
    """End the connections that the application has now; wait until they are.

    :raises TimeoutError: if one is still there after 30 s.
    """
    with server.root_connect() as connection, connection.cursor() as cursor:

        def connections() -> set[int]:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE user = %s",
                (server.user,),
            )
            return {number for (number,) in cursor.fetchall()}

        before = connections()
        for number in before:
            try:
                cursor.execute(f"KILL {number}")
            except pymysql.err.MySQLError as error:
                if error.args[0] != ER.NO_SUCH_THREAD:
                    raise
        if not wait_until(lambda: not connections() & before, seconds=30, every=0.002):
            raise TimeoutError(f"{server!r} keeps connections that are killed")
