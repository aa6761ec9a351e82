"""Operations: functions with a name, for what is done on another shard.

The name and the arguments are all that an intent holds, so whoever applies
it runs the function as it is then, perhaps of a newer release.  A function
that means something else has another name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from collections.abc import Mapping
from typing import Any
from typing import Concatenate
from typing import Generic
from typing import ParamSpec

from sqla_shard.exc import OperationArgumentError
from sqla_shard.exc import OperationDefinitionError
from sqla_shard.ids import unpack
from sqla_shard.intents.registry import register
from sqla_shard.intents.writing import leave
from sqla_shard.internal import LONGEST_NAME
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession

__all__ = ["Operation", "operation"]

P = ParamSpec("P")

#: Tells the shard of a call: what ``session.connection()`` takes.
Where = Callable[..., Mapping[str, Any]]

_PLAIN = (
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
#: Characters of JSON: arguments say what to do, and hold no contents.
_LONGEST = 1_000_000


class Operation(Generic[P]):
    """A function that writes one shard, and can be done there later.

    Called, it is the function.

    :ivar name: by which intents name it.
    """

    def __init__(
        self,
        function: Callable[Concatenate[ShardSession, P], Any],
        name: str,
        on: str | Where | None,
        keyspace: str | None,
    ) -> None:
        self.name = name
        self.function = function
        self._keyspace = keyspace
        self._signature = _checked(function, name)
        parameters = list(self._signature.parameters)
        if on is None:
            on = parameters[1]
        elif not callable(on) and on not in parameters[1:]:
            raise OperationDefinitionError(
                f"on={on!r} is no parameter of it after the session",
                operation=name,
            )
        self._on = on

    def __call__(
        self, session: ShardSession, *args: P.args, **kwargs: P.kwargs
    ) -> Any:
        """Call the function."""
        return self.function(session, *args, **kwargs)

    def intend(
        self, session: ShardSession, *args: P.args, **kwargs: P.kwargs
    ) -> bool:
        """Have it done on its shard if, and only if, this is committed.

        Where the transaction writes that shard itself, has written nothing
        yet, or may write several, it is done at once, in it.

        :returns: whether that was so.
        :raises OperationArgumentError: when an intent cannot hold the
            arguments.
        :raises CrossShardWriteError: when the transaction was not begun
            with ``cross_shard="logged"``, and writes another shard.
        """
        arguments = self._bound(session, args, kwargs)
        if session.autoflush:
            # What is to be flushed yet may be what tells the home.
            session.flush()
        place = self.place(session, arguments)
        log = session.log
        if (
            log.first is None
            or not log.is_of_one_shard
            or log.first[0].address == place.address
        ):
            function: Callable[..., Any] = self.function
            function(session, **arguments)
            return True
        if log.cross_shard is None:
            log.wrote(place, f"what {self.name} does")  # is refused
        leave(session, log.first[0], self.name, [(place, arguments)])
        return False

    def place(
        self, session: ShardSession, arguments: Mapping[str, Any]
    ) -> Place:
        """Return the shard that a call of it writes."""
        if callable(self._on):
            return session.place_for(**self._on(session, **arguments))
        if self._on not in arguments:
            raise OperationArgumentError(
                "is missing, and tells the shard",
                operation=self.name,
                parameter=self._on,
            )
        shard_id = unpack(arguments[self._on]).shard_id
        places = session.places
        keyspace = places.keyspace(self._keyspace, "objects")
        return places.place(keyspace, shard_id)

    def _bound(
        self,
        session: ShardSession,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> dict[str, Any]:
        """Return the arguments by name, as they come out of an intent."""
        try:
            bound = self._signature.bind(session, *args, **kwargs)
        except TypeError as error:
            raise OperationArgumentError(
                f"do not fit: {error}", operation=self.name, parameter=None
            ) from error
        _, *given = bound.arguments.items()
        arguments = dict(given)
        for name, value in arguments.items():
            if not _is_kept(value):
                raise OperationArgumentError(
                    f"is {value!r:.80}, and an intent holds JSON: None, "
                    "bool, int, finite float, str, lists of such and dicts "
                    "with str for keys. Ids are int",
                    operation=self.name,
                    parameter=name,
                )
        size = len(json.dumps(arguments))
        if size > _LONGEST:
            raise OperationArgumentError(
                f"take {size} characters of at most {_LONGEST}; write what "
                "they hold to a shard, and have its id in the intent",
                operation=self.name,
                parameter=None,
            )
        return arguments

    def __repr__(self) -> str:
        return f"<Operation {self.name!r}>"


def _checked(function: Any, name: str) -> inspect.Signature:
    """Return the signature of a function that can be an operation."""
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise OperationDefinitionError(
            f"{function!r} is no function that takes a session; also with "
            "asyncio it is one without async, as for session.run_sync()",
            operation=name,
        )
    signature = inspect.signature(function)
    kinds = [one.kind for one in signature.parameters.values()]
    if len(kinds) < 2 or any(kind not in _PLAIN for kind in kinds[1:]):
        raise OperationDefinitionError(
            "it takes the session, and then arguments that have names, "
            "without * and /: an intent holds them by name",
            operation=name,
        )
    return signature


def _is_kept(value: Any) -> bool:
    """Tell whether a value is the same when it was JSON."""
    try:
        return _same(value, json.loads(json.dumps(value, allow_nan=False)))
    except (TypeError, ValueError, RecursionError):
        return False


def _same(value: Any, other: Any) -> bool:
    if isinstance(value, dict):
        return value == other and all(
            map(_same, value.values(), other.values())
        )
    if isinstance(value, list):
        return len(value) == len(other) and all(map(_same, value, other))
    return type(value) is type(other) and value == other


def operation(
    name: str, *, on: str | Where | None = None, keyspace: str | None = None
) -> Callable[[Callable[Concatenate[ShardSession, P], Any]], Operation[P]]:
    """Make a function an operation, as a decorator.

    ::

        @operation("count_follower")
        def count_follower(session: ShardSession, board_id: int) -> None:
            board = session.get(Board, board_id, with_for_update=True)
            board.followers += 1

        with cluster.begin(cross_shard="logged") as session:
            session.add(Follow(user_id=user_id, board_id=board_id))
            count_follower.intend(session, board_id)

    The function writes one shard, and does not commit.  It may run in
    another process and long after, next to others; that it runs once is
    seen to.  What it raises lets it be tried again later.

    :param name: by which intents name it; it must not change as long as
        there are some.
    :param on: the parameter whose object id names the shard, by default the
        first after the session; or a function of the same arguments that
        returns what ``session.connection()`` takes, such as ``{"mapper":
        Emails, "shard_id": Emails.shard_of(session, key)}``.
    :param keyspace: of that id, where there are several.
    :raises OperationDefinitionError: when the function cannot be one, or
        another has the name.
    """
    given: object = name
    if not isinstance(given, str) or not 0 < len(name) <= LONGEST_NAME:
        raise OperationDefinitionError(
            f"its name is a text of up to {LONGEST_NAME} characters, as in "
            '@operation("shop.give")',
            operation=str(name)[:LONGEST_NAME],
        )

    def define(
        function: Callable[Concatenate[ShardSession, P], Any],
    ) -> Operation[P]:
        found = Operation(function, name, on, keyspace)
        register(name, function)
        return found

    return define
