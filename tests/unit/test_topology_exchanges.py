"""Topologies that may be followed later, but not be published next."""

from __future__ import annotations

import pytest

from sqla_shard import Topology
from sqla_shard.exc import TopologyError
from sqla_shard.topology import refusals
from sqla_shard.topology.changes import exchanges


def topology(**servers):
    """Return a topology; a server is its primary, its ranges, its standby."""
    return Topology.from_mapping(
        {
            "epoch": 1,
            "keyspaces": {
                "objects": {
                    "kind": "objects",
                    "shards": 8,
                    "database": "db{shard:05d}",
                    "servers": [
                        {
                            "name": name,
                            "primary": f"mysql://{primary}",
                            "shards": shards,
                            **({"standby": f"mysql://{more[0]}"} if more else {}),
                        }
                        for name, (primary, shards, *more) in servers.items()
                    ],
                }
            },
        }
    )


OLD = topology(a=("h1", [0, 3], "h1b"), b=("h2", [4, 7], "h2b"))


@pytest.mark.parametrize(
    "new",
    [
        topology(a=("h1", [0, 3], "h1b"), b=("h2", [4, 7], "h2b")),
        topology(a=("h1b", [0, 3], "h1"), b=("h2", [4, 7], "h2b")),
        topology(a=("h9", [0, 3]), b=("h2", [4, 7])),
        topology(a=("h1", [0, 5]), b=("h2", [6, 7])),
        topology(b=("h2", [0, 7])),
        topology(a=("h2", [0, 7])),
        topology(a=("h2", [4, 7]), b=("h1", [0, 3])),
        topology(a=("h2", [3, 7]), b=("h1", [0, 2])),
        topology(a=("h1", [0, 1]), c=("h1b", [2, 3]), b=("h2", [4, 7])),
        topology(c=("h2", [4, 7]), d=("h1", [0, 3])),
    ],
    ids=[
        "nothing",
        "fail-over",
        "another machine",
        "a range moves",
        "all moves to one",
        "all moves to one that takes the name of the other",
        "names are swapped",
        "names are swapped and a shard moves",
        "a standby becomes a server",
        "other names",
    ],
)
def test_exchanges_that_may_be_published(new):
    assert exchanges(OLD, new) == ()
    assert refusals(OLD, new) == ()


def test_servers_that_fail_over_to_each_other():
    old = topology(a=("h1", [0, 3], "h2"), b=("h2", [4, 7], "h1"))
    new = topology(a=("h2", [0, 3], "h1"), b=("h1", [4, 7], "h2"))
    assert exchanges(old, new) == ()


@pytest.mark.parametrize(
    ("new", "places"),
    [
        (topology(a=("h2", [0, 3]), b=("h1", [4, 7])), [0, 1]),
        (topology(a=("H2:3306", [0, 3]), b=("h3", [4, 7])), [0]),
        (topology(a=("app:hush@h2", [0, 3]), b=("h3", [4, 7])), [0]),
    ],
    ids=["swapped", "taken over", "with a password"],
)
def test_a_primary_that_was_that_of_another_server(new, places):
    found = exchanges(OLD, new)
    assert [one.place for one in found] == [
        f"keyspaces.objects.servers[{index}].primary" for index in places
    ]
    assert "is still the primary of 'b'" in found[0].message
    assert "hush" not in str(found)


def test_a_process_that_missed_a_version_gets_on():
    # One step after the other is what is to be done; a process may see both
    # at once.
    between = topology(a=("h1", [0, 3]), b=("h3", [4, 7]))
    new = topology(a=("h2", [0, 3]), b=("h3", [4, 7]))
    assert exchanges(OLD, between) == exchanges(between, new) == ()
    assert exchanges(OLD, new) != ()
    assert refusals(OLD, new) == ()


@pytest.mark.parametrize("host", ["h1", "H1", "h1:3306", "app:hush@h1"])
def test_one_primary_for_two_servers_is_no_topology(host):
    with pytest.raises(TopologyError, match="is already the primary of") as caught:
        topology(a=("h1", [0, 3]), b=(host, [4, 7]))
    assert "hush" not in str(caught.value)
