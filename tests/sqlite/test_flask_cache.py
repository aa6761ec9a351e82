"""The cache of a Flask application, by its configuration."""

from __future__ import annotations

import pytest
from flask import Flask

from sqla_shard.exc import CacheConfigError, ExtensionSetupError, OptionError
from sqla_shard.ext.flask import FlaskCluster
from sqla_shard.testing import sqlite_topology
from tests.models.models import Board, Pin

_MEMORY = {"backend": "dogpile.cache.memory"}


@pytest.fixture
def app(tmp_path):
    app = Flask("pinboard")
    app.config["SQLA_SHARD_TOPOLOGY"] = sqlite_topology(tmp_path, 1, 2)
    return app


def set_up(app, cached=None, cluster=None, **config):
    app.config.update({f"SQLA_SHARD_{name}": value for name, value in config.items()})
    db = FlaskCluster(app, cluster, cached=cached)
    with app.app_context():
        return db.cluster


def test_a_mapping(app):
    with set_up(
        app, {Pin: "rows", Board: "rows"}, CACHE={"rows": _MEMORY}, CACHE_PREFIX="shop"
    ) as cluster:
        assert cluster.cache.prefix == "shop"
        assert cluster.cache.classes == (Pin, Board)


def test_a_file(app, tmp_path):
    path = tmp_path / "cache.toml"
    path.write_text('[regions.rows]\nbackend = "dogpile.cache.memory"\n')
    config = {"CACHE": path, "CACHE_PREFIX": "shop"}
    with set_up(app, {Pin: "rows"}, **config) as cluster:
        assert list(cluster.cache.regions) == ["rows"]


REGION = '[regions.rows]\nbackend = "dogpile.cache.memory"\n'
PREFIX = 'prefix = "shop"\n'
CLASSES = '[classes]\n"tests.models.models:Pin" = "rows"\n'


@pytest.mark.parametrize("prefix", [None, "shop"], ids=["none", "the same"])
def test_a_file_that_says_all(app, tmp_path, prefix):
    path = tmp_path / "cache.toml"
    path.write_text(PREFIX + REGION + CLASSES)
    with set_up(app, CACHE=str(path), CACHE_PREFIX=prefix) as cluster:
        assert cluster.cache.prefix == "shop"
        assert cluster.cache.classes == (Pin,)


def test_a_file_for_functions_alone(app, tmp_path):
    path = tmp_path / "cache.toml"
    path.write_text(PREFIX + REGION + "[classes]")
    with set_up(app, CACHE=path) as cluster:
        assert cluster.cache.classes == ()


@pytest.mark.parametrize(
    ("text", "cached", "prefix", "says"),
    [
        (PREFIX + REGION + CLASSES, {Pin: "rows"}, None, "with classes, and"),
        (PREFIX + REGION + CLASSES, None, "pins", "prefix than 'pins'"),
        (REGION + CLASSES, None, None, "no SQLA_SHARD_CACHE_PREFIX"),
        (PREFIX + REGION, None, None, "no classes"),
    ],
    ids=["classes", "prefixes", "no prefix", "no classes"],
)
def test_settings_of_file_and_code(app, tmp_path, text, cached, prefix, says):
    path = tmp_path / "cache.toml"
    path.write_text(text)
    with pytest.raises(ExtensionSetupError, match=says):
        set_up(app, cached, CACHE=path, CACHE_PREFIX=prefix)
    assert app.extensions == {}


def test_no_cache_unless_it_is_configured(app):
    with set_up(app, {Pin: "rows"}) as cluster:
        assert cluster.cache is None


@pytest.mark.parametrize(
    ("cached", "config", "says"),
    [
        ({Pin: "rows"}, {"CACHE": 7}, "a path or a mapping, not int"),
        ({Pin: "rows"}, {"CACHE": {"rows": _MEMORY}}, "no SQLA_SHARD_CACHE_"),
        (
            {Pin: "rows"},
            {"CACHE": {"rows": _MEMORY}, "CACHE_PREFIX": 3},
            "no SQLA_SHARD_CACHE_PREFIX",
        ),
        (None, {"CACHE": {"rows": _MEMORY}, "CACHE_PREFIX": "p"}, "no classes"),
        ({Pin: "rows"}, {"CACHE_PREFIX": "p"}, "no SQLA_SHARD_CACHE;"),
    ],
    ids=["kind", "no prefix", "number", "no classes", "prefix alone"],
)
def test_half_of_it_is_refused(app, cached, config, says):
    with pytest.raises(ExtensionSetupError, match=says):
        set_up(app, cached, **config)
    assert app.extensions == {}


def test_two_caches_are_refused(app):
    config = {"CACHE": {"rows": _MEMORY}, "CACHE_PREFIX": "shop"}
    with set_up(app, {Pin: "rows"}, **config) as cluster:
        other = Flask("other")
        with pytest.raises(ExtensionSetupError, match="already has a cache"):
            set_up(other, {Pin: "rows"}, cluster, **config)
        # The cache of the first application is unchanged.
        with cluster.session():
            pass


@pytest.mark.parametrize(
    ("where", "prefix", "error"),
    [
        ("missing.toml", "shop", CacheConfigError),
        ({"rows": {"backend": "none"}}, "shop", OptionError),
        ({"other": _MEMORY}, "shop", OptionError),
        ({"rows": _MEMORY}, "a b", OptionError),
    ],
    ids=["file", "backend", "region", "prefix"],
)
def test_an_invalid_configuration_closes_the_cluster(
    app, monkeypatch, where, prefix, error
):
    closed = []
    monkeypatch.setattr(
        "sqla_shard.Cluster.close", lambda self, *_: closed.append(self)
    )
    with pytest.raises(error):
        set_up(app, {Pin: "rows"}, CACHE=where, CACHE_PREFIX=prefix)
    assert len(closed) == 1
    assert app.extensions == {}
