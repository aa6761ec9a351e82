"""Objects from the cache, and the same ones from the database."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import date, datetime, time, UTC
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Engine, event, insert, inspect, text, update
from sqlalchemy.orm import Session, with_loader_criteria

from sqla_shard import Cluster
from sqla_shard.exc import (
    BlobValueError,
    InvalidIdError,
    UnknownShardError,
    WrongTypeError,
)
from sqla_shard.testing.local_server import wait_until
from tests.models.cached_models import (
    Board,
    CACHED,
    cached_of,
    Color,
    Everything,
    key_of,
    PATIENCE,
    seen,
    sent,
    settled,
    stored,
    Suite,
    USER,
    User,
    value_of,
)
from tests.models.layouts import pack

VALUES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "usual": {
        "big": 2**40,
        "text": "words",
        "moment": datetime(2024, 2, 29, 12, 30, 1),
        "day": date(1999, 12, 31),
        "clock": time(23, 59, 59),
        "price": Decimal("12.340000"),
        "ratio": 0.1 + 0.2,
        "flag": True,
        "color": Color.BLUE,
        "data_bytes": b"bytes",
        "document": {"a": [1, 2.5, None, "é"], "t": "2024-01-01"},
        "at": datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC),
        "owner_id": pack(3, USER, 77),
        "free": {"t": 1, "n": [None, {"b": "x"}]},
    },
    "least": {
        "big": -(2**63),
        "text": "",
        "moment": datetime(1000, 1, 1),
        "day": date(1000, 1, 1),
        "clock": time(0, 0),
        "price": Decimal("-99999999999999.999999"),
        "ratio": -1.5e-300,
        "flag": False,
        "color": Color.RED,
        "data_bytes": b"",
        "document": [],
        "at": datetime(1971, 1, 1, tzinfo=UTC),
        "free": [],
    },
    "most": {
        "big": 2**63 - 1,
        "text": "𝔘nicode \" \\ \n ' %s :x {0} " + "é" * 60,
        "moment": datetime(9999, 12, 31, 23, 59, 59),
        "day": date(9999, 12, 31),
        "price": Decimal("99999999999999.999999"),
        "ratio": math.pi * 1e300,
        "data_bytes": bytes(range(200)),
        "document": "2^70: \0"[:-1],
        "at": datetime(2037, 12, 31, 23, 59, 59, 1, tzinfo=UTC),
        "free": {"a": 2**70, "b": 1e308, "c": "\u2028 𝔘"},
    },
}


def attributes(found: Any) -> dict[str, Any]:
    """Return the loaded attributes of an object, with their types."""
    state = inspect(found)
    return {
        name: (type(value), value)
        for name, value in state.dict.items()
        if name != "_sa_instance_state"
    }


def state_of(found: Any) -> dict[str, Any]:
    state = inspect(found)
    names = ("persistent", "modified", "expired", "key", "load_options")
    return {
        **{name: getattr(state, name) for name in names},
        "unloaded": state.unloaded,
        "expired_attributes": state.expired_attributes,
    }


def agree(cluster: Cluster, cls: Any, object_id: int) -> Any:
    """Compare an object of the cache with that of the database."""
    settled(lambda: seen(cluster, cls, object_id))
    with cluster.session() as one, cluster.session(cache=False) as other:
        with sent() as statements:
            found = one.get(cls, object_id)
        assert statements == []
        real = other.get(cls, object_id)
        assert attributes(found) == attributes(real)
        assert state_of(found) == state_of(real)
        return found


class Equal(Suite):
    """They are the same in every attribute."""

    @pytest.mark.parametrize("name", VALUES)
    def test_all_types(self, cluster, name):
        new = stored(cluster, Everything(**VALUES[name]))
        found = agree(cluster, Everything, new)
        for field, value in VALUES[name].items():
            # SQLite has floats only; it is the same as without the cache.
            if field != "price":
                assert getattr(found, field) == value, field

    def test_random_values(self, cluster, rng):
        for _ in range(5):
            fields = {
                field: rng.choice(list(VALUES.values())).get(field)
                for field in VALUES["usual"]
            }
            fields["big"] = rng.randrange(-(2**63), 2**63)
            fields["ratio"] = rng.random() * 10 ** rng.randrange(-300, 300)
            fields["data_bytes"] = rng.randbytes(rng.randrange(200))
            fields["text"] = "".join(
                chr(rng.choice((65, 0x7F, 0x2028, 0x1F600)) + rng.randrange(9))
                for _ in range(20)
            )
            agree(cluster, Everything, stored(cluster, Everything(**fields)))

    def test_a_blob_of_another_writer(self, cluster):
        """With keys that no field has, and in another spelling."""
        new = stored(cluster, User(name="x"))
        written = '{ "name":"\\u00e9", "old": [1], "n":  7 }'
        _raw(cluster, new, "data = :value", value=written)
        agree(cluster, User, new)

    def test_a_blob_with_a_field_of_another_type(self, cluster):
        """It may as well be the cache's fault: the database is asked."""
        new = stored(cluster, User(name="x"))
        _raw(cluster, new, "data = :value", value='{"name":"y","n":7.5}')
        for _ in range(3):
            with sent() as statements:
                found = seen(cluster, User, new)
            assert found.name == "y"
            with pytest.raises(BlobValueError):
                found.n  # noqa: B018
        assert statements

    def test_no_blob_at_all(self, cluster):
        new = stored(cluster, User(name="x"))
        _raw(cluster, new, "data = '{}'")
        found = agree(cluster, User, new)
        assert (found.name, found.n, found.tags) == ("", 0, [])

    def test_inactive(self, cluster):
        new = stored(cluster, User(name="x"), warm=True)
        with cluster.begin() as session:
            session.get(User, new).deactivate()
        for _ in range(2):
            assert seen(cluster, User, new) is None
            with cluster.session() as session:
                assert session.get_many(User, [new]) == [None]
                shown = {"include_inactive": True}
                (found,) = session.get_many(User, [new], execution_options=shown)
                assert found.name == "x"
                assert not found.active
                assert session.get(User, new) is None
                again = session.get(User, new, execution_options=shown)
                assert again is found
        with cluster.begin() as session:
            session.get(User, new, execution_options=shown).restore()
        assert seen(cluster, User, new).active


def _raw(cluster: Cluster, user_id: int, what: str, **values: Any) -> None:
    """Write as another program would."""
    with cluster.begin() as session:
        session.execute(
            text(f"UPDATE users SET {what} WHERE local_id = :id"),  # of a test
            {"id": user_id & ((1 << 36) - 1), **values},
            bind_arguments={"shard_id": 5},
        )
        cluster.cache.invalidate(session, User, user_id)


class State(Suite):
    """The ORM treats them as objects that it has loaded."""

    @pytest.fixture
    def user(self, cluster):
        new = User(name="x", tags=["a"], city="Rome", bio="long")
        return stored(cluster, new, warm=True)

    def test_one_object_for_an_id(self, session, user):
        with sent() as statements:
            found = session.get(User, user)
            assert session.get(User, user) is found
            assert session.get_many(User, [user, user]) == [found, found]
        assert statements == []
        assert found in session
        assert found not in session.dirty

    def test_pending_changes_are_preserved(self, session, user):
        found = session.get(User, user)
        found.name = "changed"
        session.expire(found, ["city"])
        assert session.get_many(User, [user])[0].name == "changed"
        assert list(session.dirty) == [found]

    def test_expired_objects_are_read_again(self, cluster, session, user):
        found = session.get(User, user)
        session.expire(found)
        with sent() as statements:
            assert session.get(User, user) is found
            assert (found.name, found.city) == ("x", "Rome")
        assert statements == []

    def test_expired_attributes_are_refreshed(self, session, user):
        found = session.get(User, user)
        session.expire(found, ["city"])
        with sent() as statements:
            assert found.city == "Rome"
        assert len(statements) == 1
        session.refresh(found)
        assert found.city == "Rome"

    def test_an_object_in_use_that_is_partly_expired(self, session, user):
        found = session.get(User, user)
        found.name = "changed"
        session.expire(found, ["city", "ts"])
        session.expunge(found)
        again = session.get(User, user)
        assert again is not found
        assert again.name == "x"

    def test_deferred_columns(self, session, user):
        found = session.get(User, user)
        assert "bio" in inspect(found).unloaded
        with sent() as statements:
            assert found.bio == "long"
        assert len(statements) == 1

    def test_changes_are_flushed(self, cluster, user):
        with cluster.begin() as session:
            found = session.get(User, user)
            before = found.ts
            found.tags.append("b")
            assert found in session.dirty
            session.flush()
            assert found.ts >= before
            found.city = "Oslo"
        found = agree(cluster, User, user)
        assert (found.tags, found.city) == (["a", "b"], "Oslo")

    def test_two_writers_on_old_values(self, cluster, user):
        """An update writes only changed fields, of a cached object too."""
        with cluster.session() as one, cluster.session() as other:
            first, second = one.get(User, user), other.get(User, user)
            first.city = "Oslo"
            one.commit()
            second.bio = "longer"
            other.commit()
        found = agree(cluster, User, user)
        assert found.city == "Oslo"
        with cluster.session() as session:
            assert session.get(User, user).bio == "longer"

    def test_children(self, cluster):
        new = stored(cluster, Board(name="b"), warm=True)
        with cluster.session() as session, sent() as statements:
            board = session.get(Board, new)
            assert statements == []
            assert board.notes == []

    def test_events(self, session, user):
        calls = []
        listeners = {
            "load": lambda instance, context: calls.append("load"),
            "refresh": lambda instance, context, names: calls.append("refresh"),
        }
        for name, listener in listeners.items():
            event.listen(User, name, listener)
        try:
            found = session.get(User, user)
            assert calls == ["load"]
            session.expire(found)
            session.get(User, user)
            assert calls == ["load", "refresh"]
        finally:
            for name, listener in listeners.items():
                event.remove(User, name, listener)

    def test_a_listener_that_looks_at_reads(self, cluster, user):
        """It is called for them, and the conditions that it adds apply."""
        calls = []

        def listen(context):
            if context.is_select and not context.is_column_load:
                calls.append(context.statement)
                context.statement = context.statement.options(
                    with_loader_criteria(User, User.city != "Rome")
                )

        event.listen(Session, "do_orm_execute", listen, insert=True)
        try:
            with cluster.session() as one, cluster.session(cache=False) as other:
                assert other.get_many(User, [user]) == [None]
                assert one.get_many(User, [user]) == [None]
                assert one.get(User, user) is None
        finally:
            event.remove(Session, "do_orm_execute", listen)
        assert calls

    def test_listeners_of_all_engines(self, cluster, user):
        """The cache must not see statements of a listener on connections."""
        calls = []

        def listen(connection, record):
            calls.append(connection.cursor().execute("SELECT 1"))

        event.listen(Engine, "connect", listen)
        try:
            assert seen(cluster, User, user).name == "x"
        finally:
            event.remove(Engine, "connect", listen)
        assert calls == []

    def test_expired_by_time(self, cluster, user):
        """A value that is gone is read again."""
        key = key_of(cluster, User, user)
        assert value_of(cluster, key)
        cached_of(cluster, User).region.store.unblock([key], b"t" * 16)
        with sent() as statements:
            seen(cluster, User, user)
            seen(cluster, User, user)
        assert len(statements) == 1


class Ending(Suite):
    """Values that were there for long enough are read again."""

    @pytest.fixture(autouse=True)
    def short(self, cluster):
        kept = cached_of(cluster, User)
        before = kept.region
        times = replace(before.times, expire=1, expire_nothing=1)
        kept.region = replace(before, times=times)
        yield
        kept.region = before

    @pytest.mark.parametrize("there", [True, False])
    def test_end(self, cluster, there):
        user = pack(5, USER, 77_777)
        if there:
            user = stored(cluster, User(name="x"))

        def is_cached() -> bool:
            with sent() as statements:
                assert (seen(cluster, User, user) is not None) is there
            return statements == []

        # On a busy machine a value may end before the read after it.
        assert wait_until(is_cached, seconds=PATIENCE)
        assert wait_until(lambda: not is_cached(), seconds=PATIENCE)


class Many(Suite):
    """get_many()"""

    @pytest.fixture
    def users(self, cluster):
        return [stored(cluster, User(name=str(i)), shard_id=i) for i in range(4)]

    def test_order_duplicates_and_none(self, cluster, users):
        absent = pack(2, USER, 4_000_000)
        asked = [users[3], absent, users[0], users[3], absent, users[1]]
        names = ["3", None, "0", "3", None, "1"]
        for warm in (False, True):
            with sent() as statements, cluster.session() as session:
                found = session.get_many(User, asked)
                assert [u and u.name for u in found] == names
                assert found[0] is found[3]
            assert bool(statements) is not warm
            with cluster.session() as session:
                assert session.get_many(User, []) == []

    def test_some_are_cached_and_some_in_the_session(self, cluster, users):
        seen(cluster, User, users[1])
        with cluster.session() as session:
            held = session.get(User, users[0])
            held.name = "held"
            with session.no_autoflush:
                found = session.get_many(User, users)
            assert found[0] is held
            assert [u.name for u in found] == ["held", "1", "2", "3"]

    def test_wrong_ids(self, cluster, users):
        for cache in (True, False):
            with cluster.session(cache=cache) as session:
                for read in (
                    lambda i: session.get(User, i),
                    lambda i: session.get_many(User, [users[0], i]),
                ):
                    with pytest.raises(WrongTypeError):
                        read(pack(2, 9, 1))
                    with pytest.raises(InvalidIdError):
                        read(-1)
                    with pytest.raises(UnknownShardError):
                        read(pack(SHARD_TOO_HIGH, USER, 1))
                with pytest.raises(InvalidIdError):
                    session.get_many(User, ["x"])
                assert session.get(User, users[0]).name == "0"

    def test_more_than_a_statement_takes(self, cluster, users):
        absent = [pack(2, USER, 5_000_000 + i) for i in range(1500)]
        for _ in range(2):
            with cluster.session() as session:
                found = session.get_many(User, [*absent, *users])
                assert found[:-4] == [None] * 1500
                assert all(found[-4:])


SHARD_TOO_HIGH = 4000


class Absent(Suite):
    """That there is no object is kept as well, until it is inserted."""

    @pytest.fixture
    def absent(self, cluster, rng):
        new = pack(5, USER, rng.randrange(10**6, 10**9))

        def is_cached():
            with sent() as statements:
                assert seen(cluster, User, new) is None
            return not statements

        # An insert of the previous test on this shard may still be invalidated:
        # absences are not cached until then.
        assert wait_until(is_cached, seconds=30)
        return new

    def check(self, cluster, user_id):
        for _ in range(2):
            assert seen(cluster, User, user_id).name == "new"
        settled(lambda: seen(cluster, User, user_id))

    def test_flushed(self, cluster, absent):
        with cluster.begin() as session:
            session.add(User(id=absent, name="new"))
        self.check(cluster, absent)

    def test_merged(self, cluster, absent):
        with cluster.begin() as session:
            session.merge(User(id=absent, name="new"))
        self.check(cluster, absent)

    def test_inserted(self, cluster, absent):
        with cluster.begin() as session:
            rows = [{"id": absent, "name": "new"}]
            session.execute(insert(User), rows)
        self.check(cluster, absent)

    def test_core(self, cluster, absent):
        with cluster.begin() as session:
            table = User.__table__
            session.execute(
                insert(table), [{"local_id": absent, "data": {"name": "new"}}]
            )
        self.check(cluster, absent)

    def test_an_id_that_the_server_gives(self, cluster):
        last = stored(cluster, User(name="last"))
        following = [last + i for i in range(1, 4)]
        for _ in range(2):
            with cluster.session() as session:
                assert session.get_many(User, following) == [None] * 3
        with cluster.begin(shard_id=5) as session:
            session.add(User(name="new"))
            session.flush()
            session.execute(insert(User), [{"name": "new"}])
            session.execute(insert(User.__table__).values(data={"name": "new"}))
        for user_id in following:
            self.check(cluster, user_id)

    def test_an_insert_elsewhere(self, cluster, absent):
        """Cached absences on other shards stay."""
        stored(cluster, User(name="new"), shard_id=4)
        with sent() as statements:
            assert seen(cluster, User, absent) is None
        assert statements == []

    def test_rolled_back(self, cluster, absent):
        with cluster.session() as session:
            session.add(User(id=absent, name="new"))
            session.flush()
            session.rollback()
        assert seen(cluster, User, absent) is None
        with cluster.begin() as session:
            session.execute(update(User).where(User.id == absent).values(city="x"))
        assert seen(cluster, User, absent) is None

    def test_deleted_and_inserted_again(self, cluster, absent):
        for _ in range(2):
            with cluster.begin() as session:
                session.add(User(id=absent, name="new"))
            self.check(cluster, absent)
            with cluster.begin() as session:
                session.delete(session.get(User, absent))
            for _ in range(2):
                assert seen(cluster, User, absent) is None


cluster = CACHED.on_backend()
