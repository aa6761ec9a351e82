"""Changing many shards: one first, then a wave, then all others.

Shards that are where the command wants them are left alone.  Of the others
the first is changed by itself: most mistakes of a revision show there.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Any

from alembic.util import CommandError

from sqla_shard.exc import DivergedRevisionsError
from sqla_shard.schema.internal import head
from sqla_shard.schema.options import RunOptions
from sqla_shard.schema.progress import Progress
from sqla_shard.schema.reports import Outcome
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.reports import State
from sqla_shard.schema.running.applying import Applier
from sqla_shard.schema.running.applying import is_relative
from sqla_shard.schema.running.workers import Workers
from sqla_shard.schema.selecting import as_ranges
from sqla_shard.schema.versions import listed
from sqla_shard.schema.versions import Version
from sqla_shard.schema.versions import without_ledger

__all__ = ["check_target", "run"]

#: Commands of alembic that have something to do on every shard.
_ALWAYS = frozenset({"ensure_version"})


def check_target(target: str, versions: Iterable[Version]) -> None:
    """Refuse a relative target where shards are at several revisions.

    :raises DivergedRevisionsError: in that case.
    """
    if not is_relative(target):
        return
    at: dict[str, list[int]] = {}
    for version in versions:
        if version.is_known:
            heads = listed(version.heads)
            at.setdefault(heads, []).append(version.shard.shard_id)
    if len(at) > 1:
        raise DivergedRevisionsError(
            target=target,
            heads={
                heads: f"shards {as_ranges(ids, 4)}"
                for heads, ids in at.items()
            },
        )


def run(
    versions: Sequence[Version],
    *,
    command: str,
    target: str,
    steps: Callable[[tuple[str, ...]], Iterable[Any]],
    applier: Callable[[], Applier],
    options: RunOptions,
    progress: Progress,
    moves: Callable[[Collection[int]], bool],
) -> RunReport:
    """Do what a command does, on every shard that needs it.

    :param versions: where each shard is.
    :param steps: what there is to do for a shard at some revisions.
    :param applier: makes what does it, in each process.
    :param moves: tells whether one of some shards is elsewhere by now.
    """
    began = monotonic()
    keyspace = versions[0].shard.keyspace
    outcomes = dict(_known(versions))
    needs = _needs(versions, command, steps)
    todo = []
    for index, version in enumerate(versions):
        if index in outcomes:
            continue
        need = needs[version.heads]
        if isinstance(need, str):
            outcomes[index] = Outcome.of(
                version.shard, State.FAILED, error=need
            )
        elif need or version.open is not None or _is_old(version, command):
            todo.append(index)
        else:
            outcomes[index] = Outcome.of(version.shard, State.CURRENT)
    stopped = False
    if any(not one.state.is_good for one in outcomes.values()) and not (
        options.continue_on_error
    ):
        # A database that is missing, say: nothing is begun before somebody
        # has looked.
        todo, skipped = [], todo
        for index in skipped:
            outcomes[index] = Outcome.of(versions[index].shard, State.SKIPPED)
    progress.begin(command, target, len(versions), outcomes.values())
    if todo:
        workers = Workers(
            versions=[versions[i] for i in todo],
            jobs=options.jobs,
            applier=applier,
            on_told=progress.stopping,
        )
        with _signals(workers):
            try:
                workers.start()
                for position, outcome in _in_waves(
                    workers, todo, versions, options, moves
                ):
                    outcomes[todo[position]] = outcome
                    progress.advance(outcome)
            finally:
                workers.close()
        stopped = workers.is_told
    report = RunReport(
        command=command,
        target=target,
        keyspace=keyspace,
        outcomes=tuple(outcomes[i] for i in range(len(versions))),
        seconds=monotonic() - began,
        interrupted=stopped,
    )
    progress.end(report)
    return report


def _is_old(version: Version, command: str) -> bool:
    """Tell whether the tables of this package alone have a newer revision."""
    return (
        command == "upgrade"
        and bool(version.heads)
        and version.internal != head()
    )


def _needs(
    versions: Sequence[Version],
    command: str,
    steps: Callable[[tuple[str, ...]], Iterable[Any]],
) -> dict[tuple[str, ...], bool | str]:
    """Tell for each group of revisions whether there is something to do.

    :returns: a text where the scripts do not know these revisions.
    :raises CommandError: when they do not know what is asked for.
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


def _known(versions: Sequence[Version]) -> Iterator[tuple[int, Outcome]]:
    for index, version in enumerate(versions):
        if version.is_missing:
            yield (
                index,
                Outcome.of(
                    version.shard,
                    State.MISSING,
                    error=f"there is no database {version.shard.database} on "
                    f"{version.shard.server}. Is it lost, or elsewhere? "
                    "New databases are made by: sqla-shard schema provision",
                ),
            )
        elif version.lost is not None:
            yield (
                index,
                Outcome.of(version.shard, State.EMPTIED, error=version.lost),
            )
        elif not version.has_ledger:
            yield (
                index,
                Outcome.of(
                    version.shard,
                    State.NO_LEDGER,
                    error=without_ledger(version),
                ),
            )
        elif version.error is not None:
            yield (
                index,
                Outcome.of(
                    version.shard, State.UNREACHABLE, error=version.error
                ),
            )


def _in_waves(
    workers: Workers,
    todo: Sequence[int],
    versions: Sequence[Version],
    options: RunOptions,
    moves: Callable[[Collection[int]], bool],
) -> Iterator[tuple[int, Outcome]]:
    shard_ids = [versions[index].shard.shard_id for index in todo]
    servers = {versions[index].shard.server for index in todo}
    size = options.wave or options.jobs * len(servers)
    waves = [range(1), *_rest(len(todo), size, again=options.wave is not None)]
    for number, wave in enumerate(waves):
        if number and options.pause:
            workers.pause(options.pause)
        if number and not options.continue_on_error and moves(shard_ids):
            # The rest is for a run that goes where the shards are.
            workers.is_stopped = True
        yield from workers.run(wave, goes_on=options.continue_on_error)


def _rest(count: int, size: int, *, again: bool) -> Iterator[range]:
    """Yield the waves after the first shard, by position.

    :param again: whether all waves are of that size, or the last has all.
    """
    first = 1
    while first < count:
        last = min(first + size, count)
        yield range(first, last)
        first = last
        if not again:
            size = count


@contextmanager
def _signals(workers: Workers) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the run after what is in flight."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {
        number: signal.signal(number, workers.stop)
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
