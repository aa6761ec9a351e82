"""Several servers awaited in one thread, by polling their sockets."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from time import monotonic
from typing import TypeVar

from sqlalchemy import Connection

from sqla_shard.dialects.polling import PolledCall, PolledConnection, Poller
from sqla_shard.engine.lanes import AwaitedLanes, Expiry, Lanes

T = TypeVar("T")


class PolledLanes:
    """The counterpart of :class:`.Lanes` for drivers whose sockets are polled.

    It starts no thread, and has no state.
    """

    def run(
        self,
        jobs: Sequence[Callable[[], T]],
        abort: Callable[[int], None] | None = None,
        servers: Sequence[Hashable] = (),
        expiry: Expiry | None = None,
    ) -> list[T]:
        """Run jobs at the same time, as :meth:`.Lanes.run` does.

        :param abort: is not called: an interrupt is raised in each job that
            waits, and the driver closes its connection.
        :param servers: are not used, since a waiting job occupies no thread.
        """
        calls = [PolledCall(job) for job in jobs]
        _run(calls, expiry)
        for call in calls:
            if call.failure is not None:
                raise call.failure
        return [call.result for call in calls]


#: The only object of this class that is needed.
POLLED = PolledLanes()


def lanes_for(
    lanes: Lanes | AwaitedLanes, connections: Iterable[Connection]
) -> Lanes | AwaitedLanes | PolledLanes:
    """Return the lanes that can wait for all of some connections.

    :param lanes: the lanes to use if a driver cannot be polled.
    """
    if isinstance(lanes, AwaitedLanes):
        return lanes
    for connection in connections:
        # A statement on an invalidated connection fails without waiting.
        if not connection.invalidated and not isinstance(
            connection.connection.dbapi_connection, PolledConnection
        ):
            return lanes
    return POLLED


def _run(calls: Sequence[PolledCall], expiry: Expiry | None) -> None:
    """Run calls until all that were started have ended.

    No other call is started after the error of one.

    :raises BaseException: an interrupt, such as Ctrl-C.
    """
    poller = Poller()
    interrupt: BaseException | None = None
    while True:
        try:
            if interrupt is None:
                _poll(poller, calls, expiry)
            else:
                poller.end(calls)
            break
        except BaseException as error:
            interrupt = interrupt or error
    if interrupt is not None:
        raise interrupt


def _poll(poller: Poller, calls: Sequence[PolledCall], expiry: Expiry | None) -> None:
    end = None if expiry is None else monotonic() + expiry[0]
    for call in calls:
        poller.resume(call)
        if call.failure is not None:
            break
    while poller.waiting:
        left = None if end is None else end - monotonic()
        if expiry is not None and left is not None and left <= 0:
            end = None
            expiry[1]()
        else:
            poller.step(left)
