"""Compressed blobs: they behave like others, in every form of their rows."""

from __future__ import annotations

import json
import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given, HealthCheck, settings, strategies as st
from sqlalchemy import func, insert, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, JSONBlob, scatter
from sqla_shard.exc import (
    BlobCompressionError,
    ClassDefinitionError,
    DamagedBlobError,
    DictionaryError,
    DictionaryNotFoundError,
    StaleDataError,
    UnsupportedStatementError,
)
from sqla_shard.outbox.tables import DICTIONARIES as TABLE
from sqla_shard.testing import StatementLog
from sqla_shard.types.compression import Dictionary, MARKER, train_dictionary
from sqla_shard.upkeep import blobs
from tests.models.backends import On
from tests.models.compressed_models import (
    COMPRESSED,
    fill,
    forget,
    Packed,
    Plain,
    raw,
    set_raw,
    SHARDS,
    Small,
)
from tests.models.objects_harness import on_servers

SOAK = os.environ.get("SQLA_SHARD_SOAK") == "1"
ROWS = 40
TITLE = "a title that is in none of the rows for training"


class Suite:
    @pytest.fixture(scope="class")
    @classmethod
    def cluster(cls, request, backend: On):
        name = cls.__name__.lower()
        with COMPRESSED.open(request, backend, name) as cluster:
            # A test in an event loop is prepared without one.
            cls.ids = fill(cluster, ROWS)
            cls.admin = getattr(cluster, "_cluster", cluster)
            blobs.train(cls.admin, Packed, seed=1)
            forget()
            yield cluster
            forget()


def is_packed(value: Any) -> bool:
    return isinstance(value, bytes) and value[:1] == MARKER


def new(cluster: Cluster, cls: Any = Packed, **fields: Any) -> int:
    with cluster.begin() as session:
        one = cls(**{"link": "https://example.com/1/2", **fields})
        session.add(one)
        session.flush()
        return one.id


# -- as others ---------------------------------------------------------------

_values = st.one_of(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9),
    st.sampled_from(["The 7th of many pins of a board", "x" * 5000]),
)
_steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["title", "link"]), _values),
        st.tuples(st.sampled_from(["count", "rank"]), st.integers(0, 2**31 - 1)),
        st.tuples(st.just("append"), _values),
        st.tuples(
            st.sampled_from(
                [
                    *("forget", "delete", "deactivate", "restore", "merge"),
                    *("roll back", "activate", "off", "rewrite", "list"),
                ]
            ),
            st.just(None),
        ),
    ),
    min_size=2,
    max_size=12,
)


class Alike(Suite):
    """Random changes of an object of each class, whose rows are cached."""

    examples = 300 if SOAK else 25

    def test_random_changes(self, cluster):
        @settings(
            max_examples=self.examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(steps=_steps)
        def check(steps: Any) -> None:
            ids = {cls: new(cluster, cls) for cls in (Packed, Plain)}
            for name, value in steps:
                for cls, object_id in ids.items():
                    self._step(cluster, cls, object_id, name, value)
                seen = [
                    self._seen(cluster, cls, object_id)
                    for cls, object_id in ids.items()
                ]
                assert seen[0] == seen[1], name

        check()

    def _step(
        self, cluster: Cluster, cls: Any, object_id: int, name: str, value: Any
    ) -> None:
        if name in ("activate", "off", "rewrite", "forget"):
            if cls is Packed:
                self._operate(name)
            return
        with cluster.session() as session:
            one = session.get(
                cls, object_id, execution_options={"include_inactive": True}
            )
            if name == "append":
                one.tags.append(value)
            elif name == "delete":
                del one.title
            elif name in ("deactivate", "restore"):
                getattr(one, name)()
            elif name == "merge":
                session.expunge(one)
                copy = pickle.loads(pickle.dumps(one))
                copy.other += 1
                session.merge(copy)
            elif name == "list":
                found = session.scalars(
                    select(cls)
                    .where(cls.id == object_id)
                    .options(scatter())
                    .execution_options(populate_existing=True)
                ).all()
                assert len(found) == one.active
                return
            elif name == "roll back":
                one.count += 1
                session.flush()
                session.rollback()
                return
            else:
                setattr(one, name, value)
            session.commit()

    def _operate(self, name: str) -> None:
        if name == "activate":
            blobs.activate(self.admin, Packed)
        elif name == "off":
            blobs.deactivate(self.admin, Packed)
        elif name == "rewrite":
            blobs.rewrite(self.admin, Packed, batch=50)
        forget()

    def _seen(self, cluster: Cluster, cls: Any, object_id: int) -> Any:
        found = []
        # The first read may fill the cache, the second may be from there.
        for cached in (True, True, False):
            with cluster.session(cache=cached) as session:
                one = session.get(
                    cls, object_id, execution_options={"include_inactive": True}
                )
                hidden = session.get(cls, object_id) is None
                found.append((json.dumps(one.data), one.tags[:], one.rank, hidden))
        assert found[0] == found[1] == found[2]
        return found[0]


# -- roll-out ----------------------------------------------------------------


class RollOut(Suite):
    def test_order(self, cluster):
        admin = self.admin
        before = self._time(cluster, self.ids[0])
        assert not is_packed(raw(cluster, Packed, new(cluster, shard_id=0)))
        done = blobs.activate(admin, Packed)
        assert done.ok
        assert (done.version, done.shards) == (1, SHARDS)
        # A process notices it within a minute; a new one at once.
        assert not is_packed(raw(cluster, Packed, new(cluster, shard_id=0)))
        forget()
        packed = new(cluster, shard_id=0, title=TITLE)
        assert is_packed(raw(cluster, Packed, packed))
        assert not is_packed(raw(cluster, Packed, self.ids[0]))
        report = blobs.rewrite(admin, Packed)
        assert report.rewritten >= SHARDS * ROWS
        assert report.bytes_after < report.bytes_before / 2
        assert is_packed(raw(cluster, Packed, self.ids[0]))
        # The row has not changed, as far as an application is concerned.
        assert self._time(cluster, self.ids[0]) == before
        assert blobs.rewrite(admin, Packed).rewritten == 0
        # A second version, for new rows only.
        assert blobs.train(admin, Packed, seed=2).version == 2
        assert blobs.activate(admin, Packed).version == 2
        forget()
        other = new(cluster, shard_id=0, title=TITLE)
        forms = {raw(cluster, Packed, one)[:4] for one in (packed, other)}
        assert all(map(is_packed, (raw(cluster, Packed, o) for o in (packed, other))))
        assert len(forms) == 2
        counted = blobs.status(admin, Packed, rows=True)
        assert not counted.unreachable
        rows = {one.version: one.rows for one in counted.versions}
        assert rows[2] == 1
        assert rows[1] > SHARDS * ROWS
        forget()
        with cluster.session() as session:
            found = session.get_many(Packed, [packed, other, self.ids[0]])
            assert [one.title for one in found[:2]] == [TITLE, TITLE]
        # And back to JSON.
        blobs.deactivate(admin, Packed)
        forget()
        assert not is_packed(raw(cluster, Packed, new(cluster)))
        assert blobs.rewrite(admin, Packed).rewritten > SHARDS * ROWS
        assert not is_packed(raw(cluster, Packed, other))
        assert self._time(cluster, self.ids[0]) == before
        assert blobs.activate(admin, Packed, version=1).version == 1

    def _time(self, cluster: Cluster, object_id: int) -> Any:
        with cluster.session() as session:
            return session.get(Packed, object_id).ts

    def test_rows_for_training(self, cluster):
        """Each row of a small shard once; random ones of a large one."""
        with StatementLog() as log:
            report = blobs.train(self.admin, Packed, dry_run=True)
        assert report.rows >= SHARDS * ROWS
        assert report.shards == SHARDS
        read = [one for one in log.statements if "LIMIT" in one.upper()]
        assert len(read) <= SHARDS * (1 + -(-report.rows // 50))
        some = blobs.train(self.admin, Packed, rows=100, dry_run=True)
        assert some.rows == 100

    def test_rows_of_insert(self, cluster):
        blobs.activate(self.admin, Packed)
        forget()
        with cluster.begin() as session:
            row = {"link": "https://example.com/3/4", "title": TITLE}
            session.execute(insert(Packed), [{**row, "shard_id": 1}] * 2)
            session.execute(
                insert(Packed).values(link=row["link"], title=TITLE),
                bind_arguments={"shard_id": 1},
            )
        with cluster.session() as session:
            last = select(Packed).order_by(Packed.id.desc()).limit(3)
            found = session.scalars(last, bind_arguments={"shard_id": 1}).all()
        assert [one.title for one in found] == [TITLE] * 3
        assert all(is_packed(raw(cluster, Packed, one.id)) for one in found)

    def test_a_shard_without_it(self, cluster):
        """A shard that was opened, or restored from an older backup."""
        blobs.activate(self.admin, Packed)
        with self.admin.begin() as session:
            session.execute(
                TABLE.delete(), bind_arguments={"keyspace": "objects", "shard_id": 2}
            )
        forget()
        # Its rows were compressed with a dictionary that others have.
        blobs.rewrite(self.admin, Packed)
        assert not is_packed(raw(cluster, Packed, new(cluster, shard_id=2)))
        assert is_packed(raw(cluster, Packed, new(cluster, shard_id=1)))
        (json_, *_) = blobs.status(self.admin, Packed).versions
        assert json_.active == 1
        blobs.activate(self.admin, Packed)
        forget()
        assert is_packed(raw(cluster, Packed, new(cluster, shard_id=2)))

    def test_refused(self, cluster):
        with pytest.raises(ClassDefinitionError, match="not compressed"):
            blobs.train(self.admin, Plain)
        with pytest.raises(DictionaryError, match="version 77 is not"):
            blobs.activate(self.admin, Packed, 77)
        with pytest.raises(DictionaryError, match="only 0 rows"):
            blobs.train(self.admin, Small)
        if on_servers(cluster):
            change = "ALTER TABLE packed MODIFY data {} NOT NULL"
            blobs.deactivate(self.admin, Packed)
            blobs.rewrite(self.admin, Packed)
            self._alter(change.format("MEDIUMTEXT CHARACTER SET utf8mb4"))
            with pytest.raises(DictionaryError, match="such as 1, con"):
                blobs.activate(self.admin, Packed)
            # Before the change of the type, and while it is rolled out.
            forget()
            one = new(cluster, shard_id=1)
            with cluster.begin() as session:
                session.get(Packed, one).count = 3
            self._alter(change.format("MEDIUMBLOB"))
            with cluster.begin() as session:
                session.get(Packed, one).other = 4
            assert b'"other":4' in raw(cluster, Packed, one)
            blobs.activate(self.admin, Packed)

    def _alter(self, change: str) -> None:
        with self.admin.begin() as session:
            session.execute(text(change), bind_arguments={"shard_id": 1})


# -- rows that cannot be read ------------------------------------------------


class Unreadable(Suite):
    def test_damaged(self, cluster):
        blobs.activate(self.admin, Packed)
        forget()
        object_id = new(cluster, title=TITLE)
        value = raw(cluster, Packed, object_id)
        wrong = [
            value[:-1],
            value[:4],
            value + b"x",
            value[:-6] + bytes([value[-6] ^ 1]) + value[-5:],
        ]
        for one in wrong:
            set_raw(cluster, Packed, object_id, one)
            with (
                cluster.session(cache=False) as session,
                pytest.raises(DamagedBlobError, match="a row of packed, obj") as e,
            ):
                session.get(Packed, object_id)
            assert e.value.dictionary_id == int.from_bytes(value[1:4], "big") or (
                len(one) == 4
            )
            assert str(pickle.loads(pickle.dumps(e.value))) == str(e.value)
            report = blobs.check(self.admin, Packed)
            assert [row.object_id for row in report.unreadable] == [object_id]
            # The others are rewritten.
            assert len(blobs.rewrite(self.admin, Packed).unreadable) == 1
        set_raw(cluster, Packed, object_id, value)
        assert not blobs.check(self.admin, Packed).unreadable

    def test_no_such_dictionary(self, cluster):
        object_id = new(cluster)
        value = raw(cluster, Packed, object_id)
        set_raw(cluster, Packed, object_id, MARKER + b"abc" + b"x" * 20)
        for _ in range(2):
            with (
                cluster.session(cache=False) as session,
                pytest.raises(DictionaryNotFoundError, match="id 616263"),
            ):
                session.get(Packed, object_id)
        set_raw(cluster, Packed, object_id, value)

    def test_a_bomb(self, cluster):
        """A gigabyte of zeros takes kilobytes; it is not decompressed."""
        blobs.activate(self.admin, Packed)
        forget()
        object_id = new(cluster)
        value = raw(cluster, Packed, object_id)
        found = blobs.status(self.admin, Packed).versions[-1]
        with self.admin.session() as session:
            content = session.execute(
                select(TABLE.c.content).where(TABLE.c.id == found.dictionary_id),
                bind_arguments={"keyspace": "objects", "shard_id": 0},
            ).scalar()
        bomb = Dictionary(content).pack("0" * 20_000_000)
        assert len(bomb) < 60_000
        set_raw(cluster, Packed, object_id, bomb)
        with (
            cluster.session(cache=False) as session,
            pytest.raises(DamagedBlobError, match="20,000,000 bytes"),
        ):
            session.get(Packed, object_id)
        set_raw(cluster, Packed, object_id, value)

    def test_another_dictionary(self):
        """The checksum detects it; an id is only 24 bits long."""
        texts = [f'{{"a":"{i % 97} of many","b":{i}}}' for i in range(3000)]
        one, other = (
            Dictionary(train_dictionary([t.encode() for t in part], 2048))
            for part in (texts[:1500], texts[1500:])
        )
        packed = one.pack('{"a":"5 of many","b":2222}')
        with pytest.raises(ValueError, match="cannot be decompressed"):
            other.unpack(packed, 10_000)

    def test_other_columns_are_refused(self):
        class Other(DeclarativeBase):
            pass

        class Note(Other):
            __tablename__ = "notes"
            id: Mapped[int] = mapped_column(primary_key=True)
            body = mapped_column(JSONBlob(compression="zstd"))

        with pytest.raises(ClassDefinitionError, match="column body cannot"):
            Note()

    def test_expressions_are_refused(self, cluster):
        with pytest.raises(UnsupportedStatementError) as refused:
            select(Packed).where(Packed.title == "x")
        assert "Packed.title is part of a compressed" in str(refused.value)
        assert "mapped_column()" in str(refused.value)
        with cluster.session() as session:
            # Columns are not in the blob.
            count = select(func.count()).where(Packed.rank == 0)
            assert session.scalar(count.options(scatter())) >= SHARDS * ROWS
        assert issubclass(DictionaryError, BlobCompressionError)


# -- together ----------------------------------------------------------------


class Together(Suite):
    """Writers of two fields, while the rows are rewritten again and again."""

    changes = 400 if SOAK else 25

    def test_nothing_is_lost(self, cluster):
        admin = self.admin
        blobs.train(admin, Packed, seed=3)
        ids = self.ids[:: ROWS // 2]
        is_done = threading.Event()

        def write(field: str) -> None:
            for _ in range(self.changes):
                for object_id in ids:

                    def add(session: Any, object_id: int = object_id) -> None:
                        one = session.get(Packed, object_id)
                        setattr(one, field, getattr(one, field) + 1)

                    cluster.run(add, timeout=120.0)

        def rewrite() -> int:
            times = 0
            while not is_done.is_set():
                times += 1
                if times % 3:
                    blobs.activate(admin, Packed, times % 3)
                else:
                    blobs.deactivate(admin, Packed)
                forget()
                blobs.rewrite(admin, Packed, batch=7)
            return times

        with ThreadPoolExecutor(3) as executor:
            rewriting = executor.submit(rewrite)
            writing = [executor.submit(write, field) for field in ("count", "other")]
            try:
                for one in writing:
                    one.result()
            finally:
                is_done.set()
            assert rewriting.result() > 1
        with cluster.session(cache=False) as session:
            found = session.get_many(Packed, ids)
        assert [(one.count, one.other) for one in found] == [
            (self.changes, self.changes)
        ] * len(ids)
        assert not blobs.check(admin, Packed).unreadable

    def test_a_conflict_after_a_rewrite(self, cluster):
        admin, object_id = self.admin, self.ids[1]
        with cluster.session() as session, cluster.session() as other:
            mine = session.get(Packed, object_id)
            theirs = other.get(Packed, object_id)
            mine.title, theirs.title = "mine", "theirs"
            for change in (blobs.activate, blobs.deactivate):
                change(admin, Packed)
                blobs.rewrite(admin, Packed)
            other.commit()
            with pytest.raises(StaleDataError, match="title"):
                session.commit()
