"""Reading reference tables, alone and with objects."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, exists, func, inspect, select, text, update
from sqlalchemy.orm import joinedload, selectinload

from sqla_shard import Cluster, scatter, ShardSession
from sqla_shard.exc import NoShardKeyError, ReferenceWriteError, ScatterUnsupportedError
from tests.models.reference_models import COUNTRIES, Country, SHARDS, Suite, User


class Alone(Suite):
    """The test module has a fixture ``cluster``."""

    def test_by_key(self, session: ShardSession) -> None:
        found = session.get(Country, "de")
        assert found is not None
        assert found.name == "Germany"
        assert session.get(Country, "de") is found
        assert session.get(Country, "xx") is None
        session.expire(found)
        assert found.name == "Germany"
        session.refresh(found)
        assert found.tags == []

    def test_each_row_once(self, session: ShardSession) -> None:
        every = select(Country).order_by(Country.code)
        names = [one["name"] for one in COUNTRIES]
        for statement in (every, every.options(scatter())):
            assert [c.name for c in session.scalars(statement)] == names
        counted = select(func.count()).select_from(Country.__table__)
        for counts in (counted, counted.options(scatter(max_rows=1))):
            assert session.scalar(counts) == len(COUNTRIES)
        page = session.scatter_page(every, 2)
        assert [c.code for c in page.items] == ["de", "fr"]
        page = session.scatter_page(every, 2, after=page.next)
        assert [c.code for c in page.items] == ["no"]
        assert page.next is None

    def test_joined_to_itself(self, session: ShardSession) -> None:
        other = Country.__table__.alias()
        pairs = select(Country.code, other.c.code).where(Country.code < other.c.code)
        assert len(session.execute(pairs).all()) == 3

    def test_the_shard_that_is_named(
        self, cluster: Cluster, session: ShardSession
    ) -> None:
        place = cluster.places.place(cluster.topology.keyspace("objects"), 5)
        session.execute(select(Country), bind_arguments={"shard_id": 5})
        assert session.is_connected(place)

    def test_a_connection_says_its_shard(self, session: ShardSession) -> None:
        with pytest.raises(NoShardKeyError) as caught:
            session.connection({"mapper": Country})
        assert caught.value.tables == ("country",)
        connection = session.connection({"mapper": Country, "shard_id": 2})
        assert len(connection.execute(select(Country)).all()) == 3

    def test_no_other_server_than_the_one_in_use(self, cluster: Cluster) -> None:
        for shard_id in range(SHARDS):
            user = self.new_user(cluster, shard_id, "fr")
            with cluster.session() as session:
                session.get(User, user)
                for code in ("de", "fr", "no"):
                    session.get(Country, code)
                # One connection per file on SQLite, per server on MariaDB.
                assert len(session._connections) <= self.connections

    #: At most, of a session that reads one shard and reference tables.
    connections = 2

    def test_all_shards_take_their_share(self, cluster: Cluster) -> None:
        seen = set()
        for _ in range(150):
            shown = cluster.explain(select(Country))
            assert len(shown.shards) == 1
            seen.update(shown.shards)
        # That one is left out has a chance of 8 * (7/8)**150.
        assert seen == set(range(SHARDS))

    def test_one_shard_for_a_transaction(self, cluster: Cluster) -> None:
        # Two would differ while the table is being written.
        every = select(Country).order_by(Country.code)
        for shard_id in range(1, SHARDS):
            with cluster.begin() as session:
                session.connection({"shard_id": shard_id}).execute(
                    Country.__table__.update().values(name=f"s{shard_id}")
                )
        for _ in range(10):
            with cluster.session() as session:
                seen = {
                    name
                    for _ in range(5)
                    for name in session.scalars(
                        select(Country.name).where(Country.code == "de")
                    )
                }
                assert len(seen) == 1
                session.scalars(every).all()

    def test_as_text_it_says_its_shard(self, session: ShardSession) -> None:
        raw = select(Country).from_statement(
            text("SELECT * FROM __sqla_shard__.country")
        )
        with pytest.raises(NoShardKeyError):
            session.scalars(raw)
        found = session.scalars(raw, bind_arguments={"shard_id": 1}).all()
        assert len(found) == len(COUNTRIES)

    def test_explained(self, cluster: Cluster) -> None:
        shown = cluster.explain(select(Country).options(scatter()))
        assert shown.refusal is None
        assert len(shown.shards) == len(shown.sent) == 1
        assert "the same on every shard" in str(shown)
        document = shown.as_dict()
        assert [one["shard"] for one in document["shards"]] == [*shown.shards]
        for write in (
            update(Country).values(name="x"),
            delete(Country).where(Country.code == "de"),
        ):
            refusal = cluster.explain(write).refusal
            assert isinstance(refusal, ReferenceWriteError)


class WithObjects(Suite):
    """The test module has a fixture ``cluster``."""

    @pytest.fixture
    def users(self, cluster: Cluster) -> list[int]:
        """Two Germans, two French, one of nowhere, on five shards."""
        codes = ["de", "fr", "de", None, "fr"]
        return [self.new_user(cluster, i, code) for i, code in enumerate(codes)]

    def test_joined(self, session: ShardSession, users: list[int]) -> None:
        joined = select(User.id, Country.name).join(User.country)
        one = session.execute(joined.where(User.id == users[1])).all()
        assert [tuple(row) for row in one] == [(users[1], "France")]
        some = joined.where(User.id.in_(users[:4]))
        assert sorted(map(tuple, session.execute(some))) == sorted(
            [(users[0], "Germany"), (users[1], "France"), (users[2], "Germany")]
        )

    def test_it_names_no_shard(self, session: ShardSession, users: list[int]) -> None:
        joined = select(User).join(User.country).where(Country.code == "de")
        with pytest.raises(NoShardKeyError) as caught:
            session.scalars(joined)
        assert caught.value.tables == ("users",)
        found = session.scalars(joined.options(scatter())).all()
        assert sorted(user.id for user in found) == [users[0], users[2]]

    def test_merged(self, session: ShardSession, users: list[int]) -> None:
        per_country = (
            select(Country.name, func.count())
            .select_from(User)
            .join(User.country)
            .group_by(Country.name)
            .order_by(Country.name)
            .options(scatter())
        )
        found = [tuple(row) for row in session.execute(per_country)]
        assert found == [("France", 2), ("Germany", 2)]
        sorted_ = (
            select(Country.name, User.id)
            .select_from(User)
            .outerjoin(User.country)
            .order_by(Country.name.desc(), User.id)
            .limit(3)
            .options(scatter())
        )
        assert [tuple(row) for row in session.execute(sorted_)] == [
            ("Germany", users[0]),
            ("Germany", users[2]),
            ("France", users[1]),
        ]
        mine = User.country_code == Country.code
        names = select(Country.name).join(User, mine).distinct()
        found_names = session.scalars(names.options(scatter())).all()
        assert sorted(found_names) == ["France", "Germany"]
        numbered = (
            select(User.id, func.row_number().over(partition_by=User.id))
            .join(User.country)
            .options(scatter())
        )
        assert {row[1] for row in session.execute(numbered)} == {1}

    def test_in_a_subquery(self, session: ShardSession, users: list[int]) -> None:
        # Each shard has all of it, so what looks at many rows is right.
        largest = select(func.max(Country.code)).where(Country.code != "no")
        found = session.scalars(
            select(User)
            .where(User.country_code == largest.scalar_subquery())
            .options(scatter())
        ).all()
        assert sorted(user.id for user in found) == [users[1], users[4]]
        first = select(Country.code).order_by(Country.code).limit(1)
        for some, expected in (
            (largest.subquery(), [users[1], users[4]]),
            (first.subquery(), [users[0], users[2]]),
        ):
            (code,) = some.c
            joined = select(User.id).join(some, User.country_code == code)
            ids = session.scalars(joined.options(scatter())).all()
            assert sorted(ids) == expected
        held = exists().where(User.country_code == Country.code)
        one = select(Country.code).where(held.where(User.id == users[0]))
        assert session.scalars(one).all() == ["de"]

    @pytest.mark.parametrize("kind", ["left", "held", "not held", "scalar"])
    def test_rows_that_each_shard_would_return_are_refused(
        self, session: ShardSession, users: list[int], kind: str
    ) -> None:
        held = exists().where(User.country_code == Country.code)
        mine = User.country_code == Country.code
        count = select(func.count(User.id)).where(mine).scalar_subquery()
        statement: Any = {
            "left": select(Country.code, User.id).outerjoin(User, mine),
            "held": select(Country).where(held),
            "not held": select(Country).where(~held),
            "scalar": select(Country.code, count),
        }[kind]
        with pytest.raises(NoShardKeyError):
            session.execute(statement)
        with pytest.raises(ScatterUnsupportedError) as caught:
            session.execute(statement.options(scatter()))
        assert "reference table" in str(caught.value)

    def test_on_one_shard_it_is_right(
        self, session: ShardSession, users: list[int]
    ) -> None:
        mine = (User.country_code == Country.code) & (User.id == users[0])
        found = session.execute(
            select(Country.code, User.id).outerjoin(User, mine).order_by(Country.code)
        ).all()
        assert [tuple(row) for row in found] == [
            ("de", users[0]),
            ("fr", None),
            ("no", None),
        ]
        both = (User.country_code == Country.code) & User.id.in_(users[:2])
        with pytest.raises(ScatterUnsupportedError):
            session.execute(select(Country.code, User.id).outerjoin(User, both))

    def test_loaded_by_a_relationship(self, cluster: Cluster, users: list[int]) -> None:
        names = ["Germany", "France", "Germany", None, "France"]

        def shown(found: Any) -> list[Any]:
            return [user.country and user.country.name for user in found]

        with cluster.session() as session:
            assert shown(session.get_many(User, users)) == names
        for load in (selectinload, joinedload):
            with cluster.session() as session:
                found = session.get_many(User, users, options=[load(User.country)])
                assert not any("country" in inspect(u).unloaded for u in found)
                assert shown(found) == names
                german, _, other, *_ = found
                assert german is not None
                assert other is not None
                assert german.country is other.country

    def test_updates_look_at_it(self, cluster: Cluster, users: list[int]) -> None:
        german = select(Country.code).where(Country.name == "Germany")
        with cluster.begin() as session:
            session.execute(
                User.__table__.update()
                .where(User.id == users[0], User.country_code.in_(german))
                .values(country_code="no")
            )
        with cluster.session() as session:
            user = session.get(User, users[0])
            assert user is not None
            assert user.country is not None
            assert user.country.code == "no"
