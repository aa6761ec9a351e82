"""The tables of the pinboard: by its revisions, and without them.

A test module has a fixture ``make_cluster``, which opens virtual shards
without databases, others each time it is called, and takes the suite::

    class TestTables(Tables):
        pass
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from alembic import command

from examples.pinboard.models import Base, Pin, User
from examples.pinboard.tables import bring_up_to_date, configs
from sqla_shard import Cluster, schema
from sqla_shard.exc import ProvisionError
from sqla_shard.schema.selection import shards_of

MakeCluster = Callable[[], Cluster]

LOOKUPS = 2
#: Tables of objects that a version without revisions did not have.
NEW = (
    *("user_follows_boards", "board_has_followers"),
    *("board_has_saved_pins", "pin_in_boards"),
    *("imports", "import_parts"),
    *("user_follows_user", "user_followed_by_user"),
    *("user_follows_board", "board_followed_by_user"),
    *("user_has_posts", "user_has_pulled_posts"),
)


def create_tables(cluster: Cluster) -> None:
    """Make the tables of the pinboard as tests of other things do.

    The suite below sees that the revisions make the same ones, which takes
    them longer.
    """
    cluster.create_all(Base.metadata)


def definitions(cluster: Cluster) -> dict[str, dict[str, str]]:
    """Return the definitions of the pinboard's tables, by database."""
    found: dict[str, dict[str, str]] = {}
    for keyspace in cluster.topology.keyspaces.values():
        for shard in shards_of(cluster.places, keyspace):
            catalogue = shard.place.backend.catalogue
            engine = cluster.places.engines.new_engine(shard.place.engine)
            with engine.connect() as connection:
                (tables,) = catalogue.digests(connection, [shard.schema]).values()
                found[f"{keyspace.name} {shard.shard_id}"] = {
                    table: catalogue.definition(connection, shard.schema, table)
                    for table in tables
                    if table in Base.metadata.tables
                }
            engine.dispose()
    return found


def is_new(cluster: Cluster) -> bool:
    """Tell whether every shard is at the newest revision of its keyspace."""
    reports = map(schema.status, configs(cluster).values())
    return all(report.ok for report in reports)


class Tables:
    def test_models_and_revisions_agree(
        self, make_cluster: MakeCluster, capsys: pytest.CaptureFixture[str]
    ) -> None:
        cluster = make_cluster()
        bring_up_to_date(cluster)
        assert is_new(cluster)
        for config in configs(cluster).values():
            command.check(config)  # raises where it finds a difference
        without = make_cluster()
        create_tables(without)
        expected = definitions(without)
        names = {len(tables) for tables in expected.values()}
        assert names == {LOOKUPS, len(Base.metadata.tables) - LOOKUPS}
        assert definitions(cluster) == expected
        assert schema.verify(cluster).ok

        # Once is enough.
        capsys.readouterr()
        bring_up_to_date(cluster)
        assert capsys.readouterr() == ("", "")

    def test_revisions_can_be_undone(self, make_cluster: MakeCluster) -> None:
        cluster = make_cluster()
        bring_up_to_date(cluster)
        for config in configs(cluster).values():
            schema.downgrade(config, "base")
        assert not any(definitions(cluster).values())
        bring_up_to_date(cluster)
        assert is_new(cluster)

    def test_tables_of_a_version_without_revisions(
        self, make_cluster: MakeCluster
    ) -> None:
        cluster = make_cluster()
        cluster.create_all(Base.metadata, keyspace="objects")
        for shard_id in range(cluster.topology.sole("objects").shards):
            with cluster.begin() as session:
                on_one = {"shard_id": shard_id}
                connection = session.connection(bind_arguments=on_one)
                for name in NEW:
                    connection.exec_driver_sql(f"DROP TABLE {name}")
        with cluster.begin() as session:
            user = User(name="Ada")
            session.add(user)
            session.flush()
            user_id = user.id
        bring_up_to_date(cluster)
        assert is_new(cluster)
        new = make_cluster()
        bring_up_to_date(new)
        assert definitions(cluster) == definitions(new)
        with cluster.session() as session:
            assert session.get_one(User, user_id).name == "Ada"

    def test_unknown_tables(self, make_cluster: MakeCluster) -> None:
        cluster = make_cluster()
        create_tables(cluster)
        on_one = {"shard_id": 1}
        with cluster.begin() as session:
            connection = session.connection(bind_arguments=on_one)
            connection.exec_driver_sql(f"DROP TABLE {Pin.__tablename__}")
        before = definitions(cluster)
        with pytest.raises(ProvisionError, match="provision has not created"):
            bring_up_to_date(cluster)
        assert definitions(cluster) == before
        for config in configs(cluster).values():
            assert set(schema.status(config).histogram()) == {()}
