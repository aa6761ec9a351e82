"""The click program ``sqla-shard``: global options, commands, errors.

Each command or group of commands is defined in another module of this
package and listed in ``_COMMANDS``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any
from typing import IO

import click
from click.shell_completion import get_completion_class
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cli.cache_commands import cache_group
from sqla_shard.cli.follow_commands import agent_command
from sqla_shard.cli.follow_commands import watch_command
from sqla_shard.cli.options import LOCATION
from sqla_shard.cli.options import Settings
from sqla_shard.cli.options import VARIABLE
from sqla_shard.cli.output import examples
from sqla_shard.cli.output import one_line
from sqla_shard.cli.output import printable
from sqla_shard.cli.output import status_of
from sqla_shard.cli.publish_commands import history_command
from sqla_shard.cli.publish_commands import protect_command
from sqla_shard.cli.publish_commands import push_command
from sqla_shard.cli.publish_commands import reset_command
from sqla_shard.cli.publish_commands import rollback_command
from sqla_shard.cli.repair_commands import halves_command
from sqla_shard.cli.repair_commands import key_command
from sqla_shard.cli.repair_commands import repair_command
from sqla_shard.cli.route_commands import explain_command
from sqla_shard.cli.route_commands import id_command
from sqla_shard.cli.route_commands import where_command
from sqla_shard.cli.shell_command import shell_command
from sqla_shard.cli.topology_commands import topology_group
from sqla_shard.cli.verify_commands import verify_group
from sqla_shard.cli.worker_command import worker_command
from sqla_shard.exc import MissingExtraError
from sqla_shard.topology import DEFAULT_PLACEHOLDERS

__all__ = [
    "completion_command",
    "program",
]


_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_SQLA_SHARD_COMPLETE"


@click.command(
    "completion",
    epilog=examples(
        'eval "$(sqla-shard completion bash)"',
        "sqla-shard completion zsh > ~/.zfunc/_sqla-shard",
        "sqla-shard completion fish | source",
    ),
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a shell completion script."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(
            f"the installed version of click has no completion for {shell}"
        )
    program = ctx.find_root().command
    click.echo(found(program, {}, "sqla-shard", _VARIABLE).source())


_INTERRUPTED = 130
_COMMANDS = (
    id_command,
    where_command,
    explain_command,
    topology_group,
    repair_command,
    key_command,
    halves_command,
    worker_command,
    cache_group,
    verify_group,
    shell_command,
    completion_command,
)
_TOPOLOGY_COMMANDS = (
    protect_command,
    push_command,
    history_command,
    reset_command,
    rollback_command,
    watch_command,
    agent_command,
)


def _schema_group() -> click.Command:
    try:
        from sqla_shard.cli.schema_commands import schema_group
    except ImportError as error:
        return _unavailable_command(
            "schema",
            MissingExtraError(
                package=(error.name or "alembic").partition(".")[0],
                extra="cli",
                reason=str(error),
            ),
        )
    return schema_group


def _fleet_group() -> click.Command:
    from sqla_shard.cli.fleet_commands import fleet_group

    return fleet_group


def _queue_group() -> click.Command:
    from sqla_shard.cli.queue_commands import queue_group

    return queue_group


def _load_command() -> click.Command:
    from sqla_shard.cli.load_command import load_command

    return load_command


#: Commands to import on first use: importing alembic doubles the startup
#: time.
_LAZY = {
    "schema": _schema_group,
    "fleet": _fleet_group,
    "queue": _queue_group,
    "load": _load_command,
}


def _unavailable_command(
    name: str, missing: MissingExtraError
) -> click.Command:
    """Return a placeholder for a command whose packages are not installed.

    It is listed by ``--help`` and fails with any arguments.
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


class _Failure(click.ClickException):
    """An error to show on one line, with the name of the program."""

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
    """Escape control characters in the message of a click error."""
    try:
        yield
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # final, but read only when click shows it
        raise


class _Program(click.Group):
    """Shows errors on one line and maps them to exit statuses."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        # Keep the order of _COMMANDS; click would sort the commands.
        return [*dict.fromkeys([*self.commands, *_LAZY])]

    def get_command(
        self, ctx: click.Context, cmd_name: str
    ) -> click.Command | None:
        if cmd_name in _LAZY.keys() - self.commands.keys():
            self.add_command(_LAZY[cmd_name]())
        return super().get_command(ctx, cmd_name)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        # File names and arguments may contain bytes that are not valid text.
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
            # click prints usage errors, and ignores a broken pipe.
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
    context_settings={"show_default": True},
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
    help="Topology file (TOML or JSON), or ZooKeeper URL: "
    "zookeeper://host:port,host:port/path.  Default: topology.toml in the "
    "current directory.",
)
@click.option(
    "--placeholder",
    "placeholders",
    metavar="NAME",
    multiple=True,
    help="Allow ${NAME} in the URLs of the topology, in addition to "
    "${MYSQL_USER} and ${MYSQL_PASSWORD}; repeatable.",
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
    """Inspect, migrate and repair a cluster of sqla_shard.

    Global options precede the command.
    """
    ctx.obj = Settings(
        named=topology, placeholders=(*DEFAULT_PLACEHOLDERS, *placeholders)
    )


for _command in _COMMANDS:
    program.add_command(_command)
for _command in _TOPOLOGY_COMMANDS:
    topology_group.add_command(_command)
