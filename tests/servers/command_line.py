"""Running sqla-shard: in this process, or as a program of its own."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner, Result

from sqla_shard.cli.program import program

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-W", "error", "-m", "sqla_shard.cli"]
_UNWANTED = ("SQLA_SHARD_TOPOLOGY", "SQLA_SHARD_CACHE")

_PROGRESS = re.compile(
    r"(?m)^(\d+ of \d+, \d+ failed, .* s left"
    r"|.*shard \d+ of \d+, .* (to check again|rewritten|moved)"
    r"|(rows|compared): \w+ [\d,]+(, \w+ [\d,]+)*)\n"
)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that does something, or has options, by name."""
    if command.params or not isinstance(command, click.Group):
        yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        # Not all of them are loaded before they are asked for.
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from commands(inner, f"{path} {name}")


_NO_MOVE = "examples.microblog.single.models:Base"
#: The commands of a move by name, with the arguments of one that is invalid.
MOVE_COMMANDS = {
    "plan": _NO_MOVE,
    "status": _NO_MOVE,
    "switch": f"{_NO_MOVE} copying",
    "rollback": _NO_MOVE,
    "backfill": _NO_MOVE,
    "reconcile": _NO_MOVE,
    "verify": _NO_MOVE,
}

#: Arguments of commands of the group ``fleet``, by their form in the help.
_GIVEN = {
    "FILE": "same.json",
    "HOST:PORT": "127.0.0.1:1",
    "RANGE": "7",
    "SERVER": "server2",
    "TARGET": "127.0.0.1:1",
}
#: They ask no server, or have cases of their own.
_APART = (
    "status",
    "history",
    "apply",
    "resume",
    "undo",
    "backup list",
    "backup verify",
    "backup prune",
    "restore",
)


def fleet_commands() -> dict[str, str]:
    """Return the commands of operations, each with what it requires."""
    group = program.get_command(click.Context(program), "fleet")
    assert group is not None
    found = {}
    for path, command in commands(group, "fleet"):
        if path.removeprefix("fleet ") in _APART:
            continue
        words = [path]
        for parameter in command.params:
            if not parameter.required:
                continue
            if isinstance(parameter, click.Option):
                words.append(parameter.opts[0])
            form = parameter.metavar or str(parameter.name).upper()
            words.append(_GIVEN.get(form, "other"))
        found[path] = " ".join(words)
    return found


def invoke(*arguments: object, env: Mapping[str, str] | None = None) -> Result:
    """Run a command in this process; uncaught errors are raised."""
    found = CliRunner().invoke(
        program,
        [str(one) for one in arguments],
        prog_name="sqla-shard",
        env={**dict.fromkeys(_UNWANTED), **(env or {})},
    )
    if not isinstance(found.exception, (SystemExit, type(None))):
        raise found.exception
    return found


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a program that finds the package."""
    unwanted = {*_UNWANTED, "COLUMNS"}
    found = {k: v for k, v in os.environ.items() if k not in unwanted}
    return {**found, "PYTHONPATH": str(ROOT), **more}


def run(
    directory: Path, *arguments: object, stdin: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Run the program, in a directory."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=directory,
        env=environment(**environ),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
    )


_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def on_a_terminal(
    columns: int, *arguments: object, status: int = 0, **environ: str
) -> str:
    """Return the output of the program on a terminal, without styles.

    :param environ: ``keep="1"`` returns the styles as well.
    """
    keeps = environ.pop("keep", "")
    ours, theirs = pty.openpty()
    size = struct.pack("HHHH", 24, columns, 0, 0)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, size)
    names = ("NO_COLOR", "COLUMNS")
    found = {k: v for k, v in environment().items() if k not in names}
    with subprocess.Popen(
        [*COMMAND, *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**found, "TERM": "xterm", **environ},
    ) as process:
        os.close(theirs)
        printed = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:
                # The other end is closed.
                break
            if not part:
                break
            printed += part
        os.close(ours)
    assert process.returncode == status, printed
    shown = printed.decode().replace("\r\n", "\n")
    return shown if keeps else _STYLE.sub("", shown)


def without_progress(text: str) -> str:
    """Remove the lines that a command prints every 5 s on a busy machine."""
    return _PROGRESS.sub("", text)


def write(directory: Path, document: Any, name: str = "topology.json") -> Path:
    """Write a topology file."""
    path = directory / name
    path.write_text(json.dumps(document), "utf-8")
    return path
