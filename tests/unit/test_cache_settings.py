"""A file that says all of a cache: regions, classes and prefix."""

from __future__ import annotations

from pathlib import Path

import pytest

from sqla_shard import exc
from sqla_shard.cache import Cached, load_cache, load_regions
from sqla_shard.cache.regions import read_cache
from tests.models.models import Board, Pin

PREFIX = 'prefix = "shop"\n'
REGION = '[regions.a]\nbackend = "dogpile.cache.memory"\n'
PIN = '"tests.models.models:Pin"'
KEY = "classes.tests.models.models:Pin"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.toml"


def test_valid_settings(path):
    path.write_text(
        f"{PREFIX}{REGION}[classes]\n{PIN} = 'a'\n"
        '"tests.models.models:Board" = {region = "a", version = 2, rows = 9}',
        "utf-8",
    )
    for one in (path, str(path)):
        assert load_cache(one) == {
            "regions": {"a": {"backend": "dogpile.cache.memory"}},
            "classes": {
                Pin: Cached(region="a"),
                Board: Cached(region="a", version=2, rows=9),
            },
            "prefix": "shop",
        }


def test_regions_are_read_without_the_rest(path):
    path.write_text(f"prefix = 3\n{REGION}[classes]\n'no.such:Class' = 7", "utf-8")
    assert list(load_regions(path)) == ["a"]


def test_functions_alone_need_no_classes(path):
    path.write_text(f"{PREFIX}{REGION}[classes]", "utf-8")
    assert load_cache(path)["classes"] == {}


@pytest.mark.parametrize(
    ("text", "key"),
    [(f"{REGION}[classes]", "prefix"), (f"{PREFIX}{REGION}", "classes")],
    ids=["prefix", "classes"],
)
def test_all_of_it_is_needed(path, text, key):
    path.write_text(text, "utf-8")
    with pytest.raises(exc.CacheConfigError, match="is missing") as caught:
        load_cache(path)
    assert (caught.value.path, caught.value.key) == (str(path), key)
    found = read_cache(path)
    assert None in (found.prefix, found.classes)


@pytest.mark.parametrize(
    ("entry", "key", "said"),
    [
        (f"{PIN} = 3", KEY, "is a number; write the name of a region"),
        (f"{PIN} = 'b'", f"{KEY}.region", "'b' is not a region; the file has 'a'"),
        (f"{PIN} = {{}}", f"{KEY}.region", "is missing; the file has 'a'"),
        (f"{PIN} = {{region = 3}}", f"{KEY}.region", "3 is not a region"),
        (
            f'{PIN} = {{region = "a", row = 5}}',
            f"{KEY}.row",
            "valid are region, version, rows",
        ),
        (
            f'{PIN} = {{region = "a", version = "2"}}',
            f"{KEY}.version",
            "is a string; write an integer",
        ),
        (f'{PIN} = {{region = "a", rows = true}}', f"{KEY}.rows", "is a boolean"),
        (
            f'{PIN} = {{region = "a", rows = 0}}',
            f"{KEY}.rows",
            "must be an integer, 1 to 10,000",
        ),
        ("Pin = 'a'", "classes.Pin", '"package.module:Class"'),
        ("':Pin' = 'a'", "classes.:Pin", "is not a class"),
        ("'.a:Pin' = 'a'", "classes..a:Pin", "is not a class"),
        (
            "'tests.nothing:Pin' = 'a'",
            "classes.tests.nothing:Pin",
            "the module 'tests.nothing' cannot be imported: No module",
        ),
        (
            "'tests.models.models:Spin' = 'a'",
            "classes.tests.models.models:Spin",
            "has no class 'Spin'",
        ),
        (
            "'tests.models.models:__all__' = 'a'",
            "classes.tests.models.models:__all__",
            "has no class '__all__'",
        ),
        (
            f"'tests.models.models:Base.no.Pin' = 'a'\n{PIN} = 'a'",
            "classes.tests.models.models:Base.no.Pin",
            "has no class",
        ),
        (
            f"{PIN} = 'a'\n'tests.unit.test_cache_settings:Pin' = 'a'",
            "classes.tests.unit.test_cache_settings:Pin",
            "is the same class as 'tests.models.models:Pin'",
        ),
    ],
)
def test_invalid_settings_of_classes(path, entry, key, said):
    path.write_text(f"{PREFIX}{REGION}[classes]\n{entry}", "utf-8")
    with pytest.raises(exc.CacheConfigError) as caught:
        load_cache(path)
    error = caught.value
    assert (error.path, error.key) == (str(path), key)
    assert str(error).startswith(f"{path}: {key}: ")
    assert said in str(error)


@pytest.mark.parametrize(
    ("text", "key", "said"),
    [
        (f"{PREFIX}classes = 3\n{REGION}", "classes", "write a table [classes]"),
        (f"prefix = 3\n{REGION}", "prefix", "prefix=3 is not a valid prefix"),
        (f"prefix = 'a b'\n{REGION}", "prefix", "without spaces"),
        (f"{PREFIX}[classes]", "regions", "is missing; write"),
        (f"prefx = 'a'\n{REGION}", "prefx", "may have a prefix"),
    ],
    ids=["classes", "number", "blank", "regions", "unknown"],
)
def test_invalid_settings(path, text, key, said):
    path.write_text(text, "utf-8")
    with pytest.raises(exc.CacheConfigError) as caught:
        load_cache(path)
    assert caught.value.key == key
    assert said in str(caught.value)
