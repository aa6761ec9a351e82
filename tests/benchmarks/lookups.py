"""Keys to ids on mod shards, against one table of one server."""

from __future__ import annotations

from itertools import count

from sqlalchemy import BigInteger, bindparam, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import blob_field, Cluster, LookupMixin, ObjectMixin, pack
from sqla_shard.models import normalization
from sqla_shard.types import LookupKey
from tests.benchmarks.servers import new_fleet, title
from tests.benchmarks.timing import compare, show

_KEYS = 20_000
_MODULUS = 1024


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"

    name: Mapped[str] = blob_field()


class UserEmail(LookupMixin, Base, target=User, normalize=normalization.email):
    pass


class OneTable(Base):
    """All keys, in the global keyspace."""

    __tablename__ = "one_table"

    key: Mapped[str] = mapped_column(LookupKey(), primary_key=True)
    user_id: Mapped[int] = mapped_column(BigInteger)


def run() -> None:
    """Print the tables."""
    with (
        new_fleet(servers=4, shards=16, fast=True) as fleet,
        Cluster.from_topology(
            fleet.topology_mapping(main=True, lookup=_MODULUS), environ=fleet.environ
        ) as cluster,
    ):
        cluster.create_all(Base.metadata)
        keys = _fill(cluster)
        for number in (1, 50, 1000):
            _resolve(cluster, keys[:: _KEYS // number][:number])
        _claim(cluster)


def _fill(cluster: Cluster) -> list[str]:
    given = {f"user{i}@example.com": pack(i % 16, 3, i + 1) for i in range(_KEYS)}
    with cluster.begin() as session:
        rows = [{"key": k, "user_id": v} for k, v in given.items()]
        session.execute(insert(OneTable), rows)
    label = normalization.email.label
    by_shard: dict[int, list[dict[str, object]]] = {}
    with cluster.begin(cross_shard="unordered") as session:
        for key, user_id in given.items():
            by_shard.setdefault(UserEmail.shard_of(session, key), []).append(
                {"key": key, "user_id": user_id, "policy": label}
            )
        for shard_id, rows_of_shard in by_shard.items():
            session.execute(
                insert(UserEmail.__table__),
                rows_of_shard,
                bind_arguments={"shard_id": shard_id},
            )
    return list(given)


def _resolve(cluster: Cluster, keys: list[str]) -> None:
    table = OneTable.__table__
    wanted = select(table.c.key, table.c.user_id).where(
        table.c.key.in_(bindparam("keys", expanding=True))
    )

    def one_table() -> None:
        forms = [normalization.email(key) for key in keys]
        found = session.execute(wanted, {"keys": forms}).all()
        assert len(found) == len(keys)

    def lookup() -> None:
        assert len(UserEmail.resolve_many(session, keys)) == len(keys)

    with cluster.session() as session:
        show(
            f"ids of {len(keys):,} keys, {_MODULUS:,} mod shards on 4 "
            f"{title()} servers, session open",
            compare(
                {
                    "one table on one server": one_table,
                    "resolve_many(): one statement per server": lookup,
                },
                turns=400 if len(keys) < 1000 else 60,
            ),
        )


def _claim(cluster: Cluster) -> None:
    numbers = count(_KEYS)

    def one_table() -> None:
        number = next(numbers)
        with cluster.begin() as session:
            row = {"key": f"new{number}@example.com", "user_id": number}
            session.execute(insert(OneTable), row)

    def at_once() -> None:
        number = next(numbers)
        cluster.run(UserEmail.claim, f"new{number}@example.com", pack(1, 3, number))

    def claimed() -> None:
        number = next(numbers)
        claim = cluster.run(UserEmail.claim, f"new{number}@example.com")
        cluster.run(claim.confirm, pack(1, 3, number))

    show(
        "a new key",
        compare(
            {
                "INSERT into one table, 1 transaction": one_table,
                "claim(key, id), 1 transaction": at_once,
                "claim(key) and confirm(id), 2 transactions": claimed,
            },
            turns=200,
        ),
    )
