"""The click program ``sqla-shard``: global options, commands, errors.

The commands are defined in other modules of this package and listed in
:mod:`sqla_shard.cli.catalogue`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from typing import Any, IO

import click
from click.exceptions import Abort, Exit, NoArgsIsHelpError
from click.shell_completion import get_completion_class

from sqla_shard.cli.catalogue import LazyGroup, PROGRAM
from sqla_shard.cli.options import LOCATION, Settings, VARIABLE
from sqla_shard.cli.output import command, echo, examples, option
from sqla_shard.util.masking import printable

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_SQLA_SHARD_COMPLETE"


@command(
    "completion",
    'eval "$(sqla-shard completion bash)"',
    "sqla-shard completion zsh > ~/.zfunc/_sqla-shard",
    "sqla-shard completion fish | source",
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


class _Misuse(click.UsageError):
    """A usage error in the style of other errors, and where the help is."""

    def show(self, file: IO[Any] | None = None) -> None:
        echo(f"sqla-shard: error: {self.format_message()}", err=True)
        if self.ctx is not None and self.cmd is not None:
            options = self.cmd.get_help_option_names(self.ctx)
            if options:
                path = self.ctx.command_path
                echo(f"Try '{path} --help' for help.", err=True)


@contextmanager
def _printable() -> Iterator[None]:
    """Show usage errors as other errors; escape control characters."""
    try:
        yield
    except NoArgsIsHelpError:
        # Shows the help.
        raise
    except click.UsageError as error:
        raise _Misuse(error.format_message(), error.ctx) from error
    except click.ClickException as error:
        error.message = printable(error.message)  # type: ignore[misc]  # final, but read only when click shows it
        raise


class _Program(LazyGroup):
    """Shows errors on one line and maps them to exit statuses."""

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
        except (click.UsageError, Abort, Exit, BrokenPipeError):
            # click prints usage errors, and ignores a broken pipe.
            raise
        except KeyboardInterrupt:
            sys.exit(_INTERRUPTED)
        except Exception as error:
            # Imported for an error only: SQLAlchemy takes longer than `id`.
            from sqla_shard.cli.failures import FailureLine, REPORTED

            if not isinstance(error, REPORTED):
                raise
            raise FailureLine(error) from error


@click.group(
    "sqla-shard",
    cls=_Program,
    sections=PROGRAM,
    context_settings={"show_default": True},
    epilog=examples(
        "sqla-shard id 241294492511762325",
        "sqla-shard -t topology.toml where 241294492511762325",
        "sqla-shard -t topology.toml topology show",
    ),
)
@option(
    "-t --topology PATH",
    "Topology file (TOML or JSON), or ZooKeeper URL: "
    "zookeeper://host:port,host:port/path.  Default: topology.toml or "
    "topology.json in the current directory.",
    LOCATION,
    envvar=VARIABLE,
    show_envvar=True,
)
@option(
    "--placeholder NAME",
    "Allow ${NAME} in the URLs of the topology, in addition to "
    "${MYSQL_USER} and ${MYSQL_PASSWORD}; repeatable.",
    to="placeholders",
    multiple=True,
)
@click.version_option(
    package_name="sqla-shard", prog_name="sqla-shard", message="%(prog)s %(version)s"
)
@click.pass_context
def program(
    ctx: click.Context, topology: str | None, placeholders: tuple[str, ...]
) -> None:
    """Inspect, migrate and repair a cluster of sqla_shard.

    Global options precede the command.
    """
    ctx.obj = Settings(named=topology, more_placeholders=placeholders)
