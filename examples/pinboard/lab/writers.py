"""A run of many writers, in a process of its own, and its figures."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from examples.pinboard.caching import MEMORY, NONE
from examples.pinboard.lab.bench import Bench, end
from examples.pinboard.models import BoardHasPins
from sqla_shard import Cluster

WRITERS = 200
SECONDS = 30.0


class Run:
    """One run, started by the constructor.

    :param cluster: the cluster of the pages.
    :param bench: provides the arguments that open a cluster.
    :param cache: the nodes of the row cache.

    :ivar state: ``"preparing"``, ``"running"``, ``"done"`` or ``"failed"``.
    :ivar error: last line of the process's stderr, or the error here.
    """

    def __init__(
        self,
        cluster: Cluster,
        bench: Bench,
        cache: str,
        *,
        writers: int = WRITERS,
        seconds: float = SECONDS,
    ) -> None:
        self.writers, self.seconds = writers, seconds
        self.state = "preparing"
        self.error = ""
        self.report: dict[str, Any] = {"at": 0.0, "servers": {}}
        self._cluster = cluster
        # Two processes do not share a cache in memory: at the end this one
        # invalidates the lists that the other has written.
        self._has_own_cache = cache == MEMORY
        job = {
            **bench.opening(cluster),
            "cache": NONE if self._has_own_cache else cache,
            "writers": writers,
            "seconds": seconds,
        }
        self._stderr = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by its thread
        self._process = subprocess.Popen(
            [sys.executable, "-m", "examples.pinboard.lab.writing"],
            env={**os.environ, **bench.environ},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # In the same pipe a warning could be in the middle of a line.
            stderr=self._stderr,
            text=True,
            # Ctrl-C goes to the demo, which ends it.
            start_new_session=True,
        )
        self._thread = threading.Thread(target=self._read, args=(job,))
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the process has work to do."""
        return self.state in ("preparing", "running")

    def _read(self, job: Mapping[str, Any]) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        boards: list[int] = []
        try:
            with process.stdin as stdin, process.stdout as lines:
                json.dump(job, stdin)
                stdin.close()
                for line in lines:
                    found = json.loads(line)
                    boards = found.pop("boards", boards)
                    if "servers" in found:
                        self.state, self.report = "running", found
            self._invalidate(boards)
        except (OSError, ValueError, SQLAlchemyError) as error:
            # It was killed while writing a line, or a server is stopped.
            self.error = str(error)
        with self._stderr as stderr:
            status = process.wait()
            stderr.seek(0)
            if status:
                self.error = stderr.read()[-2000:]
        self.state = "failed" if self.error else "done"

    def _invalidate(self, boards: list[int]) -> None:
        cache = self._cluster.cache
        if not self._has_own_cache or cache is None:
            return
        for board_id in boards:
            with self._cluster.begin() as session:
                cache.invalidate(session, BoardHasPins, board_id)

    def wait(self) -> None:
        """Wait for the end of the process."""
        self._thread.join()

    def close(self) -> None:
        """End the process."""
        end(self._process)
        self.wait()
