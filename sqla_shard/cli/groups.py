"""Groups of commands, whose modules are imported when a command is used.

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
from collections.abc import Mapping
from importlib.machinery import PathFinder
from types import CodeType
from typing import Any, TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from sqla_shard.exc import MissingExtraError

#: Modules of commands by the names of the commands, in sections with a title.
Sections = Mapping[str, Mapping[str, str]]

#: The extras with what modules import; others need those of ``cli`` only.
_EXTRAS = {"dashboard_command": "dashboard", "dev_command": "testing"}


class LazyGroup(click.Group):
    """A group whose help lists the commands by section.

    :param sections: the commands, in the order of the help.  The command
        ``id`` of the module ``id_commands`` is ``id_command`` of
        :mod:`sqla_shard.cli.id_commands`.
    """

    def __init__(self, *args: Any, sections: Sections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        #: The modules of the commands, in the order of the help.
        self.modules: dict[str, str] = {
            name: module
            for commands in sections.values()
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
            for near in get_close_matches(name, known, n=1):
                meant = " or ".join(map(repr, known[near]))
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
