"""The short form, the one that Pinterest published."""

from __future__ import annotations

from typing import Any

import pytest

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.topology import Topology

ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "hunter2"}
PLACEHOLDERS = "placeholders are allowed only in the user and the password"
PUBLISHED = {
    f"sharddb00{number}": {
        "range": (512 * (number - 1), 512 * number - 1),
        "master": f"MySQL00{number}A",
        "slave": f"MySQL00{number}B",
    }
    for number in range(1, 9)
}


def load(document: Any, **options: Any) -> Topology:
    return Topology.from_mapping(document, environ=ENVIRON, **options)


def problems(document: Any, **options: Any) -> list[Problem]:
    with pytest.raises(TopologyError) as caught:
        load(document, **options)
    return list(caught.value.problems)


def check(document: Any, place: str, *words: str) -> None:
    (problem,) = problems(document)
    assert problem.place == place
    for word in words:
        assert word in problem.message


def test_the_published_map() -> None:
    topology = load(PUBLISHED)
    assert topology.epoch == 0
    objects = topology.sole("objects")
    assert (objects.name, objects.shards) == ("objects", 4096)
    assert len(objects.servers) == 8
    server = objects.server_for(3429)
    assert server.name == "sharddb007"
    assert server.primary == ("mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@MySQL007A")
    assert server.standby == ("mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@MySQL007B")
    assert objects.database_for(3429) == "db03429"
    assert objects.database_for(0) == "db00000"


def test_it_has_a_full_form() -> None:
    topology = load(PUBLISHED)
    document = topology.to_mapping()
    assert document["keyspaces"]["objects"]["servers"][0]["shards"] == [0, 511]
    assert load(document) == topology


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("h", "mysql://u:x@h"),
        ("h:3307", "mysql://u:x@h:3307"),
        ("10.0.0.1", "mysql://u:x@10.0.0.1"),
        ("[::1]:3307", "mysql://u:x@[::1]:3307"),
        ("mariadb://a:b@h:3308", "mariadb://a:b@h:3308"),
        ("sqlite:///data/one", "sqlite:///data/one"),
    ],
)
def test_servers(host: str, url: str) -> None:
    topology = load({"s": {"range": [0, 7], "master": host}}, url="mysql://u:x@{host}")
    (server,) = topology.keyspace("objects").servers
    assert (server.primary, server.standby) == (url, None)


def test_list_of_ranges_and_no_standby() -> None:
    topology = load(
        {
            "a": {"range": [[0, 1], [4, 5]], "master": "a", "slave": None},
            "b": {"range": [2, 3], "master": "b"},
        }
    )
    assert topology.keyspace("objects").shards == 6


def test_problems_of_a_range() -> None:
    document: dict[str, Any] = {
        "a": {"range": (0, 511), "master": "a"},
        "b": {"range": (511, 1023), "master": "b"},
    }
    check(document, "b.range", "shard 511 is on 'a' and on 'b'")
    document["b"]["range"] = (600, 1023)
    check(document, "document", "shards 512-599", "are on no server")
    document["b"]["range"] = (1023, 512)
    check(document, "b.range", "is reversed")
    document["b"]["range"] = (512, 65_536)
    check(document, "b.range", "exceeds 65535")
    document["b"]["range"] = [[512, 600], [601, "x"]]
    check(document, "b.range[1]", "is not a pair of integers")
    del document["b"]["range"]
    check(document, "b.range", "is missing")


def test_all_problems_are_reported_where_the_author_wrote() -> None:
    document = {
        "sharddb001": {"range": (0, 511), "slave": "a:b@c", "mastr": "x"},
        "sharddb002": 5,
        "shard db": {"range": (0, 0), "master": "${HOST}"},
        "sharddb004": {"range": (600, 601), "master": "h", "slave": "H:3306"},
    }
    assert [(one.place, one.message.split(";")[0]) for one in problems(document)] == [
        ("sharddb001.master", "is missing"),
        ("sharddb001.slave", "'a:***@c' is not the URL of a server"),
        ("sharddb001.mastr", "is not a valid key here (range, master, slave)"),
        ("sharddb002", "5 is not a table"),
        ("shard db", "'shard db' is not a valid server name"),
        ("shard db.range", "shard 0 is on 'sharddb001' and on 'shard db'"),
        ("shard db.master", "'${HOST}' is not the URL of a server"),
        ("shard db.master", PLACEHOLDERS),
        ("sharddb004.slave", "h:3306 is the primary itself"),
    ]


@pytest.mark.parametrize("url", ["mysql://h", "mysql://{host}@{host}", "{h}"])
def test_a_template_without_a_host(url: str) -> None:
    first, *_ = problems(PUBLISHED, url=url)
    assert first.place == "url"
    assert repr(url) in first.message
    assert "{host} exactly once" in first.message


def test_a_template_that_has_a_port_already() -> None:
    document = {"s": {"range": [0, 7], "master": "h:3307"}}
    (problem,) = problems(document, url="mysql://{host}:3306")
    assert problem.place == "s.master"
    assert "has an invalid port" in problem.message


@pytest.mark.parametrize(
    "document", [{}, {"a": 1}, {"a": {"x": 1}}, {"epoch": 1, **PUBLISHED}]
)
def test_texts_that_are_not_the_short_form(document: dict[str, Any]) -> None:
    places = [one.place for one in problems(document)]
    assert "keyspaces" in places
