"""Listeners that run a statement themselves.

After one that has, SQLAlchemy asks no other; so whoever does what SQLAlchemy
would do next has to ask those that come after him.
"""

from __future__ import annotations

from typing import Any

__all__ = ["asked_after"]

#: Cursor, statement, parameters and context, as listeners are given them.
Arguments = tuple[Any, Any, Any, Any]


def asked_after(name: str, ours: Any, arguments: Arguments) -> bool:
    """Ask the listeners after ours; tell whether one has run the statement.

    :param name: of the event, such as ``do_execute``.
    :param ours: our listener, or the function that it is a partial of.
    """
    listeners = iter(getattr(arguments[3].dialect.dispatch, name))
    for each in listeners:
        if getattr(each, "func", each) is ours:
            break
    return any(each(*arguments) for each in listeners)
