"""Groups of commands, whose modules are imported when a command is used.

SQLAlchemy's ORM, alembic and the operations of a fleet take a second to
import, which ``--help`` and the completion of a shell must not take.  A group
therefore lists each command with its module and a line of help.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NamedTuple, TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from sqla_shard.exc import MissingExtraError


class Lazy(NamedTuple):
    """A command that is imported on first use.

    :param path: module of ``sqla_shard.cli`` and the name in it, as
        ``module:name``.
    :param help: first sentence of its help.
    :param extra: the extra with the packages that the module imports.
    """

    path: str
    help: str
    extra: str = "cli"

    def load(self, name: str) -> click.Command:
        """Return the command, or a placeholder if a package is missing."""
        module, _, attribute = self.path.partition(":")
        try:
            found = importlib.import_module(f"sqla_shard.cli.{module}")
        except ImportError as error:
            if (error.name or "").startswith("sqla_shard"):
                raise
            return _unavailable_command(name, self._missing(error))
        command: click.Command = getattr(found, attribute)
        return command

    def _missing(self, error: ImportError) -> MissingExtraError:
        from sqla_shard.exc import MissingExtraError

        # A module of the package has named the extra already.
        if isinstance(error, MissingExtraError):
            return error
        return MissingExtraError(
            package=(error.name or self.extra).partition(".")[0],
            extra=self.extra,
            reason=str(error),
        )


#: Commands by name, in sections with a title.
Sections = Mapping[str, Mapping[str, Lazy]]


class LazyGroup(click.Group):
    """A group whose help lists the commands by section.

    :param sections: the commands, in the order of the help.
    """

    def __init__(self, *args: Any, sections: Sections, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._sections = sections
        #: The commands by name, in the order of the help.
        self.commands_by_name = {
            name: lazy
            for commands in sections.values()
            for name, lazy in commands.items()
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the commands, in the order of the help."""
        return list(self.commands_by_name)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, which is imported on first use."""
        if cmd_name in self.commands_by_name.keys() - self.commands.keys():
            self.add_command(self.commands_by_name[cmd_name].load(cmd_name), cmd_name)
        return super().get_command(ctx, cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command; for completion perhaps without its module."""
        if not ctx.resilient_parsing or args[0] not in self.commands_by_name:
            if not ctx.resilient_parsing:
                self._suggest(ctx, args[0])
            return super().resolve_command(ctx, args)
        # Only completion needs it.
        from sqla_shard.cli.completion import add_completion, sketch

        def load() -> click.Command:
            command = self.get_command(ctx, args[0])
            assert command is not None  # noqa: S101 - its name is known
            return command

        found = sketch(ctx, args, load)
        if found is None:
            found = load()
            add_completion(ctx, found)
        return args[0], found, args[1:]

    def _suggest(self, ctx: click.Context, name: str) -> None:
        """Refuse a name that is like that of a command."""
        known = self.commands_by_name
        if name in known or name.startswith("-"):
            return
        near = get_close_matches(name, known, n=1)
        if near:
            ctx.fail(f"No such command {name!r}; did you mean {near[0]!r}?")

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Write the commands by section, each with all of its sentence."""
        widest = max(map(len, self.commands_by_name))
        for title, commands in self._sections.items():
            with formatter.section(title):
                formatter.write_dl(
                    [(name.ljust(widest), lazy.help) for name, lazy in commands.items()]
                )

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Complete the names of commands and options."""
        return [
            *(
                CompletionItem(name, help=lazy.help)
                for name, lazy in self.commands_by_name.items()
                if name.startswith(incomplete)
            ),
            # click.Group would import every command, for its help.
            *click.Command.shell_complete(self, ctx, incomplete),
        ]


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
