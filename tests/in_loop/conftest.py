"""The suites of synchronous sessions, run again in event loops.

One implementation serves both; so each test function here is the one that
is run elsewhere, in a greenlet of an event loop of its own, with sessions
that an asynchronous driver connects.  A module calls its cluster
``sync_cluster``; fixtures prepare and look through it, without a loop.

A run of all tests takes a random third of them, other ones each time; a run
of this folder, or a long one, takes all.
"""

from __future__ import annotations

import asyncio
import os
import random
import weakref
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.util import greenlet_spawn

from sqla_shard import Cluster
from sqla_shard import ShardSession
from sqla_shard.session.begun import Begun

_HERE = Path(__file__).parent
_SHARE = 1 / 3


class InLoop(Cluster):
    """A cluster whose sessions are those of the loop, where one runs."""

    def __init__(self, cluster: Cluster) -> None:
        self.__dict__.update(cluster.__dict__)
        self._cluster = cluster
        self._async_home = cluster.async_session().sync_session.cluster
        self._sessions: weakref.WeakSet[ShardSession] = weakref.WeakSet()
        #: How many connections asynchronous drivers have opened.
        self.connections = 0

    @property
    def places(self) -> Any:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._cluster.places
        return self._async_home.places

    def session(self, **kwargs: Any) -> ShardSession:
        session = ShardSession(cluster=self, **kwargs)
        self._sessions.add(session)
        return session

    def begin(self, **kwargs: Any) -> Begun:
        return Begun(self.session(**kwargs))

    async def run(self, test: Any, arguments: dict[str, Any]) -> None:
        """Run a test function, and end what it has begun, in this loop."""
        try:
            await greenlet_spawn(test, **arguments)
        finally:
            for session in list(self._sessions):
                await greenlet_spawn(session.close)
            stats = self._cluster.stats()
            assert not any(s.busy for s in stats if s.asynchronous)
            self.connections += sum(s.idle for s in stats if s.asynchronous)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    named = any(_HERE.name in argument for argument in config.args)
    if named or os.environ.get("SQLA_SHARD_SOAK") == "1":
        return
    # The run's seed, under which hypothesis has it.
    seed = config.getoption("hypothesis_seed")
    rng = random.Random(f"in a loop {seed}")
    here = [item for item in items if _HERE in item.path.parents]
    left_out = {item for item in here if rng.random() > _SHARE}
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def cluster(sync_cluster: Cluster) -> Any:
    in_loop = InLoop(sync_cluster)
    yield in_loop
    # Or the module has tested nothing that it should.
    assert in_loop.connections


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    cluster = pyfuncitem.funcargs.get("cluster")
    if not isinstance(cluster, InLoop):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(cluster.run(pyfuncitem.obj, arguments))
    return True
