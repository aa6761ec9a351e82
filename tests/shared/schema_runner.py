"""Runs alembic's command line many times, importing all of it once.

A process that is started with ``python -m tests.shared.schema_runner`` reads
commands, one JSON document a line, and forks for each: the child is the
leader of a process group of its own, as one that a shell has started, and can
be killed with all of its workers.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["Finished", "Run", "Runner"]

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a command has ended, as :class:`subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def shown(self) -> str:
        return f"status {self.returncode}\n{self.stdout}\n{self.stderr}"


class Run:
    """One command that runs; its process leads a group."""

    def __init__(self, runner: Runner, pid: int, output: Path) -> None:
        self._runner = runner
        self._output = output
        self.pid = pid

    def kill(self, how: int = signal.SIGKILL) -> Finished:
        """Kill the whole group, unless it has ended, and wait."""
        self.signal_group(how)
        return self.wait()

    def signal_group(self, how: int) -> None:
        # Not reaped before wait(): the number is still its own.
        os.killpg(self.pid, how)

    def signal_parent(self, how: int) -> None:
        os.kill(self.pid, how)

    def has_ended(self) -> bool:
        """Tell whether the parent has ended."""
        stat = Path(f"/proc/{self.pid}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] == "Z"

    def workers(self) -> list[int]:
        """Return the processes that it has forked."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        return [int(word) for word in path.read_text().split()]

    def said(self) -> str:
        """Return what it has printed to standard error by now."""
        return self._output.with_suffix(".err").read_text("utf-8")

    def wait(self) -> Finished:
        status = self._runner.ask({"wait": self.pid})
        return Finished(
            returncode=status,
            stdout=self._output.with_suffix(".out").read_text("utf-8"),
            stderr=self._output.with_suffix(".err").read_text("utf-8"),
        )


class Runner:
    """Starts commands; close it with ``with``."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.shared.schema_runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(30)

    def ask(self, message: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{json.dumps(message)}\n")
        self._process.stdin.flush()
        return int(json.loads(self._process.stdout.readline()))

    def start(self, *arguments: str) -> Run:
        """Start ``alembic ARGUMENTS``."""
        self._count += 1
        output = self._directory / f"run{self._count}"
        pid = self.ask({"start": list(arguments), "output": str(output)})
        return Run(self, pid, output)

    def run(self, *arguments: str) -> Finished:
        return self.start(*arguments).wait()


def _forked(arguments: list[str], output: str) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()
        for number, suffix in ((1, "out"), (2, "err")):
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            file = os.open(f"{output}.{suffix}", flags)
            os.dup2(file, number)
            os.close(file)
        os.close(0)
        status = _alembic(arguments)
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(status)


def _alembic(arguments: list[str]) -> int:
    from alembic.config import main

    try:
        main(argv=arguments, prog="alembic")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    # What Python's own main program does with it.
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve() -> None:
    import alembic.command  # noqa: F401 - loaded before forking
    import pymysql  # noqa: F401 - see above
    import sqlalchemy.dialects.mysql
    import sqlalchemy.dialects.sqlite  # noqa: F401 - see above

    import sqla_shard.schema  # noqa: F401 - see above

    for line in sys.stdin:
        message = json.loads(line)
        if "start" in message:
            answer = _forked(message["start"], message["output"])
        else:
            _, status = os.waitpid(message["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
