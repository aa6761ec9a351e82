"""``sqla-shard schema``: one schema on every virtual shard."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from alembic.config import Config
from alembic.util import CommandError

from sqla_shard import schema
from sqla_shard.cli.printing import echo
from sqla_shard.cli.printing import end
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import json_option
from sqla_shard.cli.printing import print_json
from sqla_shard.cli.revisions import RelativeCommand
from sqla_shard.cli.revisions import RESOLVE_HELP
from sqla_shard.cli.schema_options import HOW
from sqla_shard.cli.schema_options import NEW
from sqla_shard.cli.schema_options import run_options
from sqla_shard.cli.schema_options import WHICH
from sqla_shard.cli.schema_options import with_options
from sqla_shard.cli.settings import LOCATION
from sqla_shard.cli.settings import pass_settings
from sqla_shard.cli.settings import Settings
from sqla_shard.cluster import Cluster
from sqla_shard.exc import DivergedRevisionsError
from sqla_shard.exc import MigrationFailedError
from sqla_shard.exc import ProvisionError
from sqla_shard.exc import SchemaOptionError
from sqla_shard.exc import UnknownKeyspaceError
from sqla_shard.exc import UnknownServerError
from sqla_shard.exc import UnknownShardError
from sqla_shard.schema.reports import NOT_READ
from sqla_shard.topology import Topology

__all__ = ["schema_group"]


#: What a command raises when it is asked for what does not exist.
_WRONG_USE = (
    CommandError,
    SchemaOptionError,
    DivergedRevisionsError,
    UnknownKeyspaceError,
    UnknownServerError,
    UnknownShardError,
)


class _Group(click.Group):
    """Ends every wrong use with status 2, wherever it is found."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except _WRONG_USE as error:
            raise click.UsageError(str(error)) from error


@click.group("schema", cls=_Group)
@click.option(
    "-c",
    "--config",
    "ini",
    metavar="PATH",
    envvar="ALEMBIC_CONFIG",
    show_envvar=True,
    type=click.Path(path_type=Path),
    default=Path("alembic.ini"),
    help="The configuration of alembic; alembic.ini by default.",
)
@click.option(
    "-n",
    "--name",
    metavar="SECTION",
    default="alembic",
    help="The section of it, for a keyspace with revisions of its own.",
)
@click.pass_context
def schema_group(ctx: click.Context, ini: Path, name: str) -> None:
    """Change and check the tables of every virtual shard, with alembic.

    Revisions are made by alembic itself, with `alembic revision
    --autogenerate`, and `alembic upgrade` does the same as `upgrade` here.
    Options of the group stand before the command.
    """
    ctx.meta["sqla_shard.ini"] = ini, name


def _config() -> Config:
    """Return alembic's configuration.

    :raises click.UsageError: when there is none, or not that section.
    """
    ini, name = click.get_current_context().meta["sqla_shard.ini"]
    if not ini.is_file():
        raise click.UsageError(
            f"there is no {ini}; name the configuration of alembic with "
            "--config, or make one with: sqla-shard schema init"
        )
    config = Config(str(ini), ini_section=name)
    sections = [
        section
        for section in config.file_config.sections()
        if config.file_config.has_option(section, "script_location")
    ]
    if name not in sections:
        raise click.UsageError(
            f"{ini} has no section [{name}] with a script_location; name one "
            f"that has with --name: {', '.join(sections) or 'there is none'}"
        )
    return config


def _cluster(settings: Settings) -> Cluster | None:
    """Return the cluster of ``--topology``; None leaves it to ``env.py``."""
    if settings.named is None:
        return None
    return Cluster(settings.topology(connects=True))


def _published(settings: Settings) -> Callable[[], Topology] | None:
    """Return what reads the topology of ``--topology`` again."""
    if settings.named is None:
        return None
    return partial(settings.topology, connects=True)


def _run(
    command: Callable[..., schema.RunReport],
    *arguments: Any,
    settings: Settings,
    given: dict[str, Any],
    as_json: bool,
    **more: Any,
) -> None:
    """Print the report of a run; the status is 1 when it was not all good.

    :param command: the function of the package that does it.
    :param arguments: for it, after alembic's configuration.
    """
    try:
        report = command(
            _config(),
            *arguments,
            options=run_options(given),
            cluster=_cluster(settings),
            progress=schema.progress_on(sys.stderr),
            published=_published(settings),
            **more,
        )
    except MigrationFailedError as error:
        if as_json:
            print_json(error.report)
        else:
            echo(str(error))
        states = error.report["counts"]
        unread = any(states[one.value] for one in NOT_READ)
        end(is_good=False, is_read=not unread)
    if as_json:
        print_json(report.to_mapping())
    else:
        echo(str(report))


@schema_group.command(
    "template",
    epilog=examples(
        'alembic init -t "$(sqla-shard schema template)" migrations'
    ),
)
def template_command() -> None:
    """Print the path of the template for `alembic init -t`."""
    echo(schema.template_path())


@schema_group.command(
    "init",
    epilog=examples(
        "sqla-shard schema init migrations --models myapp.models:Base"
    ),
)
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--models",
    metavar="MODULE:BASE",
    help="The declarative base, or the metadata, of the application.",
)
@pass_settings
def init_command(
    settings: Settings, directory: Path, models: str | None
) -> None:
    """Make a DIRECTORY for revisions, and alembic.ini.

    Each keyspace of the topology has revisions of its own.  Nothing that is
    there is overwritten.
    """
    ini, _ = click.get_current_context().meta["sqla_shard.ini"]
    made = schema.init(
        directory,
        topology=settings.location,
        models=models,
        config=ini,
        placeholders=settings.placeholders,
    )
    for path in made:
        echo(f"made {path}")


@schema_group.command(
    "upgrade",
    epilog=examples(
        "sqla-shard schema upgrade",
        "sqla-shard schema upgrade head --jobs 2 --pause 60",
        "sqla-shard schema upgrade 1975ea83b712 --shards 0-511 --json",
    ),
)
@click.argument("revision", default="head")
@with_options(*WHICH, *NEW, *HOW)
@json_option
@pass_settings
def upgrade_command(
    settings: Settings, /, revision: str, as_json: bool, **given: Any
) -> None:
    """Upgrade every virtual shard to REVISION, `head` by default.

    As `alembic upgrade` does: one shard first, then a wave, then all
    others, some of each server at a time.  What was interrupted goes on
    where it was.  The status is 1 when a shard could not be upgraded, and 3
    when one could not be read.
    """
    _run(
        schema.upgrade,
        revision,
        settings=settings,
        given=given,
        as_json=as_json,
    )


@schema_group.command(
    "downgrade",
    cls=RelativeCommand,
    epilog=examples(
        "sqla-shard schema downgrade 1975ea83b712",
        "sqla-shard schema downgrade -1 --shards 7",
    ),
)
@click.argument("revision")
@with_options(*WHICH, *HOW)
@json_option
@pass_settings
def downgrade_command(
    settings: Settings, /, revision: str, as_json: bool, **given: Any
) -> None:
    """Downgrade every virtual shard to REVISION, as `alembic downgrade`."""
    _run(
        schema.downgrade,
        revision,
        settings=settings,
        given=given,
        as_json=as_json,
    )


@schema_group.command(
    "provision",
    epilog=examples(
        "sqla-shard schema provision --initial",
        "sqla-shard schema provision --topology next.toml",
    ),
)
@click.option(
    "--topology",
    "new",
    metavar="PATH",
    type=LOCATION,
    help="The topology that opens new virtual shards.",
)
@click.option(
    "--initial",
    is_flag=True,
    help="No application is running yet: make all databases.",
)
@with_options(*HOW)
@json_option
@pass_settings
def provision_command(
    settings: Settings,
    /,
    new: str | None,
    initial: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Make the databases of virtual shards that a new topology opens.

    They get the newest revision and are compared with a shard that is in
    use.  Publish the topology when the status is 0, and not before.
    Nothing is made when anything is in the way, such as a database that is
    there already, or a shard that the current topology has elsewhere.  What
    was interrupted is run again.
    """
    if initial == (new is not None):
        raise click.UsageError(
            "name the new topology with --topology PATH, or say --initial "
            "when there is none that applications use already"
        )
    topology = settings.topology(new, connects=True) if new else None
    try:
        _run(
            schema.provision,
            topology,
            settings=settings,
            given=given,
            as_json=as_json,
            initial=initial,
        )
    except ProvisionError as error:
        echo(f"sqla-shard: error: {error}", err=True)
        end(is_good=False, is_read=not error.unread)


@schema_group.command(
    "status",
    epilog=examples(
        "sqla-shard schema status",
        "sqla-shard schema status --exit-code --json",
    ),
)
@with_options(*WHICH)
@click.option(
    "--exit-code",
    is_flag=True,
    help="End with status 1 unless every shard is at the newest revision.",
)
@json_option
@pass_settings
def status_command(
    settings: Settings, /, exit_code: bool, as_json: bool, **given: Any
) -> None:
    """Tell at which revision shards are, and which need somebody.

    One or few questions for each server; nothing is changed.  The status is 3
    when a database is not there, or its server is not reached.
    """
    found = schema.status(
        _config(),
        options=run_options(given),
        cluster=_cluster(settings),
    )
    if as_json:
        print_json(found.to_mapping())
    else:
        echo(str(found))
    end(is_good=found.ok or not exit_code, is_read=not found.unread)


@schema_group.command(
    "resolve",
    help=RESOLVE_HELP,
    epilog=examples(
        "sqla-shard schema resolve 17 statement-done",
        "sqla-shard schema resolve 17 revision-undone",
    ),
)
@click.argument("shard", type=int)
@click.argument(
    "answer",
    metavar="ANSWER",
    type=click.Choice([answer.value for answer in schema.Answer]),
)
@pass_settings
def resolve_command(settings: Settings, shard: int, answer: str) -> None:
    """Say what is true of a shard; RESOLVE_HELP is shown."""
    done = schema.resolve(
        _config(),
        shard,
        schema.Answer(answer),
        cluster=_cluster(settings),
    )
    echo(
        f"shard {done.shard_id} ({done.database}): {done.step}: "
        f"{done.answer.value}"
    )


@schema_group.command(
    "verify",
    epilog=examples(
        "sqla-shard schema verify",
        "sqla-shard -t topology.toml schema verify --keyspace objects",
        "sqla-shard schema verify --primaries-only --json",
    ),
)
@click.option(
    "--keyspace",
    metavar="NAME",
    help="Only this keyspace; by default each one, by itself.",
)
@with_options(*WHICH)
@click.option(
    "--reference",
    metavar="N",
    type=int,
    help="Compare with this shard; the lowest by default.",
)
@click.option(
    "--primaries-only",
    is_flag=True,
    help="Do not look at standbys.",
)
@json_option
@pass_settings
def verify_command(
    settings: Settings,
    /,
    primaries_only: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Compare the tables of every shard with those of one of them.

    On the primary and the standby of each; also tells of databases that are
    missing, or on a server that should not have them.  Nothing is changed,
    and no row is read.  The status is 1 when anything is different, and 3
    when a server could not be read.

    The topology is that of --topology, or of topology.toml here; no
    alembic.ini is needed.
    """
    with Cluster(settings.topology(connects=True)) as cluster:
        found = schema.verify(cluster, standby=not primaries_only, **given)
    if as_json:
        print_json(found.to_mapping())
    else:
        echo(str(found))
    unread = any(one.unread for one in found.keyspaces)
    end(is_good=found.ok, is_read=not unread)
