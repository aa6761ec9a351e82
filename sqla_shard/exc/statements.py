"""Errors of statements, scatters, transactions and operations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, InitVar

from sqlalchemy.exc import IllegalStateChangeError

from sqla_shard.exc.base import (
    DriverError,
    field,
    MessageError,
    ShardError,
    shortened_list,
    shown,
    summary,
)


class OperationError(ShardError):
    """Base of the errors of operations."""


class OperationDefinitionError(OperationError, MessageError, TypeError):
    """Raised for a function that cannot be an operation.

    :ivar operation: name of the operation.
    """

    operation: str
    _text = "operation {operation!r}: {message}"


class OperationArgumentError(OperationError, MessageError, ValueError):
    """Raised for an argument that a pending operation cannot hold.

    :ivar operation: name of the operation.
    :ivar parameter: name of its parameter; None if the error is about all of
        them.
    """

    operation: str
    parameter: str | None

    def _describe(self, message: str) -> str:
        what = "its arguments"
        if self.parameter is not None:
            what = f"{self.parameter}="
        return f"operation {self.operation!r}: {what} {message}"


class UnknownOperationError(OperationError, LookupError):
    """Raised for a pending operation that this process does not define.

    :ivar operation: name of the operation.
    """

    operation: str
    _text = (
        "operation {operation!r} is not defined in this process; import the "
        "module that defines it, for example with sqla-shard repair --models "
        "shop.models"
    )


# -- Statements that are refused before they are sent.


class RoutingError(ShardError):
    """Base of the errors of statements that are refused."""


class ParameterValueError(ShardError, ValueError):
    """Raised for a value in a statement that no server can hold.

    :ivar value: the value.
    """

    value: object = field(kw_only=False)
    has: InitVar[str] = field(kw_only=False)

    def _describe(self, has: str) -> str:
        return f"{shown(self.value)} cannot be sent: it has {has}"


class NoShardKeyError(RoutingError, MessageError):
    """Raised when a statement has no shard key, so it cannot be routed.

    :ivar tables: names of the sharded tables of the statement.
    """

    tables: tuple[str, ...]


class KeyspaceMismatchError(RoutingError):
    """Raised when one statement uses tables of two keyspaces.

    :ivar tables: table names by keyspace.
    :ivar named: the keyspace in ``bind_arguments``, if it is another one.
    """

    tables: dict[str, tuple[str, ...]] = field(kw_only=False)
    named: str | None = None

    def _describe(self) -> str:
        used = "; ".join(
            f"{', '.join(names)} in {keyspace!r}"
            for keyspace, names in sorted(self.tables.items())
        )
        return (
            f"one statement cannot read several keyspaces: {used}. Their "
            "tables may be on different servers; use one statement for each"
            if self.named is None
            else f"bind_arguments name the keyspace {self.named!r}, and the "
            f"statement uses {used}; leave out the keyspace"
        )


class ScatterUnsupportedError(RoutingError, MessageError):
    """Raised when the rows of several shards cannot be merged correctly.

    :ivar construct: the part of the statement, such as ``ORDER BY``.
    """

    construct: str


class UnsupportedStatementError(RoutingError, MessageError):
    """Raised when a statement or call would give a wrong answer.

    :ivar construct: the part that is refused.
    """

    construct: str


# -- Scatters, and servers that do not respond.


class ScatterDisabledError(RoutingError, MessageError):
    """Raised when ``scatter()`` is turned off for the cluster."""


class ScatterLimitError(RoutingError):
    """Raised when a statement exceeds a limit of its ``scatter()``.

    :ivar limit: ``max_shards``, ``max_rows`` or ``max_offset``.
    :ivar allowed: the limit.
    :ivar found: number of shards that it names, or of rows that it skips; for
        ``max_rows`` the number of rows that were read before it was stopped.
    """

    limit: str
    allowed: int
    found: int

    def _describe(self) -> str:
        instead = "name fewer objects in WHERE, add a LIMIT, or raise the limit"
        if self.limit == "max_shards":
            what = f"the statement is for {self.found} shards"
        elif self.limit == "max_offset":
            what = f"the statement skips {self.found} rows of several shards"
            instead = (
                "read page after page with session.scatter_page(), or raise the limit"
            )
        else:
            what = f"the result has more than {self.allowed} rows"
        return f"{what}, and scatter() allows {self.limit}={self.allowed}; {instead}"


class ScatterTimeoutError(ShardError):
    """Raised when servers did not respond within the ``scatter()`` timeout.

    :ivar servers: the names of servers that did not respond; with
        ``on_error="raise"`` the first one, and there may be others.
    :ivar timeout: seconds.
    """

    servers: tuple[str, ...]
    timeout: float

    def _describe(self) -> str:
        return (
            f"no answer from {', '.join(self.servers)} in {self.timeout:g} "
            "seconds; the statement was killed there. Read fewer rows, allow "
            'more time, or use on_error="partial" for the rows of the others'
        )


class ScatterFailedError(ShardError):
    """Raised when none of the shards has responded.

    :ivar errors: the error of each shard, by number.
    """

    errors: dict[int, Exception] = field(kw_only=False)

    def _describe(self) -> str:
        first = next(iter(self.errors.values()))
        return (
            f"none of {len(self.errors)} shards has answered; the first "
            f"error: {summary(first)}"
        )


class ServerUnreachableError(DriverError):
    """Raised when a server cannot be connected to, or has gone away.

    Handlers of SQLAlchemy's ``OperationalError`` catch it as well; ``orig``
    is the driver's error.

    :ivar server: its name in the topology, or its names.
    """

    server: str
    _text = "server {server} cannot be reached: {orig}"
    _is_lost = True


class LoginFailedError(DriverError):
    """Raised when a server does not accept the account of a new connection.

    The password is wrong or unknown, the account is locked, or the client
    lacks what its authentication plugin needs.  Handlers of SQLAlchemy's
    ``OperationalError`` catch it as well; ``orig`` is the driver's error.

    :ivar server: its name in the topology, or its names.
    """

    server: str
    _text = "the login to server {server} failed: {orig}"


class UnkeyedReferenceError(DriverError):
    """Raised when MySQL refuses a foreign key for lack of a unique key.

    A foreign key must refer to a primary key or a unique key as a whole.
    Handlers of SQLAlchemy's ``OperationalError`` catch it as well; ``orig``
    is the driver's error, with the name of the constraint.

    :ivar server: its name in the topology, or its names.
    """

    server: str
    _text = (
        "server {server} refuses a foreign key to columns without a unique "
        "key: {orig}. Add a UniqueConstraint of just these columns, or set "
        "restrict_fk_on_non_standard_key = OFF on the server"
    )


# -- Transactions, processes and missing packages.


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A virtual shard that a transaction has written.

    :ivar keyspace: name of the keyspace.
    :ivar shard_id: number of the shard; 0 in a global keyspace.
    :ivar server: the server of the shard during the transaction.
    """

    keyspace: str
    shard_id: int
    server: str

    def __str__(self) -> str:
        return f"shard {self.shard_id} of {self.keyspace} on {self.server}"


class CommitUnknownError(ShardError):
    """Raised when the connection was lost after COMMIT was sent.

    The outcome of the transaction is unknown; repeating it might write it
    twice.  It wrote to this server only.

    :ivar server: the server that did not respond.
    :ivar shards_unknown: the shards that were written there.
    """

    server: str
    shards_unknown: tuple[WrittenShard, ...] = ()
    _text = (
        "the connection to {server} was lost during COMMIT: whether it took "
        "effect is unknown. Read the objects before repeating the transaction"
    )


class PartialCommitError(ShardError):
    """Raised when only some servers of a transaction committed, or may have.

    Each shard that the transaction has written is in one of the four tuples
    of :class:`WrittenShard`.

    :ivar committed: servers whose COMMIT succeeded; empty if the outcome of
        the first COMMIT is unknown.
    :ivar failed: the server whose COMMIT failed.
    :ivar rolled_back: servers that were not reached and roll back.
    :ivar unknown: whether the failed server may have committed nevertheless.
    :ivar shards_committed: shards that were written.
    :ivar shards_failed: shards that were not written: the server refused
        COMMIT.
    :ivar shards_unknown: shards that may have been written: the connection was
        lost during COMMIT.
    :ivar shards_rolled_back: shards that were not written: COMMIT was not
        sent.
    """

    committed: tuple[str, ...]
    failed: str
    rolled_back: tuple[str, ...]
    unknown: bool
    shards_committed: tuple[WrittenShard, ...] = ()
    shards_failed: tuple[WrittenShard, ...] = ()
    shards_unknown: tuple[WrittenShard, ...] = ()
    shards_rolled_back: tuple[WrittenShard, ...] = ()

    def _describe(self) -> str:
        done = shortened_list(self.shards_committed) or ", ".join(self.committed)
        here = shortened_list([*self.shards_failed, *self.shards_unknown])
        rest = shortened_list(self.shards_rolled_back) or ", ".join(self.rolled_back)
        state = "may or may not have committed" if self.unknown else "did not"
        return (
            f"committed: {done or 'none'}; {here or self.failed} {state}; "
            f"rolled back: {rest or 'none'}. Repair by reading the objects "
            "on each"
        )


class RetriesExhaustedError(ShardError):
    """Raised when ``Cluster.run`` has used up its attempts.

    The error of the last attempt is the ``__cause__``.

    :ivar attempts: number of attempts.
    :ivar failures: the errors of the attempts, in order, one line each; at
        most the last 50.
    :ivar counts: number of errors of each class.
    """

    attempts: int
    last: InitVar[BaseException]
    failures: tuple[str, ...]
    counts: dict[str, int]

    def __init__(
        self,
        *,
        attempts: int,
        last: BaseException,
        failures: Sequence[str] = (),
        counts: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(
            attempts=attempts,
            last=last,
            failures=failures,
            counts=counts or {type(last).__name__: attempts},
        )

    def _describe(self, last: BaseException) -> str:
        errors = ", ".join(f"{n} x {name}" for name, n in self.counts.items())
        return (
            f"gave up after {self.attempts} attempts ({errors}); the last "
            f"failed with {summary(last)}"
        )


class ClusterClosedError(MessageError):
    """Raised when a session of a closed cluster needs a connection."""


class ForkedSessionError(MessageError):
    """Raised when a child process uses a session of its parent."""


class ConcurrentUseError(MessageError, IllegalStateChangeError):
    """Raised when two threads or tasks use a session at the same time.

    Handlers of SQLAlchemy's ``IllegalStateChangeError`` catch it as well.
    """


class NoEventLoopError(MessageError, RuntimeError):
    """Raised when an asynchronous session is used outside an event loop."""


class MissingDriverError(ShardError, ImportError):
    """Raised when the driver that a URL names is not installed.

    :ivar driver: the driver, such as ``pymysql``.
    :ivar reason: the error of the import.
    """

    driver: str
    reason: str
    _text = (
        "the driver {driver!r} cannot be imported ({reason}); pip install "
        "'sqla-shard[mysql]' installs PyMySQL, 'sqla-shard[mysqlclient]' "
        "mysqldb, and for asyncio "
        "'sqla-shard[asyncmy]' or 'sqla-shard[aiosqlite]' the driver of that "
        "name"
    )


class MissingExtraError(ShardError, ImportError):
    """Raised when the package that an extra would install is missing.

    :ivar package: the package, such as ``Flask``.
    :ivar extra: the extra of this package that installs it.
    :ivar reason: the error of the import.
    """

    package: str
    extra: str
    reason: str
    _text = "{package} cannot be imported ({reason}); pip install 'sqla-shard[{extra}]'"


class ExtensionSetupError(MessageError):
    """Raised when an extension was not set up for an application, or twice.

    :ivar app: name of the application.
    """

    app: str
    _text = "the application {app!r} {message}"


class StatementTextError(MessageError, ValueError):
    """Raised for a text that is not a statement which can be read.

    :ivar statement: the text.
    """

    statement: str
    _text = "the statement {message}"


class EncryptedStatementsError(ShardError):
    """Raised when a proxy of a test cannot read the statements of clients.

    :ivar connections: number of connections that use TLS.
    """

    connections: int
    _text = (
        "clients of the proxy use TLS (connections: {connections}), so that "
        "it can neither count statements nor cut a connection at one: pass "
        "Proxy(..., tls=False)"
    )


class ServerProcessError(MessageError):
    """Raised when a local server for tests fails to start, stop or replicate.

    :ivar log: the end of the server's own log, or the replication status of
        a standby.
    """

    log: str

    def _describe(self, message: str) -> str:
        return f"{message}\n{self.log}" if self.log else message
