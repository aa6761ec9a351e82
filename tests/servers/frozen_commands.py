"""Runs commands of sqla-shard side by side, each in a process of its own."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import click

import examples.pinboard.models  # noqa: F401  # what each command would import
from sqla_shard.cli.program import program


def names_of_commands(
    group: click.Group = program, before: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yield every command of the program, such as ``topology show``."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        path = (*before, name)
        if isinstance(command, click.Group):
            yield from names_of_commands(command, path)
        else:
            yield " ".join(path)


def run_command(
    *, server: int, arguments: list[str], directory: str, result: str
) -> None:
    """Run one, and write how it has ended; for :class:`.forks.Forks`."""
    place = Path(result)
    os.chdir(directory)
    status: Any = 0
    began = monotonic()
    with place.with_suffix(".out").open("w") as out:
        os.dup2(out.fileno(), 1)
        os.dup2(out.fileno(), 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # Not what the server of the forks has: its pipe is the protocol's.
        sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
        sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
        try:
            program.main(arguments, prog_name="sqla-shard")
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            status = "raised"
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    found = {"status": status, "seconds": monotonic() - began}
    ready = place.with_suffix(".new")
    ready.write_text(json.dumps(found))
    # All of it is there, or nothing.
    ready.replace(place)
