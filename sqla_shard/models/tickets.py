"""Ids from ticket servers: databases that only count.

Two servers, either of which is enough: the first issues odd numbers, the
second even ones.  So the numbers of both are different, and neither has to
know anything about the other::

    from sqla_shard.models.tickets import TicketServers

    tickets = TicketServers(
        ["mysql://tickets:${PASSWORD}@tickets1", "mysql://..@tickets2"]
    )
    tickets.create(["pins"], above=7_075_733)  # once
    cluster.id_service = tickets

The idea is Flickr's ("Ticket Servers: Distributed Unique Primary Keys on the
Cheap", 2010).  There AUTO_INCREMENT counts; here a row of each table does, so
that one UPDATE issues numbers for many rows, and nothing depends on
``auto_increment_increment`` of the servers.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from itertools import count as counting
from time import monotonic
from typing import Any

from sqlalchemy import (
    BigInteger,
    bindparam,
    case,
    Column,
    Connection,
    func,
    Integer,
    MetaData,
    select,
    String,
    Table,
    update,
)
from sqlalchemy.exc import DBAPIError, SQLAlchemyError, TimeoutError as PoolTimeoutError

from sqla_shard.dialects import backend_for, Failure
from sqla_shard.dialects.sql import InsertMissing
from sqla_shard.engine.pools import server_name
from sqla_shard.engine.registry import filled
from sqla_shard.exc import IdServiceError
from sqla_shard.exc.base import original
from sqla_shard.util.logs import careful_log
from sqla_shard.util.pace import jittered
from sqla_shard.util.processes import in_children

_log = careful_log(__name__)

#: Seconds for which a server that has failed is asked after the others.
_REST = 5.0
#: Errors after which another server may issue the number; any other is a
#: mistake, which would remain hidden if the other server issued all numbers.
_PASSING = frozenset([Failure.LOST, Failure.FENCED, Failure.BUSY, Failure.CONFLICT])

#: One row for each table whose ids are issued: the number that was issued
#: last.  A server issues every ``step``-th number, beginning with ``first``.
_TICKETS = Table(
    "sqla_shard_ticket",
    MetaData(),
    Column("name", String(64), primary_key=True),
    Column("first", Integer, nullable=False),
    Column("step", Integer, nullable=False),
    Column("last_id", BigInteger, nullable=False),
    mysql_engine="InnoDB",
    mysql_charset="utf8mb4",
    mysql_collate="utf8mb4_bin",
)
_last = _TICKETS.c.last_id
_own = update(_TICKETS).where(
    _TICKETS.c.name == bindparam("the_name"),
    # Otherwise a process with another list of servers would issue numbers
    # that another server issues too.
    _TICKETS.c.first == bindparam("the_first"),
    _TICKETS.c.step == bindparam("the_step"),
)
_next = _last + bindparam("the_increment")
# One statement in autocommit mode: the response has the number.
_ISSUE = _own.values(last_id=func.last_insert_id(_next))
_ISSUE_FILE = _own.values(last_id=_next).returning(_last)
_RAISE = _own.values(
    last_id=case((_last < bindparam("the_last"), bindparam("the_last")), else_=_last)
)
_READ = select(_TICKETS.c.first, _TICKETS.c.step)


class TicketServers:
    """Issues local ids, from one of several servers.

    An :class:`.IdService`.  It connects on first use, and serves all threads
    of a process.  The numbers of a table are unique on all shards.  They
    increase on each server, so that those of two transactions may be in
    another order than the transactions.  Those of a transaction that was
    rolled back are not issued again.

    :param urls: the servers, at least one.  Their number and their order are
        permanent: they determine which numbers each of them issues.
    :param database: the database on each of them.
    :param timeout: seconds to wait for a connection, and for a response; then
        the next server is asked.
    :param environ: values of placeholders such as ``${PASSWORD}``; by default
        the environment variables.
    :param driver: driver for URLs that do not name one.
    :param engine_options: arguments of :func:`sqlalchemy.create_engine`.
    :raises IdServiceError: if there is no URL, or one of them twice.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        database: str = "tickets",
        timeout: float = 3.0,
        environ: Mapping[str, str] | None = None,
        driver: str = "pymysql",
        engine_options: Mapping[str, Any] | None = None,
    ) -> None:
        environ = os.environ if environ is None else environ
        if not urls or len(set(urls)) < len(urls):
            raise IdServiceError(
                f"{len(urls)} URLs of ticket servers, of which "
                f"{len(set(urls))} differ; give each server once"
            )
        options = {
            # A connection that a server has closed is not its failure.
            "pool_pre_ping": True,
            **(engine_options or {}),
            "isolation_level": "AUTOCOMMIT",
        }
        self._servers = [
            _Server(
                filled(url, environ),
                number,
                len(urls),
                database,
                timeout,
                driver,
                options,
            )
            for number, url in enumerate(urls, 1)
        ]
        self._turns = counting()
        in_children(self)

    def create(self, names: Collection[str], *, above: int = 0) -> None:
        """Create the counters of tables on all servers, or raise them.

        A counter never goes back, so this can be repeated.  After a server
        was restored from a backup, call it before the server is used again.

        :param names: names of the tables.
        :param above: the highest local id that exists: that of existing rows.
        :raises IdServiceError: if a server does not respond, or issues
            other numbers than this list of servers says.
        """
        for server in self._servers:
            try:
                server.create(names, above)
            except DBAPIError as error:
                raise server.error(error) from error

    def issue(self, table: str, count: int) -> Sequence[int]:
        """Return new numbers for the rows of a table, in increasing order.

        :raises IdServiceError: if none of the servers responds, or one has no
            counter for the table, or issues other numbers than this list of
            servers says.
        """
        first = next(self._turns) % len(self._servers)
        order = self._servers[first:] + self._servers[:first]
        # Sorting is stable: those that rest are asked last.
        order.sort(key=lambda server: server.rests_until > monotonic())
        reasons = []
        for server in order:
            try:
                return server.issue(table, count)
            except (DBAPIError, PoolTimeoutError) as error:
                if not server.is_passing(error):
                    raise server.error(error) from error
                server.rest(error)
                reasons.append(str(server.error(error)))
        raise IdServiceError("; ".join(reasons))

    def dispose(self) -> None:
        """Close the idle connections."""
        for server in self._servers:
            server.engine.dispose()

    def after_fork(self) -> None:
        """Give up, in a child process, the connections of the parent."""
        for server in self._servers:
            server.engine.dispose(close=False)


class _Server:
    """One of the servers.

    :ivar rests_until: when it is asked as early as the others again; 0 if it
        has not failed.
    """

    def __init__(
        self,
        url: Any,
        number: int,
        servers: int,
        database: str,
        timeout: float,
        driver: str,
        options: Mapping[str, Any],
    ) -> None:
        self.name = server_name(url)
        self.rests_until = 0.0
        self._number = number
        self._step = servers
        self._backend = backend_for(url.drivername, driver=driver)
        located, self._schema = self._backend.locate(url, database)
        translated = {"schema_translate_map": {None: self._schema}}
        self.engine = self._backend.open(
            located, {**options, "execution_options": translated}, timeout=timeout
        )

    def create(self, names: Collection[str], above: int) -> None:
        self._backend.create_file(self.engine)
        # The last number that this server has issued, if all up to ``above``
        # were issued.
        last = above - (above - self._number) % self._step
        with self.engine.connect() as connection:
            self._backend.create_database(connection, self._schema)
            _TICKETS.create(connection, checkfirst=True)
            for name in names:
                own = self._parameters(name)
                connection.execute(
                    InsertMissing(_TICKETS).values(
                        name=name, first=self._number, step=self._step, last_id=last
                    )
                )
                raised = connection.execute(_RAISE, {**own, "the_last": last})
                if not raised.rowcount:
                    raise self._mismatch(connection, name)

    def issue(self, table: str, count: int) -> Sequence[int]:
        if self.rests_until:
            # While this thread waits for it, the others do not.
            self.rests_until = monotonic() + _REST
        values = self._parameters(table)
        values["the_increment"] = count * self._step
        with self.engine.connect() as connection:
            if self._backend.one_writer:
                last = connection.execute(_ISSUE_FILE, values).scalar()
            else:
                result = connection.execute(_ISSUE, values)
                last = result.lastrowid if result.rowcount else None
            if last is None:
                raise self._mismatch(connection, table)
        self.rests_until = 0.0
        return range(last - (count - 1) * self._step, last + 1, self._step)

    def _parameters(self, name: str) -> dict[str, Any]:
        return {"the_name": name, "the_first": self._number, "the_step": self._step}

    def _mismatch(self, connection: Connection, name: str) -> IdServiceError:
        """Return the error of a counter that this process cannot use."""
        row = connection.execute(_READ.where(_TICKETS.c.name == name)).first()
        if row is None:
            return IdServiceError(
                f"the ticket server {self.name} has no counter for {name}; "
                f"call create([{name!r}], above=...)"
            )
        return IdServiceError(
            f"the ticket server {self.name} is number {row.first} of "
            f"{row.step} for {name}, and in this process number "
            f"{self._number} of {self._step}; give the same URLs in the same "
            "order everywhere"
        )

    def is_passing(self, error: DBAPIError | PoolTimeoutError) -> bool:
        """Return whether another server may issue the numbers instead."""
        if isinstance(error, PoolTimeoutError):
            # All connections wait for a server that hangs.
            return True
        failure = self._backend.classify(original(error))
        return error.connection_invalidated or failure in _PASSING

    def rest(self, error: SQLAlchemyError) -> None:
        """Ask the server after the others for a while."""
        _log.warning(
            "%s; the other ticket servers are asked first for %.0f s",
            self.error(error),
            _REST,
            extra={"action": "issue ids", "server": self.name},
        )
        self.rests_until = monotonic() + jittered(_REST, 0.2)

    def error(self, error: SQLAlchemyError) -> IdServiceError:
        """Return the error of a server that has issued nothing."""
        return IdServiceError(
            f"the ticket server {self.name} issues no ids: {original(error)}"
        )
