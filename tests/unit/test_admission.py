"""Changes that a new topology may not make."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from sqla_shard import Topology
from sqla_shard.topology import refusals

OLD: dict[str, Any] = {
    "epoch": 1,
    "keyspaces": {
        "objects": {
            "kind": "objects",
            "shards": 8,
            "database": "db{shard:05d}",
            "servers": [
                {"name": "server1", "primary": "mysql://127.0.0.1:1", "shards": [0, 3]},
                {"name": "server2", "primary": "mysql://127.0.0.1:2", "shards": [4, 7]},
            ],
        },
        "lookup": {
            "kind": "mod",
            "shards": 4,
            "database": "lookup{shard:05d}",
            "servers": [
                {"name": "server1", "primary": "mysql://127.0.0.1:1", "shards": [0, 3]}
            ],
        },
        "main": {
            "kind": "global",
            "database": "main",
            "servers": [{"name": "server1", "primary": "mysql://127.0.0.1:1"}],
        },
    },
}


def refused(edit: Callable[[dict[str, Any]], object]) -> list[str]:
    """Return the places of refusals after an edit of keyspaces."""
    new = copy.deepcopy(OLD)
    edit(new["keyspaces"])
    problems = refusals(Topology.from_mapping(OLD), Topology.from_mapping(new))
    assert all(problem.message for problem in problems)
    return [problem.place for problem in problems]


def servers_of(spaces: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = spaces[name]["servers"]
    return found


def as_it_is(spaces: dict[str, Any]) -> None:
    """Change nothing; the epoch is not looked at."""


def move_shards(spaces: dict[str, Any]) -> None:
    one, two = servers_of(spaces, "objects")
    one["shards"], two["shards"] = [0, 1], [2, 7]


def swap_servers(spaces: dict[str, Any]) -> None:
    one, two = servers_of(spaces, "objects")
    one["shards"], two["shards"] = two["shards"], one["shards"]


def remove_server(spaces: dict[str, Any]) -> None:
    servers_of(spaces, "objects").pop()["name"]
    servers_of(spaces, "objects")[0]["shards"] = [0, 7]


def add_server(spaces: dict[str, Any]) -> None:
    servers_of(spaces, "objects")[1]["shards"] = [4, 5]
    servers_of(spaces, "objects").append(
        {"name": "server3", "primary": "mysql://127.0.0.1:3", "shards": [6, 7]}
    )


def open_shards(spaces: dict[str, Any]) -> None:
    spaces["objects"]["shards"] = 16
    servers_of(spaces, "objects")[1]["shards"] = [4, 15]


def change_url(spaces: dict[str, Any]) -> None:
    for name in spaces:
        servers_of(spaces, name)[0]["primary"] = "mysql://127.0.0.1:9"


def add_keyspace(spaces: dict[str, Any]) -> None:
    spaces["more"] = {**copy.deepcopy(spaces["main"]), "database": "more"}


def change_weight(spaces: dict[str, Any]) -> None:
    servers_of(spaces, "objects")[0]["weight"] = 0


@pytest.mark.parametrize(
    "edit",
    [
        as_it_is,
        move_shards,
        swap_servers,
        remove_server,
        add_server,
        open_shards,
        change_url,
        add_keyspace,
        change_weight,
    ],
)
def test_these_lose_nothing(edit: Callable[[dict[str, Any]], object]) -> None:
    assert refused(edit) == []


def close_shards(spaces: dict[str, Any]) -> None:
    spaces["objects"]["shards"] = 6
    servers_of(spaces, "objects")[1]["shards"] = [4, 5]


def leave_out(spaces: dict[str, Any]) -> None:
    del spaces["main"]


def rename(spaces: dict[str, Any]) -> None:
    spaces["things"] = spaces.pop("objects")


def rename_databases(spaces: dict[str, Any]) -> None:
    spaces["objects"]["database"] = "other{shard:05d}"


def rename_one(spaces: dict[str, Any]) -> None:
    spaces["main"]["database"] = "other"


def change_kind(spaces: dict[str, Any]) -> None:
    spaces["lookup"]["kind"] = "objects"


def larger_modulus(spaces: dict[str, Any]) -> None:
    spaces["lookup"]["shards"] = 8
    servers_of(spaces, "lookup")[0]["shards"] = [0, 7]


def smaller_modulus(spaces: dict[str, Any]) -> None:
    spaces["lookup"]["shards"] = 2
    servers_of(spaces, "lookup")[0]["shards"] = [0, 1]


@pytest.mark.parametrize(
    ("edit", "places"),
    [
        (close_shards, ["keyspaces.objects.shards"]),
        (leave_out, ["keyspaces.main"]),
        (rename, ["keyspaces.objects"]),
        (rename_databases, ["keyspaces.objects.database"]),
        (rename_one, ["keyspaces.main.database"]),
        (change_kind, ["keyspaces.lookup.kind"]),
        (larger_modulus, ["keyspaces.lookup.shards"]),
        (smaller_modulus, ["keyspaces.lookup.shards"]),
    ],
)
def test_these_are_refused(
    edit: Callable[[dict[str, Any]], object], places: list[str]
) -> None:
    assert refused(edit) == places


def test_all_that_would_be_lost_is_reported_at_once() -> None:
    def all_of_it(spaces: dict[str, Any]) -> None:
        for edit in (close_shards, leave_out, larger_modulus):
            edit(spaces)

    assert refused(all_of_it) == [
        "keyspaces.main",
        "keyspaces.objects.shards",
        "keyspaces.lookup.shards",
    ]
