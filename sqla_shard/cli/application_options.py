"""Options with modules and the cache of the application.

Commands that write rows of the application invalidate its row cache with
``--cache``; otherwise readers would get outdated rows from it.

Python expressions on the command line are not restricted, like those of
``python -c``: they can do whatever the user of the program can do.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TYPE_CHECKING

import click
from click.core import ParameterSource

from sqla_shard.cli.output import CommandT, option

if TYPE_CHECKING:
    from sqla_shard.cluster.cluster import Cluster

models_option = option(
    "--models MODULE",
    "Module to import, such as shop.models; repeatable.",
    multiple=True,
)


def names(modules: Iterable[str]) -> dict[str, Any]:
    """Return the names that expressions on the command line can use.

    These are the public names of SQLAlchemy, its ORM, this package and the
    given modules, which may be in the current directory.

    :param modules: names of modules; later ones take precedence.
    :raises click.BadParameter: if a module cannot be imported.
    """
    import sqlalchemy
    import sqlalchemy.orm

    import sqla_shard

    found: dict[str, Any] = {}
    for module in (sqlalchemy.orm, sqlalchemy, sqla_shard):
        found.update(_public(module))
    add_working_directory()
    for name in modules:
        found.update(_public(_imported(name)))
    return found


def imported(name: str, default: str, *, param_hint: str) -> Any:
    """Return the object of ``module:name``.

    :param default: the name if none is given.
    :param param_hint: the argument, for errors.
    :raises click.BadParameter: if there is none.
    """
    module, _, attribute = name.partition(":")
    add_working_directory()
    try:
        return getattr(importlib.import_module(module), attribute or default)
    except (AttributeError, ImportError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"{name!r} cannot be imported: {error}", param_hint=param_hint
        ) from error


def add_working_directory() -> None:
    """Allow imports of modules in the current directory."""
    if "" not in sys.path:
        # It is missing in scripts that pip installs, unlike in ``python -m``.
        sys.path.insert(0, "")


def _public(module: ModuleType) -> dict[str, Any]:
    listed = getattr(module, "__all__", None)
    if listed is None:
        listed = [name for name in vars(module) if not name.startswith("_")]
    return {name: getattr(module, name) for name in listed}


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (ImportError, TypeError, ValueError) as error:
        raise click.BadParameter(
            f"module {name!r} cannot be imported: {error}", param_hint="--models"
        ) from error


def evaluate(text: str, namespace: dict[str, Any]) -> Any:
    """Return the value of a Python expression.

    :param text: the expression.
    :param namespace: names that the expression can use, with their values.
    :raises click.UsageError: if it is not valid, or raises an error.
    """
    try:
        return eval(text, namespace)  # noqa: S307  # the user's own code
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        NameError,
        SyntaxError,
        TypeError,
        ValueError,
    ) as error:
        advice = ""
        if isinstance(error, NameError):
            advice = "; import the names of a module with --models MODULE"
        raise click.UsageError(
            f"{text!r} cannot be evaluated: {type(error).__name__}: {error}{advice}"
        ) from error


IN_MEMORY = "dogpile.cache.memory"
"""Prefix of the names of backends that are local to a process."""


def _cache_option(required: bool, text: str) -> Callable[[CommandT], CommandT]:
    return option(
        "--cache FILE",
        text,
        click.Path(exists=True, dir_okay=False),
        required=required,
        envvar="SQLA_SHARD_CACHE",
        show_envvar=True,
    )


regions_option = _cache_option(True, "TOML file with the cache regions.")
cache_option = _cache_option(
    False,
    "TOML file of the application's cache, to invalidate the rows that are written.",
)


class CacheOption:
    """Value of the option ``--cache``.

    :param path: the file, if the option is given.
    :raises CacheConfigError: if the file is not valid, or a region is in the
        memory of a process.
    """

    def __init__(self, path: str | None) -> None:
        from sqla_shard.cache.regions import load_cache
        from sqla_shard.exc import CacheConfigError

        self._path = path
        self._settings: dict[str, Any] | None = None
        if path is None:
            return
        add_working_directory()
        self._settings = load_cache(path)
        for name, region in self._settings["regions"].items():
            if region["backend"].startswith(IN_MEMORY):
                raise CacheConfigError(
                    f"{region['backend']!r} is in the memory of each process, so this "
                    "command cannot invalidate the caches of others; use memcached or "
                    "Redis, or omit --cache if no other process is running",
                    path=path,
                    key=f"regions.{name}.backend",
                )

    def configure(self, cluster: Cluster) -> None:
        """Configure the cache of a cluster.

        :raises CacheConfigError: if a region cannot be opened.
        :raises CacheClassError: if rows of a class cannot be cached.
        """
        from sqla_shard.exc import CacheConfigError, OptionError

        if self._settings is None:
            return
        try:
            cluster.configure_cache(**self._settings)
        except OptionError as error:
            raise CacheConfigError(
                str(error), path=str(self._path), key="regions"
            ) from error


def cache_of_option(path: str | None, unused: str | None = None) -> CacheOption:
    """Return the value of ``--cache``.

    :param unused: reason why this run uses no cache; the environment
        variable is then ignored.
    :raises click.UsageError: if the option is given, but not used.
    :raises CacheConfigError: see :class:`CacheOption`.
    """
    if unused is None:
        return CacheOption(path)
    source = click.get_current_context().get_parameter_source("cache")
    if source is ParameterSource.COMMANDLINE:
        raise click.UsageError(f"--cache cannot be used here: {unused}")
    return CacheOption(None)
