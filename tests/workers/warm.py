"""Python programs, each in a process of its own that need not import all.

Most of the time of a short program goes into importing SQLAlchemy, alembic
and Flask.  Here one process has done that and is forked for each program;
nothing else is shared.  Warnings are errors in them.

Limits: no standard input, and ``python FILE`` or ``python -m MODULE`` only.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_IMPORTED = (
    "alembic.config",
    "flask.cli",
    "sqla_shard.cli.program",
    "sqla_shard.cli.schema_commands",
    "sqla_shard.ext.flask",
    "sqlalchemy.dialects.sqlite.pysqlite",
)
_ROOT = Path(__file__).parents[2]


class WarmPython:
    """Runs Python programs; a context manager."""

    def __init__(self) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", __name__],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> WarmPython:
        return self

    def __exit__(self, *details: object) -> None:
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.close()
        self._server.stdout.close()
        assert self._server.wait(60) == 0

    def run(
        self, arguments: Sequence[str], environ: Mapping[str, str], output: Path
    ) -> str:
        """Run ``python`` in the current directory.

        :param output: a file for its output.
        :returns: its output.
        """
        assert self._server.stdin
        assert self._server.stdout
        asked = {
            "arguments": list(arguments),
            "directory": os.getcwd(),
            "environ": dict(environ),
            "output": str(output),
        }
        self._server.stdin.write(json.dumps(asked) + "\n")
        self._server.stdin.flush()
        assert self._server.stdout.readline() == "ended\n"
        return output.read_text("utf-8")


def _serve() -> None:
    """Fork a process for each line, which returns from here to its program."""
    for name in _IMPORTED:
        importlib.import_module(name)
    import tests.workers.freeze  # noqa: F401 - the last one

    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(asked)
            return
        os.waitpid(child, 0)
        sys.stdout.write("ended\n")
        sys.stdout.flush()


def _become(asked: dict[str, Any]) -> None:
    os.chdir(asked["directory"])
    os.environ.clear()
    os.environ.update(asked["environ"])
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, path, how in (
        (0, os.devnull, os.O_RDONLY),
        (1, asked["output"], flags),
    ):
        opened = os.open(path, how, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.dup2(1, 2)
    option, *rest = asked["arguments"]
    sys.path[0] = asked["directory"]
    if option == "-m":
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [option, *rest]
        runpy.run_path(option, run_name="__main__")


if __name__ == "__main__":
    _serve()
