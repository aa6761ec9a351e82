from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, LookupMixin, ObjectMixin
from sqla_shard.models import normalization
from sqla_shard.models.deletion import delete_object
from sqla_shard.testing import sqlite_topology
from sqla_shard.upkeep import verify_lookups


class KeyedBase(DeclarativeBase):
    pass


class Part(ObjectMixin, KeyedBase, type_id=1):
    __tablename__ = "parts"

    kind: Mapped[str] = mapped_column()
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "polymorphic_on": "kind",
        "polymorphic_identity": "part",
    }


class Wheel(Part):
    serial: Mapped[str] = blob_field()
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "wheel"}


class WheelBySerial(
    LookupMixin, KeyedBase, target=Wheel, normalize=normalization.exact, field="serial"
):
    pass


def test_keys_of_some_of_the_classes(tmp_path):
    document = sqlite_topology(tmp_path, 2, 4, lookup=2)
    with Cluster.from_topology(document) as cluster:
        cluster.create_all(KeyedBase.metadata)
        with cluster.begin(shard_id=1) as session:
            session.add_all([wheel := Wheel(serial="a"), part := Part()])
            session.flush()
            wheel_id, part_id = wheel.id, part.id
        for key, object_id in (("a", wheel_id), ("b", part_id)):
            with cluster.begin() as session:
                WheelBySerial.claim(session, key, object_id)
        # A row of another class is not a wheel.
        report = verify_lookups(cluster, [WheelBySerial], grace=0)
        (found,) = report.findings
        assert (found.kind, found.row["key"]) == ("dangling", "b")
        assert delete_object(cluster, Part, wheel_id).parts
        with cluster.session() as session:
            assert WheelBySerial.resolve(session, "a") is None
            assert session.get(Part, wheel_id) is None
