"""The runner of alembic's command line, when a command does not end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.models.schema import until
from tests.workers.schema_runner import _forked, Runner, RunnerError

WAITS = """\
import signal
import sys

print("it waits", file=sys.stderr, flush=True)
signal.pause()
"""


class ImpatientError(Exception):
    """Raised to interrupt a test."""


@pytest.fixture
def runner(tmp_path: Path):
    with Runner(tmp_path) as runner:
        yield runner


@pytest.fixture
def waiting(runner: Runner, tmp_path: Path):
    """Return a command that never ends."""
    (tmp_path / "env.py").write_text(WAITS)
    (tmp_path / "versions").mkdir()
    ini = tmp_path / "alembic.ini"
    ini.write_text(f"[alembic]\nscript_location = {tmp_path}\n")
    return runner.start("-c", str(ini), "current")


def is_gone(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return True
    return stat.rpartition(")")[2].split()[0] == "Z"


def works(runner: Runner) -> None:
    # Two, and neither has the answer of another.
    first, second = runner.start("--version"), runner.start("no-command")
    assert second.wait().returncode == 2
    assert first.wait().returncode == 0


def test_a_command_that_does_not_end_in_time(runner, waiting):
    with pytest.raises(RunnerError, match=r"not within 0\.2 s"):
        waiting.wait(0.2)
    until(lambda: is_gone(waiting.pid), "its end")
    works(runner)
    with pytest.raises(RunnerError, match="was killed"):
        waiting.wait()


def test_a_test_that_is_interrupted_while_it_waits(runner, waiting):
    def interrupt(*details):
        raise ImpatientError

    def send():
        until(lambda: runner.asked > asked, "the message")
        os.kill(os.getpid(), signal.SIGUSR1)

    asked = runner.asked
    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Thread(target=send)
    try:
        sender.start()
        with pytest.raises(ImpatientError):
            waiting.wait()
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    until(lambda: is_gone(waiting.pid), "its end")
    works(runner)


def test_a_command_that_is_killed_at_once_has_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its child has done nothing yet: neither opened them, nor made a group."""
    groups = []
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE
    ) as child:
        try:
            # After exec() the group of a child cannot be changed any more.
            with monkeypatch.context() as patched:
                patched.setattr(os, "fork", lambda: child.pid)
                patched.setattr(os, "setpgid", lambda *ids: groups.append(ids))
                assert _forked(["--help"], str(tmp_path / "run1")) == child.pid
        finally:
            child.kill()
    assert {one.name for one in tmp_path.iterdir()} == {"run1.out", "run1.err"}
    assert groups == [(child.pid, child.pid)]
