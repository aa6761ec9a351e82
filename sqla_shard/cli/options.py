"""Global options, and parameter types that several commands use.

Only commands that connect to a server need the values of ``${NAME}`` in its
URL.  All other commands load the topology with empty strings for these,
so that they work on machines without the passwords.

Commands that write rows of the application invalidate its row cache with
``--cache``; otherwise readers would get outdated rows from it.

Python expressions on the command line are not restricted, like those of
``python -c``: they can do whatever the user of the program can do.
"""

from __future__ import annotations

import importlib
import math
import re
import reprlib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from inspect import isfunction
from pathlib import Path
from types import ModuleType
from typing import Any, Concatenate, get_args, ParamSpec, TYPE_CHECKING, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from sqla_shard.cli.output import CommandT, Decorator, option

if TYPE_CHECKING:
    from sqla_shard.cli.completion import Kind
    from sqla_shard.cluster.cluster import Cluster
    from sqla_shard.topology import Topology

DEFAULT_FILE = "topology.toml"
"""Name of the topology file in the current directory, the default."""

VARIABLE = "SQLA_SHARD_TOPOLOGY"
"""Environment variable with the path or URL of the topology."""

P = ParamSpec("P")
T = TypeVar("T")

# Longer numbers are not ids, and int() raises ValueError for them.
_NUMBER = re.compile(r"[0-9]{1,100}|0[xX][0-9a-fA-F]{1,100}")


if TYPE_CHECKING:
    # They are generic in the newest versions of click only.
    _ParamType = click.ParamType[Any]
    _Choice = click.Choice[Any]
else:
    _ParamType, _Choice = click.ParamType, click.Choice


class _Location(_ParamType):
    """Parameter type: path of a topology file, or URL of ZooKeeper."""

    name = "location"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str:
        """Return the value unchanged; fail if it is empty."""
        if not str(value):
            self.fail("must be a path or a URL, not empty", param, ctx)
        return str(value)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Complete paths of files."""
        return [CompletionItem(incomplete, type="file")]


#: Parameter type: a topology.
LOCATION = _Location()


class FiniteRange(click.FloatRange):
    """Parameter type: a finite number of seconds, hours or rows.

    click accepts ``nan`` in any range, and ``inf`` without an upper bound;
    both fail as timeouts.
    """

    def __init__(
        self, least: float, most: float = 1e9, *, is_open: bool = False
    ) -> None:
        super().__init__(least, most, min_open=is_open)

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the value as a float."""
        converted: float = super().convert(value, param, ctx)
        if math.isnan(converted):
            self.fail(f"{value!r} is not a number", param, ctx)
        return converted


rate_option: Decorator = option(
    "--rate N", "Read at most N rows per second.", FiniteRange(0, is_open=True)
)
"""Option of commands that read all rows of a class."""

resume_option: Decorator = option(
    "--resume FILE",
    "Save the progress in FILE, and resume from there after an interruption.",
    click.Path(dir_okay=False, path_type=Path),
    to="position",
)
"""Option of commands that can be interrupted."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Values of the global options.

    :param named: value of ``--topology``: a path, the URL of ZooKeeper, or
        None.
    :param more_placeholders: names that are allowed as ``${NAME}`` in a URL,
        in addition to the default ones.
    """

    # Its methods import what they need: `sqla-shard id` has these options,
    # too, and needs neither a topology nor SQLAlchemy.

    named: str | None = None
    more_placeholders: Collection[str] = ()

    @property
    def placeholders(self) -> Collection[str]:
        """Names that are allowed as ``${NAME}`` in a URL."""
        from sqla_shard.topology import DEFAULT_PLACEHOLDERS

        return (*DEFAULT_PLACEHOLDERS, *self.more_placeholders)

    @property
    def location(self) -> str:
        """Path of the topology, or URL of ZooKeeper.

        :raises click.ClickException: if ``--topology`` is not given and the
            current directory has no ``topology.toml`` or ``topology.json``.
        """
        if self.named is not None:
            return self.named
        # The second one is what dev up writes.
        names = DEFAULT_FILE, "topology.json"
        for name in names:
            if Path(name).is_file():
                return name
        raise click.ClickException(
            f"{' or '.join(names)} not found in the current directory; specify "
            f"a topology with --topology PATH or {VARIABLE}=PATH"
        )

    def zookeeper(self, named: str | None = None) -> str:
        """Return the URL of ZooKeeper.

        :param named: value of an option of the command, which takes
            precedence over ``--topology``.
        :raises click.UsageError: if it is missing or not such a URL.
        """
        from sqla_shard.topology.follow import is_zookeeper
        from sqla_shard.util.masking import masked

        url = named or self.named
        if not is_zookeeper(url):
            actual = "" if url is None else f", not {masked(url)}"
            raise click.UsageError(
                f"this command requires the URL of a ZooKeeper{actual}: "
                "sqla-shard --topology zookeeper://host:port,host:port/path"
            )
        return str(url)

    @property
    def blank(self) -> Mapping[str, str]:
        """Empty values of the placeholders, for commands without servers."""
        return dict.fromkeys(self.placeholders, "")

    def topology(
        self, location: str | None = None, *, connects: bool = False
    ) -> Topology:
        """Return a topology.

        :param location: path or URL; by default :attr:`location`.
        :param connects: whether to read the values of the placeholders from
            the environment.
        :raises TopologyError: if it cannot be read or is not valid.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        from sqla_shard.topology.follow import load_location

        return load_location(
            location or self.location,
            placeholders=self.placeholders,
            environ=None if connects else self.blank,
        )

    def cluster(self, **options: Any) -> Cluster:
        """Return a cluster that follows its topology.

        Repairs and long runs need it: with an outdated topology they would
        search for objects on a former primary, and delete rows that refer
        to these objects.

        :param options: arguments of :class:`Cluster`.
        :raises TopologyError: see :meth:`topology`.
        :raises TopologyUnavailableError: if ZooKeeper does not respond.
        """
        from sqla_shard import Cluster

        return Cluster.from_location(
            self.location,
            placeholders=self.placeholders,
            # A snapshot may be outdated.
            snapshot=False,
            **options,
        )

    def silent_cluster(self) -> Cluster:
        """Return a cluster for commands that connect to no server.

        :raises TopologyError: see :meth:`topology`.
        """
        from sqla_shard import Cluster

        return Cluster(self.topology(), environ=self.blank)


def _replace_location(
    ctx: click.Context, param: click.Parameter, value: str | None
) -> None:
    if value is not None:
        ctx.obj = replace(ctx.ensure_object(Settings), named=value)


def pass_global_settings(
    function: Callable[Concatenate[Settings, P], T],
) -> Callable[P, T]:
    """Pass the settings to a command that has a ``--topology`` of its own."""
    return click.make_pass_decorator(Settings)(function)


def pass_settings(function: Callable[Concatenate[Settings, P], T]) -> Callable[P, T]:
    """Pass the settings to a command, as its first argument.

    The command takes the option ``--topology``, as the program does.
    """
    location = option(
        "-t --topology PATH",
        "Topology; can also precede the command.",
        LOCATION,
        expose_value=False,
        callback=_replace_location,
    )
    return location(pass_global_settings(function))


_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def completed(kind: Kind, *, by_ini: bool = False) -> _Complete:
    """Return what completes the value of a parameter, from the topology.

    :param by_ini: whether the command has the topology and the keyspace that
        ``alembic.ini`` names.
    """

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # Only a shell needs it.
        from sqla_shard.cli.completion import items

        settings = ctx.find_object(Settings)
        named = None if settings is None else settings.named
        return items(
            kind,
            ctx,
            incomplete,
            named=named or ctx.find_root().params.get("topology"),
            default=None if by_ini else DEFAULT_FILE,
        )

    return complete


def keyspace_option(text: str) -> Callable[[CommandT], CommandT]:
    """Return the option ``--keyspace``.

    :param text: its help.
    """
    return option("--keyspace NAME", text, shell_complete=completed("keyspace"))


ids_keyspace_option: Decorator = keyspace_option(
    "Keyspace of the ids, if several keyspaces contain objects."
)
"""Option of commands that get ids."""


class LazyChoice(_Choice):
    """Parameter type: one of the values that a module lists.

    :param path: the module, and the name of the values in it, of a Literal, of
        an Enum, or of a function that returns them, as ``module:name``.  It is
        imported when a value is parsed or completed.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.case_sensitive = True

    @property
    def choices(self) -> tuple[str, ...]:  # type: ignore[override]  # an attribute there
        """The values."""
        module, _, name = self._path.partition(":")
        found = getattr(importlib.import_module(module), name)
        values = found() if isfunction(found) else get_args(found) or found
        # The members of an Enum are values of the command line by theirs.
        return tuple(getattr(one, "value", one) for one in values)


def number(text: str) -> int:
    """Parameter type: an id, or a part of an id.

    :param text: decimal, or hexadecimal after ``0x``.
    :raises click.BadParameter: if it is not a number.
    """
    if not _NUMBER.fullmatch(text):
        raise click.BadParameter(
            f"{reprlib.repr(text)} is not an integer of at most 100 digits, "
            "decimal or hexadecimal after 0x"
        )
    return int(text, 16 if text[:2] in ("0x", "0X") else 10)


# -- Modules and the cache of the application


models_option: Decorator = option(
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
        found.update(_public(imported(name, None, param_hint="--models")))
    return found


def imported(name: str, default: str | None, *, param_hint: str) -> Any:
    """Return the object of ``module:name``.

    :param default: the name if none is given; None for a module.
    :param param_hint: the argument, for errors.
    :raises click.BadParameter: if there is none.
    """
    module, attribute = name, default
    if default is not None:
        module, _, given = name.partition(":")
        attribute = given or default
    add_working_directory()
    try:
        found = importlib.import_module(module)
        return found if attribute is None else getattr(found, attribute)
    except Exception as error:  # whatever a module of the application raises
        from sqla_shard.cli.failures import one_line

        kind = "" if isinstance(error, ImportError) else f"{type(error).__name__}: "
        what = f"module {name!r}" if default is None else repr(name)
        raise click.BadParameter(
            f"{what} cannot be imported: {kind}{one_line(error)}", param_hint=param_hint
        ) from error


def imported_cluster(name: str, *, param_hint: str) -> Cluster:
    """Return the cluster of an application; see :func:`imported`.

    :raises click.BadParameter: if it is not there.
    """
    from sqla_shard import Cluster

    found = imported(name, "cluster", param_hint=param_hint)
    if not isinstance(found, Cluster):
        raise click.BadParameter(
            f"{name!r} is a {type(found).__name__}; name a Cluster",
            param_hint=param_hint,
        )
    return found


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


regions_option: Decorator = _cache_option(True, "TOML file with the cache regions.")
cache_option: Decorator = _cache_option(
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
