"""Writers in random order and at the same time: nothing is ever lost."""

from __future__ import annotations

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, UTC
from typing import Any

import pytest
from hypothesis import given, HealthCheck, settings, strategies as st

from sqla_shard import Cluster
from sqla_shard.exc import StaleDataError
from tests.models.objects import Thing
from tests.models.objects_harness import raw, remove_raw, set_raw, Suite, thing

UTC = UTC
T0 = datetime(2024, 1, 1, tzinfo=UTC)
T1 = datetime(2025, 1, 1, tzinfo=UTC)


# -- random interleavings ---------------------------------------------------

_sessions = st.integers(0, 2)
_fields = st.sampled_from(["text", "note", "tags", "times", "tree"])
STEPS = st.lists(
    st.one_of(
        st.tuples(_sessions, st.just("set"), _fields, st.integers(0, 2)),
        st.tuples(_sessions, st.just("add"), _fields, st.integers(0, 2)),
        st.tuples(_sessions, st.just("delete"), _fields, st.just(0)),
        st.tuples(
            _sessions,
            st.sampled_from(["flush", "commit", "commit", "rollback"]),
            st.just(""),
            st.just(0),
        ),
    ),
    min_size=4,
    max_size=40,
)


class Model:
    """One session, as it ought to be.

    :ivar base: the row as the session knows it; None where it would have to
        read it again.
    :ivar mine: its own values.
    """

    def __init__(self, cluster: Cluster, object_id: int, expires: bool):
        self.session = cluster.session(expire_on_commit=expires)
        self.object_id = object_id
        self.expires = expires
        self.base: dict | None = None
        self.mine: dict = {}
        self.held: Thing | None = None

    def load(self, row: dict) -> Thing:
        # Held, or the session would forget it and read it again.
        self.held = self.session.get(Thing, self.object_id)
        if self.base is None:
            self.base = json.loads(json.dumps(row))
            self.mine = json.loads(json.dumps(row))
        return self.held

    def flushed(self, row: dict) -> dict | None:
        """Return the row after a flush; None if that is refused."""
        if self.base is None:
            return dict(row)
        merged = dict(row)
        for field in {*self.base, *self.mine}:
            before, after = self.base.get(field), self.mine.get(field)
            if before == after:
                continue
            if row.get(field) != before:
                return None
            if field in self.mine:
                merged[field] = after
            else:
                merged.pop(field, None)
        return merged


def _values(field: str, number: int) -> tuple[Any, Any]:
    """Return a value of a field, and its JSON."""
    if field == "tags":
        return [str(number)], [str(number)]
    if field == "times":
        value = T0.replace(year=2000 + number)
        return [value], [value.isoformat(timespec="microseconds")]
    if field == "tree":
        return {"n": number}, {"n": number}
    return str(number), str(number)


class InterleavingSuite(Suite):
    @given(STEPS, st.booleans())
    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            # The suite runs on several kinds of servers.
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ]
    )
    def test_random_interleavings(self, cluster, steps, expires):
        """Against a model of one writer after another."""
        new = thing(cluster, shard_id=1)
        # Without defaults; NULL and missing are the same to the model.
        set_raw(cluster, Thing, new, {})
        row: dict = {}
        pending: dict | None = None
        holder: Model | None = None
        models = [Model(cluster, new, expires) for _ in range(3)]
        try:
            for index, action, field, number in steps:
                model = models[index]
                if action in ("set", "add", "delete"):
                    found = model.load(row)
                    self.change(model, found, action, field, number)
                    continue
                if action == "rollback":
                    if model.session.in_transaction():
                        model.base = None
                    model.session.rollback()
                    if holder is model:
                        holder = pending = None
                    continue
                if holder not in (None, model):
                    continue  # it would wait for the lock, for ever here
                before = row if pending is None else pending
                merged = model.flushed(before)
                if merged is None:
                    with pytest.raises(StaleDataError):
                        model.session.flush()
                    model.session.rollback()
                    model.base = None
                    holder = pending = None
                    continue
                wrote = model.base != model.mine
                model.session.flush()
                if model.base is not None and wrote:
                    holder, pending = model, merged
                    model.base = json.loads(json.dumps(merged))
                    model.mine = json.loads(json.dumps(merged))
                if action == "commit":
                    model.session.commit()
                    row = merged if holder is model else row
                    if holder is model:
                        holder = pending = None
                    if expires:
                        model.base = None
                    assert raw(cluster, Thing, new) == row
            for model in models:
                model.session.rollback()
            assert raw(cluster, Thing, new) == row
        finally:
            for model in models:
                model.session.close()
            remove_raw(cluster, Thing, new)

    def change(self, model, found, action, field, number) -> None:
        value, json_value = _values(field, number)
        if action == "delete":
            delattr(found, field)
            model.mine.pop(field, None)
        elif action == "set" or field in ("text", "note"):
            setattr(found, field, value)
            model.mine[field] = json_value
        elif field == "tree":
            found.tree[str(number)] = value
            model.mine.setdefault("tree", {})[str(number)] = json_value
        else:
            getattr(found, field).extend(value)
            model.mine.setdefault(field, []).extend(json_value)


# -- threads ----------------------------------------------------------------


class RacingSuite(Suite):
    """Real threads at one row."""

    writers = 20
    rounds = 5

    def race(self, work) -> None:
        start = threading.Barrier(self.writers, timeout=60)

        def run(number: int) -> None:
            start.wait()
            for round_ in range(self.rounds):
                work(number, round_)

        with ThreadPoolExecutor(self.writers) as pool:
            for done in [pool.submit(run, n) for n in range(self.writers)]:
                done.result(timeout=60)

    def test_read_modify_write_under_a_lock(self, cluster):
        new = thing(cluster, tags=[])

        def work(number: int, round_: int) -> None:
            with cluster.begin() as session:
                found = session.get(Thing, new, with_for_update=True)
                found.count += 1
                found.tags.append(f"{number}.{round_}")

        self.race(work)
        document = raw(cluster, Thing, new)
        assert document["count"] == self.writers * self.rounds
        assert sorted(document["tags"]) == sorted(
            f"{number}.{round_}"
            for number in range(self.writers)
            for round_ in range(self.rounds)
        )

    def test_read_modify_write_repeated(self, cluster):
        new = thing(cluster, tags=[])

        def work(number: int, round_: int) -> None:
            def change(session) -> None:
                session.get(Thing, new).count += 1

            cluster.run(change, attempts=10_000, timeout=60)

        self.race(work)
        found = raw(cluster, Thing, new)["count"]
        assert found == self.writers * self.rounds

    def test_each_its_own_field(self, cluster):
        """No retries, and no lost update."""
        new = thing(cluster)

        def work(number: int, round_: int) -> None:
            with cluster.begin() as session:
                found = session.get(Thing, new)
                mine = found.data.setdefault(f"writer {number}", [])
                mine.append(round_)

        self.race(work)
        document = raw(cluster, Thing, new)
        for number in range(self.writers):
            assert document[f"writer {number}"] == [*range(self.rounds)]
