"""Compares acknowledged writes with the rows of the servers.

Pure functions over values, but for :func:`rows_at`, which reads them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tests.servers.load_log import ACKNOWLEDGED, Attempt
from tests.servers.published import connect_to, Place


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The rows of one virtual shard.

    :ivar pins: local id and token.
    :ivar notes: local id of the pin, and token.
    :ivar transfers: amount and token.
    :ivar balance: sum of all transfers, as the writers have added them.
    """

    pins: frozenset[tuple[int, str]] = frozenset()
    notes: tuple[tuple[int, str], ...] = ()
    transfers: frozenset[tuple[int, str]] = frozenset()
    balance: int = 0


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """The times that writers waited, in seconds.

    :ivar gap: the longest time in which nothing was acknowledged.
    :ivar worst: from the first attempt of a token to its acknowledgement,
        for the token that waited longest.
    """

    acknowledged: int
    gap: float
    worst: float
    worst_token: str

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, none for {self.gap:.3f} s, "
            f"worst token {self.worst_token} {self.worst:.3f} s"
        )


# -- reading --------------------------------------------------------------


def rows_at(
    connection: Any, databases: Mapping[int, str], *, has_transfers: bool = False
) -> dict[int, Rows]:
    """Read all rows of some shards.

    :param databases: by their shards.
    :param has_transfers: whether they have the tables of transfers.
    """
    cursor = connection.cursor()
    found = {}
    for shard, name in databases.items():
        cursor.execute(f"SELECT local_id, token FROM `{name}`.load_pins")
        pins = frozenset(cursor.fetchall())
        cursor.execute(f"SELECT pin_local, token FROM `{name}`.load_notes")
        rows = Rows(pins=pins, notes=tuple(cursor.fetchall()))
        if has_transfers:
            cursor.execute(f"SELECT amount, token FROM `{name}`.load_transfers")
            transfers = frozenset(cursor.fetchall())
            cursor.execute(f"SELECT SUM(amount) FROM `{name}`.load_balances")
            ((total,),) = cursor.fetchall()
            rows = replace(rows, transfers=transfers, balance=int(total))
        found[shard] = rows
    return found


def rows_of_places(
    places: Mapping[int, Place], *, has_transfers: bool = False
) -> dict[int, Rows]:
    """Read all rows as the application does, where a topology says."""
    by_url: dict[str, dict[int, str]] = defaultdict(dict)
    for shard, (url, database) in places.items():
        by_url[url][shard] = database
    found = {}
    for url, databases in by_url.items():
        with connect_to(url) as connection:
            found.update(rows_at(connection, databases, has_transfers=has_transfers))
    return found


# -- comparing ------------------------------------------------------------


def check(attempts: Sequence[Attempt], rows: Mapping[int, Rows]) -> list[str]:
    """Return the errors, a line each; nothing if there are none.

    :param attempts: of all writers.
    :param rows: of every shard, from where the topology has it now.
    """
    tokens: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        tokens[attempt.token].append(attempt)
    pins, notes = _by_token(rows)
    problems = [
        f"{attempt.token}: {attempt.error}"
        for attempt in attempts
        if attempt.outcome == "missing"
    ]
    if not any(a.outcome in ACKNOWLEDGED for a in attempts):
        problems.append("nothing was acknowledged")
    for token in sorted({*pins, *notes, *tokens}):
        found = pins.get(token, [])
        problems += [
            f"{token}: {problem}"
            for problem in (
                *_wrong_outcome(tokens.get(token, []), found),
                *_torn(found, notes.get(token, [])),
            )
        ]
    return [*problems, *_wrong_sums(rows, pins)]


def only_old(old: Mapping[int, Rows], new: Mapping[int, Rows]) -> list[str]:
    """Return what an old home of some shards has, and the new one has not."""
    problems = []
    for shard, rows in sorted(old.items()):
        there = new[shard]
        for local_id, token in sorted(rows.pins - there.pins):
            problems.append(f"{token}: pin {shard}/{local_id} only on the old")
        for local_id, token in sorted({*rows.notes} - {*there.notes}):
            problems.append(f"{token}: note of {shard}/{local_id} only there")
    return problems


def pauses(
    attempts: Iterable[Attempt], *, shards: Collection[int] | None = None
) -> Pauses:
    """Return how long writers waited.

    :param shards: of the tokens to look at; all by default.
    """
    first: dict[str, float] = {}
    waited: dict[str, float] = {}
    ends = []
    for attempt in sorted(attempts, key=lambda attempt: attempt.t1):
        if shards is not None and attempt.shard not in shards:
            continue
        begin = first.setdefault(attempt.token, attempt.t0)
        if attempt.outcome in ACKNOWLEDGED:
            ends.append(attempt.t1)
            waited[attempt.token] = attempt.t1 - begin
    worst = max(waited, key=lambda token: waited[token], default="")
    return Pauses(
        acknowledged=len(ends),
        gap=max((b - a for a, b in pairwise(ends)), default=0.0),
        worst=waited.get(worst, 0.0),
        worst_token=worst,
    )


# Where a row was found, and the local id of its pin.
_Found = dict[str, list[tuple[int, int]]]


def _by_token(rows: Mapping[int, Rows]) -> tuple[_Found, _Found]:
    pins: _Found = defaultdict(list)
    notes: _Found = defaultdict(list)
    for shard, there in rows.items():
        for local_id, token in there.pins:
            pins[token].append((shard, local_id))
        for local_id, token in there.notes:
            notes[token].append((shard, local_id))
    return pins, notes


def _wrong_outcome(
    attempts: Sequence[Attempt], found: Sequence[tuple[int, int]]
) -> list[str]:
    """Compare the pins of one token with the answers that its writer had."""
    if not attempts:
        return ["nobody wrote it"]
    shard = attempts[0].shard
    outcomes = {attempt.outcome for attempt in attempts}
    ids = {a.local_id for a in attempts if a.outcome == "acked"}
    problems = []
    if len(found) > 1:
        problems.append(f"is there {len(found)} times: {found}")
    if outcomes & {*ACKNOWLEDGED} and not found:
        problems.append(f"acknowledged as {shard}/{ids or '?'}, and lost")
    if found and not outcomes - {"failed"}:
        problems.append("is there, but all attempts have failed")
    problems += [
        f"is in shard {there}, not in {shard}" for there, _ in found if there != shard
    ]
    if found and ids and ids != {local_id for _, local_id in found}:
        problems.append(f"acknowledged as {ids}, but found as {found}")
    return problems


def _wrong_sums(rows: Mapping[int, Rows], pins: _Found) -> list[str]:
    """Compare both sides of the transfers, and the balances with them."""
    problems = []
    amounts: dict[str, list[int]] = defaultdict(list)
    for shard, there in sorted(rows.items()):
        total = sum(amount for amount, _ in there.transfers)
        if total != there.balance:
            problems.append(
                f"shard {shard}: transfers of {total}, but a balance of {there.balance}"
            )
        for amount, token in there.transfers:
            amounts[token].append(amount)
    for token, parts in sorted(amounts.items()):
        if len(parts) != 2 or sum(parts):
            problems.append(f"{token}: half a transfer: {parts}")
        if token not in pins:
            problems.append(f"{token}: a transfer without its pin")
    return problems


def _torn(
    pins: Sequence[tuple[int, int]], notes: Sequence[tuple[int, int]]
) -> list[str]:
    """Tell whether one of two rows of a transaction is missing."""
    if sorted(pins) == sorted(notes):
        return []
    return [f"half a transaction: pins {pins}, notes {notes}"]
