"""Objects with a ``version_id_col``: stale writes are refused."""

from __future__ import annotations

import uuid
from typing import Any, ClassVar

import pytest
from sqlalchemy import FetchedValue, String, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.orm.exc import StaleDataError as OrmStaleDataError

from sqla_shard import blob_field, ObjectMixin
from sqla_shard.exc import StaleDataError
from tests.models.objects_harness import raw, set_raw, stored, Suite, updates


class VersionBase(DeclarativeBase):
    pass


class _Draft(ObjectMixin, VersionBase):
    __abstract__ = True

    title: Mapped[str] = blob_field(default="")
    note: Mapped[str] = blob_field(default="")
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    label: Mapped[str | None] = mapped_column(String(40))


class Counted(_Draft, type_id=41):
    """The version is a number that SQLAlchemy counts."""

    __tablename__ = "counted"

    version: Mapped[int] = mapped_column("row_version")
    __mapper_args__: ClassVar[dict[str, Any]] = {"version_id_col": version}


class Named(_Draft, type_id=42):
    """The version is a text that a function makes."""

    __tablename__ = "named"

    version: Mapped[str] = mapped_column(String(32))
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "version_id_col": version,
        "version_id_generator": lambda old: uuid.uuid4().hex,
    }


class Manual(_Draft, type_id=43):
    """The version is set by the application, or by the server."""

    __tablename__ = "manual"

    version: Mapped[int] = mapped_column(
        server_default="1", server_onupdate=FetchedValue()
    )
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "version_id_col": version,
        "version_id_generator": False,
    }


counting = pytest.mark.parametrize("cls", [Counted, Named])


def change(instance: Any, how: str) -> None:
    """Change an object in one of the ways that there are."""
    if how == "column":
        instance.label = "changed"
    elif how == "field":
        instance.title = "changed"
    elif how == "in place":
        instance.tags.append("changed")
    elif how == "free key":
        instance.data["free"] = 1
    elif how == "hidden":
        instance.deactivate()
    elif how == "whole":
        instance.data = {**instance.data, "title": "changed"}
    elif how == "both":
        instance.title = instance.label = "changed"


ways = pytest.mark.parametrize(
    "how", ["column", "field", "in place", "free key", "hidden", "whole", "both"]
)


class VersionSuite(Suite):
    metadata = VersionBase.metadata

    @counting
    @ways
    def test_each_change_counts_once(self, cluster, log, cls, how):
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            before = found.version
            log.clear()
            change(found, how)
            session.flush()
            after = found.version
            assert after != before
            if cls is Counted:
                assert (before, after) == (1, 2)
            assert len(updates(log)) == (2 if how == "both" else 1)
            session.flush()
            assert found.version == after
            session.commit()
            session.refresh(found)
            assert found.version == after

    @counting
    @ways
    @pytest.mark.parametrize("other", ["column", "field", "free key"])
    def test_stale_writes(self, cluster, cls, how, other):
        """Also where both sides changed different fields."""
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            with cluster.begin() as second:
                change(second.get(cls, key), other)
            before = raw(cluster, cls, key)
            found.note = "mine"
            change(found, how)
            with pytest.raises(OrmStaleDataError):
                session.commit()
            session.rollback()
            assert raw(cluster, cls, key) == before
            # A repeated transaction reads again.
            change(found, how)
            session.commit()

    def test_the_message_of_the_error(self, cluster):
        key = stored(cluster, Counted, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(Counted, key)
            with cluster.begin() as second:
                second.get(Counted, key).label = "b"
            found.title = "c"
            with pytest.raises(StaleDataError, match="'version'") as caught:
                session.commit()
            assert caught.value.fields == ("version",)
            assert caught.value.object_id == key

    @counting
    def test_nothing_changed(self, cluster, log, cls):
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            before = found.version
            log.clear()
            found.title = "a"
            session.commit()
            assert updates(log) == []
            assert found.version == before

    @counting
    def test_writers_without_versions(self, cluster, cls):
        """Another program's change of other fields is put together."""
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            before = found.version
            set_raw(cluster, cls, key, {"title": "a", "note": "theirs"})
            found.title = "mine"
            session.commit()
            assert (found.title, found.note) == ("mine", "theirs")
            assert found.version != before
            found.title = "b"
            set_raw(cluster, cls, key, {"title": "theirs"})
            with pytest.raises(StaleDataError, match="'title'"):
                session.commit()

    def test_versions_of_the_application(self, cluster):
        key = stored(cluster, Manual, title="a", shard_id=1)
        with cluster.session() as session, cluster.session() as second:
            found = session.get(Manual, key)
            other = second.get(Manual, key)
            found.title = "b"
            session.commit()
            assert found.version == 1  # nobody has counted
            found.title = "c"
            found.version += 1
            session.commit()
            assert found.version == 2
            assert other.version == 1
            other.note = "d"
            with pytest.raises(OrmStaleDataError):
                second.commit()

    @counting
    def test_a_row_that_is_gone(self, cluster, cls):
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            with cluster.begin() as second:
                second.delete(second.get(cls, key))
            found.title = "b"
            with pytest.raises(StaleDataError, match="was deleted"):
                session.commit()

    @counting
    def test_a_stale_delete(self, cluster, cls):
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            with cluster.begin() as second:
                second.get(cls, key).title = "b"
            session.delete(found)
            with pytest.raises(OrmStaleDataError):
                session.commit()
        assert raw(cluster, cls, key)["title"] == "b"

    @counting
    def test_a_stale_merge(self, cluster, cls):
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            detached = session.get(cls, key)
        with cluster.begin() as second:
            second.get(cls, key).note = "b"
        detached.title = "c"
        with cluster.session() as session, pytest.raises(OrmStaleDataError):
            session.merge(detached)

    @counting
    def test_many_in_one_flush(self, cluster, cls):
        with cluster.begin(shard_id=1) as session:
            many = [cls(title=str(number)) for number in range(5)]
            session.add_all(many)
            session.flush()
            keys = [one.id for one in many]
        with cluster.session() as session:
            many = session.get_many(cls, keys)
            before = [one.version for one in many]
            for number, one in enumerate(many):
                if number % 2:
                    one.title = "x"
                if number > 2:
                    one.label = "y"
            session.commit()
            counted = [
                one.version != old for one, old in zip(many, before, strict=True)
            ]
            assert counted == [False, True, False, True, True]

    @counting
    def test_a_savepoint_that_is_rolled_back(self, cluster, cls):
        key = stored(cluster, cls, title="a", shard_id=1)
        with cluster.session() as session:
            found = session.get(cls, key)
            before = found.version
            nested = session.begin_nested()
            found.title = "b"
            session.flush()
            nested.rollback()
            assert (found.title, found.version) == ("a", before)
            found.title = "c"
            session.commit()
            assert (found.title, found.version != before) == ("c", True)
            after = found.version
            session.refresh(found)
            assert found.version == after


class TriggerSuite(Suite):
    """Triggers, on SQLite only: accounts of servers may not create them."""

    metadata = VersionBase.metadata

    def test_versions_of_the_server(self, cluster):
        """A trigger counts; the version that it set is read again."""
        key = stored(cluster, Manual, title="a", shard_id=3)
        there = {"shard_id": 3}
        with cluster.begin() as session:
            made = text(
                "CREATE TRIGGER counts_manual AFTER UPDATE OF data ON manual "
                "BEGIN UPDATE manual SET version = version + 1; END"
            )
            session.execute(made, bind_arguments=there)
        with cluster.session() as session, cluster.session() as second:
            found = session.get(Manual, key)
            other = second.get(Manual, key)
            second.commit()
            assert other.version == 1
            found.title = "b"
            session.flush()
            assert found.version == 2
            found.title = "c"
            session.commit()
            assert found.version == 3
            other.note = "d"
            with pytest.raises(OrmStaleDataError):
                second.commit()
        with cluster.begin() as session:
            gone = text("DROP TRIGGER counts_manual")
            session.execute(gone, bind_arguments=there)
