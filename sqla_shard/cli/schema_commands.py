"""``sqla-shard schema``: migrate, provision and verify virtual shards."""

from __future__ import annotations

import configparser
import re
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TYPE_CHECKING

import click

from sqla_shard.cli.catalogue import missing_extra
from sqla_shard.cli.completion import sections_of
from sqla_shard.cli.options import (
    completed,
    FiniteRange,
    keyspace_option,
    LazyChoice,
    LOCATION,
    pass_global_settings,
    pass_settings,
    Settings,
)
from sqla_shard.cli.output import (
    command,
    CommandT,
    data_option,
    echo,
    end,
    option,
    print_data,
    print_report,
    with_options,
)

if TYPE_CHECKING:
    from alembic.config import Config

    from sqla_shard import schema
    from sqla_shard.cluster.cluster import Cluster
    from sqla_shard.topology import Topology


class _Command(click.Command):
    """Raises errors in arguments and options as usage errors, status 2."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            from alembic.util import CommandError
        except ImportError as error:
            raise missing_extra(error, "cli") from error
        from sqla_shard.exc import (
            DivergedRevisionsError,
            SchemaOptionError,
            UnknownKeyspaceError,
            UnknownServerError,
            UnknownShardError,
        )

        try:
            return super().invoke(ctx)
        except (
            CommandError,
            SchemaOptionError,
            DivergedRevisionsError,
            UnknownKeyspaceError,
            UnknownServerError,
            UnknownShardError,
        ) as error:
            raise click.UsageError(str(error)) from error


class _RelativeCommand(_Command):
    """A command that accepts relative revisions such as ``-1``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Move ``-1`` after ``--``, or click would treat it as an option."""
        steps = [arg for arg in args if re.fullmatch(r"-\d+", arg)]
        if len(steps) == 1 and "--" not in args:
            args = [arg for arg in args if arg not in steps]
            args += ["--", *steps]
        return super().parse_args(ctx, args)


def _parsed_shards(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[int, ...] | None:
    """Return the shards of a repeated option; None if it is missing."""
    if not given or context.resilient_parsing:
        return None
    from sqla_shard.exc import SchemaOptionError
    from sqla_shard.schema import parse_shards

    try:
        return tuple(one for text in given for one in parse_shards(text))
    except SchemaOptionError as error:
        raise click.BadParameter(str(error)) from error


def _parsed_names(
    context: click.Context, parameter: click.Parameter, given: tuple[str, ...]
) -> tuple[str, ...] | None:
    """Return the names of a repeated option; None if it is missing."""
    names = (one.strip() for text in given for one in text.split(","))
    return tuple(filter(None, names)) or None


def _shard_options(*, by_ini: bool = True) -> Callable[[CommandT], CommandT]:
    """Return the options that select shards.

    :param by_ini: whether the command has the topology of ``alembic.ini``.
    """
    return with_options(
        option(
            "--shards RANGES",
            "Only these virtual shards, such as 0-511,600.",
            multiple=True,
            callback=_parsed_shards,
            shell_complete=completed("ranges", by_ini=by_ini),
        ),
        option(
            "--servers NAMES",
            "Only virtual shards on these physical servers, comma-separated.",
            multiple=True,
            callback=_parsed_names,
            shell_complete=completed("servers", by_ini=by_ini),
        ),
    )


_new_option = option(
    "--new RANGES",
    "Virtual shards that were never in use: create their tables, even "
    "though other shards already have a revision.",
    multiple=True,
    callback=_parsed_shards,
    shell_complete=completed("ranges", by_ini=True),
)
_migration_options = with_options(
    option("--jobs N", "Migrate N shards per server at a time; 4 by default.", int),
    option(
        "--wave N",
        "Size of the waves after the first shard.  By default one wave "
        "of one shard per process, then all others.",
        int,
    ),
    option(
        "--pause SECONDS",
        "Pause after the first shard and between waves.",
        FiniteRange(0),
    ),
    option(
        "--lock-wait SECONDS",
        "Timeout for metadata locks of tables; 5 by default.",
        FiniteRange(0),
    ),
    option(
        "--runner-wait SECONDS",
        "Timeout for a shard that another runner has locked; 10 by default.",
        FiniteRange(0),
    ),
    option(
        "--continue-on-error/--stop-on-error",
        "Continue with other shards after an error; by default, no "
        "other shard is started.",
        default=None,
    ),
    option(
        "--replay/--no-replay",
        "Replay recorded statements of static revisions, or run every "
        "revision on every shard.",
        default=None,
    ),
    option(
        "--compare/--no-compare",
        "Refuse other statements of a revision's code than on the first shard, or "
        "send them.",
        default=None,
    ),
    option("--report PATH", "Write the result of every shard to a JSON file."),
)


def _run_options(given: dict[str, Any]) -> schema.RunOptions:
    """Return the options of a run, with defaults for values that are None."""
    from sqla_shard import schema

    return schema.RunOptions(
        **{name: value for name, value in given.items() if value is not None}
    )


def _config() -> Config:
    """Return alembic's configuration.

    :raises click.UsageError: if the file or the section does not exist, the
        file is not valid, or several sections have the keyspace.
    """
    ini, name = click.get_current_context().meta["sqla_shard.ini"]
    if not ini.is_file():
        raise click.UsageError(
            f"{ini} not found; specify the configuration file of alembic with "
            "--config, or create one with: sqla-shard schema init"
        )
    found = configurations(ini)
    keyspaces = {one: its.get_main_option("keyspace") for one, its in found.items()}
    match sections_of(keyspaces, name):
        case [section]:
            return found[section]
        case []:
            known = (f"{one} ({its})" if its else one for one, its in keyspaces.items())
            raise click.UsageError(
                f"{ini} has no section [{name}] with a script_location, and none with "
                f"this keyspace; specify a section, or its keyspace, with --name: "
                f"{', '.join(known) or 'none found'}"
            )
        case several:
            raise click.UsageError(
                f"{ini} has keyspace {name} in the sections {', '.join(several)}; "
                "specify one of them with --name"
            )


def _cluster(settings: Settings) -> Cluster | None:
    """Return the cluster of ``--topology``; None to use that of ``env.py``."""
    if settings.named is None:
        return None
    from sqla_shard.cluster.cluster import Cluster

    return Cluster(settings.topology(connects=True))


def _topology_reader(settings: Settings) -> Callable[[], Topology] | None:
    """Return a function that reads the topology of ``--topology`` again."""
    if settings.named is None:
        return None
    return partial(settings.topology, connects=True)


def _run(
    settings: Settings,
    command: Callable[..., schema.RunReport],
    target: Any,
    *,
    as_data: bool,
    **given: Any,
) -> None:
    """Run a command, and print its report; exit with 1 if a shard failed.

    :param command: function of :mod:`sqla_shard.schema`.
    :param target: second argument of the function, after alembic's Config.
    :param given: values of the command's options.
    """
    from sqla_shard import schema
    from sqla_shard.exc import MigrationFailedError
    from sqla_shard.schema.reports import NOT_READ

    try:
        report = command(
            _config(),
            target,
            options=_run_options(given),
            cluster=_cluster(settings),
            progress=schema.progress_on(sys.stderr),
            published=_topology_reader(settings),
        )
    except MigrationFailedError as error:
        if as_data:
            print_data(error.report)
        else:
            echo(str(error))
        states = error.report["counts"]
        unreachable = any(states[one.value] for one in NOT_READ)
        end(is_good=False, is_read=not unreachable)
    print_report(report, as_data)


@command(
    "template",
    'alembic init -t "$(sqla-shard schema template)" migrations',
    cls=_Command,
)
def template_command() -> None:
    """Print the path of the template for `alembic init -t`."""
    from sqla_shard import schema

    echo(schema.template_path())


@command(
    "init", "sqla-shard schema init migrations --models myapp.models:Base", cls=_Command
)
@click.argument("directory", type=click.Path(path_type=Path))
@option("--models MODULE:BASE", "Declarative base or metadata of the application.")
@pass_settings
def init_command(settings: Settings, directory: Path, models: str | None) -> None:
    """Create a DIRECTORY for revisions, and alembic.ini.

    Each keyspace of the topology has its own revisions.  Existing files are
    not overwritten.
    """
    from sqla_shard import schema

    ini, _ = click.get_current_context().meta["sqla_shard.ini"]
    made = schema.init(
        directory,
        topology=settings.location,
        models=models,
        config=ini,
        placeholders=settings.placeholders,
    )
    for path in made:
        echo(f"created {path}")


@command(
    "upgrade",
    "sqla-shard schema upgrade",
    "sqla-shard schema upgrade head --jobs 2 --pause 60",
    "sqla-shard schema upgrade 1975ea83b712 --shards 0-511 --json",
    cls=_Command,
)
@click.argument("revision", default="head")
@_shard_options()
@_new_option
@_migration_options
@data_option
@pass_settings
def upgrade_command(settings: Settings, /, revision: str, **options: Any) -> None:
    """Upgrade every virtual shard to REVISION, `head` by default.

    Like `alembic upgrade`, it upgrades one shard first, then a wave, then
    all others, several per server at a time.  An interrupted run is resumed.
    The status is 1 if a shard could not be upgraded, and 3 if one could not
    be read.
    """
    from sqla_shard import schema

    _run(settings, schema.upgrade, revision, **options)


@command(
    "downgrade",
    "sqla-shard schema downgrade 1975ea83b712",
    "sqla-shard schema downgrade -1 --shards 7",
    cls=_RelativeCommand,
)
@click.argument("revision")
@_shard_options()
@_migration_options
@data_option
@pass_settings
def downgrade_command(settings: Settings, /, revision: str, **options: Any) -> None:
    """Downgrade every virtual shard to REVISION, as `alembic downgrade`."""
    from sqla_shard import schema

    _run(settings, schema.downgrade, revision, **options)


@command(
    "provision",
    "sqla-shard schema provision --initial",
    "sqla-shard schema provision --topology next.toml",
    cls=_Command,
)
@option(
    "--topology PATH", "Topology that opens new virtual shards.", LOCATION, to="new"
)
@option("--initial", "No application is running yet: create all databases.")
@_migration_options
@data_option
@pass_global_settings
def provision_command(
    settings: Settings, /, new: str | None, initial: bool, **options: Any
) -> None:
    """Create the databases of virtual shards that a new topology opens.

    They get the newest revision and are compared with a shard in use.
    Publish the topology only after this exits with status 0.  Nothing is
    created if a database already exists or the published topology has a
    shard on another server.  Run it again after an interruption.
    """
    from sqla_shard import schema
    from sqla_shard.exc import ProvisionError

    if initial == (new is not None):
        raise click.UsageError(
            "specify the new topology with --topology PATH, or --initial "
            "if no application uses a topology yet"
        )
    topology = settings.topology(new, connects=True) if new else None
    try:
        _run(settings, partial(schema.provision, initial=initial), topology, **options)
    except ProvisionError as error:
        echo(f"sqla-shard: error: {error}", err=True)
        end(is_good=False, is_read=not error.unreachable)


@command(
    "status",
    "sqla-shard schema status",
    "sqla-shard schema status --exit-code --json",
    cls=_Command,
)
@_shard_options()
@option("--exit-code", "Exit with status 1 unless every shard has the newest revision.")
@data_option
@pass_settings
def status_command(
    settings: Settings, /, exit_code: bool, as_data: bool, **given: Any
) -> None:
    """Show the revisions of shards, and which shards need attention.

    It sends few statements to each server and writes nothing.  The status is
    3 if a database is missing or its server cannot be reached.
    """
    from sqla_shard import schema

    found = schema.status(
        _config(), options=_run_options(given), cluster=_cluster(settings)
    )
    print_report(found, as_data)
    end(is_good=found.ok or not exit_code, is_read=not found.unreachable)


@command(
    "resolve",
    "sqla-shard schema resolve 17 statement-done",
    "sqla-shard schema resolve 17 revision-undone",
    cls=_Command,
)
@click.argument("shard", type=int, shell_complete=completed("shard", by_ini=True))
@click.argument("answer", metavar="ANSWER", type=LazyChoice("sqla_shard.schema:Answer"))
@pass_settings
def resolve_command(settings: Settings, shard: int, answer: str) -> None:
    """Resolve a SHARD whose revision is in doubt.

    `status` shows the last statement.  Inspect the database with `sqla-shard
    shell --shard N`, then answer with one of:

    \b
    statement-done    it took effect; the next run continues after it
    statement-undone  it had no effect; the next run repeats it
    revision-done     the revision is complete; it is recorded as applied
    revision-undone   no effect remains; the next run repeats it from the start
    """  # noqa: D301 - \b keeps click from wrapping the lines
    from sqla_shard import schema

    done = schema.resolve(
        _config(), shard, schema.Answer(answer), cluster=_cluster(settings)
    )
    echo(f"shard {done.shard_id} ({done.database}): {done.step}: {done.answer.value}")


@command(
    "verify",
    "sqla-shard schema verify",
    "sqla-shard -t topology.toml schema verify --keyspace objects",
    "sqla-shard schema verify --primaries-only --json",
    cls=_Command,
)
@keyspace_option("Only this keyspace; by default each keyspace separately.")
@_shard_options(by_ini=False)
@option("--reference N", "Shard to compare with; the lowest by default.", int)
@option("--primaries-only", "Skip standbys.")
@data_option
@pass_settings
def verify_command(
    settings: Settings, /, primaries_only: bool, as_data: bool, **given: Any
) -> None:
    """Compare the tables of every shard with those of one shard.

    Primaries and standbys are compared.  Databases that are missing, or on
    the wrong server, are reported too.  No row is read, and nothing is
    written.  The status is 1 if anything differs, and 3 if a server could not
    be read.

    The topology is that of --topology, or topology.toml or topology.json in
    the current directory; no alembic.ini is needed.
    """
    from sqla_shard import schema
    from sqla_shard.cluster.cluster import Cluster

    with Cluster(settings.topology(connects=True)) as cluster:
        found = schema.verify(cluster, standby=not primaries_only, **given)
    print_report(found, as_data)
    unreachable = any(one.unreachable for one in found.keyspaces)
    end(is_good=found.ok, is_read=not unreachable)


# -- The configuration file of alembic


def configurations(path: str | Path) -> dict[str, Config]:
    """Return the configuration of each section with scripts of alembic.

    :param path: the file.
    :raises click.UsageError: if it is not a valid file.
    """
    from alembic.config import Config

    parser = Config(str(path))
    try:
        names = [
            name
            for name in parser.file_config.sections()
            if parser.file_config.has_option(name, "script_location")
        ]
        for name in names:
            parser.file_config.items(name)
    except (configparser.Error, UnicodeDecodeError) as error:
        raise click.UsageError(f"{path} cannot be read: {_problem(error)}") from error
    return {name: Config(str(path), ini_section=name) for name in names}


def _problem(error: configparser.Error | UnicodeDecodeError) -> str:
    """Return what is wrong, and where.

    The messages of these errors contain lines of the file, which may have the
    password of a URL.
    """
    if isinstance(error, configparser.InterpolationError):
        return (
            f"option {error.option} of section [{error.section}] has a % that "
            "refers to no option; write %% for the character %"
        )
    if isinstance(error, configparser.DuplicateOptionError):
        return (
            f"line {error.lineno} has option {error.option} of section "
            f"[{error.section}] a second time; remove one"
        )
    if isinstance(error, configparser.DuplicateSectionError):
        return (
            f"line {error.lineno} has section [{error.section}] a second "
            "time; join both"
        )
    if isinstance(error, configparser.MissingSectionHeaderError):
        return (
            f"line {error.lineno} belongs to no section; begin the file with [alembic]"
        )
    if isinstance(error, configparser.ParsingError):
        # Some of its kinds have one line only.
        line = getattr(error, "lineno", None) or error.errors[0][0]
        return f"line {line} is neither [section] nor option = value; correct it"
    return "it is not text in UTF-8; convert it"
