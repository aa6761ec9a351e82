"""The option ``--cache`` of commands, and what it gives their clusters.

Beside the application these write its rows, too.  A cache that is not told
goes on giving away what was there before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import TypeVar

import click
from click.core import ParameterSource

from sqla_shard.cache.settings import load_cache
from sqla_shard.cli.expressions import find_here
from sqla_shard.cluster import Cluster
from sqla_shard.exc import CacheConfigError
from sqla_shard.exc import CacheOptionError

__all__ = [
    "IN_MEMORY",
    "ToldCache",
    "cache_option",
    "regions_option",
    "told_cache",
]

F = TypeVar("F", bound=Callable[..., Any])

IN_MEMORY = "dogpile.cache.memory"
"""What the names of backends begin with that have nothing of others."""

_VARIABLE = "SQLA_SHARD_CACHE"


def _option(required: bool, told: str) -> Callable[[F], F]:
    return click.option(
        "--cache",
        "cache",
        metavar="FILE",
        required=required,
        envvar=_VARIABLE,
        show_envvar=True,
        type=click.Path(exists=True, dir_okay=False),
        help=told,
    )


def regions_option(command: F) -> F:
    """Give a command of the regions themselves the option ``--cache``."""
    return _option(True, "The TOML file with the regions of the cache.")(
        command
    )


def cache_option(command: F) -> F:
    """Give a command that writes rows the option ``--cache``."""
    return _option(
        False,
        "The TOML file of the application's cache, which has to be told "
        "what is written.",
    )(command)


class ToldCache:
    """The cache that ``--cache`` names, if any.

    :param path: the file.
    :raises CacheConfigError: when it cannot be used, or has a region in the
        memory of a process.
    """

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._settings: dict[str, Any] | None = None
        if path is None:
            return
        find_here()
        self._settings = load_cache(path)
        for name, region in self._settings["regions"].items():
            if region["backend"].startswith(IN_MEMORY):
                raise CacheConfigError(
                    f"{region['backend']!r} is in the memory of each process: "
                    "what this one writes, the others would not be told; "
                    "name memcached or Redis, or leave out --cache where "
                    "nothing else runs",
                    path=path,
                    key=f"regions.{name}.backend",
                )

    def give(self, cluster: Cluster) -> None:
        """Let a cluster announce what it writes.

        :raises CacheConfigError: when a region cannot be opened.
        :raises CacheClassError: when rows of a class cannot be kept.
        """
        if self._settings is None:
            return
        try:
            cluster.configure_cache(**self._settings)
        except CacheOptionError as error:
            raise CacheConfigError(
                str(error), path=str(self._path), key="regions"
            ) from error


def told_cache(path: str | None, unwanted: str | None = None) -> ToldCache:
    """Return the cache that ``--cache`` names.

    :param unwanted: why this run has no use for one; then that of the
        environment is none.
    :raises click.UsageError: when it is unwanted, and named all the same.
    :raises CacheConfigError: see :class:`ToldCache`.
    """
    if unwanted is None:
        return ToldCache(path)
    source = click.get_current_context().get_parameter_source("cache")
    if source is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"leave out --cache: {unwanted}")
    return ToldCache(None)
