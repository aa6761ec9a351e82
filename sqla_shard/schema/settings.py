"""What ``run_env()`` is given for alembic's ``context.configure()``.

Hooks of an application are called after those of this package, for what
these have not decided: a table of another keyspace is not compared, whatever
the application says of it.  All else that is given replaces what the package
would say, but for what it has to say itself.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Mapping
from typing import Any

from alembic.util import to_tuple

from sqla_shard.exc import SchemaOptionError

__all__ = ["is_portable", "merged"]

_BY_RUN_ENV = (
    "run_env() opens the connections, from the topology; leave it out"
)
_BY_COMMAND = "the command of alembic decides that; leave it out"
_REFUSED = {
    "connection": _BY_RUN_ENV,
    "url": _BY_RUN_ENV,
    "dialect_name": _BY_RUN_ENV,
    "fn": _BY_COMMAND,
    "as_sql": _BY_COMMAND,
    "target_metadata": "give the tables as run_env(context, metadata)",
    "version_table_schema": "each virtual shard has a version of its own, in "
    "its own database; leave it out",
    "sqla_shard": "run_env() says which shard it is; leave it out",
}
_PORTABLE = {"true": True, "false": False}


def is_portable(text: str | None, section: str) -> bool:
    """Return what ``portable`` says below a section of alembic.ini.

    :param text: None where it is not there.
    :raises SchemaOptionError: when it is neither true nor false.
    """
    if text is None:
        return False
    if text not in _PORTABLE:
        raise SchemaOptionError(
            f"write portable = true or portable = false below [{section}] "
            "of alembic.ini",
            option="portable",
            value=text,
        )
    return _PORTABLE[text]


def merged(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Any:
    """Return keyword arguments for ``context.configure()``.

    :param ours: as :func:`~sqla_shard.schema.comparing` gives them.
    :param theirs: those of the application.
    :raises SchemaOptionError: for what is not for an application to say.
    """
    for name, remedy in _REFUSED.items():
        if name in theirs:
            # Not the value: a URL may have a password.
            kind = type(theirs[name]).__name__
            raise SchemaOptionError(remedy, option=name, value=f"<{kind}>")
    found = {**ours, **theirs}
    for name, chain in _CHAINS.items():
        hooks = [of[name] for of in (ours, theirs) if of.get(name)]
        if len(hooks) == 2:
            found[name] = chain(*hooks)
        elif hooks:
            # They may have said None, to have none of their own.
            (found[name],) = hooks
    found["on_version_apply"] = to_tuple(
        theirs.get("on_version_apply"), default=()
    )
    return found


_Hook = Callable[..., Any]


def _both(first: _Hook, second: _Hook) -> _Hook:
    """Return what includes only what both include."""

    def include(*arguments: Any) -> bool:
        return bool(first(*arguments) and second(*arguments))

    return include


def _first(first: _Hook, second: _Hook) -> _Hook:
    """Return what renders what the first does not with the second."""

    def render(*arguments: Any) -> Any:
        found = first(*arguments)
        return second(*arguments) if found is False else found

    return render


def _one_by_one(first: _Hook, second: _Hook) -> _Hook:
    def process(*arguments: Any) -> None:
        first(*arguments)
        second(*arguments)

    return process


_CHAINS: dict[str, Callable[[_Hook, _Hook], _Hook]] = {
    "include_name": _both,
    "include_object": _both,
    "render_item": _first,
    "process_revision_directives": _one_by_one,
}
