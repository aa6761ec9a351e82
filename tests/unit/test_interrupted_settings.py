"""Interrupts of what sets a variable or listens: it does not afterwards."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Table

from sqla_shard import Cluster
from sqla_shard.cache import protocol
from sqla_shard.cache.protocol import counting
from sqla_shard.jobs import context
from sqla_shard.jobs.context import as_current
from sqla_shard.monitor import metrics
from sqla_shard.monitor.metrics import Recorder
from sqla_shard.planning import specs
from sqla_shard.planning.specs import supposing
from sqla_shard.schema import applier
from sqla_shard.schema.applier import ordered_indexes
from sqla_shard.testing import lint
from sqla_shard.testing.lint import ShardLint
from sqla_shard.types import object_ids
from sqla_shard.types.object_ids import inserting_on
from tests.servers.interrupting import interrupt_each_line

_UNUSED: Any = object()
_SETTINGS = [
    (object_ids, object_ids._inserting, lambda: inserting_on(0)),
    (specs, specs._supposed, lambda: supposing(_UNUSED)),
    (protocol, protocol._block, counting),
    (context, context._current, lambda: as_current(_UNUSED)),
]


def _enter(
    made: Callable[[], AbstractContextManager[Any]], stop: Callable[[], None]
) -> None:
    with made():
        stop()


@pytest.mark.parametrize(("module", "variable", "made"), _SETTINGS)
def test_a_context_variable(
    module: Any, variable: Any, made: Callable[[], AbstractContextManager[Any]]
) -> None:
    """At each line until the block is entered."""
    for _ in interrupt_each_line([module], partial(_enter, made)):
        assert variable.get() is None


def _record(stop: Callable[[], None]) -> None:
    made = Recorder(Cluster, _UNUSED)
    stop()
    made.stop()


@pytest.mark.parametrize(
    ("module", "target", "name", "act"),
    [
        (applier, Table, "before_create", partial(_enter, ordered_indexes)),
        (metrics, Cluster, "after_statement", _record),
        (lint, Cluster, "after_statement", partial(_enter, ShardLint)),
    ],
)
def test_a_listener(
    module: Any, target: Any, name: str, act: Callable[[Callable[[], None]], None]
) -> None:
    """At each line until the block is entered."""
    known = getattr(target.dispatch, name)._clslevel
    before = list(known.get(target, ()))
    for _ in interrupt_each_line([module], act):
        assert list(known.get(target, ())) == before
