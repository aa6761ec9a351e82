"""Runs files that wait beside files that compute; those that measure time last.

With ``--dist loadfile`` of pytest-xdist, which otherwise gives each file to
one of its processes in the order of collection: first those of browsers and
servers, which wait most of their time, and then the suites, which do not.
Here each third process takes files from the end.

When only tests that measure time are left, all processes but one end; that
one runs them after the others have gone.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

from tests.tiers import measures_time

_TIMED = "tests that measure time"
#: Files that take longer than what comes after them in the order of collection
#: takes the other processes.
_LONG = ("tests/test_docs.py",)


class TimedLast(LoadFileScheduling):
    """Files for each process that has nothing to do, from both ends."""

    def _split_scope(self, nodeid: str) -> str:
        if measures_time(nodeid):
            return _TIMED
        return super()._split_scope(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if _TIMED in self.workqueue:
            self.workqueue.move_to_end(_TIMED)
        first = [file for file in _LONG if file in self.workqueue]
        if not first and self.nodes.index(node) % 3 == 2:
            first = [f for f in reversed(self.workqueue) if f != _TIMED][:1]
        for file in first:
            self.workqueue.move_to_end(file, last=False)
        super()._assign_work_unit(node)

    def _reschedule(self, node: WorkerController) -> None:
        others = [other for other in self.nodes if other is not node]
        if list(self.workqueue) != [_TIMED] or not others:
            super()._reschedule(node)
        elif not all(other.shutting_down for other in others):
            node.shutdown()  # after the tests that it has

    def remove_node(self, node: WorkerController) -> str | None:
        crashed = super().remove_node(node)
        for last in self.nodes:
            # It may have no test left whose end would call this.
            self._reschedule(last)
        return crashed
