"""For how long operations of a fleet stop writes, on both kinds of servers.

The kinds take turns, so that ratios are of the same moments of the machine.
Most of a pause are statements one after another: on a machine that is busy
with something else each of them waits for a processor.  ``chrt -r 3`` before
the command lets those of the benchmark go first.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from pathlib import Path

from sqla_shard.fleet import apply
from sqla_shard.fleet.failover import Failover
from tests.benchmarks.servers import TITLES
from tests.servers.fleet_load import create, writing
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_pauses import PauseLog
from tests.servers.fleet_splits import planned, renewed
from tests.servers.kinds import KINDS

_ROUNDS = 8
#: Acknowledged writes before an operation, so that all writers are busy.
_ACKS = 200


def run() -> None:
    """Print the table."""
    _show(with_statements=False)


def profile() -> None:
    """Print the statements of the pauses, too."""
    _show(with_statements=True)


def _show(*, with_statements: bool) -> None:
    print("\nwrites are stopped, median of the pauses and of their ratios")
    for title, writers, is_split in (
        ("planned failover, nobody writes", 0, False),
        ("planned failover, 8 writers", 8, False),
        ("split of 16 shards, nobody writes", 0, True),
        ("split of 16 shards, 8 writers", 8, True),
    ):
        logs = {kind: PauseLog() for kind in KINDS}
        pauses = _measured(logs, writers, is_split=is_split)
        first = next(iter(pauses.values()))
        for kind, found in pauses.items():
            ratio = statistics.median(b / a for a, b in zip(first, found, strict=True))
            print(
                f"  {f'{title}, {TITLES[kind]}':<62}"
                f"{1e3 * statistics.median(found):>11.1f} ms{ratio:>9.2f}x"
            )
            if with_statements:
                _show_statements(logs[kind])


def _show_statements(log: PauseLog) -> None:
    seconds: dict[str, list[float]] = {}
    for one in log.statements:
        seconds.setdefault(one.text, []).append(one.seconds)
    for text, found in seconds.items():
        print(
            f"    {text[:60]:<60}{1e3 * statistics.median(found):>11.2f} ms"
            f"{len(found) / _ROUNDS:>9.1f} times"
        )


def _measured(
    logs: dict[str, PauseLog], writers: int, *, is_split: bool
) -> dict[str, list[float]]:
    """Return the pauses in seconds, by kind."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        fleets = {}
        for name, kind in KINDS.items():
            path = Path(folder, name)
            path.mkdir()
            pairs = FleetPairs(path, spare=int(is_split), shards=16, pair=kind.pair)
            fleets[name] = stack.enter_context(pairs)
            if not is_split:
                create(pairs)
        found: dict[str, list[float]] = {name: [] for name in fleets}
        for number in range(_ROUNDS):
            for name, pairs in fleets.items():
                if is_split:
                    renewed(pairs)
                load = Path(folder, f"{name}{number}")
                with _written(pairs, load, writers):
                    found[name].append(_pause(pairs, logs[name], is_split=is_split))
        return found


@contextmanager
def _written(pairs: FleetPairs, folder: Path, writers: int) -> Iterator[None]:
    if not writers:
        yield
        return
    with writing(pairs, folder, seed=folder.name, processes=writers) as load:
        load.wait_for_acks(_ACKS)
        yield
        load.wait_for_acks(_ACKS)
        load.stop()


def _pause(pairs: FleetPairs, log: PauseLog, *, is_split: bool) -> float:
    fleet = pairs.fleet()
    plan = planned(fleet, pairs) if is_split else Failover.planned(fleet, "server1")
    with log:
        result = apply(fleet, plan, progress=log.progress)
    assert result.problems == (), str(result)
    assert result.pause is not None
    return result.pause
