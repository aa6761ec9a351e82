"""A log of code that must go on."""

from __future__ import annotations

import logging
import sys
import traceback
from contextlib import suppress
from typing import Any


class _CarefulLog(logging.LoggerAdapter[logging.Logger]):
    """Reports errors of handlers and filters where Python reports its own."""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        try:
            self.logger.log(level, msg, *args, **{"stacklevel": 2, **kwargs})
        except Exception:
            # Its stream is closed, or it belongs to an application.
            with suppress(ValueError, OSError):
                traceback.print_exc(file=sys.stderr)


def careful_log(name: str) -> logging.LoggerAdapter[logging.Logger]:
    """Return a log whose handlers cannot stop who writes.

    :param name: name of the logger.
    """
    return _CarefulLog(logging.getLogger(name), {})
