"""Invalid arguments of ``configure_cache``."""

from __future__ import annotations

import pytest

from sqla_shard import exc
from sqla_shard.cache import Cache, Cached
from tests.models.cached_models import BoardHasPins, User

MEMORY = {"backend": "dogpile.cache.memory"}


@pytest.mark.parametrize(
    ("given", "option"),
    [
        ({"regions": None}, "regions"),
        ({"regions": [MEMORY]}, "regions"),
        ({"regions": {"a b": MEMORY}}, "regions"),
        ({"regions": {"": MEMORY}}, "regions"),
        # The outbox would refuse it, in the COMMIT of a transaction.
        ({"regions": {"r" * 65: MEMORY}}, "regions"),
        ({"regions": {1: MEMORY}}, "regions"),
        ({"regions": {"objects": None}}, "regions['objects']"),
        ({"classes": None}, "classes"),
        ({"classes": [User]}, "classes"),
        ({"classes": {User: None}}, "classes[User]"),
        ({"classes": {User: 3}}, "classes[User]"),
        ({"classes": {User: "lists"}}, "region"),
        ({"classes": {User: Cached(region="lists")}}, "region"),
        ({"classes": {User: Cached(region="r", version="1")}}, "version"),
        ({"classes": {BoardHasPins: Cached(region="r", rows=0)}}, "rows"),
        ({"prefix": None}, "prefix"),
        ({"prefix": ""}, "prefix"),
        ({"prefix": "a b"}, "prefix"),
        ({"prefix": "a:b"}, "prefix"),
        ({"prefix": "p" * 41}, "prefix"),
    ],
    ids=range(20),
)
def test_settings_that_make_no_sense(given, option):
    settings = {"regions": {"r": MEMORY}, "classes": {}, "prefix": "p"}
    with pytest.raises(exc.OptionError) as caught:
        Cache(**{**settings, **given})
    assert caught.value.option == option


@pytest.mark.parametrize("cls", ["User", dict, 3], ids=["text", "dict", "3"])
def test_invalid_classes(cls):
    with pytest.raises(exc.CacheClassError, match="is not a mapped class"):
        Cache({"r": MEMORY}, {cls: "r"}, "p")
