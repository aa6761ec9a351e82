"""A course: transactions one after another, in threads or in an event loop.

It is a generator that yields what the next transaction runs, and is sent the
result or is thrown the error.
"""

from __future__ import annotations

from collections.abc import Awaitable
from collections.abc import Callable
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import Any
from typing import TYPE_CHECKING
from typing import TypeVar

from sqla_shard.exc import CommitUnknownError
from sqla_shard.session import ShardSession

if TYPE_CHECKING:
    from sqla_shard.cluster import Cluster

__all__ = ["Course", "Step", "run", "run_awaited", "settled"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Step:
    """A transaction of its own, which may leave intents.

    :ivar function: takes the session.
    :ivar key: of the transaction, where doing it twice does harm.
    """

    function: Callable[[ShardSession], Any]
    key: str | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What ``Cluster.run`` takes beside the function."""
        return {"key": self.key, "cross_shard": "logged"}


#: The transactions of a registration, one after another.
Course = Generator[Step, Any, T]


def run(cluster: Cluster, course: Course[T]) -> T:
    """Run a course; raise what it raises."""
    advance: Callable[[], Step] = partial(next, course)
    try:
        while True:
            step = advance()
            try:
                done = cluster.run(step.function, **step.options)
            except Exception as error:  # raised again where the step is
                advance = partial(course.throw, error)
            else:
                advance = partial(course.send, done)
    except StopIteration as end:
        result: T = end.value
        return result


async def run_awaited(cluster: Cluster, course: Course[T]) -> T:
    """Run a course in an event loop; see :func:`run`."""

    async def in_session(session: Any, function: Callable[..., Any]) -> Any:
        return await session.run_sync(function)

    advance: Callable[[], Step] = partial(next, course)
    try:
        while True:
            step = advance()
            attempt: Awaitable[Any] = cluster.async_run(
                in_session, step.function, **step.options
            )
            try:
                done = await attempt
            except Exception as error:  # raised again where the step is
                advance = partial(course.throw, error)
            else:
                advance = partial(course.send, done)
    except StopIteration as end:
        result: T = end.value
        return result


def settled(function: Callable[..., T]) -> Course[T]:
    """Run what does no harm twice: once more where its COMMIT was lost."""
    step = Step(function=function)
    try:
        done: T = yield step
    except CommitUnknownError:
        done = yield step
    return done
