"""Every command of ``sqla-shard``, by group and section, and its module.

SQLAlchemy's ORM, alembic and the operations of a fleet take a second to
import, which ``--help`` and the completion of a shell must not take.  A group
therefore has the names of its commands and of their modules.  The line of help
of a command is the beginning of its docstring, which is read from the compiled
module.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType
from typing import Any, TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from sqla_shard.cli.output import option

if TYPE_CHECKING:
    from sqla_shard.exc import MissingExtraError

#: Modules, each with the names of its commands, in sections with a title.
Sections = Mapping[str, str]

#: The extras with what modules import; others need those of ``cli`` only.
_EXTRAS = {"dashboard_command": "dashboard", "dev_command": "testing"}


class LazyGroup(click.Group):
    """A group whose help lists the commands by section.

    :param sections: the commands, in the order of the help.  The command
        ``id`` of ``id_commands: id where; ...`` is ``id_command`` of
        :mod:`sqla_shard.cli.id_commands`.
    """

    def __init__(self, *args: Any, sections: Sections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = {
            title: dict(_modules_of(text)) for title, text in sections.items()
        }
        #: The modules of the commands, in the order of the help.
        self.modules: dict[str, str] = {
            name: module
            for commands in self._sections.values()
            for name, module in commands.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(self.modules)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which is imported on first use."""
        if cmd_name in self.modules.keys() - self.commands.keys():
            self.add_command(_load(self.modules[cmd_name], cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command; refuse a name that is like that of another one."""
        name = args[0]
        if not (ctx.resilient_parsing or name in self.modules or name[:1] == "-"):
            from difflib import get_close_matches

            known = self._paths(ctx)
            # "statsu" is nearer to the "stats" of groups than to "status".
            near = [name] if name in known else []
            near = near or get_close_matches(name, self.modules, n=1, cutoff=0.75)
            for one in near or get_close_matches(name, known, n=1):
                meant = " or ".join(map(repr, known[one]))
                ctx.fail(f"No such command {name!r}; did you mean {meant}?")
        return super().resolve_command(ctx, args)

    def _paths(self, ctx: click.Context) -> dict[str, list[str]]:
        """Return what to type for each command, also for those of groups."""
        found: dict[str, list[str]] = {}
        for group, module in self.modules.items():
            if module == "catalogue":
                inner = self.get_command(ctx, group)
                for name in getattr(inner, "modules", ()):
                    found.setdefault(name, []).append(f"{group} {name}")
        return found | {name: [name] for name in self.modules}

    def lines_of_help(self) -> dict[str, str]:
        """Return the first sentence of the help of each command."""
        found = {module: _docstrings(module) for module in {*self.modules.values()}}
        return {
            name: found[module][_function(name)].partition("\n\n")[0]
            for name, module in self.modules.items()
        }

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands by section, each with all of its sentence."""
        widest = max(map(len, self.modules))
        lines = self.lines_of_help()
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(widest), lines[name]) for name in commands]
                )

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the names of commands and options."""
        return [
            *(
                CompletionItem(name, help=line)
                for name, line in self.lines_of_help().items()
                if name.startswith(incomplete)
            ),
            # click.Group would import every command, for its help.
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


def _modules_of(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the module of each command of a section."""
    module = ""
    for word in text.split():
        if word.endswith(":"):
            module = word[:-1]
        else:
            yield word.rstrip(";"), module


def _function(name: str) -> str:
    return f"{name}_command"


def _docstrings(module: str) -> dict[str, str]:
    """Return the docstrings of the functions of a module, without importing it."""
    name = f"sqla_shard.cli.{module}"
    spec = PathFinder.find_spec(name, [os.path.dirname(__file__)])
    loader: Any = spec and spec.loader
    # The first constant of a function is its docstring, unless -OO removes it.
    return {
        one.co_name: "" if sys.flags.optimize > 1 else one.co_consts[0]
        for one in loader.get_code(name).co_consts
        if isinstance(one, CodeType)
    }


def _load(module: str, name: str) -> click.Command:
    """Return a command, or a placeholder if a package is missing."""
    try:
        found = importlib.import_module(f"sqla_shard.cli.{module}")
    except ImportError as error:
        if (error.name or "").startswith("sqla_shard"):
            raise
        return _unavailable_command(
            name, missing_extra(error, _EXTRAS.get(module, "cli"))
        )
    command: click.Command = getattr(found, _function(name))
    return command


def missing_extra(error: ImportError, extra: str) -> MissingExtraError:
    """Return the error for a package that cannot be imported."""
    from sqla_shard.exc import MissingExtraError

    # A module of the package has named the extra already.
    if isinstance(error, MissingExtraError):
        return error
    return MissingExtraError(
        package=(error.name or extra).partition(".")[0], extra=extra, reason=str(error)
    )


def _unavailable_command(name: str, missing: MissingExtraError) -> click.Command:
    """Return a placeholder for a command whose packages are not installed.

    It fails with any arguments.
    """

    def fail(**arguments: object) -> None:
        raise missing

    return click.Command(
        name,
        callback=fail,
        params=[click.Argument(["arguments"], nargs=-1)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=f"Requires: pip install 'sqla-shard[{missing.extra}]'.",
    )


#: Commands and groups of the program.
PROGRAM: Sections = {
    "Ids and routes": "id_commands: id where explain; shell_command: shell",
    "Servers and schema": "monitor_commands: status; check_command: check; "
    "catalogue: topology schema fleet; monitor_commands: load; "
    "dashboard_command: dashboard; monitor_commands: exporter",
    "Rows and transactions": "catalogue: verify; repair_commands: repair key halves; "
    "upkeep_commands: spread; catalogue: blobs cache",
    "One database": "catalogue: migrate",
    "Jobs": "jobs_commands: worker; catalogue: queue",
    "Development": "init_command: init; catalogue: dev; program: completion",
}

_TOPOLOGY: Sections = {
    "Commands": "topology_commands: show validate diff",
    "In ZooKeeper": "topology_commands: push history rollback reset protect; "
    "follow_commands: watch agent",
}


@click.group("topology", cls=LazyGroup, sections=_TOPOLOGY)
def topology_command() -> None:
    """Show, validate, compare, publish and follow topologies.

    A topology is a file, or the URL of one in ZooKeeper,
    zookeeper://host:port,host:port/path.  These commands do not connect to
    the servers of the topology and need no database passwords.
    """


_MIGRATE: Sections = {
    "Measure": "migrate_commands: shadow suggest",
    "Move": "migrate_commands: plan status switch rollback backfill reconcile verify",
}


@click.group("migrate", cls=LazyGroup, sections=_MIGRATE)
def migrate_command() -> None:
    """Measure what shards would mean for one database, and move its rows.

    MOVE is the sqla_shard.migrate.Move of the application, as MODULE:NAME.
    Each command can be repeated after an interruption.
    """


_SCHEMA: Sections = {
    "Commands": "schema_commands: init template provision upgrade downgrade status "
    "verify resolve"
}


@click.group("schema", cls=LazyGroup, sections=_SCHEMA)
@option(
    "-c --config PATH",
    "Configuration file of alembic; alembic.ini by default.",
    click.Path(path_type=Path),
    to="ini",
    envvar="ALEMBIC_CONFIG",
    show_envvar=True,
    default=Path("alembic.ini"),
    show_default=False,
)
@option(
    "-n --name SECTION",
    "Section of that file, or keyspace, for one with its own revisions.",
    default="alembic",
    show_default=False,
)
@click.pass_context
def schema_command(ctx: click.Context, ini: Path, name: str) -> None:
    """Migrate and verify the tables of every virtual shard, with alembic.

    Create revisions with `alembic revision --autogenerate`.  `alembic
    upgrade` does the same as `sqla-shard schema upgrade`.  The options of
    this group precede the command.
    """
    ctx.meta["sqla_shard.ini"] = ini, name


_CACHE: Sections = {"Commands": "cache_commands: repair stats"}


@click.group("cache", cls=LazyGroup, sections=_CACHE)
def cache_command() -> None:
    """Run pending invalidations, and show statistics of the cache."""


_VERIFY: Sections = {
    "Commands": "upkeep_commands: lookups claims relations references sizes"
}


@click.group("verify", cls=LazyGroup, sections=_VERIFY)
def verify_command() -> None:
    """Find inconsistent rows, and repair them.

    The application can run at the same time.  Nothing is written without
    --repair or --rekey.
    """


_BLOBS: Sections = {
    "Commands": "upkeep_commands: train activate deactivate rewrite check status"
}


@click.group("blobs", cls=LazyGroup, sections=_BLOBS)
def blobs_command() -> None:
    """Compress the blobs of a class: train, activate, rewrite.

    The application can run at the same time.  Each command can be repeated
    after an interruption.
    """


_QUEUE: Sections = {
    "Queues": "jobs_commands: list stats pause resume limit",
    "Jobs": "jobs_commands: scan show retry delete",
}


@click.group("queue", cls=LazyGroup, sections=_QUEUE)
def queue_command() -> None:
    """Show, pause and limit queues; show, retry and delete jobs.

    An ID is the keyspace, the shard and the number of a job, such as
    objects/7/1234.
    """


_DEV: Sections = {"Commands": "dev_command: up"}


@click.group("dev", cls=LazyGroup, sections=_DEV)
def dev_command() -> None:
    """Run local servers for development.

    They need MariaDB, and ZooKeeper or memcached for these, on the machine.
    """


_FLEET: Sections = {
    "Look": "fleet_operations: status; fleet_reports: doctor capacity verify; "
    "fleet_operations: history",
    "Primary and standby": "fleet_operations: failover; fleet_reports: watch; "
    "fleet_operations: reopen; catalogue: replica; fleet_operations: retire",
    "Shards": "fleet_operations: split move; catalogue: orphans",
    "Backups": "catalogue: backup; fleet_backup: restore",
    "Operations": "fleet_operations: apply resume undo",
}


@click.group("fleet", cls=LazyGroup, sections=_FLEET)
def fleet_command() -> None:
    """Operate the servers of a topology.

    Every operation is planned, checked, applied step by step with a journal,
    and verified.  The accounts are in the environment:
    SQLA_SHARD_OPERATOR_USER and _PASSWORD, SQLA_SHARD_REPLICATION_USER and
    _PASSWORD.
    """


_REPLICA: Sections = {"Commands": "fleet_operations: build rebuild replace"}


@click.group("replica", cls=LazyGroup, sections=_REPLICA)
def replica_command() -> None:
    """Build, rebuild or replace the standby of a server.

    Applications write meanwhile.  The new standby is attached, has caught up
    and is compared before the topology is published.
    """


_ORPHANS: Sections = {"Commands": "fleet_operations: list fence rename restore drop"}


@click.group("orphans", cls=LazyGroup, sections=_ORPHANS)
def orphans_command() -> None:
    """Remove databases that the topology has on another server.

    First they are renamed, and dropped days later.
    """


_BACKUP: Sections = {"Commands": "fleet_backup: create binlogs list verify prune"}


@click.group("backup", cls=LazyGroup, sections=_BACKUP)
def backup_command() -> None:
    """Back up virtual shards into a folder."""
