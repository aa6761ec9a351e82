"""The second run of failed tests, after everything else and alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

CONFTEST = """
import os
import pytest

@pytest.fixture(scope="session")
def number():
    with open("sessions", "a") as file:
        file.write(f"{os.getpid()}\\n")
    with open("sessions") as file:
        return len(file.readlines())
"""
FLAKY = """
from pathlib import Path
import pytest

def test_passes():
    pass

def test_races():
    print("what it printed")
    with open("log", "a") as file:
        file.write("races\\n")
    assert Path("log").read_text().count("races") == 2, "the first failure"
"""
LATE = """
import time

def test_slow():
    time.sleep(1)
    with open("log", "a") as file:
        file.write("slow\\n")
"""
FAILS_TWICE = """
def test_fails():
    with open("log", "a") as file:
        file.write("fails\\n")
    assert False, "always"
"""
SHARED_FIXTURE = """
import pytest
from pathlib import Path

@pytest.fixture(scope="module")
def server():
    with open("log", "a") as file:
        file.write("server\\n")
    if Path("log").read_text().count("server") == 1:
        raise OSError("the server did not start")

@pytest.mark.parametrize("n", range(15))
def test_of_the_server(server, n):
    pass
"""
MANY = """
import pytest

@pytest.mark.parametrize("n", range(11))
def test_fails(n):
    with open("log", "a") as file:
        file.write("many\\n")
    assert n < 0
"""
HANGS_THEN = """
import time
from pathlib import Path

def test_hangs_later():
    if Path("log").exists():
        print("it hangs", flush=True)
        Path("hangs").touch()
        time.sleep(300)
    Path("log").touch()
    assert False, "at first"
"""
SKIPS_THEN = """
from pathlib import Path
import pytest

def test_is_not_there_later():
    if Path("log").exists():
        pytest.skip("no server")
    Path("log").touch()
    assert False, "at first"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "conftest.py").write_text(CONFTEST)
    return tmp_path


def run(project: Path, *options: str, **files: str) -> tuple[int, list[str]]:
    for name, text in files.items():
        (project / f"{name}.py").write_text(text)
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTEST")
    }
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
            *("-p", "tests.flaky", *options),
        ],
        cwd=project,
        env=environment | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("processes", ["0", "2"])
def test_a_flaky_test_is_printed_and_counted(project, processes):
    code, lines = run(project, "-n", processes, test_a=FLAKY, test_b=LATE)
    assert code == 0
    assert " 2 passed, 1 flaky in " in lines[-1]
    text = "\n".join(lines)
    assert "the first failure" in text
    assert "what it printed" in text
    assert "FLAKY test_a.py::test_races" in lines
    assert "FAILURES" not in text
    # After all others.
    log = (project / "log").read_text().split()
    assert log == ["races", "slow", "races"]


@pytest.mark.parametrize("processes", ["0", "2"])
def test_one_that_fails_twice_fails_the_run(project, processes):
    code, lines = run(project, "-n", processes, test_a=FLAKY, test_b=FAILS_TWICE)
    assert code == 1
    assert " 1 failed, 1 passed, 1 flaky in " in lines[-1]
    assert "FAILED test_b.py::test_fails - AssertionError: always" in lines
    assert "FLAKY test_a.py::test_races" in lines
    # No other line can be taken for the closing one.
    assert sum(line.startswith("=") and " in " in line for line in lines) == 1
    assert any(line.startswith("  | ") for line in lines)


def test_fixtures_are_made_again(project):
    code, lines = run(
        project,
        test_a="""
def test_races(number):
    assert number == 2
""",
    )
    assert code == 0
    assert " 1 flaky in " in lines[-1]
    processes = (project / "sessions").read_text().split()
    assert len(set(processes)) == 2


def test_the_error_of_a_shared_fixture_is_one(project):
    code, lines = run(project, "-n", "0", test_a=SHARED_FIXTURE)
    assert code == 0
    assert " 15 flaky in " in lines[-1]
    assert "OSError: the server did not start" in "\n".join(lines)


def test_more_than_ten_fail_the_run(project):
    code, lines = run(project, test_a=MANY)
    assert code == 1
    assert " 11 failed in " in lines[-1]
    assert "11 failed tests: too many to run them once more" in lines
    assert (project / "log").read_text().count("many") == 11


def test_one_that_is_skipped_then_has_not_passed(project):
    code, lines = run(project, test_a=SKIPS_THEN)
    assert code == 1
    assert " 1 failed in " in lines[-1]


def test_a_worker_that_dies(project):
    code, lines = run(
        project,
        "-n",
        "2",
        test_a="""
import os
from pathlib import Path

def test_dies():
    if not Path("log").exists():
        Path("log").touch()
        os._exit(3)
""",
    )
    assert code == 0
    assert " 1 flaky in " in lines[-1]
    assert "crashed while running" in "\n".join(lines)


def test_nothing_happens_when_all_pass(project):
    code, lines = run(project, test_b=LATE)
    assert code == 0
    assert " 1 passed in " in lines[-1]


def test_a_deadline_in_the_second_run_leaves_the_failures(project):
    (project / "test_a.py").write_text(HANGS_THEN)
    output = project / "output"
    with output.open("wb") as stream:
        running = subprocess.Popen(
            [
                *(sys.executable, "-m", "pytest", "-p", "no:cacheprovider"),
                *("-p", "tests.flaky", "-n", "0"),
            ],
            cwd=project,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
        )
    try:
        until = time.monotonic() + 60
        while not (project / "hangs").exists() and time.monotonic() < until:
            time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        code = running.wait(60)
    finally:
        running.kill()
        running.wait()
    lines = output.read_text().splitlines()
    assert code == 1
    assert "FAILED test_a.py::test_hangs_later - AssertionError: at first" in (lines)
    assert " 1 failed in " in lines[-1]
