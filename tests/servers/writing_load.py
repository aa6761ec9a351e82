"""Processes that write tokens until they are stopped.

::

    with Load(RawWriter(path=path), shards=range(16), folder=tmp_path,
              seed=7) as load:
        load.wait_for_acks(500)
        ...                             # whatever they are to survive
        load.wait_for_acks(500)
        attempts = load.stop()

Each process has a writer of its own (see :mod:`tests.servers.load_writers`).
It writes one token after another, each to a shard chosen with the seed, and
repeats a token until it is acknowledged or 30 s have passed.  Every attempt is
a line of the process' log (:mod:`tests.servers.load_log`);
:mod:`tests.servers.load_checks` compares them with what the servers have.  The
processes end with the one that started them.

They are forks of one process that has done all imports, which take a second
of processor time with SQLAlchemy, and nothing else.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, TextIO

from tests.servers.load_log import ACKNOWLEDGED, Attempt, line_of, LogReader
from tests.servers.load_writers import Failed, Write

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        "sqla_shard.topology.zookeeper",
        "tests.servers.fleet_writers",
        "tests.servers.writing_load",
        # The last one.
        "tests.workers.freeze",
    ]
)
_PATIENCE = 60.0

#: A load of tests needs no more, and eight of them the time of a processor.
_WRITERS = 8 if os.environ.get("SQLA_SHARD_SOAK") == "1" else 3


@dataclass(frozen=True, kw_only=True)
class _Orders:
    """The arguments of a process.

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
    :param pause: seconds before a token is attempted again, the first time.
        Until it is acknowledged they double, to twice ``rest`` at most.
    :param rest: seconds between a token and the next.  At 0 the writers take
        all of the processors: a standby on the same machine does not catch up
        with its primary, which operations refuse, and what a test reads again
        (logs, rows, binary logs) grows by thousands of rows a second.
    """

    def __init__(
        self,
        writer: Any,
        *,
        shards: Sequence[int],
        folder: Path,
        seed: object,
        processes: int = _WRITERS,
        give_up: float = 30.0,
        prefix: str = "w",
        pause: float = 0.02,
        rest: float = 0.05,
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
        self._processes: list[BaseProcess] = []
        self._connections: list[Connection] = []

    def __enter__(self) -> Load:
        try:
            for orders in self._orders:
                process, connection = _start(orders)
                self._processes.append(process)
                self._connections.append(connection)
            # All begin at once, when the slowest is ready.
            for connection, orders in zip(self._connections, self._orders, strict=True):
                try:
                    connection.recv()
                except EOFError:
                    raise AssertionError(f"no writer: {_complaint(orders)}") from None
            for connection in self._connections:
                connection.send("go")
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
            ended = [p for p in self._processes if not p.is_alive()]
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
        self._close_connections()
        for process, orders in zip(self._processes, self._orders, strict=True):
            process.join(orders.give_up + _PATIENCE)
            if process.exitcode:
                raise AssertionError(
                    f"writer {orders.number} ended with status "
                    f"{process.exitcode}: {_complaint(orders)}"
                )
            if process.exitcode is None:
                raise AssertionError(f"writer {orders.number} does not end")
        return self.attempts()

    def _close_connections(self) -> None:
        while self._connections:
            self._connections.pop().close()

    def _end(self) -> None:
        self._close_connections()
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def _start(orders: _Orders) -> tuple[BaseProcess, Connection]:
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=_work, args=(orders, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def _complaint(orders: _Orders) -> str:
    text = orders.log.with_suffix(".err").read_text(encoding="utf-8")
    failed = [
        attempt.error for attempt in LogReader(orders.log).more() if attempt.error
    ]
    return "\n".join([text, *map(str, failed[-3:])])


# -- in a process of its own ----------------------------------------------


def _work(orders: _Orders, connection: Connection) -> None:
    """Write until the other end of the connection is closed."""
    # Ctrl-C in a terminal is for the tests, which end it.
    os.setsid()
    with orders.log.with_suffix(".err").open("wb") as errors:
        os.dup2(errors.fileno(), 2)
    stopped = threading.Event()
    # One line for each attempt, written at once: the tests read along.
    with (
        orders.log.open("w", encoding="utf-8", buffering=1) as log,
        orders.writer.opened() as write,
    ):
        connection.send("ready")
        with contextlib.suppress(EOFError):
            connection.recv()
        threading.Thread(
            target=_listen, args=(connection, stopped), daemon=True
        ).start()
        rng = random.Random(f"{orders.seed} {orders.number}")
        serial = 0
        while not stopped.is_set():
            token = f"{orders.prefix}{orders.number:02d}-{serial:07d}"
            shard = rng.choice(orders.shards)
            _write_one(write, token, shard, log, orders)
            serial += 1
            if orders.rest:
                stopped.wait(orders.rest)


def _listen(connection: Connection, stopped: threading.Event) -> None:
    with contextlib.suppress(EOFError):
        connection.recv()
    stopped.set()


def _write_one(
    write: Write, token: str, shard: int, log: TextIO, orders: _Orders
) -> None:
    never = threading.Event()
    begin = time.monotonic()
    pause = orders.pause
    while True:
        attempt = _attempt(write, token, shard)
        log.write(line_of(attempt))
        if attempt.outcome in (*ACKNOWLEDGED, "abandoned"):
            return
        if attempt.t1 > begin + orders.give_up:
            return
        never.wait(pause)
        if orders.rest:
            pause = min(2 * pause, 2 * orders.rest)


def _attempt(write: Callable[[str, int], int], token: str, shard: int) -> Any:
    begin = time.monotonic()
    said: dict[str, Any]
    try:
        said = {"outcome": "acked", "local_id": write(token, shard)}
    except Failed as failure:
        said = {"outcome": failure.outcome, "error": str(failure)}
    return Attempt(token=token, shard=shard, t0=begin, t1=time.monotonic(), **said)
