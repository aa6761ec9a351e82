"""Clusters for suites, on the backends that ``tests/suite_table.py`` lists.

A module of suites says what its cluster is like, once::

    cluster = Clusters(Base.metadata, shards=8).on_backend()

and is collected once for each of its backends.  A module of tests that has
one backend takes :meth:`Clusters.on_sqlite` or :meth:`Clusters.on_servers`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from sqlalchemy import MetaData

from sqla_shard import Cluster
from sqla_shard.ids import IdLayout
from sqla_shard.testing import sqlite_topology
from sqla_shard.testing.server_fleet import ServerFleet
from tests.models.kept_databases import kept_databases
from tests.models.layouts import with_layout
from tests.servers.in_loop import InLoop
from tests.servers.kinds import Kind

_Prepare = Callable[
    [Cluster, pytest.FixtureRequest, "On"], AbstractContextManager[None]
]


class On(NamedTuple):
    """A backend of a suite.

    :param name: ``sqlite``, ``mariadb``, ``mysql`` or ``mariadb11``, with
        ``-loop`` for sessions that an asynchronous driver connects, or with
        another suffix for other options.
    :param only: names of classes, separated by spaces; all where empty.
    :param options: for :class:`sqla_shard.Cluster`.
    :param values: attributes of the classes that this backend sets, such as
        ``{"Models.examples": 20}``.
    :param few: further ones in the smaller runs, such as fewer of the random
        examples that ``all`` has on SQLite and on MySQL.
    """

    name: str
    only: str = ""
    options: Mapping[str, Any] = {}
    values: Mapping[str, Any] = {}
    few: Mapping[str, Any] = {}

    @property
    def kind(self) -> str:
        return self.name.partition("-")[0]

    def on_kind(self, kind: str) -> On:
        """Return the same on another kind of server."""
        return self._replace(name=self.name.replace(self.kind, kind, 1))

    def smaller(self) -> On:
        """Return the same with the values of smaller runs, but in a soak."""
        is_soak = os.environ.get("SQLA_SHARD_SOAK") == "1"
        return self if is_soak else self._replace(values={**self.values, **self.few})

    @property
    def live(self) -> bool:
        return self.kind != "sqlite"

    @property
    def in_loop(self) -> bool:
        return "-loop" in self.name


BOTH = (On("sqlite"), On("mariadb"))
EVERYWHERE = (*BOTH, On("sqlite-loop"), On("mariadb-loop"))
MYSQLCLIENT = On("mariadb-mysqlclient", options={"driver": "mysqldb"})


def _prepared(
    cluster: Cluster, request: pytest.FixtureRequest, on: On
) -> AbstractContextManager[None]:
    return nullcontext()


def with_cache(prefix: str, *classes: type[Any]) -> _Prepare:
    """Return what makes a new cluster cache rows of classes in memory."""

    def prepare(
        cluster: Cluster, request: pytest.FixtureRequest, on: On
    ) -> AbstractContextManager[None]:
        cluster.configure_cache(
            {"objects": {"backend": "dogpile.cache.memory"}},
            classes=dict.fromkeys(classes, "objects"),
            prefix=prefix,
        )
        return nullcontext()

    return prepare


@dataclass(frozen=True)
class Clusters:
    """Tables, and the topology for them.

    :param main: names of global keyspaces.
    :param lookup: shards of the keyspace ``lookup``; 0 for none.
    :param more: further keyspaces of objects, and the layouts of their ids.
    :param options: for :class:`sqla_shard.Cluster`.
    :param prepare: of a new cluster; contexts that it enters end before it.
    """

    metadata: MetaData
    shards: int
    main: tuple[str, ...] = ()
    lookup: int = 0
    more: Mapping[str, IdLayout] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    prepare: _Prepare = _prepared

    # -- fixtures

    def on_sqlite(self, **options: Any) -> Any:
        """Return a fixture for a test module: directories of SQLite files.

        :param options: for :class:`sqla_shard.Cluster`.
        """

        @pytest.fixture(scope="module")
        def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
            with self.open(request, On("sqlite", "", options)) as cluster:
                yield cluster

        return cluster

    def on_servers(self, name: str, **options: Any) -> Any:
        """Return a fixture for a test module: databases of the fleet.

        :param name: part of the names of the databases, letters only.
        :param options: for :class:`sqla_shard.Cluster`.
        """

        @pytest.fixture(scope="module")
        def cluster(
            request: pytest.FixtureRequest, server_kind: Kind
        ) -> Iterator[Cluster]:
            on = On(server_kind.name, "", options)
            with self.open(request, on, name) as cluster:
                yield cluster

        return cluster

    def on_backend(self, **options: Any) -> Any:
        """Return a fixture for a module of suites: the cluster of a backend.

        :param options: for :class:`sqla_shard.Cluster`.
        """

        @pytest.fixture(scope="module")
        def cluster(request: pytest.FixtureRequest, backend: On) -> Iterator[Cluster]:
            on = backend._replace(options={**options, **backend.options})
            with self.open(request, on) as cluster:
                yield cluster

        return cluster

    # -- clusters

    @contextmanager
    def open(
        self, request: pytest.FixtureRequest, on: On, name: str = ""
    ) -> Iterator[Cluster]:
        """Yield a cluster on a backend, with empty tables.

        :param name: part of the names of its databases, which are its own; by
            default it has those of another one that has ended.
        """
        made = self._on_servers if on.live else self._on_sqlite
        options = {**self.options, **on.options}
        if options.get("driver") == "mysqldb":
            request.getfixturevalue("mysqlclient_installed")
        with (
            made(request, on, name) as document,
            Cluster.from_topology(document, **options) as cluster,
            self.prepare(cluster, request, on),
        ):
            if not on.in_loop:
                yield cluster
            else:
                in_loop = InLoop(cluster)
                yield in_loop
                # Or the module has tested nothing that it should.
                assert in_loop.connections

    @contextmanager
    def _on_sqlite(
        self, request: pytest.FixtureRequest, on: On, name: str
    ) -> Iterator[dict[str, Any]]:
        factory = request.getfixturevalue("tmp_path_factory")
        document = self._with_globals(
            sqlite_topology(
                factory.mktemp("cluster"), 2, self.shards, main=True, lookup=self.lookup
            ),
            "{}",
        )
        self._create_tables(document)
        yield document

    @contextmanager
    def _on_servers(
        self, request: pytest.FixtureRequest, on: On, name: str
    ) -> Iterator[dict[str, Any]]:
        fleet: ServerFleet[Any] = request.getfixturevalue(f"{on.kind}_fleet")

        def document_of(stem: str) -> dict[str, Any]:
            return self._with_globals(
                fleet.topology_mapping(
                    shards=self.shards,
                    database=f"db{stem}{{shard:05d}}",
                    main=True,
                    lookup=self.lookup,
                    lookup_database=f"lookup{stem}{{shard:05d}}",
                ),
                f"main{stem}{{}}",
            )

        if not name:
            more = tuple(self.more.items())
            key = (self.metadata, self.shards, self.main, self.lookup, more)
            with kept_databases(fleet, key, document_of, self._create_tables) as kept:
                yield kept
            return
        document = document_of(f"_{name}_")
        fleet.drop_databases(document)
        self._create_tables(document)
        yield document
        fleet.drop_databases(document)

    def _create_tables(self, document: dict[str, Any]) -> None:
        with Cluster.from_topology(document) as cluster:
            cluster.create_all(self.metadata)

    def _with_globals(self, document: dict[str, Any], database: str) -> dict[str, Any]:
        first = document["keyspaces"].pop("main")
        for one in self.main:
            new = {**first, "database": database.format(one)}
            document["keyspaces"][one] = new
        with_layout(document)
        objects = document["keyspaces"]["objects"]
        for one, layout in self.more.items():
            document["keyspaces"][one] = {
                **objects,
                "database": objects["database"].replace("db", f"db_{one}", 1),
                "id_layout": layout.to_mapping(),
            }
        return document
