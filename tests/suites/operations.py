"""Operations that a transaction enqueues for other shards.

Each class is a suite; a test module has a fixture ``cluster``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import random
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from enum import IntEnum
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sqla_shard import Cluster, Operation, operation, ShardSession
from sqla_shard.exc import (
    CrossShardWriteError,
    OperationArgumentError,
    OperationDefinitionError,
    ServerUnreachableError,
    UnknownOperationError,
)
from sqla_shard.outbox import apply, discard
from sqla_shard.outbox.apply import function_named
from sqla_shard.testing import StatementLog
from tests.models.operation_models import (
    Account,
    add,
    after_crash,
    count_applied,
    Email,
    entries,
    first_of_each,
    forget_all,
    hop,
    intend,
    make_due,
    note,
    OPERATIONS,
    points,
    register,
    set_to,
    Setting,
)

NEAR, FAR = 1, 6  # shards on two servers


class Suite:
    """Accounts of its own for each test, and nothing left by others."""

    @pytest.fixture(autouse=True)
    def _patient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        # On a busy machine a COMMIT would leave the last of several to
        # workers.
        monkeypatch.setattr(apply, "_APPLY_SECONDS", 120.0)

    @pytest.fixture
    def ids(self, cluster: Cluster) -> list[int]:
        forget_all(cluster)
        return first_of_each(cluster)

    @pytest.fixture
    def defined(self) -> Iterator[Callable[..., Operation[Any]]]:
        """Define operations, and undefine them after the test."""
        before = dict(apply._functions)

        def define(function: Any, **options: Any) -> Operation[Any]:
            return operation(f"tests.{function.__name__}", **options)(function)

        yield define
        apply._functions.clear()
        apply._functions.update(before)

    @pytest.fixture
    def mark(self, rng: random.Random) -> str:
        return f"{rng.randrange(10**12)}"

    def only(self, cluster: Cluster, mark: str) -> dict[tuple[int, str], int]:
        """Return the entries of one test, and how often each is there."""
        found = entries(cluster).items()
        return {key: n for key, n in found if key[1].startswith(mark)}


class Intending(Suite):
    """The shard on which an operation is applied, and the time."""

    def test_done_after_commit(self, cluster, ids, mark):
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            assert add.intend(session, ids[FAR], 5) is False
            assert note.intend(session, ids[0], text=mark) is False
            # It is not visible, not even to this transaction.
            assert session.get(Account, ids[FAR]).points == 0
            assert cluster.pending() == []
        assert session.pending == ()
        assert points(cluster, [ids[NEAR], ids[FAR]]) == [1, 5]
        assert self.only(cluster, mark) == {(ids[0], mark): 1}
        assert cluster.pending() == []
        assert count_applied(cluster) == 2

    @pytest.mark.parametrize("way", ["ordered", "unordered"])
    def test_at_once_where_several_may_be_written(self, cluster, ids, way):
        with cluster.begin(cross_shard=way) as session:
            add(session, ids[NEAR], 1)
            assert add.intend(session, ids[FAR], 5) is True
        assert points(cluster, [ids[NEAR], ids[FAR]]) == [1, 5]
        assert count_applied(cluster) == 0

    @pytest.mark.parametrize("way", [None, "logged"])
    def test_at_once_on_the_same_shard(self, cluster, ids, way):
        with cluster.begin(cross_shard=way) as session:
            assert add.intend(session, ids[NEAR], 5) is True
            assert add.intend(session, ids[NEAR], n=5) is True
        assert points(cluster, [ids[NEAR]]) == [10]
        assert count_applied(cluster) == 0

    def test_a_change_that_is_not_flushed_names_the_shard(self, cluster, ids):
        with cluster.begin(cross_shard="logged") as session:
            session.get(Account, ids[NEAR]).points = 3
            assert add.intend(session, ids[FAR], 5) is False
        assert points(cluster, [ids[NEAR], ids[FAR]]) == [3, 5]

    def test_refused_without_the_option(self, cluster, ids):
        with cluster.session() as session:
            add(session, ids[NEAR], 1)
            with pytest.raises(CrossShardWriteError, match="logged"):
                add.intend(session, ids[FAR], 5)
            session.commit()
        assert points(cluster, [ids[NEAR], ids[FAR]]) == [1, 0]

    def test_logged_does_not_let_it_write_two(self, cluster, ids):
        with cluster.session(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            with pytest.raises(CrossShardWriteError):
                add(session, ids[FAR], 1)

    def test_to_mod_and_global_shards(self, cluster, ids, mark):
        key = f"{mark}@example.com"
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            assert register.intend(session, key, ids[NEAR]) is False
            assert set_to.intend(session, "color", mark) is False
        with cluster.session() as session:
            assert Email.resolve(session, key) == ids[NEAR]
            assert session.get(Setting, "color").value == mark

    def test_from_a_global_shard(self, cluster, ids, mark):
        with cluster.begin(cross_shard="logged") as session:
            set_to(session, "from", mark)
            assert note.intend(session, ids[FAR], text=mark) is False
            # The same, without a word to it.
            assert set_to.intend(session, "from", f"{mark}!") is True
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_chains(self, cluster, ids, mark):
        chain = [ids[6], ids[1], ids[6], ids[3], ids[0]]
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            assert hop.intend(session, chain, mark) is False
        found = self.only(cluster, mark)
        assert found == {(one, mark): chain.count(one) for one in chain}
        assert cluster.pending() == []

    def test_a_chain_that_has_stopped(self, cluster, ids, mark):
        chain = [ids[6], ids[1], ids[3]]
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            hop.intend(session, chain, mark)
        steps = 0
        while cluster.pending():
            make_due(cluster)
            # Each step dies as well, before it has the next one done.
            with after_crash():
                steps += cluster.repair().applied
        assert steps == len(chain)
        assert self.only(cluster, mark) == {(one, mark): 1 for one in chain}

    def test_rolled_back(self, cluster, ids, mark):
        with cluster.session(cross_shard="logged") as session:
            intend(session, ids[NEAR], ids[FAR], mark)
            session.rollback()
            session.commit()
        assert self.only(cluster, mark) == {}
        assert cluster.pending() == []
        assert points(cluster, [ids[NEAR]]) == [0]

    def test_rolled_back_to_a_savepoint(self, cluster, ids, mark):
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            note.intend(session, ids[FAR], text=f"{mark} first")
            savepoint = session.begin_nested()
            note.intend(session, ids[FAR], text=f"{mark} not")
            savepoint.rollback()
            with session.begin_nested():
                note.intend(session, ids[FAR], text=f"{mark} last")
        assert self.only(cluster, mark) == {
            (ids[FAR], f"{mark} first"): 1,
            (ids[FAR], f"{mark} last"): 1,
        }

    def test_its_home_was_rolled_back_to_a_savepoint(self, cluster, ids, mark):
        with cluster.begin(cross_shard="logged") as session:
            savepoint = session.begin_nested()
            intend(session, ids[NEAR], ids[FAR], f"{mark} not")
            savepoint.rollback()
            # Nothing is written, so another shard may be.
            intend(session, ids[FAR], ids[NEAR], mark)
        assert self.only(cluster, mark) == {(ids[NEAR], mark): 1}
        assert points(cluster, [ids[NEAR], ids[FAR]]) == [0, 1]

    def test_one_session_many_transactions(self, cluster, ids, mark):
        with cluster.session(cross_shard="logged") as session:
            for n in range(3):
                intend(session, ids[NEAR], ids[FAR], f"{mark} {n}")
                session.commit()
        assert len(self.only(cluster, mark)) == 3

    @pytest.mark.parametrize("key", [None, "with a key"])
    def test_run(self, cluster, ids, mark, key):
        key = key and f"{key} {mark}"
        attempts = []

        def write(session: ShardSession) -> str:
            attempts.append(1)
            intend(session, ids[NEAR], ids[FAR], mark)
            return "done"

        assert cluster.run(write, key=key, cross_shard="logged") == "done"
        assert len(attempts) == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_a_repeated_run_leaves_what_it_did_last(self, cluster, ids, mark):
        attempts = []

        def write(session: ShardSession) -> None:
            attempts.append(1)
            intend(session, ids[NEAR], ids[FAR], f"{mark} {len(attempts)}")
            if len(attempts) == 1:
                raise _conflict(cluster)

        cluster.run(write, cross_shard="logged")
        assert self.only(cluster, mark) == {(ids[FAR], f"{mark} 2"): 1}

    def test_cost(self, cluster, ids, mark):
        """One INSERT for each; after COMMIT one transaction for each.

        And one that deletes them.
        """
        for count in (1, 3):
            with StatementLog() as log, cluster.begin(cross_shard="logged") as session:
                add(session, ids[NEAR], 1)
                for _ in range(count):
                    note.intend(session, ids[FAR], text=mark)
                assert log.count() == 1 + count
                assert log.count("commit") == 0
            statements = [s for s in log.statements if "entries" not in s]
            # Token and operation, and one DELETE of the intents.
            assert len(statements) == 1 + count + count + 1
            assert log.count("commit") == 1 + count + 1

    def test_intending_to_the_own_shard_costs_nothing(self, cluster, ids):
        with StatementLog() as log, cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            add.intend(session, ids[NEAR], 1)
        assert (log.count(), log.count("commit")) == (2, 1)


def _conflict(cluster: Cluster) -> DBAPIError:
    """Return the driver's error for a conflict with another transaction."""
    backends = cluster.places.engines.backends()
    if "sqlite" in {type(b).__module__.rpartition(".")[2] for b in backends}:
        import sqlite3

        original: Exception = sqlite3.OperationalError("database is locked")
        # SQLITE_BUSY, a name that sqlite3 has since Python 3.11.
        original.sqlite_errorcode = 5  # type: ignore[attr-defined]
    else:
        import pymysql

        original = pymysql.err.OperationalError(1213, "Deadlock found")
    return DBAPIError("UPDATE", {}, original)


class Color(IntEnum):
    RED = 1


def random_json(rng: random.Random, depth: int = 0) -> Any:
    """Return anything that a pending operation can store."""
    kinds = ["none", "bool", "int", "float", "str"]
    if depth < 4:
        kinds += ["list", "dict"]
    kind = rng.choice(kinds)
    if kind == "none":
        return None
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "int":
        return rng.choice([0, -1, 1]) * rng.getrandbits(rng.randrange(1, 90))
    if kind == "float":
        return rng.choice(
            [0.0, -0.0, 0.1, 1e308, 5e-324, rng.random() * 10 ** rng.randrange(30)]
        )
    if kind == "str":
        letters = "ab\"'\\\0\n%{}:é€𝄞\ud800\u202e"
        return "".join(rng.choices(letters, k=rng.randrange(9)))
    inner = [random_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == "list":
        return inner
    return {f"{i}{random_json(rng, 9)}": one for i, one in enumerate(inner)}


class Arguments(Suite):
    """Arguments that can be stored, and others."""

    def test_arguments_are_stored_exactly(self, cluster, ids, defined, rng):
        heard: list[Any] = []

        def hear(session, account_id, value, more=None):
            heard.append((account_id, value, more))

        hear = defined(hear)
        given = [random_json(rng) for _ in range(60)]
        for number, value in enumerate(given):
            with after_crash(), cluster.begin(cross_shard="logged") as session:
                add(session, ids[NEAR], 1)
                hear.intend(session, ids[FAR], value, more=[number, value])
        make_due(cluster)
        # In the order of their tokens, which is none.
        assert cluster.repair().applied == len(given)
        expected = {
            repr((ids[FAR], value, [number, value]))
            for number, value in enumerate(given)
        }
        assert {repr(one) for one in heard} == expected
        assert len(heard) == len(given)

    def test_as_they_were_when_it_was_left(self, cluster, ids, defined):
        """Later changes of a list do not change the arguments."""
        heard: list[Any] = []

        def keep(session, account_id, values):
            heard.append(list(values))
            values.clear()

        keep = defined(keep)
        values = [1, [2]]
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            keep.intend(session, ids[FAR], values)
            values.append(3)
            values[1].append(4)
        assert heard == [[1, [2]]]
        assert values == [1, [2, 4], 3]

    @pytest.mark.parametrize(
        "value",
        [
            b"bytes",
            (1, 2),
            {1: 2},
            {"a": (1,)},
            {1, 2},
            float("nan"),
            float("inf"),
            [float("-inf")],
            Decimal(1),
            Color.RED,
            object(),
            Path("a"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_refused(self, cluster, ids, defined, value):
        def take(session, account_id, value):
            raise AssertionError("never called")

        take = defined(take)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            for target in (ids[NEAR], ids[FAR]):
                # Also where it would be done at once: a shard may move.
                with pytest.raises(OperationArgumentError) as caught:
                    take.intend(session, target, value)
                assert caught.value.parameter == "value"
                assert caught.value.operation == "tests.take"

    def test_one_that_has_no_end(self, cluster, ids, defined):
        def take(session, account_id, value):
            raise AssertionError("never called")

        take = defined(take)
        endless: list[Any] = []
        endless.append(endless)
        with cluster.session() as session:
            with pytest.raises(OperationArgumentError):
                take.intend(session, ids[FAR], endless)
            with pytest.raises(OperationArgumentError, match="bytes"):
                take.intend(session, ids[FAR], "x" * 1_000_001)

    def test_a_long_one(self, cluster, ids, defined):
        heard = []

        def take(session, account_id, value):
            heard.append(value)

        take = defined(take)
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            take.intend(session, ids[FAR], "x" * 999_900)
        make_due(cluster)
        assert cluster.repair().applied == 1
        assert heard == ["x" * 999_900]

    def test_that_do_not_fit(self, cluster, ids):
        with cluster.session() as session:
            with pytest.raises(OperationArgumentError, match="do not match"):
                add.intend(session, ids[FAR])
            with pytest.raises(OperationArgumentError, match="do not match"):
                add.intend(session, ids[FAR], 1, wrong=2)

    def test_no_shard_in_them(self, cluster, ids, defined):
        def take(session, account_id=None):
            raise AssertionError("never called")

        take = defined(take)
        with (
            cluster.session() as session,
            pytest.raises(OperationArgumentError, match="names the shard"),
        ):
            take.intend(session)

    def test_invalid_definitions(self, defined):
        async def awaited(session, account_id):
            raise AssertionError("never called")

        def yields(session, account_id):
            yield session

        async def does_both(session, account_id):
            yield session

        for function in (
            *(awaited, yields, does_both),
            lambda session: None,
            lambda session, *ids: None,
            lambda session, **more: None,
            lambda session, account_id, /: None,
            3,
        ):
            with pytest.raises(OperationDefinitionError) as caught:
                operation("tests.wrong")(function)  # type: ignore[arg-type]
            assert caught.value.operation == "tests.wrong"
        for name in ("", "x" * 201, 3, None):
            with pytest.raises(OperationDefinitionError, match="its name"):
                operation(name)  # type: ignore[arg-type]
        with pytest.raises(
            OperationDefinitionError, match="must be one of its parameters"
        ):
            operation("tests.wrong", on="who")(lambda session, account: 1)

    def test_a_name_that_is_taken(self, defined):
        def first(session, account_id): ...

        def second(session, account_id): ...

        defined(first)
        with pytest.raises(OperationDefinitionError, match="already"):
            operation("tests.first")(second)
        assert function_named("tests.first") is first

    def test_a_module_that_is_loaded_again(
        self, cluster, ids, defined, tmp_path, monkeypatch, mark
    ):
        text = (
            "from sqla_shard import operation\n"
            "from tests.models.operation_models import note\n"
            "@operation('tests.reloaded')\n"
            "def reloaded(session, account_id, text):\n"
            "    note(session, account_id, text=text + '{}')\n"
        )
        path = tmp_path / "reloaded_operations.py"
        path.write_text(text.format("old"))
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        module = importlib.import_module("reloaded_operations")
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            module.reloaded.intend(session, ids[FAR], mark)
            path.write_text(text.format("new"))
            importlib.reload(module)
        assert self.only(cluster, mark) == {(ids[FAR], f"{mark}new"): 1}


class Failing(Suite):
    """Operations that cannot be done."""

    def left(self, cluster: Cluster, ids: list[int], op: Any, *args: Any) -> Any:
        """Enqueue one, and return the pending operation."""
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            assert op.intend(session, ids[FAR], *args) is False
        (one,) = cluster.pending()
        (pending,) = session.pending
        assert pending.token.hex() == one.token
        return one

    def test_one_that_raises(self, cluster, ids, defined, mark):
        wrong = [True]

        def shaky(session, account_id):
            note(session, account_id, text=mark)
            session.flush()
            if wrong:
                raise ZeroDivisionError("not now")

        one = self.left(cluster, ids, defined(shaky))
        assert one.error == "ZeroDivisionError: not now"
        assert one.attempts == 1
        assert one.home == ("objects", NEAR)
        assert one.target == ("objects", FAR)
        assert "tests.shaky" in str(one)
        assert json.loads(json.dumps(one.as_dict()))["error"] == one.error
        # The COMMIT has succeeded nevertheless, without anything else.
        assert points(cluster, [ids[NEAR]]) == [1]
        assert self.only(cluster, mark) == {}
        assert count_applied(cluster) == 0
        make_due(cluster)
        report = cluster.repair()
        assert (report.applied, len(report.failed)) == (0, 1)
        assert not report.ok
        assert "not now" in report.failed[0]
        (again,) = cluster.pending()
        assert again.attempts == 2
        assert again.due_at > one.due_at
        # Not before it is due.
        assert cluster.repair().failed == ()
        wrong.clear()
        make_due(cluster)
        report = cluster.repair()
        assert (report.applied, report.ok) == (1, True)
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}
        assert cluster.pending() == []

    def test_one_fails_and_the_others_are_done(self, cluster, ids, defined, mark):
        def fails(session, account_id):
            raise ZeroDivisionError

        fails = defined(fails)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            note.intend(session, ids[FAR], text=f"{mark} 1")
            fails.intend(session, ids[FAR])
            note.intend(session, ids[FAR], text=f"{mark} 2")
        assert [i.operation for i in session.pending] == ["tests.fails"]
        assert len(self.only(cluster, mark)) == 2
        assert len(cluster.pending()) == 1

    def test_a_server_that_is_down_is_waited_for_once(
        self, cluster, ids, mark, monkeypatch
    ):
        """Not by each operation for it, and not by those for others."""
        tried = []

        def apply_once(home: Any, intent: Any) -> Any:
            tried.append(intent.target[1])
            if intent.target[1] != 0:
                error = ConnectionError("it takes ten seconds to say so")
                raise ServerUnreachableError(server=away, error=error)
            return original(home, intent)

        places = cluster.places
        away = places.place(places.keyspace("objects", ""), FAR).server
        original = apply._apply
        with monkeypatch.context() as patch:
            patch.setattr(apply, "_apply", apply_once)
            with cluster.begin(cross_shard="logged") as session:
                add(session, ids[NEAR], 1)
                for target in (FAR, FAR, FAR + 1, 0):
                    note.intend(session, ids[target], text=mark)
        assert tried == [FAR, 0]
        assert len(session.pending) == 3
        assert all("ten seconds" in p.error for p in cluster.pending())
        assert self.only(cluster, mark) == {(ids[0], mark): 1}
        assert cluster.repair(now=True).applied == 3

    @pytest.mark.parametrize("quiet", [False, True])
    def test_one_that_commits_itself(self, cluster, ids, defined, mark, quiet):
        def committing(session, account_id):
            note(session, account_id, text=mark)
            try:
                session.commit()
            except OperationDefinitionError:
                if not quiet:
                    raise
                session.rollback()
                note(session, account_id, text=mark)

        one = self.left(cluster, ids, defined(committing))
        assert "OperationDefinitionError" in one.error
        assert self.only(cluster, mark) == {}
        assert count_applied(cluster) == 0

    @pytest.mark.parametrize("how", ["rollback", "close"])
    def test_one_that_ends_its_transaction(self, cluster, ids, defined, mark, how):
        """Its writes after that lack the token, and might be repeated."""

        def ending(session, account_id):
            getattr(session, how)()
            note(session, account_id, text=mark)

        one = self.left(cluster, ids, defined(ending))
        assert "ended its transaction" in one.error
        assert self.only(cluster, mark) == {}

    def test_one_that_catches_an_error(self, cluster, ids, defined, mark):
        """A statement that failed and undid nothing is no reason."""

        def catching(session, account_id):
            connection = session.connection({"shard_id": FAR})
            with pytest.raises(SQLAlchemyError):
                connection.execute(text("SELECT nothing FROM nowhere"))
            note(session, account_id, text=mark)

        catching = defined(catching)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            catching.intend(session, ids[FAR])
        assert cluster.pending() == []
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_one_that_writes_another_shard(self, cluster, ids, defined, mark):
        def straying(session, account_id, other):
            note(session, account_id, text=mark)
            note(session, other, text=mark)

        one = self.left(cluster, ids, defined(straying), ids[0])
        assert "CrossShardWriteError" in one.error
        assert self.only(cluster, mark) == {}

    def test_one_that_is_not_defined(self, cluster, ids, defined, mark):
        def later(session, account_id):
            note(session, account_id, text=mark)

        later = defined(later)
        function = apply._functions.pop("tests.later")
        one = self.left(cluster, ids, later)
        assert one.error.startswith("UnknownOperationError")
        assert not one.is_known
        with pytest.raises(UnknownOperationError):
            function_named("tests.later")
        make_due(cluster)
        report = cluster.repair()
        assert [u.token for u in report.unknown] == [one.token]
        assert not report.ok
        # It was left alone, for a process that does know it.
        (again,) = cluster.pending()
        assert again.attempts == one.attempts
        apply._functions["tests.later"] = function
        assert cluster.repair().applied == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_a_commit_does_not_go_on_for_ever(self, cluster, ids, mark, monkeypatch):
        monkeypatch.setattr(apply, "_APPLY_SECONDS", 0.0)
        with cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            for _ in range(3):
                note.intend(session, ids[FAR], text=mark)
        assert len(session.pending) == len(cluster.pending()) == 3
        report = cluster.repair(now=True)
        assert (report.applied, report.ok) == (3, True)
        assert session.pending[0].operation == note.name

    def test_many_unknown_ones_do_not_delay_others(self, cluster, ids, defined, mark):
        def gone(session, account_id):
            raise AssertionError("never called")

        gone = defined(gone)
        with after_crash(), cluster.begin(cross_shard="logged") as session:
            add(session, ids[NEAR], 1)
            for _ in range(250):
                gone.intend(session, ids[FAR])
            note.intend(session, ids[FAR], text=mark)
        del apply._functions["tests.gone"]
        make_due(cluster)
        assert cluster.repair().applied == 1
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_discarded(self, cluster, ids, defined):
        def never(session, account_id):
            raise ZeroDivisionError

        one = self.left(cluster, ids, defined(never))
        assert discard(cluster, ["00" * 16]) == []
        with pytest.raises(ValueError, match="hexadecimal"):
            discard(cluster, ["no token"])
        (gone,) = discard(cluster, [one.token])
        assert gone.token == one.token
        assert cluster.pending() == []
        assert discard(cluster, [one.token]) == []

    @pytest.mark.parametrize("keep", [-1, 3, None, "1 day"])
    def test_an_invalid_time(self, cluster, keep):
        with pytest.raises(ValueError, match="must be a timedelta"):
            cluster.repair(keep=keep)


class Awaited(Suite):
    """In asynchronous sessions."""

    def test_done_after_commit(self, cluster, ids, mark):
        async def write() -> Any:
            async with cluster.async_begin(cross_shard="logged") as session:
                await session.run_sync(intend, ids[NEAR], ids[FAR], mark)
                await session.run_sync(hop.intend, [ids[0], ids[5]], f"{mark} hop")
            return session.sync_session.pending

        assert asyncio.run(write()) == ()
        assert self.only(cluster, mark) == {
            (ids[FAR], mark): 1,
            (ids[0], f"{mark} hop"): 1,
            (ids[5], f"{mark} hop"): 1,
        }
        assert cluster.pending() == []

    def test_one_that_raises(self, cluster, ids, defined):
        def never(session, account_id):
            raise ZeroDivisionError("not here")

        never = defined(never)

        async def write() -> Any:
            async with cluster.async_begin(cross_shard="logged") as session:
                await session.run_sync(add, ids[NEAR], 1)
                await session.run_sync(never.intend, ids[FAR])
            return session.sync_session.pending

        (pending,) = asyncio.run(write())
        assert pending.operation == "tests.never"
        (one,) = cluster.pending()
        assert one.error == "ZeroDivisionError: not here"

    def test_rolled_back(self, cluster, ids, mark):
        async def write() -> None:
            async with cluster.async_begin(cross_shard="logged") as session:
                await session.run_sync(intend, ids[NEAR], ids[FAR], mark)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            asyncio.run(write())
        assert self.only(cluster, mark) == {}
        assert cluster.pending() == []

    def test_run_with_a_key(self, cluster, ids, mark):
        async def write(session: Any) -> None:
            await session.run_sync(intend, ids[NEAR], ids[FAR], mark)

        async def run() -> None:
            await cluster.async_run(write, key=f"awaited {mark}", cross_shard="logged")

        asyncio.run(run())
        assert self.only(cluster, mark) == {(ids[FAR], mark): 1}

    def test_many_at_once(self, cluster, ids, mark):
        async def write(number: int) -> None:
            home, target = ids[number % 4], ids[4 + number % 4]
            async with cluster.async_begin(cross_shard="logged") as session:
                await session.run_sync(intend, home, target, f"{mark} {number}")

        async def main() -> None:
            await asyncio.gather(*map(write, range(20)))

        asyncio.run(main())
        found = self.only(cluster, mark)
        assert len(found) == 20
        assert set(found.values()) == {1}
        assert cluster.pending() == []


cluster = OPERATIONS.on_backend()
