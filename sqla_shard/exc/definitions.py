"""What is wrong with a class, an id or a topology."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.exc import SAWarning

from sqla_shard.exc.base import ShardError
from sqla_shard.masking import redact

__all__ = [
    "ClassDefinitionError",
    "DuplicateTypeError",
    "InvalidIdError",
    "ManyToManyError",
    "Problem",
    "TopologyError",
    "UniquePerShardWarning",
    "UnknownKeyspaceError",
    "UnknownServerError",
    "UnknownShardError",
    "WrongTypeError",
]

#: Problems of a topology in the text of its error.
_LISTED = 100


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


class ManyToManyError(ClassDefinitionError):
    """Raised when a link table could not have its rows on one shard.

    :ivar relationship: the attribute.
    :ivar secondary: the link table.
    """

    def __init__(
        self,
        message: str,
        *,
        class_name: str,
        relationship: str,
        secondary: str,
    ) -> None:
        super().__init__(message, class_name=class_name)
        self.relationship = relationship
        self.secondary = secondary


class UniquePerShardWarning(SAWarning):
    """Issued for a unique constraint that holds on each virtual shard only.

    ``info={"unique_per_shard": True}`` of the column, the constraint or the
    index says that this is meant.
    """


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
        self.source = redact(source)
        count = len(self.problems)
        listed = self.problems[:_LISTED]
        lines = "".join(f"\n  - {problem}" for problem in listed)
        if count > len(listed):
            lines += f"\n  and {count - len(listed)} more, see .problems"
        super().__init__(
            f"{self.source}: {count} problem{'' if count == 1 else 's'}{lines}"
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


class UnknownServerError(ShardError):
    """Raised when the topology has no server of a name.

    :ivar server: the name that was asked for.
    :ivar known: the names that there are.
    """

    def __init__(self, *, server: str, known: Iterable[str]) -> None:
        self.server = server
        self.known = tuple(known)
        super().__init__(
            f"there is no server {server!r} in the topology; it has "
            f"{', '.join(self.known)}"
        )


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
