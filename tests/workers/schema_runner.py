"""Runs alembic's command line many times, importing all of it once.

A process that is started with ``python -m tests.workers.schema_runner`` reads
commands, one JSON document a line, and forks for each: the child is the
leader of a process group of its own, as one that a shell has started, and can
be killed with all of its workers.

Each message has a number, and its answer has the same.  When a command does
not end in time, or its caller is interrupted, all that runs is
killed, and the process with it; the next command gets a new one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from time import monotonic
from typing import Any

from sqla_shard.testing.local_server import wait_until
from tests.servers.processes import is_running, state_of

_ROOT = Path(__file__).parents[2]
#: Seconds that a command may take; pytest gives a whole test 300.
_LONGEST = 200.0


class RunnerError(Exception):
    """A command has not ended in time, or was killed with its runner."""


@dataclass(frozen=True, kw_only=True)
class Finished:
    """The result of a command, as :class:`subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str

    @property
    def shown(self) -> str:
        return f"status {self.returncode}\n{self.stdout}\n{self.stderr}"


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except FileNotFoundError:
        return []  # It has ended, and was waited for.
    return [int(word) for word in text.split()]


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

    def stop_group(self) -> None:
        """Stop all processes of the group with SIGSTOP; they stay alive."""
        self.signal_group(signal.SIGSTOP)
        self._until_stopped([self.pid, *self.workers()])

    def stop_parent(self) -> None:
        """Let the parent do nothing more, unless it has ended."""
        self.signal_parent(signal.SIGSTOP)
        self._until_stopped([self.pid])

    def _until_stopped(self, pids: list[int]) -> None:
        # On a busy machine they may go on for a while.
        assert wait_until(
            lambda: all(state_of(pid) in "TZ" for pid in pids), seconds=30
        )

    def has_ended(self) -> bool:
        """Tell whether the parent has ended."""
        return not is_running(self.pid)

    def workers(self) -> list[int]:
        """Return the processes that it has forked."""
        return _children(self.pid)

    def said(self) -> str:
        """Return its standard error so far."""
        return self._output.with_suffix(".err").read_text("utf-8")

    def wait(self, seconds: float = _LONGEST) -> Finished:
        """Wait for its end.

        :raises RunnerError: when it is killed because it takes longer.
        """
        try:
            status = self._runner.status(self.pid, seconds)
        except RunnerError as error:
            raise RunnerError(f"{error}; it said: {self.said()}") from error
        return Finished(
            returncode=status,
            stdout=self._output.with_suffix(".out").read_text("utf-8"),
            stderr=self._output.with_suffix(".err").read_text("utf-8"),
        )


class Runner:
    """Starts commands; close it with ``with``.

    :ivar asked: how many messages were sent.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._count = 0
        self.asked = 0
        #: The commands that were not waited for.
        self._running: set[int] = set()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Runner:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill all that runs; the next command gets a new process."""
        process, self._process = self._process, None
        self._running.clear()
        if process is None:
            return
        for pid in _children(process.pid):
            # One that was just forked may not lead a group yet.
            for kill in (os.killpg, os.kill):
                with suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        process.kill()
        process.wait(30)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()

    def end_if_busy(self) -> None:
        """Kill the commands that were not waited for."""
        if self._running:
            self.end()

    def start(self, *arguments: str) -> Run:
        """Start ``alembic ARGUMENTS``."""
        self._count += 1
        output = self._directory / f"run{self._count}"
        message = {"start": list(arguments), "output": str(output)}
        with self._or_ended():
            pid = self._ask(message, _LONGEST)
            self._running.add(pid)
        return Run(self, pid, output)

    def run(self, *arguments: str) -> Finished:
        return self.start(*arguments).wait()

    def status(self, pid: int, seconds: float) -> int:
        """Wait for a command and return how it has ended.

        :raises RunnerError: when it takes longer, or is not known any more.
        """
        if pid not in self._running:
            raise RunnerError(f"command {pid} was killed, or waited for")
        with self._or_ended():
            status = self._ask({"wait": pid}, seconds)
        self._running.remove(pid)
        return status

    @contextmanager
    def _or_ended(self) -> Iterator[None]:
        """End all if the block does not end well.

        Also when pytest-timeout interrupts it: the answer that is still to
        come would be taken for that of the next message.
        """
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                self.end()

    def _ask(self, message: dict[str, Any], seconds: float) -> int:
        if self._process is None:
            self._process = _started()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        self.asked += 1
        stdin.write(f"{json.dumps([self.asked, message])}\n".encode())
        deadline = monotonic() + seconds
        line = b""
        while not line.endswith(b"\n"):
            if not wait([stdout], max(deadline - monotonic(), 0)):
                raise RunnerError(f"{message}: not within {seconds} s")
            # Nothing is kept in a buffer, where wait() would not see it.
            part = stdout.readline()
            if not part:
                raise RunnerError(f"{message}: the runner has died")
            line += part
        number, answer = json.loads(line)
        if number != self.asked:
            raise RunnerError(f"{message}: that is the answer to {number}")
        return int(answer)


def _started() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.workers.schema_runner"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        cwd=_ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def _forked(arguments: list[str], output: str) -> int:
    sys.stdout.flush()
    # Before the child can be killed: its caller reads them then, and kills its
    # group.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    files = [os.open(f"{output}.{suffix}", flags) for suffix in ("out", "err")]
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        with suppress(ProcessLookupError):
            os.setpgid(pid, pid)
        return pid
    try:
        os.setpgid(0, 0)
        for number, file in enumerate(files, 1):
            os.dup2(file, number)
            os.close(file)
        # A closed one would be given to a pipe of a worker, which closes its
        # standard input.
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
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
    # As Python's main program handles it.
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _serve() -> None:
    import alembic.command  # noqa: F401 - loaded before forking
    import pymysql  # noqa: F401 - see above
    import sqlalchemy.dialects.mysql
    import sqlalchemy.dialects.sqlite  # noqa: F401 - see above

    from sqla_shard.schema.ledger import own_head

    # Revisions of the package, which each process would compile.
    own_head()
    import tests.workers.freeze  # noqa: F401 - the last one

    for line in sys.stdin:
        number, message = json.loads(line)
        if "start" in message:
            answer = _forked(message["start"], message["output"])
        else:
            _, status = os.waitpid(message["wait"], 0)
            answer = os.waitstatus_to_exitcode(status)
        sys.stdout.write(f"{json.dumps([number, answer])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _serve()
