"""Generations: in documents, and what becomes of them in the next one."""

from __future__ import annotations

import copy
import json
import pickle
import random
from collections.abc import Mapping
from typing import Any

import pytest

from sqla_shard.exc import TopologyError
from sqla_shard.topology import (
    describe,
    read_document,
    Server,
    ShardRange,
    to_json,
    Topology,
)
from sqla_shard.topology.generations import (
    cautions,
    inherited,
    lowered_generations,
    numbers,
    with_raised_generations,
    without_generations,
)

Used = dict[tuple[str, str], int]


def document(**servers: tuple[str, int | None]) -> dict[str, Any]:
    """Return a document of servers by name: host, and generation."""
    return {
        "epoch": 1,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 4 * len(servers),
                "database": "db{shard}",
                "servers": [
                    {
                        "name": name,
                        "primary": f"mysql://app:hunter2@{host}",
                        "shards": [4 * index, 4 * index + 3],
                        **({} if number is None else {"generation": number}),
                    }
                    for index, (name, (host, number)) in enumerate(servers.items())
                ],
            }
        },
    }


def topology(**servers: tuple[str, int | None]) -> Topology:
    return Topology.from_mapping(document(**servers))


def given(topology: Topology) -> dict[str, int | None]:
    servers = topology.keyspace("objects").servers
    return {server.name: server.generation for server in servers}


def never() -> Mapping[tuple[str, str], int]:
    pytest.fail("the history was asked for nothing")


class TestDocuments:
    @pytest.mark.parametrize("number", [None, 0, 7, 2**63 - 1])
    def test_there_and_back(self, number: int | None) -> None:
        found = topology(a=("one", number))
        (server,) = found.keyspace("objects").servers
        assert server.generation == number
        (written,) = found.to_mapping()["keyspaces"]["objects"]["servers"]
        assert written.get("generation", None) == number
        assert ("generation" in written) is (number is not None)
        assert Topology.from_mapping(found.to_mapping()) == found
        assert read_document(to_json(found), "json", source="x") == found
        assert pickle.loads(pickle.dumps(found)) == found  # our own
        shown = found.redacted().keyspace("objects").servers[0]
        assert shown.generation == number
        assert f"generation={number!r})" in repr(shown)
        lines = describe(found)
        assert ("generation" in lines) is (number is not None)
        if number is not None:
            assert lines.endswith(f", generation {number}")

    def test_two_generations_are_two_topologies(self) -> None:
        one, two, none = (topology(a=("one", n)) for n in (1, 2, None))
        assert len({one, two, none}) == 3
        assert without_generations(one) == without_generations(two) == none
        assert without_generations(none) is none

    def test_of_toml(self) -> None:
        text = b"""
            epoch = 1
            [keyspaces.main]
            kind = "global"
            database = "main"
            [[keyspaces.main.servers]]
            name = "main"
            primary = "mysql://app@main"
            generation = 4
        """
        found = read_document(text, "toml", source="x")
        assert found.keyspace("main").servers[0].generation == 4

    @pytest.mark.parametrize(
        ("number", "message"),
        [
            (-1, "-1 is negative; use 0 or more"),
            (2**63, "has more than 63 bits"),
            (10**5000, "has more than 63 bits"),
            (True, "True is not an integer"),
            (1.0, "1.0 is not an integer"),
            ("3", "'3' is not an integer"),
        ],
        ids=["negative", "64 bits", "huge", "bool", "float", "text"],
    )
    def test_invalid_numbers(self, number: Any, message: str) -> None:
        with pytest.raises(TopologyError) as caught:
            topology(a=("one", number), b=("two", None))
        (problem,) = caught.value.problems
        assert problem.place == "keyspaces.objects.servers[0].generation"
        assert message in problem.message

    def test_null_of_json_is_none(self) -> None:
        found = document(a=("one", None))
        found["keyspaces"]["objects"]["servers"][0]["generation"] = None
        assert given(Topology.from_mapping(found)) == {"a": None}

    def test_not_in_the_short_form(self) -> None:
        short = {"s": {"range": [0, 3], "master": "h", "generation": 1}}
        blank = {"MYSQL_USER": "", "MYSQL_PASSWORD": ""}
        with pytest.raises(TopologyError, match="generation"):
            Topology.from_mapping(short, environ=blank)

    def test_a_server_made_by_hand_has_none(self) -> None:
        made = Server(name="a", primary="mysql://a", shards=(ShardRange(0, 0),))
        assert made.generation is None


class TestRaised:
    def test_nothing_changes(self) -> None:
        old = topology(a=("one", 3), b=("two", None))
        assert with_raised_generations(old, old, never) is old

    def test_another_primary(self) -> None:
        old = topology(a=("one", 3), b=("two", 5), c=("three", None))
        new = topology(a=("four", 3), b=("two", 5), c=("five", None))
        assert given(with_raised_generations(old, new, dict)) == {
            "a": 4,
            "b": 5,
            "c": None,
        }

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("mysql://app:x@one", "mysql://other:y@ONE:3306"),
            ("mysql://app@one", "mariadb+pymysql://app@one"),
            ("mysql://[::1]", "mysql://[0:0::1]"),
            ("sqlite:///here", "sqlite:///./here"),
        ],
        ids=["login and port", "driver", "IPv6", "SQLite"],
    )
    def test_the_same_primary(self, before: str, after: str) -> None:
        old, new = document(a=("one", 3)), document(a=("one", 3))
        for one, url in ((old, before), (new, after)):
            one["keyspaces"]["objects"]["servers"][0]["primary"] = url
        found = Topology.from_mapping(new)
        assert (
            with_raised_generations(Topology.from_mapping(old), found, never) is found
        )

    def test_above_every_number_of_the_history(self) -> None:
        old, new = topology(a=("one", 3)), topology(a=("two", 3))
        used = {("objects", "a"): 9, ("objects", "b"): 50, ("x", "a"): 70}
        assert given(with_raised_generations(old, new, lambda: used)) == {"a": 10}
        used = {("objects", "a"): 2}
        assert given(with_raised_generations(old, new, lambda: used)) == {"a": 4}

    @pytest.mark.parametrize("host", ["one", "two"])
    @pytest.mark.parametrize(("number", "found"), [(5, 8), (7, 8), (9, 9)])
    def test_raised_by_hand(self, host: str, number: int, found: int) -> None:
        old, new = topology(a=("one", 3)), topology(a=(host, number))
        used = {("objects", "a"): 7}
        assert given(with_raised_generations(old, new, lambda: used)) == {"a": found}

    @pytest.mark.parametrize("host", ["one", "two"])
    def test_the_first_number(self, host: str) -> None:
        old, new = topology(a=("one", None)), topology(a=(host, 0))
        assert given(with_raised_generations(old, new, dict)) == {"a": 0}
        assert given(with_raised_generations(None, new, dict)) == {"a": 0}

    @pytest.mark.parametrize("host", ["one", "two"])
    def test_no_number_any_more(self, host: str) -> None:
        old, new = topology(a=("one", 3)), topology(a=(host, None))
        assert with_raised_generations(old, new, never) is new

    def test_a_server_that_comes_back(self) -> None:
        old = topology(b=("two", 1))
        new = topology(a=("one", 1), b=("two", 1))
        used = {("objects", "a"): 1, ("objects", "b"): 1}
        assert given(with_raised_generations(old, new, lambda: used)) == {
            "a": 2,
            "b": 1,
        }

    def test_a_number_after_none(self) -> None:
        old, new = topology(a=("one", None)), topology(a=("one", 2))
        used = {("objects", "a"): 2}
        assert given(with_raised_generations(old, new, lambda: used)) == {"a": 3}

    def test_another_name_of_a_machine(self) -> None:
        old, new = topology(a=("one", 3)), topology(a=("uno", 3))
        assert with_raised_generations(old, new, never, renamed=True) is new
        used = {("objects", "a"): 3}
        back = topology(a=("one", 3), b=("two", None))
        old = topology(b=("two", None))
        found = with_raised_generations(old, back, lambda: used, renamed=True)
        assert given(found)["a"] == 4

    def test_moves_change_nothing(self) -> None:
        old = topology(a=("one", 3), b=("two", 5))
        moved = copy.deepcopy(document(a=("one", 3), b=("two", 5)))
        servers = moved["keyspaces"]["objects"]["servers"]
        servers[0]["shards"], servers[1]["shards"] = [4, 7], [0, 3]
        new = Topology.from_mapping(moved)
        assert with_raised_generations(old, new, never) is new

    def test_a_number_that_is_lower_stays_for_the_problem(self) -> None:
        old, new = topology(a=("one", 3)), topology(a=("two", 2))
        assert with_raised_generations(old, new, never) is new
        (problem,) = lowered_generations(old, new)
        assert problem.place == "keyspaces.objects.servers[0].generation"
        assert "2 is lower than 3, which 'a' has now" in problem.message
        assert "write 3" in problem.message
        for number in (3, 4, None):
            assert not list(lowered_generations(old, topology(a=("two", number))))
        assert not list(lowered_generations(topology(b=("one", 3)), new))


def test_kept() -> None:
    old = topology(a=("one", 3), b=("two", None))
    new = topology(a=("one", 1), b=("two", 4), c=("three", 5))
    assert given(inherited(old, new)) == {"a": 3, "b": 4, "c": 5}
    new = topology(a=("one", None))
    assert given(inherited(old, new)) == {"a": 3}
    assert inherited(old, old) is old


def test_no_life_has_the_number_of_another(rng: random.Random) -> None:
    """Random publications and rollbacks; a life is a primary in a row."""
    for _ in range(100):
        history = [topology(a=("h0", 0), b=("z", 0))]
        life = 0
        seen = {0: 0}
        for _ in range(20):
            old = history[-1]
            was = old.keyspace("objects").servers[0]
            assert was.generation is not None
            used: Used = {}
            for one in history:
                for key, number in numbers(one.to_mapping()).items():
                    used[key] = max(number, used.get(key, number))
            if rng.random() < 0.3:
                new = inherited(old, rng.choice(history))
            else:
                number = was.generation + rng.choice([0, 0, 0, 1, 5])
                new = topology(a=(f"h{rng.randrange(3)}", number), b=("z", 0))
            new = with_raised_generations(old, new, lambda used=used: used)  # type: ignore[misc]  # bound at once
            assert not list(lowered_generations(old, new))
            now, other = new.keyspace("objects").servers
            assert other.generation == 0
            life += now.primary != was.primary
            assert now.generation is not None
            assert now.generation >= was.generation
            # A number belongs to one life; a life may have several.
            assert seen.setdefault(now.generation, life) == life
            history.append(new)


@pytest.mark.parametrize(
    "broken",
    [
        [],
        None,
        {},
        {"keyspaces": []},
        {"keyspaces": {"objects": 1}},
        {"keyspaces": {"objects": {"servers": {"a": 1}}}},
        {"keyspaces": {"objects": {"servers": [1, {}, {"name": []}]}}},
        {"keyspaces": {"o": {"servers": [{"name": "a", "generation": "1"}]}}},
        {"keyspaces": {"o": {"servers": [{"name": "a", "generation": True}]}}},
        {"keyspaces": {"o": {"servers": [{"name": "a", "generation": -1}]}}},
        {"keyspaces": {"o": {"servers": [{"name": "a", "generation": 2**63}]}}},
    ],
    ids=json.dumps,
)
def test_numbers_of_what_is_no_topology(broken: Any) -> None:
    assert numbers(broken) == {}


def test_numbers() -> None:
    found = document(a=("one", 3), b=("two", None), c=("three", 0))
    servers = found["keyspaces"]["objects"]["servers"]
    servers += [{"name": "a", "generation": 2}, "nonsense"]
    assert numbers(found) == {("objects", "a"): 3, ("objects", "c"): 0}


def test_cautions() -> None:
    old = topology(a=("one", 3), b=("two", None), c=("three", 1))
    assert not list(cautions(old, old))
    new = topology(a=("four", 3), b=("five", None), c=("three", 1))
    (caution,) = cautions(old, new)
    assert caution.startswith(
        "objects: generation of 'a' stays 3 while its primary changes: "
    )
    assert "write 4, or a higher number" in caution
    assert "hunter2" not in caution
    for number in (4, None):
        new = topology(a=("one", number), b=("two", None), c=("three", 1))
        (caution,) = cautions(old, new)
        assert caution.startswith(
            "objects: generation of 'a' changes while its primary stays: "
        )
        new = topology(a=("four", number), b=("two", None), c=("three", 1))
        assert not list(cautions(old, new))
    assert not list(cautions(topology(x=("x", 1)), old))
