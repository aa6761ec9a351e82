"""Keys of lookups in databases with the default collation of a server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, LookupMixin, ObjectMixin
from sqla_shard.lookup import normalization
from tests.servers.kinds import Kind

pytestmark = pytest.mark.live

#: Equal to others in one of these collations, and not in the other.
KEYS = ("a1", "a1 ", "a1\0", "A1", "\u00e11", "\u00df", "ss", "SS")
COLLATIONS = {"mariadb": "utf8mb4_general_ci", "mysql": "utf8mb4_0900_ai_ci"}


class Base(DeclarativeBase):
    pass


class Person(ObjectMixin, Base, type_id=1):
    __tablename__ = "persons"

    name: Mapped[str] = blob_field(default="")


class PersonName(LookupMixin, Base, target=Person, normalize=normalization.exact):
    pass


@pytest.fixture
def cluster(server_kind: Kind) -> Iterator[Cluster]:
    with server_kind.fleet(servers=1, shards=2, fast=True) as fleet:
        document = fleet.topology_mapping(lookup=2)
        for number in range(2):
            fleet.servers[0].root_execute(
                f"CREATE DATABASE lookup{number:05d} CHARACTER SET utf8mb4 "
                f"COLLATE {COLLATIONS[server_kind.name]}"
            )
        with Cluster.from_topology(document, environ=fleet.environ) as made:
            made.create_all(Base.metadata)
            yield made


def test_keys_are_the_same_on_every_server(cluster: Cluster) -> None:
    ids: dict[str, Any] = {}
    for key in KEYS:
        with cluster.begin() as session:
            person = Person(name=key)
            session.add(person)
            session.flush()
            ids[key] = person.id
        with cluster.begin() as session:
            PersonName.claim(session, key, ids[key])
    with cluster.session() as session:
        assert PersonName.resolve_many(session, KEYS) == ids
        assert PersonName.resolve(session, "Ss") is None
