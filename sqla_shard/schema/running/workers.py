"""Processes that change shards, a few for each server.

Alembic keeps its environment in global variables, so shards are changed at
the same time by processes, not by threads.  They are forked, with the
revisions loaded; each has one connection.  Shards are sent to them one at a
time, and so none that is not needed any more is begun.
"""

from __future__ import annotations

import os
import signal
import sys
from collections import deque
from collections.abc import Callable
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import State
from sqla_shard.schema.running.applying import Applier
from sqla_shard.schema.versions import Version

__all__ = ["Workers"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
#: With how many of them statements in flight are not waited for any more.
_PATIENCE = 3
#: What is true of all shards of a server.
_OF_SERVER = frozenset({State.UNREACHABLE, State.READ_ONLY})


class Workers:
    """The processes of one run.

    :param versions: the shards that there is something to do for.
    :param jobs: how many processes for each server, at most.
    :param applier: makes what each process does.
    :param on_told: called when the run is told to stop, with whether
        processes are killed now.
    """

    def __init__(
        self,
        versions: Sequence[Version],
        jobs: int,
        applier: Callable[[], Applier],
        on_told: Callable[[bool], None],
    ) -> None:
        self._on_told = on_told
        self._versions = versions
        self._jobs = jobs
        self._applier = applier
        self._parent = os.getpid()
        self._told = 0
        self._processes: dict[Connection, BaseProcess] = {}
        self._server: dict[Connection, str] = {}
        self._busy: dict[Connection, int] = {}
        #: What became of a shard of each server that can do no other.
        self._down: dict[str, Outcome] = {}
        #: The servers of processes that have died.
        self._bereft: list[str] = []
        self._reader, self._writer = os.pipe()
        #: Whether no other shard is to be begun.
        self.is_stopped = False
        #: Whether that is because somebody has said so.
        self.is_told = False

    def start(self) -> None:
        """Fork the processes."""
        counts: dict[str, int] = {}
        for version in self._versions:
            counts[version.shard.server] = (
                counts.get(version.shard.server, 0) + 1
            )
        for server, count in counts.items():
            for _ in range(min(self._jobs, count)):
                self._start(server)

    def _start(self, server: str) -> None:
        # What is buffered would be printed by every child.
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = get_context("fork").Pipe()
        process = get_context("fork").Process(
            target=self._work, args=(theirs, ours), daemon=True
        )
        process.start()
        theirs.close()
        self._processes[ours], self._server[ours] = process, server

    def _work(self, pipe: Connection, parents_end: Connection) -> None:
        # While a process has the other end of a pipe it would never learn
        # that its parent is gone.
        for connection in [*self._processes, parents_end]:
            connection.close()
        # The report is alone on standard output, for --json.
        sys.stdout = sys.stderr
        applier = self._applier()
        for number in _SIGNALS:
            signal.signal(number, applier.stop)
        try:
            while (index := pipe.recv()) is not None:
                pipe.send(applier(self._versions[index]))
        except (EOFError, ConnectionError):
            pass  # The parent was killed; the shard has been finished.
        finally:
            applier.close()

    # -- in the parent

    def run(
        self, indexes: Iterable[int], *, goes_on: bool
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield what became of shards, as they are done.

        :param indexes: of :attr:`versions`.
        :param goes_on: whether to begin others after one has failed.
        """
        queues: dict[str, deque[int]] = {}
        for index in indexes:
            server = self._versions[index].shard.server
            queues.setdefault(server, deque()).append(index)
        while True:
            self._dispatch(queues)
            if not self._busy:
                break
            for index, outcome in self._received():
                if not outcome.state.is_good and not goes_on:
                    self.is_stopped = True
                yield index, outcome
        for server, queue in queues.items():
            for index in queue:
                yield index, self._not_done(index, self._down.get(server))

    def _dispatch(self, queues: dict[str, deque[int]]) -> None:
        while self._bereft and not self.is_stopped:
            self._start(self._bereft.pop())
        for pipe, server in self._server.items():
            if self.is_stopped or server in self._down:
                continue
            queue = queues.get(server)
            if queue and pipe not in self._busy:
                index = queue.popleft()
                # One that has died is told of when it is waited for.
                with suppress(BrokenPipeError):
                    pipe.send(index)
                self._busy[pipe] = index

    def _received(self) -> Iterator[tuple[int, Outcome]]:
        for ready in wait([*self._busy, self._reader]):
            if ready == self._reader:
                self._hear()
                continue
            assert isinstance(ready, Connection)  # noqa: S101 - one or the other
            index = self._busy.pop(ready)
            try:
                outcome: Outcome = ready.recv()
            except (EOFError, ConnectionResetError):
                outcome = self._lost(ready, index)
            if outcome.state in _OF_SERVER:
                self._down[outcome.server] = outcome
            yield index, outcome

    def _lost(self, pipe: Connection, index: int) -> Outcome:
        process = self._processes.pop(pipe)
        process.join()
        pipe.close()
        self._bereft.append(self._server.pop(pipe))
        return Outcome.of(
            self._versions[index].shard,
            State.FAILED,
            error=f"the process that worked on it ended with status "
            f"{process.exitcode}; the next run looks at what it has done",
        )

    def _not_done(self, index: int, before: Outcome | None) -> Outcome:
        shard = self._versions[index].shard
        if before is None:
            return Outcome.of(shard, State.SKIPPED)
        return Outcome.of(shard, before.state, error=before.error)

    def pause(self, seconds: float) -> None:
        """Wait, unless and until told to stop."""
        if not self.is_stopped and wait([self._reader], seconds):
            self._hear()

    def _hear(self) -> None:
        os.read(self._reader, 64)
        self._on_told(self._told >= _PATIENCE)

    def stop(self, *details: object) -> None:
        """Let statements in flight end and begin no other; a handler.

        The third time processes are killed: a server that does not answer
        would keep them for ever.  The ledger tells what was in flight.
        """
        if os.getpid() != self._parent:
            return  # A process that was just forked gets no work any more.
        self.is_stopped = self.is_told = True
        self._told += 1
        how = signal.SIGINT if self._told < _PATIENCE else signal.SIGKILL
        os.write(self._writer, b".")
        for process in self._processes.values():
            if process.pid is not None and process.is_alive():
                # It may have been waited for where this has interrupted.
                with suppress(ProcessLookupError):
                    os.kill(process.pid, how)

    def close(self) -> None:
        """Let the processes end."""
        for pipe, process in self._processes.items():
            # One that has died is told of when it is waited for.
            with suppress(BrokenPipeError):
                pipe.send(None)
            pipe.close()
            process.join()
        os.close(self._reader)
        os.close(self._writer)
