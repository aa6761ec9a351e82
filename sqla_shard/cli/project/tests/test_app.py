"""Tests of the application."""

from sqla_shard import Cluster

from app import sign_up, titles


def test_a_board_is_on_the_shard_of_its_user(cluster: Cluster) -> None:
    user_id = cluster.run(sign_up)
    with cluster.session() as session:
        assert titles(session, user_id) == ["Boats"]
