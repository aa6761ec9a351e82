"""Operations without what keeps writes from being lost.

Controls run them in place of the real ones: the checks must find the loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.failover import Failover


class Unfenced(Failover):
    """Leaves out what keeps the old primary from being written."""

    def _do_fence(self) -> Mapping[str, Any]:
        self.new.stop()
        return {}


class Naive(DeadFailover):
    """Promotes the standby as it is."""

    def _do_drain(self) -> None:
        return None

    def _prove_again(self) -> None:
        return None

    def _do_stop(self) -> Mapping[str, Any]:
        self.new.stop()
        self.prepare_publish()
        return {"loss": "none: by assumption"}
