"""Operations: named functions that write another shard.

A pending operation is stored as a name and arguments, and may be applied by a
newer release of the program.  If the meaning of a function changes, give it
another name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from secrets import token_bytes
from typing import Any, Concatenate, Generic, ParamSpec

from sqlalchemy import BigInteger, bindparam, insert

from sqla_shard.dialects.sql import ServerTime
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import OperationArgumentError, OperationDefinitionError
from sqla_shard.exc.base import shown
from sqla_shard.outbox.apply import (
    apply_after_commit,
    microseconds,
    PendingOperation,
    refuse_autocommit,
    refuse_unrun,
    register,
)
from sqla_shard.outbox.tables import INTENTS, LONGEST_NAME, TOKEN_BYTES
from sqla_shard.session import ShardSession
from sqla_shard.util.json_values import compact_json, is_json, JSON_VALUE

# -- Inserting pending operations in a transaction.


#: Seconds after which workers apply an operation that the process which has
#: inserted it has not applied.
_LEASE = 30.0

_INSERT = insert(INTENTS).values(
    token=bindparam("token"),
    operation=bindparam("operation"),
    arguments=bindparam("arguments"),
    home_shard=bindparam("home_shard"),
    keyspace=bindparam("keyspace"),
    shard_id=bindparam("shard_id"),
    created_at=ServerTime(),
    due_at=ServerTime(bindparam("lease", type_=BigInteger())),
    attempts=0,
)


def add_pending(
    session: ShardSession,
    source: Place,
    operation: str,
    calls: Iterable[tuple[Place, dict[str, Any]]],
) -> None:
    """Insert pending operations, which are applied after COMMIT.

    :param source: location of a shard that the transaction writes.
    :param operation: name of the operation.
    :param calls: the location of the shard that each call writes, and its
        arguments.
    """
    rows = []
    added = []
    for place, arguments in calls:
        text = compact_json(arguments)
        pending = PendingOperation(
            token=token_bytes(TOKEN_BYTES),
            operation=operation,
            # Store a copy: the caller may change its lists before COMMIT.
            arguments=json.loads(text),
            home=source.address,
            target=place.address,
        )
        rows.append(
            {
                "token": pending.token,
                "operation": operation,
                "arguments": text,
                "home_shard": source.shard_id,
                "keyspace": place.keyspace,
                "shard_id": place.shard_id,
                "lease": microseconds(_LEASE),
            }
        )
        added.append(pending)
    if rows:
        refuse_autocommit(session, source, operation)
        session.execute(_INSERT, rows, bind_arguments={"place": source})
    # Register them only now: if the INSERT fails, nothing is to be applied.
    for pending in added:
        session.log.after_commit(apply_after_commit, pending)


P = ParamSpec("P")

#: Returns the shard of a call, as arguments of ``session.connection()``.
Where = Callable[..., Mapping[str, Any]]

_PLAIN = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
#: Maximum bytes of the arguments as JSON.
_MAX_ARGUMENT_BYTES = 1_000_000


class Operation(Generic[P]):
    """A function that writes one shard, and can be applied later.

    Calling it calls the function.

    :ivar name: the name that is stored with pending operations.
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
        self._signature = _check_function(function, name)
        parameters = list(self._signature.parameters)
        if on is None:
            on = parameters[1]
        elif not callable(on) and on not in parameters[1:]:
            raise OperationDefinitionError(
                f"on={on!r} must be one of its parameters after the session",
                operation=name,
            )
        self._on = on

    def __call__(self, session: ShardSession, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function."""
        return self.function(session, *args, **kwargs)

    def intend(self, session: ShardSession, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Apply it on its shard if, and only if, the transaction commits.

        If the transaction writes that shard itself, has written nothing
        yet, or may write several, the function is called immediately.

        :returns: whether the function was called.
        :raises OperationArgumentError: if the arguments cannot be stored.
        :raises OperationDefinitionError: if the code of the function has not run.
        :raises CrossShardWriteError: if the transaction writes another
            shard, and does not have ``cross_shard="logged"``.
        """
        arguments = self._bind(session, args, kwargs)
        if session.autoflush:
            # The flush may be the first write of the transaction.
            session.flush()
        place = self.place(session, arguments)
        log = session.log
        if (
            log.first is None
            or not log.is_of_one_shard
            or log.first[0].address == place.address
        ):
            function: Callable[..., Any] = self.function
            refuse_unrun(self.name, function(session, **arguments))
            return True
        if log.cross_shard is None:
            log.wrote(place, f"the operation {self.name}")  # raises
        add_pending(session, log.first[0], self.name, [(place, arguments)])
        return False

    def place(self, session: ShardSession, arguments: Mapping[str, Any]) -> Place:
        """Return the location of the shard that a call writes."""
        if callable(self._on):
            return session.place_for(**self._on(session, **arguments))
        if self._on not in arguments:
            raise OperationArgumentError(
                "is missing; it names the shard",
                operation=self.name,
                parameter=self._on,
            )
        places = session.places
        keyspace = places.keyspace(self._keyspace, "objects")
        shard_id = keyspace.id_layout.shard_of(arguments[self._on])
        return places.place(keyspace, shard_id)

    def _bind(
        self, session: ShardSession, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the arguments by name; refuse values other than JSON."""
        try:
            bound = self._signature.bind(session, *args, **kwargs)
        except TypeError as error:
            raise OperationArgumentError(
                f"do not match the signature of the function: {error}",
                operation=self.name,
                parameter=None,
            ) from error
        _, *given = bound.arguments.items()
        arguments = dict(given)
        for name, value in arguments.items():
            if not is_json(value):
                raise OperationArgumentError(
                    f"is {shown(value)}; it must be {JSON_VALUE}. Ids are int",
                    operation=self.name,
                    parameter=name,
                )
        size = len(compact_json(arguments).encode())
        if size > _MAX_ARGUMENT_BYTES:
            raise OperationArgumentError(
                f"have {size} bytes as JSON; the maximum is {_MAX_ARGUMENT_BYTES}. "
                "Write their contents to a shard, and use the id as the "
                "argument",
                operation=self.name,
                parameter=None,
            )
        return arguments

    def __repr__(self) -> str:
        return f"<Operation {self.name!r}>"


def _check_function(function: Any, name: str) -> inspect.Signature:
    """Return the signature of a function, if it can be an operation."""
    runs_later = (
        inspect.iscoroutinefunction,
        inspect.isgeneratorfunction,
        inspect.isasyncgenfunction,
    )
    if not callable(function) or any(one(function) for one in runs_later):
        raise OperationDefinitionError(
            f"{function!r} must be a function that takes a session, without yield, "
            "and not async def: with asyncio it is called as by session.run_sync()",
            operation=name,
        )
    signature = inspect.signature(function)
    kinds = [one.kind for one in signature.parameters.values()]
    if len(kinds) < 2 or any(kind not in _PLAIN for kind in kinds[1:]):
        raise OperationDefinitionError(
            "it must take the session, and then named arguments, without * "
            "and /: they are stored by name",
            operation=name,
        )
    return signature


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

    The function writes one shard, and does not commit.  It may run much
    later, in another process, concurrently with other operations; it takes
    effect once.  If it raises, it is retried later.

    :param name: the name that is stored with pending operations; it must not
        change while any are pending.
    :param on: the parameter whose object id names the shard, by default the
        first after the session; or a function of the same arguments that
        returns arguments of ``session.connection()``, such as ``{"mapper":
        Emails, "shard_id": Emails.shard_of(session, key)}``.
    :param keyspace: keyspace of that id, if there are several.
    :raises OperationDefinitionError: if the function cannot be an operation,
        or another one has the name.
    """
    given: object = name
    if not isinstance(given, str) or not 0 < len(name) <= LONGEST_NAME:
        raise OperationDefinitionError(
            f"its name must be a string of 1 to {LONGEST_NAME} characters, as "
            'in @operation("shop.give")',
            operation=str(name)[:LONGEST_NAME],
        )

    def define(function: Callable[Concatenate[ShardSession, P], Any]) -> Operation[P]:
        operation = Operation(function, name, on, keyspace)
        register(name, function)
        return operation

    return define
