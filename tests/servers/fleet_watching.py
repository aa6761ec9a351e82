"""Watchers of a fleet, in threads or in a process that kills itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.process import BaseProcess
from typing import Any

from sqla_shard.fleet import Accounts, Fleet
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.operation import StepEvent
from sqla_shard.fleet.watcher import Watcher, WatchPolicy, WatchReport


class FleetByProxy(Fleet):
    """Reaches one server through a proxy, as a partitioned machine would.

    :ivar ports: port of the proxy by that of the server.
    """

    ports: dict[int, int]

    def admin(self, url: str, **options: Any) -> Admin:
        for port, other in self.ports.items():
            url = url.replace(f":{port}", f":{other}")
        return super().admin(url, **options)


class Watching:
    """A watcher in a thread, which looks until the block ends.

    :ivar reports: one for each look.
    """

    def __init__(self, fleet: Fleet, policy: WatchPolicy) -> None:
        self.reports: list[WatchReport] = []
        self.error: BaseException | None = None
        self._fleet = fleet
        self._policy = policy
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()
        if self.error is not None:
            raise self.error

    def said(self, part: str) -> bool:
        """Return whether a line or a trouble has contained a text."""
        return any(
            part in line
            for report in [*self.reports]
            for line in (*report.lines, *report.troubles)
        )

    def _watch(self) -> None:
        try:
            with Watcher(self._fleet, self._policy) as watcher:
                while not self._end.wait(self._policy.every):
                    self.reports.append(watcher.look())
        except BaseException as error:
            self.error = error


def watch_until(
    location: str, accounts: Accounts, policy: WatchPolicy, step: str, session: float
) -> BaseProcess:
    """Start a watcher in a process that kills itself when a step is done.

    :param session: seconds after which ZooKeeper ends its session.
    """
    process = multiprocessing.get_context("spawn").Process(
        target=_watch, args=(location, accounts, policy, step, session), daemon=True
    )
    process.start()
    return process


def _watch(
    location: str, accounts: Accounts, policy: WatchPolicy, step: str, session: float
) -> None:
    def progress(event: StepEvent) -> None:
        if (event.step, event.state) == (step, "done"):
            os.kill(os.getpid(), signal.SIGKILL)

    fleet = Fleet(location, accounts=accounts, session_timeout=session)
    pause = threading.Event()
    with Watcher(fleet, policy, progress=progress) as watcher:
        while True:
            watcher.look()
            pause.wait(policy.every)
