"""Every error that this package raises.

All of them descend from :class:`sqlalchemy.exc.SQLAlchemyError`, so that a
handler written for SQLAlchemy catches them too.  Each names the value that
it met and what to do about it; the parts of the message are also attributes
of the instance.  All can be pickled, and none is wrapped into a
:class:`sqlalchemy.exc.StatementError` on its way out of a statement::

    ShardError
    ├── InvalidIdError (ValueError)       not an object id, or a part of one
    │   └── WrongTypeError                an id, but of another class
    ├── DuplicateTypeError                two classes with one type id
    ├── ClassDefinitionError (TypeError)  a mapped class that cannot work
    ├── TopologyError                     a topology that cannot be used
    ├── UnknownKeyspaceError              no such keyspace in the topology
    ├── UnknownShardError                 a shard that is not open
    ├── RoutingError
    │   ├── NoShardKeyError               the shards cannot be told
    │   ├── KeyspaceMismatchError         tables of two keyspaces
    │   ├── ScatterUnsupportedError       no correct merge over shards
    │   └── UnsupportedStatementError     would give a wrong answer
    ├── PlacementError                    no shard for a new object
    │   └── ColocationError               the parent's shard cannot be used
    ├── CrossShardWriteError              a second shard in a transaction
    ├── BlobError
    │   ├── BlobValueError (ValueError)   a value that a field cannot hold
    │   └── BlobTooLargeError             more bytes than the column holds
    ├── StaleDataError (orm.exc.StaleDataError)
    ├── CommitUnknownError                COMMIT was sent, its answer lost
    ├── PartialCommitError                some servers committed, some not
    ├── RetriesExhaustedError             ``cluster.run`` gave up
    ├── ClusterClosedError                the cluster was closed
    ├── ForkedSessionError                a session begun before a fork
    ├── MissingDriverError (ImportError)  a driver is not installed
    └── ServerProcessError                a test server did not start
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.exc import DontWrapMixin
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm.exc import StaleDataError as _OrmStaleDataError

__all__ = [
    "BlobError",
    "BlobTooLargeError",
    "BlobValueError",
    "ClassDefinitionError",
    "ClusterClosedError",
    "ColocationError",
    "CommitUnknownError",
    "CrossShardWriteError",
    "DuplicateTypeError",
    "ForkedSessionError",
    "InvalidIdError",
    "KeyspaceMismatchError",
    "MissingDriverError",
    "NoShardKeyError",
    "PartialCommitError",
    "PlacementError",
    "Problem",
    "RetriesExhaustedError",
    "RoutingError",
    "ScatterUnsupportedError",
    "ServerProcessError",
    "ShardError",
    "StaleDataError",
    "TopologyError",
    "UnknownKeyspaceError",
    "UnknownShardError",
    "UnsupportedStatementError",
    "WrongTypeError",
]


def _rebuild(
    cls: type[ShardError], args: tuple[Any, ...], state: dict[str, Any]
) -> ShardError:
    error = cls.__new__(cls)
    error.args = args
    error.__dict__.update(state)
    return error


class ShardError(SQLAlchemyError, DontWrapMixin):
    """Base of every error of this package."""

    def __init__(self, message: str) -> None:
        super().__init__(message)

    def __reduce__(self) -> Any:
        # Subclasses take keyword arguments; the default would call them
        # with the message alone and fail in the process that unpickles.
        return _rebuild, (type(self), self.args, self.__dict__)


class InvalidIdError(ShardError, ValueError):
    """Raised when a value is not an object id or not a part of one.

    :ivar value: the value as it was given.
    """

    def __init__(self, message: str, *, value: object) -> None:
        super().__init__(message)
        self.value = value


class WrongTypeError(InvalidIdError):
    """Raised when an object id belongs to another class than asked for.

    :ivar value: the id.
    :ivar expected: the type id, or ids, that would have been right.
    """

    def __init__(
        self, message: str, *, value: int, expected: tuple[int, ...]
    ) -> None:
        super().__init__(message, value=value)
        self.expected = expected


class DuplicateTypeError(ShardError):
    """Raised when a second class asks for a type id that is taken.

    :ivar type_id: the type id.
    :ivar names: the class that has it, the class that asked.
    """

    def __init__(self, *, type_id: int, holder: str, claimant: str) -> None:
        super().__init__(
            f"type_id {type_id} belongs to {holder} already, so {claimant} "
            "cannot have it: an id could not tell the two apart. Give "
            f"{claimant} a type_id of its own"
        )
        self.type_id = type_id
        self.names = (holder, claimant)


class ClassDefinitionError(ShardError, TypeError):
    """Raised while a class is created that could not work when used.

    :ivar class_name: the class.
    """

    def __init__(self, message: str, *, class_name: str) -> None:
        super().__init__(f"class {class_name}: {message}")
        self.class_name = class_name


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a topology, and where.

    :ivar place: path into the document, such as
        ``keyspaces.objects.servers[1].shards``.
    :ivar message: what is wrong, with the value and the remedy.
    """

    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


class TopologyError(ShardError):
    """Raised when a topology cannot be used; it lists every problem.

    :ivar source: where the topology came from, such as a file name.
    :ivar problems: all of them, in the order of the document.
    """

    def __init__(self, problems: Iterable[Problem], *, source: str) -> None:
        self.problems = tuple(problems)
        self.source = source
        count = len(self.problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(
            f"{source}: {count} problem{'' if count == 1 else 's'}{lines}"
        )


class UnknownKeyspaceError(ShardError):
    """Raised when a keyspace is not, or not uniquely, in the topology.

    :ivar keyspace: the name asked for; None where none was named.
    :ivar known: the names that could be used instead.
    """

    def __init__(
        self, message: str, *, keyspace: str | None, known: Sequence[str]
    ) -> None:
        super().__init__(message)
        self.keyspace = keyspace
        self.known = tuple(known)


class UnknownShardError(ShardError):
    """Raised when a virtual shard is not open in the topology.

    :ivar shard_id: the shard.
    :ivar keyspace: the keyspace that was asked.
    :ivar opened: how many shards it has; ids run from 0 to ``opened - 1``.
    """

    def __init__(self, *, shard_id: int, keyspace: str, opened: int) -> None:
        super().__init__(
            f"shard {shard_id} is not open in keyspace {keyspace!r}, whose "
            f"shards run from 0 to {opened - 1}. Either the id is not one "
            "of this cluster, or this process has an older topology"
        )
        self.shard_id = shard_id
        self.keyspace = keyspace
        self.opened = opened


class RoutingError(ShardError):
    """Base of the errors of statements that are not sent."""


class NoShardKeyError(RoutingError):
    """Raised when nothing in a statement tells the shards it is for.

    :ivar tables: names of the sharded tables of the statement.
    """

    def __init__(self, message: str, *, tables: Sequence[str]) -> None:
        super().__init__(message)
        self.tables = tuple(tables)


class KeyspaceMismatchError(RoutingError):
    """Raised when one statement names tables of two keyspaces.

    :ivar tables: table names by keyspace.
    """

    def __init__(self, tables: dict[str, tuple[str, ...]]) -> None:
        listed = "; ".join(
            f"{', '.join(names)} in {keyspace!r}"
            for keyspace, names in sorted(tables.items())
        )
        super().__init__(
            f"one statement cannot read several keyspaces: {listed}. Their "
            "tables may be on different servers; use one statement for each"
        )
        self.tables = tables


class ScatterUnsupportedError(RoutingError):
    """Raised when the rows of several shards cannot be merged correctly.

    :ivar construct: the part of the statement, such as ``ORDER BY``.
    """

    def __init__(self, message: str, *, construct: str) -> None:
        super().__init__(message)
        self.construct = construct


class UnsupportedStatementError(RoutingError):
    """Raised when a statement or call would give a wrong answer.

    :ivar construct: the part that is refused.
    """

    def __init__(self, message: str, *, construct: str) -> None:
        super().__init__(message)
        self.construct = construct


class PlacementError(ShardError):
    """Raised when no virtual shard can be told for a new object."""


class ColocationError(PlacementError):
    """Raised when an object cannot live on the shard of its parent.

    :ivar class_name: the class of the object.
    :ivar field: the field that holds the parent's id.
    :ivar value: its value.
    """

    def __init__(
        self, message: str, *, class_name: str, field: str, value: object
    ) -> None:
        super().__init__(f"{class_name}.{field}: {message}")
        self.class_name = class_name
        self.field = field
        self.value = value


class CrossShardWriteError(ShardError):
    """Raised when a transaction would write a second virtual shard.

    :ivar first: what was written first, as ``(shard_id, description)``.
    :ivar second: what would be written, in the same form.
    """

    def __init__(
        self, *, first: tuple[int, str], second: tuple[int, str]
    ) -> None:
        super().__init__(
            f"this transaction would write {second[1]}, and has written "
            f"{first[1]} already: two shards cannot be committed as one. "
            "Use a transaction for each, or "
            'begin(cross_shard="unordered") where a half-finished write '
            "can be told and repaired"
        )
        self.first = first
        self.second = second


class BlobError(ShardError):
    """Base of the errors of JSON blobs and their fields."""


class BlobValueError(BlobError, ValueError):
    """Raised when a field cannot hold a value.

    :ivar field: the field as ``Class.field``, or the path inside a blob.
    :ivar value: the value.
    """

    def __init__(self, message: str, *, field: str, value: object) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field
        self.value = value


class BlobTooLargeError(BlobError):
    """Raised when a blob is larger than its column, before it is sent.

    :ivar size: bytes of the encoded blob.
    :ivar limit: bytes that the column holds.
    """

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(
            f"the encoded blob has {size} bytes, its column holds {limit}: "
            "the server might have cut it off without a word. Store less, "
            "or give the class a larger max_bytes= (the column type, for "
            "others: JSONBlob(max_bytes=...))"
        )
        self.size = size
        self.limit = limit


class StaleDataError(ShardError, _OrmStaleDataError):
    """Raised when a flush would overwrite what another writer changed.

    :ivar class_name: the class of the object.
    :ivar object_id: its id.
    :ivar fields: the fields changed on both sides; empty where the row is
        gone.
    """

    def __init__(
        self, *, class_name: str, object_id: int, fields: Sequence[str]
    ) -> None:
        if fields:
            what = (
                f"another writer changed {', '.join(map(repr, fields))} of "
                f"{class_name} {object_id} since it was read"
            )
        else:
            what = f"the row of {class_name} {object_id} is gone"
        super().__init__(
            f"{what}; nothing was written. Roll back and repeat the "
            "transaction (cluster.run does), or read with_for_update=True"
        )
        self.class_name = class_name
        self.object_id = object_id
        self.fields = tuple(fields)


class CommitUnknownError(ShardError):
    """Raised when the connection was lost after COMMIT was sent.

    Whether the transaction is in the database is not known; repeating it
    might write it twice.

    :ivar server: the server that did not answer.
    """

    def __init__(self, *, server: str) -> None:
        super().__init__(
            f"the connection to {server} was lost during COMMIT: whether "
            "it took effect is unknown. Read the objects before repeating "
            "the transaction"
        )
        self.server = server


class PartialCommitError(ShardError):
    """Raised when only some servers of a transaction committed.

    :ivar committed: servers whose COMMIT succeeded.
    :ivar failed: the server whose COMMIT failed.
    :ivar rolled_back: servers that were not reached and roll back.
    :ivar unknown: whether the failed server may have committed after all.
    """

    def __init__(
        self,
        *,
        committed: Sequence[str],
        failed: str,
        rolled_back: Sequence[str],
        unknown: bool,
    ) -> None:
        state = "may or may not have committed" if unknown else "did not"
        super().__init__(
            f"committed on {', '.join(committed)}; {failed} {state}; rolled "
            f"back on {', '.join(rolled_back) or 'no other'}. Repair by "
            "reading the objects on each server"
        )
        self.committed = tuple(committed)
        self.failed = failed
        self.rolled_back = tuple(rolled_back)
        self.unknown = unknown


class RetriesExhaustedError(ShardError):
    """Raised when ``Cluster.run`` has repeated a transaction in vain.

    The last failure is the ``__cause__``.

    :ivar attempts: how many times the transaction was tried.
    """

    def __init__(self, *, attempts: int, last: BaseException) -> None:
        super().__init__(
            f"gave up after {attempts} attempts; the last failed with "
            f"{type(last).__name__}: {last}"
        )
        self.attempts = attempts


class ClusterClosedError(ShardError):
    """Raised when a closed cluster is asked for a connection."""


class ForkedSessionError(ShardError):
    """Raised when a child process uses a session of its parent."""


class MissingDriverError(ShardError, ImportError):
    """Raised when the driver that a URL names is not installed.

    :ivar driver: the driver, such as ``pymysql``.
    """

    def __init__(self, *, driver: str, reason: str) -> None:
        super().__init__(
            f"the driver {driver!r} cannot be imported ({reason}); for "
            "PyMySQL, pip install 'sqla-shard[mysql]'"
        )
        self.driver = driver


class ServerProcessError(ShardError):
    """Raised when a local server for tests does not start or stop.

    :ivar log: the end of the server's own log.
    """

    def __init__(self, message: str, *, log: str) -> None:
        super().__init__(f"{message}\n{log}" if log else message)
        self.log = log
