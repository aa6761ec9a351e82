"""Reading beside the transaction of a session."""

from __future__ import annotations

from sqla_shard.session.contract import Scope
from sqla_shard.session.core import ShardSession

__all__ = ["beside"]


def beside(scope: Scope) -> ShardSession:
    """Return a session of its own, with the topology of another one.

    What it reads is as new as can be, and it leaves the other one without a
    transaction where that has none.  For servers only that the other one is
    not connected to: two connections at a time could wait for each other.

    :param scope: the other session.
    """
    session = ShardSession(cluster=scope.cluster, cache=False)
    session._places = scope.places
    return session
