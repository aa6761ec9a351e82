"""The flag that ends ``sqla-shard`` commands which run until a signal."""

from __future__ import annotations

import logging
import os
import signal
import threading

import pytest

from sqla_shard.cli.jobs_commands import _logging
from sqla_shard.cli.service_loop import log_to_stderr, StopFlag
from sqla_shard.util.processes import ENDING, ending


def test_a_terminal_that_is_closed_does_not_end_what_nohup_started():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending(lambda *details: None):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", ENDING)
def test_a_signal_that_interrupts_no_system_call(number):
    """A signal is noticed even if the call that waits goes on.

    The other thread receives it, as happens when the main thread is between
    two calls: the call that it makes then is not interrupted.
    """

    def receive() -> None:
        # The main thread waits by then; if it does not, this tests less.
        threading.Event().wait(0.1)
        signal.pthread_kill(threading.get_ident(), number)

    with StopFlag() as end:
        other = threading.Thread(target=receive)
        other.start()
        assert end.wait(60)
        other.join()
        # It stays set.
        assert end.wait(0)


def test_other_signals_do_not_end_it():
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with StopFlag() as end:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert not end.wait(0.05)
            assert not end.wait(0)
        assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_the_handlers_of_before_are_restored():
    handlers = (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT))
    with StopFlag():
        assert signal.getsignal(signal.SIGTERM) is not handlers[0]
    assert handlers == (
        signal.getsignal(signal.SIGTERM),
        signal.getsignal(signal.SIGINT),
    )
    before = signal.set_wakeup_fd(-1)
    assert before == -1


@pytest.mark.parametrize("logs", [log_to_stderr, _logging])
def test_texts_in_a_log_control_no_terminal(logs, monkeypatch, capsys):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    with logs():
        log = logging.getLogger("sqla_shard.jobs")
        try:
            raise ValueError("a\x1b[2J\x9b\b\u202e\r\n2026 INFO forged")
        except ValueError as error:
            log.warning("it failed: %s", error, exc_info=True)
    first, *further = capsys.readouterr().err.removesuffix("\n").split("\n")
    assert first.endswith(r"it failed: a\x1b[2J\x9b\x08\u202e\r")
    assert "  2026 INFO forged" in further
    assert "  Traceback (most recent call last):" in further
    assert all(line.startswith("  ") for line in further)
