"""Processes that write tokens until they are told to stop.

::

    with Load(RawWriter(path=path), shards=range(16), folder=tmp_path,
              seed=7) as load:
        load.wait_for_acks(500)
        ...                             # whatever they are to survive
        load.wait_for_acks(500)
        attempts = load.stop()

Each process is a new interpreter with a writer of its own (see
:mod:`tests.servers.load_writers`).  It writes one token after another, each to
a shard chosen with the seed, and repeats a token until it is acknowledged or
30 s have passed.  Every attempt is a line of the process' log
(:mod:`tests.servers.load_log`); :mod:`tests.servers.load_checks` compares them
with what the servers have.  The processes end with the one that started them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from typing import TextIO

from tests.servers.load_log import ACKNOWLEDGED
from tests.servers.load_log import Attempt
from tests.servers.load_log import line_of
from tests.servers.load_log import LogReader
from tests.servers.load_writers import Failed
from tests.servers.load_writers import Write

__all__ = ["Load"]

_ROOT = Path(__file__).parents[2]
_PROGRAM = "from tests.servers.writing_load import work; work()"
_PATIENCE = 60.0
_SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"


@dataclass(frozen=True, kw_only=True)
class _Orders:
    """What a process is told when it begins.

    :ivar give_up: seconds after which a token is left unacknowledged.
    """

    number: int
    writer: Any
    shards: tuple[int, ...]
    seed: str
    log: Path
    give_up: float
    prefix: str
    pause: float
    rest: float


class Load:
    """Starts the processes, tells them to stop, collects their logs.

    :param writer: one of :mod:`tests.servers.load_writers`, or a tuple of
        them, which the processes share evenly.
    :param shards: which are written.
    :param folder: for the logs; an empty one.
    :param seed: of the choice of shards.
    :param processes: how many.
    :param give_up: seconds after which a token is left unacknowledged.
    :param prefix: of its tokens, which no other load has.
    :param pause: seconds before a token is attempted again.
    :param rest: seconds between a token and the next.  At 0, which is the
        default with ``SQLA_SHARD_SOAK=1`` only, the writers take all of the
        processors: the operation under test takes several times as long, and
        what a test reads again (logs, rows, binary logs) grows by thousands
        of rows a second.
    """

    def __init__(
        self,
        writer: Any,
        *,
        shards: Sequence[int],
        folder: Path,
        seed: object,
        processes: int = 8,
        give_up: float = 30.0,
        prefix: str = "w",
        pause: float = 0.005 if _SOAK else 0.02,
        rest: float = 0.0 if _SOAK else 0.05,
    ) -> None:
        writers = writer if isinstance(writer, tuple) else (writer,)
        self._orders = [
            _Orders(
                number=number,
                writer=writers[number % len(writers)],
                shards=tuple(shards),
                seed=str(seed),
                log=folder / f"writer{number}.log",
                give_up=give_up,
                prefix=prefix,
                pause=pause,
                rest=rest,
            )
            for number in range(processes)
        ]
        # One reads each line once: the writers want the processors.
        self._followers = [LogReader(o.log) for o in self._orders]
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Load:
        try:
            for orders in self._orders:
                self._processes.append(_start(orders))
            # All begin at once, when the slowest is ready.
            for process, orders in zip(
                self._processes, self._orders, strict=True
            ):
                if process.stdout.readline() != b"ready\n":
                    raise AssertionError(f"no writer: {_complaint(orders)}")
            for process in self._processes:
                process.stdin.write(b"go\n")
                process.stdin.flush()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *details: object) -> None:
        self._end()

    def attempts(self) -> list[Attempt]:
        """Return all attempts so far, in the order in which they ended."""
        found = [a for o in self._orders for a in LogReader(o.log).more()]
        return sorted(found, key=lambda attempt: attempt.t1)

    def wait_for_acks(
        self,
        count: int,
        *,
        shards: Collection[int] | None = None,
        timeout: float = _PATIENCE,
    ) -> None:
        """Wait until that many more tokens are acknowledged.

        :param shards: count those of these shards only.
        :raises AssertionError: if it takes longer, or a process has ended.
        """
        begin = time.monotonic()
        pause = threading.Event()
        seen = 0
        while True:
            seen += sum(
                attempt.outcome in ACKNOWLEDGED
                and attempt.t1 >= begin
                and (shards is None or attempt.shard in shards)
                for follower in self._followers
                for attempt in follower.more()
            )
            if seen >= count:
                return
            late = time.monotonic() > begin + timeout
            ended = [p for p in self._processes if p.poll() is not None]
            if late or ended:
                said = "\n".join(map(_complaint, self._orders))
                raise AssertionError(
                    f"{seen} of {count} acknowledged within {timeout:g} s,"
                    f" {len(ended)} writers ended\n{said}"
                )
            pause.wait(0.05)

    def stop(self) -> list[Attempt]:
        """Have each process finish its token and end.

        :returns: all attempts, in the order in which they ended.
        :raises AssertionError: if a process has failed.
        """
        for process in self._processes:
            # One that has ended is told of below.
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()
        for process, orders in zip(self._processes, self._orders, strict=True):
            status = process.wait(timeout=orders.give_up + _PATIENCE)
            if status:
                raise AssertionError(
                    f"writer {orders.number} ended with status {status}: "
                    f"{_complaint(orders)}"
                )
        return self.attempts()

    def _end(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdout.close()
            with contextlib.suppress(BrokenPipeError):
                process.stdin.close()


def _start(orders: _Orders) -> subprocess.Popen[bytes]:
    paths = [str(_ROOT), *filter(None, sys.path)]
    with orders.log.with_suffix(".err").open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            cwd=_ROOT,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            # Ctrl-C in a terminal is for the tests, which end it.
            start_new_session=True,
        )
    pickle.dump(orders, process.stdin)
    process.stdin.flush()
    return process


def _complaint(orders: _Orders) -> str:
    text = orders.log.with_suffix(".err").read_text(encoding="utf-8")
    failed = [
        attempt.error
        for attempt in LogReader(orders.log).more()
        if attempt.error
    ]
    return "\n".join([text, *map(str, failed[-3:])])


# -- in a process of its own ----------------------------------------------


def work() -> None:
    """Write until standard input ends."""
    orders: _Orders = pickle.load(sys.stdin.buffer)
    stopped = threading.Event()
    # One line for each attempt, written at once: the tests read along.
    with (
        orders.log.open("w", encoding="utf-8", buffering=1) as log,
        orders.writer.opened() as write,
    ):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.buffer.readline()
        threading.Thread(target=_listen, args=(stopped,), daemon=True).start()
        rng = random.Random(f"{orders.seed} {orders.number}")
        serial = 0
        while not stopped.is_set():
            token = f"{orders.prefix}{orders.number:02d}-{serial:07d}"
            shard = rng.choice(orders.shards)
            _write_one(write, token, shard, log, orders)
            serial += 1
            if orders.rest:
                stopped.wait(orders.rest)


def _listen(stopped: threading.Event) -> None:
    # Not sys.stdin: a thread that waits in it is in the way of an
    # interpreter that ends with an error.
    os.read(0, 1)
    stopped.set()


def _write_one(
    write: Write,
    token: str,
    shard: int,
    log: TextIO,
    orders: _Orders,
) -> None:
    pause = threading.Event()
    begin = time.monotonic()
    while True:
        attempt = _attempt(write, token, shard)
        log.write(line_of(attempt))
        if attempt.outcome in (*ACKNOWLEDGED, "abandoned"):
            return
        if attempt.t1 > begin + orders.give_up:
            return
        pause.wait(orders.pause)


def _attempt(write: Callable[[str, int], int], token: str, shard: int) -> Any:
    begin = time.monotonic()
    said: dict[str, Any]
    try:
        said = {"outcome": "acked", "local_id": write(token, shard)}
    except Failed as failure:
        said = {"outcome": failure.outcome, "error": str(failure)}
    return Attempt(
        token=token, shard=shard, t0=begin, t1=time.monotonic(), **said
    )
