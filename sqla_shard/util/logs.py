"""A log of code that must go on."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from threading import current_thread, main_thread
from typing import Any


def outlived() -> type[BaseException]:
    """Return the errors of others, after which code that must go on does so.

    In the main thread SystemExit, say, may be of the handler of a signal.
    """
    return Exception if current_thread() is main_thread() else BaseException


class _CarefulLog(logging.LoggerAdapter[logging.Logger]):
    """Reports errors of handlers and filters where Python reports its own."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        # The stream may be closed, or be one of the application.
        with suppress(outlived()):
            try:
                self.logger.log(level, msg, *args, **{"stacklevel": 2, **kwargs})
            except Exception:
                traceback.print_exc(file=sys.stderr)


def careful_log(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return a log whose handlers cannot stop who writes.

    :param name: name of the logger.
    """
    return _CarefulLog(logging.getLogger(name), {})
