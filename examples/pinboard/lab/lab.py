"""The lab: its parts, and its installation in an application."""

from __future__ import annotations

import threading

from flask import Flask, session as cookie

from examples.pinboard.lab.bench import Bench, Effect, effects
from examples.pinboard.lab.fleet_map import fleet_map, FleetMap
from examples.pinboard.lab.tour import Step, step
from examples.pinboard.lab.trace import Trace, Traces
from examples.pinboard.lab.views import blueprint
from examples.pinboard.lab.writers import Run
from examples.pinboard.samples import sample_users
from examples.pinboard.security import current_user
from sqla_shard import Cluster, unpack


class Lab:
    """The part of the demo that shows how sharding works.

    A context manager, which stops everything that it started.

    :param cluster: the cluster of the application.
    :param bench: the faults that it can cause.
    :param cache: nodes of the row cache, as for
        :func:`examples.pinboard.caching.keep`.
    """

    def __init__(self, cluster: Cluster, bench: Bench, cache: str) -> None:
        self.cluster = cluster
        self.bench = bench
        self._cache = cache
        self._traces = Traces(cluster)
        self._lock = threading.Lock()
        self.run: Run | None = None
        with cluster.session() as session:
            self._people = {
                user.name: unpack(user.id).shard_id for user in sample_users(session)
            }

    def __enter__(self) -> Lab:
        return self

    def __exit__(self, *details: object) -> None:
        self._traces.close()
        if self.run is not None:
            self.run.close()

    def install(self, app: Flask) -> None:
        """Add the strip, the map and the pages to an application."""
        self._traces.install(app)
        app.extensions["pinboard-lab"] = self
        app.jinja_env.globals["lab"] = self
        app.register_blueprint(blueprint)

    # -- for the templates

    @property
    def trace(self) -> Trace:
        """The statements of this page so far."""
        return self._traces.now

    def write_before(self) -> Trace | None:
        """Return the write that has led to this page, once."""
        return self._traces.before()

    @property
    def step(self) -> Step | None:
        """The step of the tour that this browser is on."""
        return step()

    @property
    def shards(self) -> int:
        """The number of virtual shards of objects."""
        return self.cluster.topology.sole("objects").shards

    def map(self) -> FleetMap:
        """Return the map of the top bar."""
        topology = self.cluster.topology
        user_id = current_user()
        return fleet_map(
            topology,
            shard_id=None if user_id is None else unpack(user_id).shard_id,
            read=self.trace.shard_ids(topology.sole("objects").name),
            states=self.bench.states(),
        )

    def effects(self) -> list[Effect]:
        """Return the users affected by stopped and slow servers."""
        people = dict(self._people)
        user_id = current_user()
        if user_id is not None:
            name = cookie["user_name"]
            people.pop(name, None)
            shard_id = unpack(user_id).shard_id
            people = {f"{name} (you)": shard_id, **people}
        return effects(self.cluster, self.bench.states(), people)

    @property
    def cache_is_on(self) -> bool:
        """Whether reads use the cache."""
        return self.bench.cache_is_on(self.cluster)

    # -- the writers

    def start_writers(self) -> None:
        """Start a run, unless one is in progress."""
        with self._lock:
            if self.run is None or not self.run.is_running:
                self.run = Run(self.cluster, self.bench, self._cache)
