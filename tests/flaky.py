"""Runs what failed once more, after all other tests and alone.

A plugin of pytest that ``make`` loads in builds (``-p tests.flaky``).  The
second run has one process, so that no other test races with it, and a new one:
modules and fixtures of every scope are made again.

A test that passes then is flaky.  It is counted in the closing line, and
printed with the output of its first failure.  One that fails twice fails the
run, and so do more than ten: these are not run again.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

#: Causes of failures: an error of a fixture that tests share is one.
MOST = 10
#: Seconds for all of the second run.
DEADLINE = 1200
_MOST_LINES = 500


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--passed-to",
        metavar="FILE",
        help="write the ids of tests that pass, for the run that failed",
    )


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--passed-to")
    if file is not None:
        config.pluginmanager.register(_Passed(Path(file)))
    elif not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Rerun(config))


class _Passed:
    """Writes the ids of the tests that pass, with all of their fixtures."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._called: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and (report.passed or hasattr(report, "wasxfail")):
            self._called.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        passed = sorted(self._called - self._failed)
        self._file.write_text("\0".join(passed))


class _Rerun:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._flaky: dict[str, list[pytest.TestReport]] = {}
        self._output = ""

    # When the processes of pytest-xdist have ended, and before the summary.
    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if exitstatus != pytest.ExitCode.TESTS_FAILED or session.shouldfail:
            return
        failed: dict[str, list[pytest.TestReport]] = {}
        for report in _failures(terminal):
            if not isinstance(report, pytest.TestReport):
                return  # a module that cannot be imported
            failed.setdefault(report.nodeid, []).append(report)
        causes = {_cause(reports) for reports in failed.values()}
        count = f"{len(failed)} failed test{'s' if len(failed) > 1 else ''}"
        terminal.ensure_newline()
        if len(causes) > MOST:
            terminal.write_line(f"{count}: too many to run them once more")
            return
        terminal.write_line(f"{count}: once more, alone")
        passed = self._run(list(failed))
        self._flaky = {
            nodeid: reports for nodeid, reports in failed.items() if nodeid in passed
        }
        for category in ("failed", "error"):
            left = [
                report
                for report in terminal.stats.pop(category, ())
                if report.nodeid not in passed
            ]
            if left:
                terminal.stats[category] = left
        if self._flaky:
            firsts = [reports[0] for reports in self._flaky.values()]
            terminal._add_stats("flaky", firsts)
        if not _failures(terminal):
            session.exitstatus = pytest.ExitCode.OK

    def _run(self, nodeids: Sequence[str]) -> set[str]:
        """Run tests again, and return the ids of those that pass."""
        config = self._config
        command = [sys.executable, "-m", "pytest", "-p", "tests.flaky"]
        for option in ("--tier", "--timeout"):
            value = config.getoption(option, None)
            if value is not None:
                command.append(f"{option}={value}")
        ended = ""
        with tempfile.TemporaryDirectory() as folder:
            file, output = Path(folder, "passed"), Path(folder, "output")
            command += ["-n", "0", f"--passed-to={file}", *nodeids]
            # Not a pipe, whose end the servers of tests that were ended keep.
            with output.open("wb") as stream:
                try:
                    subprocess.run(
                        command,
                        cwd=config.rootpath,
                        stdin=subprocess.DEVNULL,
                        stdout=stream,
                        stderr=subprocess.STDOUT,
                        timeout=DEADLINE,
                    )
                except subprocess.TimeoutExpired:
                    ended = f"\nended after {DEADLINE} seconds\n"
                except KeyboardInterrupt:
                    # The deadline of the build.  Raised, it would end pytest
                    # before it has printed any failure.
                    ended = "\ninterrupted\n"
            self._output = output.read_text(errors="replace") + ended
            found = file.read_text() if file.exists() else ""
        return set(found.split("\0")) if found else set()

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._flaky:
            terminalreporter.section("flaky: failed, and passed alone")
        for nodeid, reports in self._flaky.items():
            for report in reports:
                terminalreporter.section(f"{nodeid} ({report.when})", "_")
                report.toterminal(terminalreporter._tw)
                for title, content in report.sections:
                    terminalreporter.section(title, "-")
                    terminalreporter.write_line(content)
        if self._output and _failures(terminalreporter):
            terminalreporter.section("the second run of what failed")
            for line in self._output.splitlines()[-_MOST_LINES:]:
                # Or it could be taken for the closing line.
                terminalreporter.write_line(f"  | {line}")
        for nodeid in self._flaky:
            terminalreporter.write_line(f"FLAKY {nodeid}", yellow=True)


def _failures(terminal: Any) -> list[Any]:
    stats = terminal.stats
    return [*stats.get("failed", ()), *stats.get("error", ())]


def _cause(reports: Sequence[pytest.TestReport]) -> Any:
    # pytest raises the error of a fixture that tests share for each of them.
    first = reports[0]
    if first.when != "setup":
        return first.nodeid
    return first.nodeid.partition("::")[0], str(first.longrepr)
