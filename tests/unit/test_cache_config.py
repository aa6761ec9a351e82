"""The file of the regions of a cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqla_shard import exc
from sqla_shard.cache.regions import load_regions, open_region
from sqla_shard.cache.stores.memcached import MemcachedStore

GOOD = """
[regions.pins]
backend = "sqla_shard.memcached"
expiration_time = 600
expire_nothing = 10
lease = 3
tombstone = 30
wait = 0.1

[regions.pins.arguments]
servers = ["127.0.0.1:11211"]
timeout = 0.2

[regions.boards-2]
backend = "dogpile.cache.memory"
"""
MEMORY = 'backend = "dogpile.cache.memory"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.toml"


def test_valid_settings(path):
    path.write_text(GOOD, "utf-8")
    for one in (path, str(path)):
        found = load_regions(one)
        assert list(found) == ["pins", "boards-2"]
        assert found["pins"]["arguments"]["servers"] == ["127.0.0.1:11211"]
    region = open_region("pins", found["pins"])
    assert (region.times.expire, region.times.wait) == (600, 0.1)
    assert isinstance(region.store, MemcachedStore)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        ("", "regions", "is missing; write"),
        ("regions = 3", "regions", "is missing; write"),
        ("[regions]", "regions", "is missing; write"),
        ("[region.a]\n" + MEMORY, "region", "is not a valid key"),
        ("[regions.a", "file", "correct the syntax"),
        ("a = " + "[" * 100_000, "file", "it is nested too deeply"),
        ("[regions]\na = 3", "regions.a", "is a number; write a table"),
        ('[regions."a b"]\n' + MEMORY, "regions.a b", "is not a valid region name"),
        (f"[regions.{'a' * 65}]\n" + MEMORY, "regions." + "a" * 65, "region name"),
        ("[regions.a]", "regions.a.backend", "is missing"),
        ("[regions.a]\nbackend = 3", "regions.a.backend", "or not a string"),
        ('[regions.a]\nbackend = ""', "regions.a.backend", "is missing"),
        (
            f"[regions.a]\n{MEMORY}expire = 3",
            "regions.a.expire",
            "valid are backend, arguments, expiration_time",
        ),
        (
            f'[regions.a]\n{MEMORY}lease = "3"',
            "regions.a.lease",
            "is a string; write seconds",
        ),
        (
            f"[regions.a]\n{MEMORY}wait = true",
            "regions.a.wait",
            "is a boolean; write seconds",
        ),
        (
            f"[regions.a]\n{MEMORY}lease = 2020-01-01",
            "regions.a.lease",
            "is a time; write seconds",
        ),
        (
            f'[regions.a]\n{MEMORY}arguments = ["a"]',
            "regions.a.arguments",
            "[regions.a.arguments]",
        ),
    ],
)
def test_invalid_settings(path, text, key, said):
    path.write_text(text, "utf-8")
    with pytest.raises(exc.CacheConfigError) as caught:
        load_regions(path)
    error = caught.value
    assert (error.path, error.key) == (str(path), key)
    assert str(error).startswith(f"{path}: {key}: ")
    assert said in str(error)


def test_an_invalid_file(path):
    path.write_bytes(b"[regions.a]\nbackend = '\xff'")
    with pytest.raises(exc.CacheConfigError, match="not UTF-8 at byte 23"):
        load_regions(path)
    for missing in (path.parent / "no.toml", path.parent):
        with pytest.raises(exc.CacheConfigError, match="file: cannot be read"):
            load_regions(missing)


def test_no_password_is_shown(path):
    path.write_text(
        '[regions.a]\nbackend = "dogpile.cache.redis"\n'
        'arguments = "redis://me:secret@host"\n',
        "utf-8",
    )
    with pytest.raises(exc.CacheConfigError) as caught:
        load_regions(path)
    assert "secret" not in str(caught.value)
    path.write_text('password = "secret"\npassword = "secret"\n', "utf-8")
    with pytest.raises(exc.CacheConfigError) as caught:
        load_regions(path)
    assert caught.value.__context__ is None
    assert "secret" not in str(caught.value)
