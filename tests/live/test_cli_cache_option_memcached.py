"""Commands with ``--cache`` and an application that caches in memcached."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sqla_shard import Cluster
from sqla_shard.cache import load_cache
from sqla_shard.testing import sqlite_topology
from tests.models.cached_models import sent, settled
from tests.servers import command_line
from tests.servers.command_line import invoke, without_progress
from tests.servers.command_writes import each_write, write_settings
from tests.servers.memcached import nodes
from tests.suites.verify_relations import Base, SHARDS

pytestmark = [pytest.mark.live, pytest.mark.usefixtures("memcached_installed")]

write = each_write()


@pytest.fixture
def topology(tmp_path: Path) -> Path:
    return command_line.write(tmp_path, sqlite_topology(tmp_path, 2, SHARDS))


@pytest.fixture
def plain(topology: Path) -> Iterator[Cluster]:
    """A cluster without a cache."""
    with Cluster.from_file(topology, watch=False) as cluster:
        cluster.create_all(Base.metadata)
        yield cluster


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with nodes(2) as servers:
        addresses = [one.address for one in servers]
        yield write_settings(tmp_path / "cache.toml", addresses)


@pytest.fixture
def app(topology: Path, file: Path) -> Iterator[Cluster]:
    """The cluster of the application."""
    with Cluster.from_file(topology, watch=False) as cluster:
        cluster.configure_cache(**load_cache(file))
        yield cluster


@pytest.mark.parametrize("how", ["option", "environment", "not at all"])
def test_the_application_reads_what_a_command_has_written(
    topology, plain, file, app, write, how
):
    def targets(cluster: Cluster) -> Any:
        # In a new transaction, before and after the command.
        with cluster.session() as session:
            page = write.cls.page(session, write.source, 10)
            return [getattr(row, target) for row in page]

    target = write.cls.__sqla_shard_mapping__.target.column
    settled(lambda: targets(app))
    assert targets(app) == write.before
    options = ["--cache", file] if how == "option" else []
    environ = {"SQLA_SHARD_CACHE": str(file)} if how == "environment" else {}
    # With a cluster of its own, and nothing in common but the servers.
    done = invoke("-t", topology, *write.command, *options, env=environ)
    assert (done.exit_code, without_progress(done.stderr)) == (0, "")
    assert targets(plain) == write.after
    if how == "not at all":
        with sent() as statements:
            assert targets(app) == write.before
        assert statements == []
    else:
        assert targets(app) == write.after
