"""How long a driver waits for MySQL or MariaDB, unless told otherwise."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import URL

__all__ = ["LIMITS", "initial_statement", "with_limits", "without_end"]

#: Seconds, by driver and option, where neither the URL nor ``connect_args``
#: say another number.
LIMITS: Mapping[str, Mapping[str, int]] = {
    "pymysql": {
        "connect_timeout": 10,
        "read_timeout": 30,
        "write_timeout": 30,
    },
    # It has no write_timeout: what it cannot send waits in memory, and then
    # for an answer.
    "asyncmy": {"connect_timeout": 10, "read_timeout": 30},
}
#: The options without which a driver waits for ever, of drivers that are
#: not listed above, too.
_ENDING = ("read_timeout",)

# Outside strict mode a value that is too long is cut off with a warning.
_STRICT = (
    "sql_mode = CONCAT_WS(',', NULLIF(@@sql_mode, ''), 'STRICT_TRANS_TABLES')"
)

#: What part of ``read_timeout`` a statement may wait for locks.
_FOR_LOCKS = 0.8


def with_limits(
    driver: str,
    url: URL,
    arguments: Mapping[str, Any],
    timeout: float | None = None,
) -> dict[str, Any]:
    """Return the arguments of a driver, with a limit for each wait.

    :param url: what it says as an option is left to it.
    :param arguments: ``connect_args``; None there switches a limit off.
    :param timeout: seconds, in place of all limits; infinite for no limit
        but those of connecting and sending.
    """
    limits: Mapping[str, Any] = LIMITS.get(driver, {})
    found = {n: value for n, value in limits.items() if n not in url.query}
    found.update(arguments)
    if timeout == math.inf:
        found.update((n, None) for n in _ENDING if n in {**limits, **found})
    elif timeout is not None:
        found.update(dict.fromkeys(limits, timeout))
    return found


def without_end(
    driver: str, url: URL, arguments: Mapping[str, Any]
) -> list[str]:
    """Return the names of the limits that a driver does not have.

    :param arguments: what :func:`with_limits` has returned.
    """
    given = {**url.query, **arguments}
    return [n for n in LIMITS.get(driver, _ENDING) if given.get(n) is None]


def initial_statement(url: URL, arguments: Mapping[str, Any]) -> str:
    """Return what is sent over each new connection."""
    # The virtual shard is named in every statement.  A default database
    # would let a statement without a name land in whichever was used last.
    parts = ["SET SESSION time_zone = '+00:00'", _STRICT]
    limit = {**url.query, **arguments}.get("read_timeout")
    if limit is not None:
        # A server that waits for a lock answers nothing meanwhile, and would
        # pass for one that hangs.  Its own limits are 50 seconds and a day;
        # and it would go on waiting after its client has gone.
        seconds = max(1, int(float(limit) * _FOR_LOCKS))
        parts += [
            f"{name} = LEAST(@@{name}, {seconds})"
            for name in ("innodb_lock_wait_timeout", "lock_wait_timeout")
        ]
    return ", ".join(parts)
