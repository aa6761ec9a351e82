"""Execution of a command on many shards: a canary, a wave, the rest.

Shards at the target revision are skipped.  The first other shard is
changed alone, since most mistakes of a revision become apparent there.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any

from alembic.util import CommandError

from sqla_shard.engine.unreachable import cause_of
from sqla_shard.exc import DivergedRevisionsError
from sqla_shard.schema.applier import Applier, is_relative
from sqla_shard.schema.journal import FirstSent
from sqla_shard.schema.ledger import own_head, revisions_text, Version, without_ledger
from sqla_shard.schema.replay import Plan
from sqla_shard.schema.reports import CommandProgress, Outcome, RunReport, State
from sqla_shard.schema.selection import RunOptions
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.processes import ended_by, handle_ending, waking

#: The signal with this number kills the processes.
_PATIENCE = 3
#: Seconds without a finished shard after which a display is up to date.
_MOMENT = 0.1
#: Seconds within which the processes without work end.
_ENDS_WITHIN = 30.0
#: States that apply to all shards of a server.
_OF_SERVER = frozenset({State.UNREACHABLE, State.READ_ONLY})


class Workers:
    """The worker processes of one run.

    They are processes, since alembic has its environment in global variables.
    They are forked with the revisions loaded, and have one connection each.
    What the first of them has sent is replayed by all.  A process that has run
    the Python code of a revision ends after that shard, and another one is
    forked: what the code has changed in its module is not there for the next
    shard.
    Each process gets one shard at a time, so that no other shard is changed
    after a request to stop.

    :param versions: the shards to change.
    :param jobs: maximum number of processes for each server.
    :param applier: returns the :class:`Applier` of a process.
    :param on_stop: called when a stop is requested; the argument is whether
        processes are killed now.
    :param on_wait: called when no shard has finished for a moment.
    """

    def __init__(
        self,
        versions: Sequence[Version],
        jobs: int,
        applier: Callable[[], Applier],
        on_stop: Callable[[bool], None],
        on_wait: Callable[[], None],
    ) -> None:
        self._on_stop = on_stop
        self._on_wait = on_wait
        self._versions = versions
        self._jobs = jobs
        self._applier = applier
        self._parent = os.getpid()
        self._stops = self._shown_stops = 0
        self._processes: dict[Connection, BaseProcess] = {}
        self._server: dict[Connection, str] = {}
        self._busy: dict[Connection, int] = {}
        #: The plans of all processes, and the revisions of those that each
        #: process has.
        self._plans: dict[tuple[str, ...], Plan] = {}
        self._planned: dict[Connection, set[tuple[str, ...]]] = {}
        #: Outcome of a shard by server, for servers that are down or
        #: read-only.
        self._down: dict[str, Outcome] = {}
        #: The servers of processes that died or ended.
        self._to_restart: list[str] = []
        #: Processes that end by themselves.
        self._ending: list[BaseProcess] = []
        #: The statements of static revisions, by server.
        self._sent: dict[str, dict[tuple[str, str], list[str]]] = {}
        #: What the first shard was sent by revisions whose code has run.
        self._first_sent: dict[tuple[str, str], FirstSent] = {}
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        #: Whether no further shard is started.
        self.is_stopped: bool = False
        #: Whether a signal is the reason for this.
        self.is_interrupted: bool = False

    def start(self) -> None:
        """Fork the processes."""
        counts = Counter(version.shard.server for version in self._versions)
        for server, count in counts.items():
            for _ in range(min(self._jobs, count)):
                self._start(server)

    def _start(self, server: str) -> None:
        # Otherwise every child would print the buffered text.
        sys.stdout.flush()
        sys.stderr.flush()
        ours, theirs = get_context("fork").Pipe()
        process = get_context("fork").Process(
            target=ended_by, args=(self._work, theirs, ours, server), daemon=True
        )
        process.start()
        theirs.close()
        self._processes[ours], self._server[ours] = process, server
        self._planned[ours] = set()

    def _work(self, pipe: Connection, parents_end: Connection, server: str) -> None:
        # With the other end of its pipe open, a process would not notice that
        # its parent died.
        for connection in [*self._processes, parents_end]:
            connection.close()
        # Standard output is reserved for the report of --json.
        sys.stdout = sys.stderr
        # The interpreter would write signals of this process to the pipe of
        # the parent.
        signal.set_wakeup_fd(-1)
        applier = self._applier()
        applier.sent.update(self._sent.get(server, {}))
        handle_ending(applier.stop)
        try:
            while (task := pipe.recv()) is not None:
                index, plans, applier.first_sent = task
                applier.adopt(plans)
                outcome = applier(self._versions[index])
                sent = applier.sent if applier.has_run_code else None
                pipe.send((outcome, applier.made(), sent, applier.first_sent))
                if sent is not None:
                    break
        except (EOFError, ConnectionError):
            pass  # The parent was killed; the shard has been finished.
        finally:
            applier.close()

    def run(
        self, indexes: Iterable[int], *, continue_on_error: bool
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield the outcomes of shards as they finish.

        :param indexes: positions in ``versions``.
        :param continue_on_error: whether to start other shards after a
            failure.
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
                if not outcome.state.is_good and not continue_on_error:
                    self.is_stopped = True
                yield index, outcome
        for server, queue in queues.items():
            for index in queue:
                yield index, self._not_done(index, self._down.get(server))

    def _dispatch(self, queues: dict[str, deque[int]]) -> None:
        for server in self._to_restart[:]:
            if queues.get(server) and not self.is_stopped:
                self._to_restart.remove(server)
                self._start(server)
        for pipe, server in self._server.items():
            if self.is_stopped or server in self._down:
                continue
            queue = queues.get(server)
            if queue and pipe not in self._busy:
                index = queue.popleft()
                # A process that died is found by _received().
                with suppress(BrokenPipeError):
                    pipe.send((index, self._new_plans(pipe), self._first_sent))
                self._busy[pipe] = index

    def _new_plans(self, pipe: Connection) -> dict[tuple[str, ...], Plan]:
        """Return the plans that a process does not have."""
        has = self._planned[pipe]
        new = {h: plan for h, plan in self._plans.items() if h not in has}
        has.update(new)
        return new

    def _received(self) -> Iterator[tuple[int, Outcome]]:
        pipes: list[Connection | int] = [*self._busy, self._reader]
        found = wait(pipes, _MOMENT)
        if not found:
            self._on_wait()
            found = wait(pipes)
        for ready in found:
            if ready == self._reader:
                self._read_signal()
                continue
            assert isinstance(ready, Connection)  # noqa: S101 - one or the other
            index = self._busy.pop(ready)
            try:
                outcome, plans, sent, first_sent = ready.recv()
                self._planned[ready].update(plans)
                # Those of the first process.
                self._plans = {**plans, **self._plans}
                if sent is not None:
                    self._sent[self._server[ready]] = sent
                    self._first_sent = {**first_sent, **self._first_sent}
                    self._ending.append(self._removed(ready))
            except (EOFError, ConnectionResetError):
                outcome = self._lost(ready, index)
            if outcome.state in _OF_SERVER:
                self._down[outcome.server] = outcome
            yield index, outcome

    def _lost(self, pipe: Connection, index: int) -> Outcome:
        process = self._removed(pipe)
        process.join()
        return Outcome.of(
            self._versions[index].shard,
            State.FAILED,
            error=f"the worker process ended with status {process.exitcode}; "
            "the next run checks which statements took effect",
        )

    def _removed(self, pipe: Connection) -> BaseProcess:
        """Return a process that is replaced by another one when needed."""
        pipe.close()
        del self._planned[pipe]
        self._to_restart.append(self._server.pop(pipe))
        return self._processes.pop(pipe)

    def _not_done(self, index: int, before: Outcome | None) -> Outcome:
        shard = self._versions[index].shard
        if before is None:
            return Outcome.of(shard, State.SKIPPED)
        return Outcome.of(shard, before.state, error=before.error, cause=before.cause)

    def pause(self, seconds: float) -> None:
        """Wait, unless a stop is requested."""
        self._on_wait()
        deadline = monotonic() + seconds
        while not self.is_stopped and (left := deadline - monotonic()) > 0:
            if wait([self._reader], left):
                self._read_signal()

    def _read_signal(self) -> None:
        # The handler was called when the read returned, at the latest.
        os.read(self._reader, 64)
        if self._stops > self._shown_stops:
            self._shown_stops = self._stops
            self._on_stop(self._stops >= _PATIENCE)

    @contextmanager
    def stopped_by_signals(self) -> Iterator[None]:
        """Call :meth:`stop` on the signals that end it, in the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with waking(self._writer, self.stop):
            yield

    def stop(self, *details: object) -> None:
        """Stop after the current statements; a signal handler.

        The third signal kills the processes, which may wait for a server that
        does not respond.  The ledger shows which statements were running.
        """
        if os.getpid() != self._parent:
            return  # a process that was just forked gets no work
        self.is_stopped = self.is_interrupted = True
        self._stops += 1
        how = signal.SIGINT if self._stops < _PATIENCE else signal.SIGKILL
        for process in [*self._processes.values(), *self._ending]:
            if process.pid is not None and process.is_alive():
                # The process may have been reaped just before this handler
                # ran.
                with suppress(ProcessLookupError):
                    os.kill(process.pid, how)

    def join(self) -> None:
        """End the processes; those that are busy finish their shards."""
        idle = self._ending[:]
        for pipe, process in self._processes.items():
            # A process that died is found by _received().
            with suppress(BrokenPipeError):
                pipe.send(None)
            pipe.close()
            if pipe in self._busy:
                process.join()
            else:
                idle.append(process)
        deadline = monotonic() + _ENDS_WITHIN
        for process in idle:
            process.join(max(0.0, deadline - monotonic()))
            if process.is_alive():
                # Its outcomes are known; a lock that a thread of this process
                # held at the fork must not stop the command for ever.
                process.kill()
                process.join()

    def close(self) -> None:
        """Close the pipe, which signals write to no longer."""
        os.close(self._reader)
        os.close(self._writer)


#: Commands of alembic that change every shard.
_ALWAYS = frozenset({"ensure_version"})


def check_target(target: str, versions: Iterable[Version]) -> None:
    """Refuse a relative target if shards are at several revisions.

    :raises DivergedRevisionsError: in that case.
    """
    if not is_relative(target):
        return
    at: dict[str, list[int]] = {}
    for version in versions:
        if version.is_known:
            heads = revisions_text(version.heads)
            at.setdefault(heads, []).append(version.shard.shard_id)
    if len(at) > 1:
        raise DivergedRevisionsError(
            target=target,
            heads={heads: f"shards {as_ranges(ids, 4)}" for heads, ids in at.items()},
        )


def run(
    versions: Sequence[Version],
    *,
    command: str,
    target: str,
    steps: Callable[[tuple[str, ...]], Iterable[Any]],
    applier: Callable[[], Applier],
    options: RunOptions,
    progress: CommandProgress,
    has_moved: Callable[[Collection[int]], bool],
    always: Collection[int] = (),
) -> RunReport:
    """Run a command on every shard that is not at its target.

    :param versions: the revisions of each shard.
    :param steps: returns the migration steps from the given revisions.
    :param applier: returns the :class:`Applier` of a process.
    :param has_moved: returns whether any of the given shards was moved.
    :param always: shards that are visited even if there are no steps.
    """
    began = monotonic()
    keyspace = versions[0].shard.keyspace
    outcomes: dict[int, Outcome] = {}
    needs = _needs_steps(versions, command, steps)
    todo = []
    for index, version in enumerate(versions):
        problem = _problem(version)
        need = needs.get(version.heads, False) or version.shard.shard_id in always
        if problem is None and isinstance(need, str):
            problem = State.FAILED, need
        if problem is not None:
            state, error = problem
            cause = version.cause and cause_of(version.cause, responds=False)
            outcomes[index] = Outcome.of(version.shard, state, error=error, cause=cause)
        elif need or version.open is not None or _is_old(version, command):
            todo.append(index)
        else:
            outcomes[index] = Outcome.of(version.shard, State.CURRENT)
    stopped = False
    if any(not one.state.is_good for one in outcomes.values()) and not (
        options.continue_on_error
    ):
        # For a missing database, for example, an operator has to decide
        # before anything is changed.
        todo, skipped = [], todo
        for index in skipped:
            outcomes[index] = Outcome.of(versions[index].shard, State.SKIPPED)
    totals = Counter(version.shard.server for version in versions)
    progress.begin(command, target, totals, outcomes.values())
    try:
        if todo:
            workers = Workers(
                versions=[versions[i] for i in todo],
                jobs=options.jobs,
                applier=applier,
                on_stop=progress.stopping,
                on_wait=progress.waiting,
            )
            with closing(workers), workers.stopped_by_signals():
                try:
                    workers.start()
                    for position, outcome in _in_waves(
                        workers, todo, versions, options, has_moved
                    ):
                        outcomes[todo[position]] = outcome
                        progress.advance(outcome)
                finally:
                    workers.join()
            stopped = workers.is_interrupted
    finally:
        # A terminal would be left without a cursor.
        progress.end()
    return RunReport(
        command=command,
        target=target,
        keyspace=keyspace,
        outcomes=tuple(outcomes[i] for i in range(len(versions))),
        seconds=monotonic() - began,
        interrupted=stopped,
    )


def _is_old(version: Version, command: str) -> bool:
    """Return whether only the tables of this package need an upgrade."""
    return (
        command == "upgrade" and bool(version.heads) and version.internal != own_head()
    )


def _needs_steps(
    versions: Sequence[Version],
    command: str,
    steps: Callable[[tuple[str, ...]], Iterable[Any]],
) -> dict[tuple[str, ...], bool | str]:
    """Return whether there are steps to run, for each group of revisions.

    :returns: True, False, or an error message for revisions without a script.
    :raises CommandError: if no script has the target.
    """
    needs: dict[tuple[str, ...], bool | str] = {}
    error: CommandError | None = None
    for version in versions:
        heads = version.heads
        if not version.is_known or heads in needs:
            continue
        try:
            needs[heads] = command in _ALWAYS or bool(list(steps(heads)))
        except CommandError as found:
            error = found
            needs[heads] = f"it is at {', '.join(heads)}: {found}"
    if error is not None and all(isinstance(n, str) for n in needs.values()):
        raise error
    return needs


def _problem(version: Version) -> tuple[State, str] | None:
    """Return the reason why a shard cannot be changed, or None."""
    if version.is_missing:
        return State.MISSING, (
            f"database {version.shard.database} not found on "
            f"{version.shard.server}; it may be lost, or on another server. "
            "To create new databases: sqla-shard schema provision"
        )
    if version.lost is not None:
        return State.EMPTIED, version.lost
    if not version.has_ledger:
        return State.NO_LEDGER, without_ledger(version)
    if version.error is not None:
        return State.UNREACHABLE, version.error
    return None


def _in_waves(
    workers: Workers,
    todo: Sequence[int],
    versions: Sequence[Version],
    options: RunOptions,
    has_moved: Callable[[Collection[int]], bool],
) -> Iterator[tuple[int, Outcome]]:
    shard_ids = [versions[index].shard.shard_id for index in todo]
    servers = {versions[index].shard.server for index in todo}
    states: dict[object, list[int]] = {}
    for position, index in enumerate(todo):
        version = versions[index]
        states.setdefault((version.heads, version.open is None), []).append(position)
    is_first, is_good = True, False

    def run(wave: Sequence[int]) -> Iterator[tuple[int, Outcome]]:
        nonlocal is_first, is_good
        if not is_first:
            if options.pause:
                workers.pause(options.pause)
            if not options.continue_on_error and has_moved(shard_ids):
                # The next run reads the new topology.
                workers.is_stopped = True
        is_first = False
        for position, outcome in workers.run(
            wave, continue_on_error=options.continue_on_error
        ):
            is_good = outcome.state.is_good
            yield position, outcome

    others: list[int] = []
    for positions in map(iter, states.values()):
        for position in positions:
            # Alone, until one has succeeded: the others have to get the statements
            # that the code of its revisions has sent.
            yield from run([position])
            if is_good or workers.is_stopped:
                break
        others += positions
    others.sort()
    size = options.wave or options.jobs * len(servers)
    last = len(others) + size
    ends = range(size, last, size) if options.wave else (size, last)
    for begin, end in pairwise((0, *ends)):
        if others[begin:end]:
            yield from run(others[begin:end])
