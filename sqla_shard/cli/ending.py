"""Commands that go on until they are ended."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import signal
import sys
from collections.abc import Iterator

__all__ = ["End", "log_to_stderr"]


class End:
    """What SIGTERM and Ctrl-C set.

    A pipe, and no :class:`threading.Event`: a handler that runs while the
    event is being waited for would wait for itself.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        self._before = {
            one: signal.signal(one, self._set)
            for one in (signal.SIGTERM, signal.SIGINT)
        }

    def __enter__(self) -> End:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for one, handler in self._before.items():
            signal.signal(one, handler)
        os.close(self._read)
        os.close(self._write)

    def _set(self, *given: object) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._write, b"x")

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for it; return whether it is set."""
        return bool(select.select([self._read], [], [], timeout)[0])


@contextlib.contextmanager
def log_to_stderr(
    level: int = logging.INFO, *, without: str | None = None
) -> Iterator[None]:
    """Write the log of this package to the standard error.

    :param without: a logger whose lines are told otherwise.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        logging.Formatter("%(asctime)s %(levelname)s %(message)s")
    )
    if without is not None:
        those = logging.Filter(without)
        handler.addFilter(lambda record: not those.filter(record))
    logger = logging.getLogger("sqla_shard")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
