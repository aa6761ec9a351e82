"""The directive ``command``: a command of ``sqla-shard``, from its own help.

::

    .. command:: sqla-shard where

       What follows is put between the help and the options: examples, and
       what takes a link.

The text and the options are those that ``sqla-shard where --help`` prints, so
a page repeats neither.  Options that most commands have are left out
(:data:`SHARED`); the page describes them once.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

import click
from docutils import nodes
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

from sqla_shard.cli.program import program

#: Options of most commands.
SHARED = {"--help", "--json", "--output", "--topology"}
_LITERAL = re.compile(r"`[^`]+`|(?<![\w-])--[a-z][\w-]*|\$\{NAME\}")


class Command(SphinxDirective):
    """A section with the help of one command, and examples."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[nodes.Node]:
        """Return the section.

        :raises docutils.parsers.rst.DirectiveError: there is no such command.
        """
        path = self.arguments[0]
        section = nodes.section("", nodes.title("", path))
        section["names"].append(nodes.fully_normalize_name(path))
        self.state.document.note_implicit_target(section, section)
        context = self._context(path.split()[1:])
        command = context.command
        section += nodes.literal_block("", _usage(context), language="none")
        for paragraph in _paragraphs(command.help or ""):
            section += paragraph
        self.state.nested_parse(self.content, self.content_offset, section)
        self.state.nested_parse(_options(path, context), 0, section)
        return [section]

    def _context(self, words: list[str]) -> click.Context:
        command: click.Command = program
        context = click.Context(
            program, info_name="sqla-shard", **program.context_settings
        )
        for word in words:
            found = None
            if isinstance(command, click.Group):
                found = command.get_command(context, word)
            if found is None:
                raise self.error(f"there is no command {self.arguments[0]!r}")
            command = found
            context = click.Context(
                found, info_name=word, parent=context, **found.context_settings
            )
        return context


def _usage(context: click.Context) -> str:
    return " ".join(
        [context.command_path, *context.command.collect_usage_pieces(context)]
    )


def _paragraphs(text: str) -> list[nodes.Node]:
    """Return the paragraphs of a help text; some begin with a backspace."""
    found: list[nodes.Node] = []
    for block in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        if block.startswith("\b"):
            verbatim = block[1:].strip("\n")
            found.append(nodes.literal_block("", verbatim, language="none"))
        elif block.strip():
            found.append(nodes.paragraph("", "", *_inline(block)))
    return found


def _inline(text: str) -> list[nodes.Node]:
    """Return a text with its options and ```commands``` as literals."""
    text = " ".join(text.split())
    found: list[nodes.Node] = []
    end = 0
    for match in _LITERAL.finditer(text):
        found.append(nodes.Text(text[end : match.start()]))
        found.append(nodes.literal("", match[0].strip("`")))
        end = match.end()
    return [*found, nodes.Text(text[end:])]


def _options(path: str, context: click.Context) -> StringList:
    """Return the options of a command, in the language of the pages."""
    lines = [f".. program:: {path}", ""]
    for parameter in context.command.get_params(context):
        is_shared = context.parent and SHARED & set(parameter.opts)
        record = parameter.get_help_record(context)
        if isinstance(parameter, click.Option) and record and not is_shared:
            names, text = record
            lines += [f".. option:: {names}", "", f"   {_markup(text)}", ""]
    return StringList(lines, source=f"help of {path}")


def _markup(text: str) -> str:
    """Return a help text in reStructuredText, without the range of numbers."""
    text = re.sub(r"(?:; |(?<=\[))[\d.<=>]*x[\d.<=>]+(?=\])", "", text)
    text = re.sub(r"[*|\\]|_(?!\w)", r"\\\g<0>", text.replace("[]", ""))
    return _LITERAL.sub(lambda found: f"``{found[0].strip('`')}``", text)


def setup(app: Any) -> dict[str, bool]:
    """Register the directive."""
    app.add_directive("command", Command)
    return {"parallel_read_safe": True}
