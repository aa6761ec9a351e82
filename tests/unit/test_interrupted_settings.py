"""Interrupts of what sets a variable or listens: it does not afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Table

from sqla_shard import Cluster
from sqla_shard.cache import protocol
from sqla_shard.cache.protocol import counting
from sqla_shard.jobs import running
from sqla_shard.jobs.running import as_current
from sqla_shard.monitor import recorder
from sqla_shard.monitor.recorder import Recorder
from sqla_shard.planning import specs
from sqla_shard.planning.specs import supposing
from sqla_shard.schema import applier
from sqla_shard.schema.applier import ordered_indexes
from sqla_shard.testing import lint
from sqla_shard.testing.lint import ShardLint
from sqla_shard.types import object_ids
from sqla_shard.types.object_ids import inserting_on

_UNUSED: Any = object()
_SETTINGS = [
    (object_ids, object_ids._inserting, lambda: inserting_on(0)),
    (specs, specs._supposed, lambda: supposing(_UNUSED)),
    (protocol, protocol._block, counting),
    (running, running._current, lambda: as_current(_UNUSED)),
]


class _Interrupts:
    """Raises KeyboardInterrupt at one of the lines of a module."""

    def __init__(self, module: Any, at: int) -> None:
        self._module = module
        self._left = at
        self.raised = False

    def __call__(self, frame: Any, event: str, value: Any) -> Any:
        if frame.f_globals.get("__name__") != self._module.__name__:
            return None
        if event == "line" and not self.raised:
            self._left -= 1
            if self._left < 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


def _interrupt_each_line(
    module: Any, act: Callable[[Callable[[], None]], None]
) -> Iterator[None]:
    """Interrupt a function at each line of a module that it executes.

    :param act: the function, which is passed one that ends the interrupts.
    """
    number = 0
    before = sys.gettrace()
    stop = partial(sys.settrace, before)
    while True:
        interrupts = _Interrupts(module, number)
        try:
            sys.settrace(interrupts)
            act(stop)
        except KeyboardInterrupt:
            pass
        finally:
            stop()
        yield
        if not interrupts.raised:
            break
        number += 1
    assert number


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
    for _ in _interrupt_each_line(module, partial(_enter, made)):
        assert variable.get() is None


def _record(stop: Callable[[], None]) -> None:
    made = Recorder(Cluster, _UNUSED)
    stop()
    made.stop()


@pytest.mark.parametrize(
    ("module", "target", "name", "act"),
    [
        (applier, Table, "before_create", partial(_enter, ordered_indexes)),
        (recorder, Cluster, "after_statement", _record),
        (lint, Cluster, "after_statement", partial(_enter, ShardLint)),
    ],
)
def test_a_listener(
    module: Any, target: Any, name: str, act: Callable[[Callable[[], None]], None]
) -> None:
    """At each line until the block is entered."""
    known = getattr(target.dispatch, name)._clslevel
    before = list(known.get(target, ()))
    for _ in _interrupt_each_line(module, act):
        assert list(known.get(target, ())) == before
