"""What is started and stopped: by a ``with`` statement, or side by side."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

__all__ = ["Started", "at_once"]

_Self = TypeVar("_Self", bound="Started")
_Server = TypeVar("_Server")


def at_once(
    servers: Sequence[_Server], action: Callable[[_Server], object]
) -> None:
    """Do something with all servers side by side; raise the first error.

    :param servers: at least one.
    :param action: called once for each, in a thread of its own.
    """
    with ThreadPoolExecutor(len(servers)) as pool:
        futures = [pool.submit(action, server) for server in servers]
    for future in futures:
        future.result()


class Started(abc.ABC):
    """Started when a ``with`` statement begins, stopped when it ends."""

    def __enter__(self: _Self) -> _Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    @abc.abstractmethod
    def start(self) -> object:
        """Start, and wait until it can be used."""

    @abc.abstractmethod
    def stop(self) -> None:
        """End, and leave nothing behind."""

    @contextlib.contextmanager
    def _or_stopped(self) -> Iterator[None]:
        """Stop if the block fails, however it does."""
        try:
            yield
        except BaseException:
            self.stop()
            raise
