"""Addresses of servers, and URLs with another address."""

from __future__ import annotations

import pytest

from sqla_shard.fleet.fleet import is_address, roles_in, url_at, with_port
from sqla_shard.topology import Topology


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("mysql://${U}:${P}@a", "mysql://${U}:${P}@b:3307"),
        ("mysql://u:p/?w@a:3306", "mysql://u:p/?w@b:3307"),
        ("mysql://u@[::1]:3306?ssl_ca=/a@b", "mysql://u@b:3307?ssl_ca=/a@b"),
        ("mariadb+pymysql://a/?x=1", "mariadb+pymysql://b:3307/?x=1"),
    ],
)
def test_a_url_at_another_address_keeps_the_rest(url, expected):
    assert url_at(url, "b:3307") == expected


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("DB1", "db1:3306"),
        ("db1:3307", "db1:3307"),
        ("[::1]:3306", "[::1]:3306"),
        ("10.0.0.1", "10.0.0.1:3306"),
    ],
)
def test_addresses(text, address):
    assert with_port(text) == address
    assert is_address(address)


@pytest.mark.parametrize("text", ["", ":3306", "a b:1", "u@a:1", "a/b:1", "a"])
def test_other_texts_are_no_addresses(text):
    assert not is_address(text)


def test_roles_of_servers():
    topology = Topology.from_mapping(
        {
            "epoch": 1,
            "keyspaces": {
                "objects": {
                    "kind": "objects",
                    "shards": 2,
                    "database": "db{shard:05d}",
                    "servers": [
                        {
                            "name": "a",
                            "primary": "mysql://u@h1",
                            "standby": "mysql://u@h2:3307",
                            "shards": [0, 1],
                        }
                    ],
                }
            },
        }
    )
    assert roles_in(topology) == {
        "h1:3306": ["the primary of a"],
        "h2:3307": ["the standby of a"],
    }
