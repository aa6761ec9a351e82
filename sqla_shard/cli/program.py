"""The program: its own options, its commands, and how it ends.

A command, or a group of them, is a click command in a module of this folder
and stands in ``_COMMANDS``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any
from typing import IO

import click
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cli.caching import cache_group
from sqla_shard.cli.completion import completion_command
from sqla_shard.cli.explaining import explain_command
from sqla_shard.cli.following import agent_command
from sqla_shard.cli.following import watch_command
from sqla_shard.cli.ids import id_command
from sqla_shard.cli.ids import where_command
from sqla_shard.cli.keys import halves_command
from sqla_shard.cli.keys import key_command
from sqla_shard.cli.printing import examples
from sqla_shard.cli.printing import one_line
from sqla_shard.cli.printing import printable
from sqla_shard.cli.printing import status_of
from sqla_shard.cli.publishing import history_command
from sqla_shard.cli.publishing import protect_command
from sqla_shard.cli.publishing import push_command
from sqla_shard.cli.publishing import reset_command
from sqla_shard.cli.publishing import rollback_command
from sqla_shard.cli.repairing import repair_command
from sqla_shard.cli.settings import LOCATION
from sqla_shard.cli.settings import Settings
from sqla_shard.cli.settings import VARIABLE
from sqla_shard.cli.shell import shell_command
from sqla_shard.cli.topologies import topology_group
from sqla_shard.cli.verifying import verify_group
from sqla_shard.exc import MissingExtraError
from sqla_shard.topology import DEFAULT_PLACEHOLDERS

__all__ = ["program"]

_INTERRUPTED = 130
_COMMANDS = (
    id_command,
    where_command,
    explain_command,
    topology_group,
    repair_command,
    key_command,
    halves_command,
    cache_group,
    verify_group,
    shell_command,
    completion_command,
)
_OF_TOPOLOGIES = (
    protect_command,
    push_command,
    history_command,
    reset_command,
    rollback_command,
    watch_command,
    agent_command,
)


#: Loaded when it is asked for: alembic takes as long to load as the rest.
_LATE = frozenset({"schema"})


def _schema_group() -> click.Command:
    try:
        from sqla_shard.cli.schema import schema_group
    except ImportError as error:
        return _without(
            "schema",
            MissingExtraError(
                package=(error.name or "alembic").partition(".")[0],
                extra="cli",
                reason=str(error),
            ),
        )
    return schema_group


def _without(name: str, missing: MissingExtraError) -> click.Command:
    """Return what stands for a command whose packages are not installed.

    It is listed by ``--help`` like any other, and fails whatever it is given.
    """

    def fail(**given: object) -> None:
        raise missing

    return click.Command(
        name,
        callback=fail,
        params=[click.Argument(["arguments"], nargs=-1)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
        help=f"Needs: pip install 'sqla-shard[{missing.extra}]'.",
    )


class _Failure(click.ClickException):
    """Shown in one line, with the name of the program."""

    def __init__(self, message: str, error: BaseException) -> None:
        super().__init__(message)
        self._status = status_of(error)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # which click reads
        return self._status

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(f"sqla-shard: error: {self.message}", file=file, err=True)


@contextmanager
def _printable() -> Iterator[None]:
    """Keep what an error quotes from controlling the terminal."""
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # final, and shown by click alone
        raise


class _Program(click.Group):
    """Shows errors in one line, and tells what failed by the status."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        # In the order in which they were added, for reading.
        return [*self.commands, *(_LATE - self.commands.keys())]

    def get_command(
        self, ctx: click.Context, cmd_name: str
    ) -> click.Command | None:
        if cmd_name in _LATE - self.commands.keys():
            self.add_command(_schema_group())
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # Names that are no text, of files and arguments, can be printed.
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        return super().main(*args, **kwargs)

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _printable():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: click.Context) -> Any:
        with _printable():
            return self._invoke(ctx)

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.UsageError, BrokenPipeError):
            # click shows the one, and is quiet about the other.
            raise
        except click.ClickException as error:
            raise _Failure(error.format_message(), error) from error
        except (SQLAlchemyError, OSError) as error:
            raise _Failure(one_line(error), error) from error
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)


@click.group(
    "sqla-shard",
    cls=_Program,
    epilog=examples(
        "sqla-shard id 241294492511762325",
        "sqla-shard -t topology.toml where 241294492511762325",
        "sqla-shard -t topology.toml topology show",
    ),
)
@click.option(
    "-t",
    "--topology",
    metavar="PATH",
    envvar=VARIABLE,
    show_envvar=True,
    type=LOCATION,
    help="The topology file, TOML or JSON, or a ZooKeeper as "
    "zookeeper://host:port,host:port/path; topology.toml in the current "
    "directory by default.",
)
@click.option(
    "--placeholder",
    "placeholders",
    metavar="NAME",
    multiple=True,
    help="A variable that may stand as ${NAME} in the URLs of the topology, "
    "beside ${MYSQL_USER} and ${MYSQL_PASSWORD}; repeatable.",
)
@click.version_option(
    package_name="sqla-shard",
    prog_name="sqla-shard",
    message="%(prog)s %(version)s",
)
@click.pass_context
def program(
    ctx: click.Context, topology: str | None, placeholders: tuple[str, ...]
) -> None:
    """Look at a cluster of sqla_shard, and open shells on its shards.

    Options of the program stand before the command.
    """
    ctx.obj = Settings(
        named=topology, placeholders=(*DEFAULT_PLACEHOLDERS, *placeholders)
    )


for _command in _COMMANDS:
    program.add_command(_command)
for _command in _OF_TOPOLOGIES:
    topology_group.add_command(_command)
