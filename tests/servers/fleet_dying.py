"""Pairs whose primary is lost under load, in one of several ways.

=============  ==============================================================
``kill``       ``kill -9``
``partition``  the primary works, but its connections have no answer: those of
               clients, of the standby and of the operator
``disk``       the file system of its binary log is full, so that every COMMIT
               hangs; then it is killed, since a failover needs it dead
``lag``        ``kill -9``, while the standby has received and not applied
``async``      ``kill -9`` without semi-sync, while the standby is cut off
=============  ==============================================================
"""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pymysql
import pytest

from sqla_shard import Cluster
from sqla_shard.exc import FleetServerError
from sqla_shard.fleet import apply
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.loss import SemiSyncProbe
from sqla_shard.testing import Proxy
from sqla_shard.testing.local_server import wait_until
from tests.models.load_models import Base
from tests.servers.fleet_load import document, rows_now, rows_on, SHARDS
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.fleet_semi_sync import look_at, use_semi_sync
from tests.servers.kinds import Kind
from tests.servers.load_checks import check, Pauses, pauses
from tests.servers.load_log import ACKNOWLEDGED
from tests.servers.load_writers import ClusterWriter
from tests.servers.published import publish_to
from tests.servers.server_statements import change_source, received, semi_sync_options
from tests.servers.writing_load import Load

_LONG = 60.0
_DISK = 24 << 20
#: Sockets of a partition stay open: clients must not wait for ever.
_TIMEOUTS = {"connect_timeout": 3, "read_timeout": 3, "write_timeout": 3}


@dataclass(frozen=True, kw_only=True)
class Loss:
    """The loss of a primary, and the statement of the failover about it.

    :ivar statement: of the result of the failover.
    :ivar waited: how long the writers waited.
    :ivar wrong: what :func:`~tests.servers.load_checks.check` has found.
    """

    statement: str
    waited: Pauses
    wrong: list[str]

    @property
    def lost(self) -> list[str]:
        """The acknowledged writes that are lost."""
        return [text for text in self.wrong if text.endswith("and lost")]


@contextlib.contextmanager
def small_disk() -> Iterator[Path]:
    """Mount a small file system; skip the test if that is not allowed.

    Not below the folder of the test, which is private to its account: root's
    servers may run as another one.
    """
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("mount is needed")
    folder = Path(tempfile.mkdtemp(prefix="sqlashard-disk-"))
    options = f"size={_DISK},mode=0777"
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        folder.rmdir()
        pytest.skip(f"mount is not permitted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run([umount, "--lazy", str(folder)], check=True)
        folder.rmdir()


def lose_primary(kind: Kind, cause: str, folder: Path, seed: str) -> Loss:
    """Lose a primary under load, fail over, and let the old one return.

    :param kind: kind of the servers.
    :param cause: see the module.
    :param folder: an empty one.
    :param seed: of the number of writes before the loss.
    """
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        disk = None
        if cause == "disk":
            disk = stack.enter_context(small_disk())
        scene = _Scene(stack, folder, kind, cause, disk, rng)
        return scene.run(seed)


class _Scene:
    def __init__(
        self,
        stack: contextlib.ExitStack,
        folder: Path,
        kind: Kind,
        cause: str,
        disk: Path | None,
        rng: random.Random,
    ) -> None:
        self.cause = cause
        self.folder = folder
        self.rng = rng
        self.disk = disk
        self.pairs = FleetPairs(
            folder,
            pairs=1,
            shards=SHARDS,
            pair=kind.pair,
            # A standby that hears nothing for so long is not connected.
            options=(*semi_sync_options(kind), "--slave-net-timeout=2"),
        )
        (pair,) = self.pairs.pairs
        self.primary, self.standby = pair.primary, pair.standby
        if disk is not None:
            self.primary.options += (f"--log-bin={disk}/binlog",)
        stack.enter_context(self.pairs)
        self.proxy = stack.enter_context(Proxy(self.primary.host, self.primary.port))
        self._prepare()

    def _prepare(self) -> None:
        self.primary.root_execute("SET GLOBAL read_only = 0")
        if self.cause == "partition":
            topology = document(self.pairs)
            (server,) = topology["keyspaces"]["objects"]["servers"]
            server["primary"] = server["primary"].replace(
                f":{self.primary.port}", f":{self.proxy.port}"
            )
            publish_to(self.pairs.path, topology)
        with self._opening(watch=False)() as cluster:
            cluster.create_all(Base.metadata)
        change = {
            "partition": {"port": self.proxy.port},
            "async": {"port": self.proxy.port},
            "lag": {"delay": self.rng.randrange(2, 7)},
        }.get(self.cause)
        if change is not None:
            self.standby.root_execute("STOP REPLICA")
            self.standby.root_execute(change_source(self.standby, **change))
            self.standby.root_execute("START REPLICA")
        if self.cause != "async":
            use_semi_sync(self.primary, self.standby)

    def _opening(self, **options: Any) -> Any:
        return partial(
            Cluster.from_file,
            self.pairs.path,
            engine_options={"connect_args": _TIMEOUTS},
            **options,
        )

    def run(self, seed: str) -> Loss:
        (self.folder / "log").mkdir()
        fleet = self.pairs.fleet()
        with Load(
            ClusterWriter(opening=self._opening()),
            shards=range(SHARDS),
            folder=self.folder / "log",
            seed=seed,
        ) as load:
            with _Looking(self.pairs) as looking:
                looking.wait()
                load.wait_for_acks(self.rng.randrange(20, 60))
                self._lose(load)
                assert wait_until(
                    lambda: received(self.standby) != "Yes", seconds=_LONG
                )
                plan = DeadFailover.planned(fleet, "server1", probe=looking.probe())
            assert plan.problems == ()
            result = apply(fleet, plan)
            load.wait_for_acks(20)
            self._return(load)
            attempts = load.stop()
        wrong = check(attempts, rows_now(self.pairs))
        self._assert_old_is_closed(attempts)
        return Loss(
            statement=result.notes["verify"]["loss"],
            waited=pauses(attempts),
            wrong=wrong,
        )

    def _lose(self, load: Load) -> None:
        if self.cause == "partition":
            self.proxy.hang()
            return
        if self.cause == "disk":
            self._fill()
            plan = DeadFailover.planned(self.pairs.fleet(), "server1")
            assert "it is not lost" in str(plan.problems[0])
            if self.primary.kind == "mariadb":  # MySQL does not show why
                plan = Failover.planned(self.pairs.fleet(), "server1")
                assert "waits for space on a disk" in str(plan.problems[0])
        if self.cause == "async":
            self.proxy.hang()
            load.wait_for_acks(20)
        self.primary.kill()

    def _fill(self) -> None:
        """Fill the disk, and wait until the server has noticed."""
        assert self.disk is not None
        write_all(self.disk / "filler")
        assert wait_until(
            lambda: "Disk is full" in self.primary.log_tail, seconds=_LONG
        )

    def _return(self, load: Load) -> None:
        """Let the old primary return, while others write."""
        if self.cause == "partition":
            self.proxy.restore()
            load.wait_for_acks(20)
            # The partition has not closed it: only its operator can.
            self.primary.kill()
        if self.disk is not None:
            (self.disk / "filler").unlink()
        self.primary.start()
        load.wait_for_acks(20)

    def _assert_old_is_closed(self, attempts: Any) -> None:
        old = self.primary
        assert old.root_execute("SELECT @@read_only") == [(1,)]
        with old.connect() as connection:
            with pytest.raises(pymysql.err.OperationalError) as caught:
                connection.cursor().execute(
                    "INSERT INTO db00000.load_pins (token) VALUES ('late')"
                )
            assert caught.value.args[0] == 1290
        if self.cause == "async":
            return
        # By the id, too: a COMMIT without an answer may be there, and was
        # repeated on the new primary.
        acked = {
            (a.shard, a.local_id, a.token)
            for a in attempts
            if a.outcome in ACKNOWLEDGED
        }
        now = rows_now(self.pairs)
        for shard, rows in rows_on(self.pairs, old).items():
            there = now[shard]
            extra = (rows.pins - there.pins) | ({*rows.notes} - {*there.notes})
            assert [x for x in extra if (shard, *x) in acked] == []


class _Looking:
    """Looks at the pair in a thread, as a watcher does."""

    def __init__(self, pairs: FleetPairs) -> None:
        self._fleet = pairs.fleet(timeout=1.0)
        (server,) = document(pairs)["keyspaces"]["objects"]["servers"]
        self._urls = server["primary"], server["standby"]
        self._last: SemiSyncProbe | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def __enter__(self) -> _Looking:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end.set()
        self._thread.join()

    def wait(self) -> None:
        """Wait until a look has succeeded, which on a busy machine is late."""
        assert wait_until(lambda: self._last is not None, seconds=_LONG)

    def probe(self) -> SemiSyncProbe:
        assert self._last is not None, "no look has succeeded"
        return replace(self._last, lost=time.time())

    def _look(self) -> None:
        while not self._end.wait(0.2):
            with contextlib.suppress(FleetServerError):
                self._last = look_at(self._fleet, *self._urls)


def write_all(path: Path) -> None:
    """Write a file until the disk is full."""
    with path.open("wb", buffering=0) as file:
        assert file.write(bytes(2 * _DISK)) < 2 * _DISK
