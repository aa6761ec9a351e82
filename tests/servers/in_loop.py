"""Clusters whose suites run in event loops.

One implementation serves both kinds of sessions; so each test function here
is the one that runs elsewhere, in a greenlet of an event loop of its own,
with sessions that an asynchronous driver connects.  Fixtures prepare and
read through the cluster without a loop.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from sqlalchemy.util import greenlet_spawn

from sqla_shard import Cluster, ShardSession
from sqla_shard.session.session import SessionContext


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

    def begin(self, **kwargs: Any) -> SessionContext:
        return SessionContext(self.session(**kwargs))

    async def run(self, test: Any, arguments: dict[str, Any]) -> None:
        """Run a test function in this loop, and end all that it started."""
        try:
            await greenlet_spawn(test, **arguments)
        finally:
            for session in list(self._sessions):
                await greenlet_spawn(session.close)
            stats = self._cluster.stats()
            assert not any(s.busy for s in stats if s.asynchronous)
            self.connections += sum(s.idle for s in stats if s.asynchronous)
