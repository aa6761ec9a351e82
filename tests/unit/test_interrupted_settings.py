"""Interrupts of blocks that set a variable: it is unset afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from sqla_shard.cache import protocol
from sqla_shard.cache.protocol import counting
from sqla_shard.routing import specs
from sqla_shard.routing.specs import supposing
from sqla_shard.types import object_ids
from sqla_shard.types.object_ids import inserting_on

_UNUSED: Any = object()
_SETTINGS = [
    (object_ids, object_ids._inserting, lambda: inserting_on(0)),
    (specs, specs._supposed, lambda: supposing(_UNUSED)),
    (protocol, protocol._block, counting),
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


@pytest.mark.parametrize(("module", "variable", "made"), _SETTINGS)
def test_a_context_variable(
    module: Any,
    variable: Any,
    made: Callable[[], AbstractContextManager[Any]],
) -> None:
    """At each line until the block is entered."""
    number = 0
    while True:
        interrupts = _Interrupts(module, number)
        before = sys.gettrace()
        try:
            sys.settrace(interrupts)
            with made():
                sys.settrace(before)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert variable.get() is None
        if not interrupts.raised:
            break
        number += 1
    assert number
