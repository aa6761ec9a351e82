"""From a text to the source that it names."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqla_shard import FileSource
from sqla_shard.exc import TopologyError
from sqla_shard.topology.follow import followed, source_at
from sqla_shard.topology.follow.locations import (
    AUTH_VARIABLE,
    is_zookeeper,
    zookeeper_options,
)
from tests.servers.following import Feed, topology


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH_VARIABLE, raising=False)


@pytest.mark.parametrize(
    ("location", "hosts", "options"),
    [
        ("zookeeper://zk1:2181", "zk1:2181", {}),
        ("zookeeper://zk1", "zk1", {}),
        ("zookeeper://zk1:2181/", "zk1:2181", {}),
        ("zookeeper://a:1,b:2/prod/x", "a:1,b:2/prod/x", {}),
        ("zookeeper://[::1]:2181/prod", "[::1]:2181/prod", {}),
        ("zookeeper+tls://a:1/prod", "a:1/prod", {"use_ssl": True}),
        (
            "zookeeper+tls://a:1?ca=/x/ca.pem&certfile=/c&keyfile=/k%20y",
            "a:1",
            {"use_ssl": True, "ca": "/x/ca.pem", "certfile": "/c", "keyfile": "/k y"},
        ),
    ],
)
def test_urls(location: str, hosts: str, options: dict[str, object]) -> None:
    assert is_zookeeper(location)
    assert zookeeper_options(location) == (hosts, options)
    source = source_at(location)
    assert source.name == f"zookeeper://{hosts}"
    assert source.interval is None
    assert hosts in repr(source)


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("zookeeper://", "invalid host or port"),
        ("zookeeper:///prod", "invalid host or port"),
        ("zookeeper://a:1,,b:2", "invalid host or port"),
        ("zookeeper://a:port/prod", "invalid host or port"),
        ("zookeeper://zookeeper://a:1", "invalid host or port"),
        ("zookeeper://a:1?ca=/x", "'ca' is not a valid option"),
        ("zookeeper+tls://a:1?verify=0", "'verify' is not a valid option"),
        ("zookeeper+tls://a:1?ca", None),
        ("zookeeper://me:sesame@a:1/prod", AUTH_VARIABLE),
        ("zookeeper://me:ses/ame@a:1/prod", AUTH_VARIABLE),
    ],
)
def test_urls_that_cannot_be_used(location: str, said: str | None) -> None:
    if said is None:
        # Empty, as kazoo has it by default.
        assert zookeeper_options(location)[1]["ca"] == ""
        return
    with pytest.raises(TopologyError) as caught:
        source_at(location)
    assert said in str(caught.value)
    assert "sesame" not in str(caught.value)
    assert "ses/ame" not in str(caught.value)


def test_credentials_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(AUTH_VARIABLE, "digest:me:sesame")
    _, options = zookeeper_options("zookeeper://a:1/prod")
    assert options == {"auth_data": [("digest", "me:sesame")]}
    source = source_at("zookeeper://a:1/prod")
    assert "sesame" not in source.name + repr(source)
    monkeypatch.setenv(AUTH_VARIABLE, "sesame")
    with pytest.raises(TopologyError) as caught:
        zookeeper_options("zookeeper://a:1/prod")
    assert "sesame" not in str(caught.value)


@pytest.mark.parametrize("name", ["a.toml", "a.json", "zookeeper.toml"])
def test_everything_else_is_a_file(name: str, tmp_path: Path) -> None:
    for location in (name, tmp_path / name):
        source = source_at(location)
        assert source.name == str(location)
        assert source.interval == 1.0
        assert not is_zookeeper(location)


def test_a_file_of_no_known_format() -> None:
    for location in ("a.yaml", "zookeeper", "http://a/b"):
        with pytest.raises(TopologyError, match="does not end in"):
            source_at(location)


def test_locations_that_can_be_followed_are_unchanged() -> None:
    feed = Feed(topology(1))
    assert followed(feed) is feed
    assert followed(FileSource("a.toml")).interval == 1.0

    class Asked:
        def load(self) -> object:
            return topology(1)

    assert followed(Asked(), 7.0).interval == 7.0  # type: ignore[arg-type]  # of tests
