"""Transactions, processes and what is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import IllegalStateChangeError

from sqla_shard.exc.base import ShardError
from sqla_shard.exc.summaries import summary

__all__ = [
    "ClusterClosedError",
    "CommitUnknownError",
    "ConcurrentUseError",
    "DriftReferenceError",
    "ExtensionSetupError",
    "ForkedSessionError",
    "MissingDriverError",
    "MissingExtraError",
    "NoEventLoopError",
    "PartialCommitError",
    "RetriesExhaustedError",
    "ServerProcessError",
    "WrittenShard",
]

_MOST_SHARDS = 10


@dataclass(frozen=True, kw_only=True)
class WrittenShard:
    """A virtual shard that a transaction has written.

    :ivar keyspace: name of its keyspace.
    :ivar shard_id: its number; 0 in a global keyspace.
    :ivar server: the server that had it.
    """

    keyspace: str
    shard_id: int
    server: str

    def __str__(self) -> str:
        return f"shard {self.shard_id} of {self.keyspace} on {self.server}"


def _listed(shards: Sequence[WrittenShard], servers: Sequence[str]) -> str:
    """Return what to say of some shards, or of servers where none is told."""
    if not shards:
        return ", ".join(servers)
    named = ", ".join(map(str, shards[:_MOST_SHARDS]))
    more = len(shards) - _MOST_SHARDS
    return f"{named} and {more} more" if more > 0 else named


class CommitUnknownError(ShardError):
    """Raised when the connection was lost after COMMIT was sent.

    Whether the transaction is in the database is not known; repeating it
    might write it twice.  All that it wrote was for this server.

    :ivar server: the server that did not answer.
    :ivar shards_unknown: what was written there.
    """

    def __init__(
        self,
        *,
        server: str,
        shards_unknown: Sequence[WrittenShard] = (),
    ) -> None:
        super().__init__(
            f"the connection to {server} was lost during COMMIT: whether "
            "it took effect is unknown. Read the objects before repeating "
            "the transaction"
        )
        self.server = server
        self.shards_unknown = tuple(shards_unknown)


class PartialCommitError(ShardError):
    """Raised when only some servers of a transaction committed, or may have.

    Each shard that the transaction has written is in one of the four tuples
    of :class:`WrittenShard`.

    :ivar committed: servers whose COMMIT succeeded; none where the first
        COMMIT is the one whose outcome is unknown.
    :ivar failed: the server whose COMMIT failed.
    :ivar rolled_back: servers that were not reached and roll back.
    :ivar unknown: whether the failed server may have committed after all.
    :ivar shards_committed: are written.
    :ivar shards_failed: are not: the server has refused COMMIT.
    :ivar shards_unknown: may or may not be: the connection was lost during
        COMMIT.
    :ivar shards_rolled_back: are not: COMMIT was not sent.
    """

    def __init__(
        self,
        *,
        committed: Sequence[str],
        failed: str,
        rolled_back: Sequence[str],
        unknown: bool,
        shards_committed: Sequence[WrittenShard] = (),
        shards_failed: Sequence[WrittenShard] = (),
        shards_unknown: Sequence[WrittenShard] = (),
        shards_rolled_back: Sequence[WrittenShard] = (),
    ) -> None:
        state = "may or may not have committed" if unknown else "did not"
        there = _listed(shards_committed, committed) or "none"
        here = _listed([*shards_failed, *shards_unknown], [failed])
        rest = _listed(shards_rolled_back, rolled_back) or "none"
        super().__init__(
            f"committed: {there}; {here} {state}; rolled back: {rest}. "
            "Repair by reading the objects on each"
        )
        self.committed = tuple(committed)
        self.failed = failed
        self.rolled_back = tuple(rolled_back)
        self.unknown = unknown
        self.shards_committed = tuple(shards_committed)
        self.shards_failed = tuple(shards_failed)
        self.shards_unknown = tuple(shards_unknown)
        self.shards_rolled_back = tuple(shards_rolled_back)


class RetriesExhaustedError(ShardError):
    """Raised when ``Cluster.run`` has repeated a transaction in vain.

    The last failure is the ``__cause__``.

    :ivar attempts: how many times the transaction was tried.
    :ivar failures: what the attempts raised, in order, each in a line; of
        many the last 50.
    :ivar counts: how often each class of error was raised.
    """

    def __init__(
        self,
        *,
        attempts: int,
        last: BaseException,
        failures: Sequence[str] = (),
        counts: Mapping[str, int] | None = None,
    ) -> None:
        counts = dict(counts or {type(last).__name__: attempts})
        told = ", ".join(f"{n} x {name}" for name, n in counts.items())
        super().__init__(
            f"gave up after {attempts} attempts ({told}); the last failed "
            f"with {summary(last)}"
        )
        self.attempts = attempts
        self.failures = tuple(failures)
        self.counts = counts


class ClusterClosedError(ShardError):
    """Raised when a closed cluster is asked for a connection."""


class ForkedSessionError(ShardError):
    """Raised when a child process uses a session of its parent."""


class ConcurrentUseError(ShardError, IllegalStateChangeError):
    """Raised when two threads or tasks use a session at the same time.

    Handlers of SQLAlchemy's ``IllegalStateChangeError`` catch it as well.
    """


class NoEventLoopError(ShardError, RuntimeError):
    """Raised when an asynchronous session is used outside an event loop."""


class MissingDriverError(ShardError, ImportError):
    """Raised when the driver that a URL names is not installed.

    :ivar driver: the driver, such as ``pymysql``.
    """

    def __init__(self, *, driver: str, reason: str) -> None:
        super().__init__(
            f"the driver {driver!r} cannot be imported ({reason}); pip "
            "install 'sqla-shard[mysql]' gives PyMySQL, and for asyncio "
            "'sqla-shard[asyncmy]' or 'sqla-shard[aiosqlite]' the driver "
            "of that name"
        )
        self.driver = driver


class MissingExtraError(ShardError, ImportError):
    """Raised when the package that an extra would install is missing.

    :ivar package: the package, such as ``Flask``.
    :ivar extra: the extra of this package that installs it.
    """

    def __init__(self, *, package: str, extra: str, reason: str) -> None:
        super().__init__(
            f"{package} cannot be imported ({reason}); "
            f"pip install 'sqla-shard[{extra}]'"
        )
        self.package = package
        self.extra = extra


class DriftReferenceError(ShardError):
    """Raised when the shard to compare all others with cannot be read.

    :ivar shard_id: the shard.
    :ivar keyspace: its keyspace.
    :ivar server: where the topology has it.
    """

    def __init__(
        self, *, shard_id: int, keyspace: str, server: str, reason: str
    ) -> None:
        super().__init__(
            f"shard {shard_id} of {keyspace} on {server} cannot be the "
            f"reference: {reason}. Name another, or none: then it is the "
            "lowest that can be read"
        )
        self.shard_id = shard_id
        self.keyspace = keyspace
        self.server = server


class ExtensionSetupError(ShardError):
    """Raised when an extension was not set up for an application, or twice.

    :ivar app: name of the application.
    """

    def __init__(self, message: str, *, app: str) -> None:
        super().__init__(f"the application {app!r} {message}")
        self.app = app


class ServerProcessError(ShardError):
    """Raised when a local server for tests does not start, stop or follow.

    :ivar log: the end of the server's own log, or what a standby says of
        its replication.
    """

    def __init__(self, message: str, *, log: str) -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
