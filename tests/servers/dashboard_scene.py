"""A fleet to look at: four servers, one with a standby, and 1,024 shards.

::

    with DashboardScene(tmp_path, server_kind) as scene:
        scene.site.address
        scene.servers[2].kill()

Some shards have many rows, a revision has reached a third of them, and a few
jobs have failed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pymysql.constants import CLIENT
from sqlalchemy import update
from sqlalchemy.orm import DeclarativeBase, Mapped
from sqlalchemy.schema import CreateIndex, CreateTable

from sqla_shard import blob_field, Cluster, ObjectMixin, pack, ShardSession
from sqla_shard.fleet import Account, Accounts, Fleet
from sqla_shard.jobs import EnqueuedJob, JobState, task
from sqla_shard.monitor import measure_load, meter_of
from sqla_shard.monitor.dashboard import DashboardServer, Observer
from sqla_shard.outbox.tables import JOB_KEYS, JOBS, OUTBOX, QUEUES
from sqla_shard.testing.database_server import DatabaseServer
from sqla_shard.testing.local_server import in_parallel
from sqla_shard.testing.topology_documents import topology_document
from tests.servers.kinds import Kind

OLD, NEW = "0007_pins", "0008_saved"
PASSWORD = "not-to-be-shown-7f3a"


class Base(DeclarativeBase):
    pass


class Board(ObjectMixin, Base, type_id=2):
    __tablename__ = "boards"
    title: Mapped[str] = blob_field()


class Pin(ObjectMixin, Base, type_id=1):
    __tablename__ = "pins"
    board_id: Mapped[int] = blob_field(ref=Board)


# A name of its own: a page of the documentation has a task of its own, too.
@task("dashboard.fetch_title", queue="titles")
def fetch_title(session: ShardSession, pin_id: int) -> None:
    """Do nothing: no worker runs here."""


class Served:
    """A dashboard behind a port, served by a thread of this process."""

    def __init__(self, observer: Observer, *, allow_changes: bool) -> None:
        self._server = DashboardServer(observer, allow_changes=allow_changes)
        self.app = self._server.app
        self.address = self._server.address
        self._thread = threading.Thread(target=self._server.serve)

    def __enter__(self) -> Served:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._server.close()
        self._thread.join()


class DashboardScene:
    """The servers, their rows, and a dashboard.

    :param folder: where the topology is written.
    :param kind: of the servers.
    :param shards: number of virtual shards.
    """

    def __init__(self, folder: Path, kind: Kind, *, shards: int = 1024) -> None:
        self.path = folder / "topology.json"
        self.shards = shards
        self._kind = kind
        self._pair = kind.pair("server1", password=PASSWORD, fast=True)
        self.servers: Sequence[DatabaseServer] = [
            self._pair.primary,
            *(
                kind.server(f"server{n}", password=PASSWORD, fast=True)
                for n in (2, 3, 4)
            ),
        ]
        self.accounts = Accounts(
            operator=Account(user="watcher", password=f"{PASSWORD}-too")
        )
        self._stack = ExitStack()

    def __enter__(self) -> DashboardScene:
        with ExitStack() as stack:
            in_parallel([self._pair, *self.servers[1:]], lambda one: one.start())
            stack.callback(self._stop)
            self._create_account()
            self.path.write_text(json.dumps(self.document()))
            self.cluster = stack.enter_context(
                Cluster.from_file(
                    self.path,
                    engine_options={
                        "connect_args": {"connect_timeout": 3, "read_timeout": 20}
                    },
                )
            )
            self._fill()
            self.observer = Observer(
                self.cluster,
                fleet=Fleet(self.path, accounts=self.accounts),
                models=[Base],
                accounts=self.accounts,
            )
            self.site = stack.enter_context(Served(self.observer, allow_changes=True))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *details: object) -> None:
        self._stack.close()

    def document(self, *, epoch: int = 1) -> dict[str, Any]:
        """Return the topology."""
        document = topology_document(
            {f"server{n}": one.url for n, one in enumerate(self.servers, 1)},
            self.shards,
            epoch=epoch,
            database="db{shard:05d}",
        )
        first = document["keyspaces"]["objects"]["servers"][0]
        first["standby"] = self._pair.standby.url
        return document

    @property
    def standby(self) -> DatabaseServer:
        """The standby of the first server."""
        return self._pair.standby

    def make_hot(self, shard_id: int) -> int:
        """Read one object of a shard again and again; return its id.

        Every statement of this process is sampled from now on.
        """
        if meter_of(self.cluster) is None:
            measure_load(self.cluster, rate=1.0)
        with self.cluster.begin(shard_id=shard_id) as session:
            pin = Pin(board_id=pack(shard_id, 2, 1))
            session.add(pin)
            session.flush()
            pin_id = pin.id
        for _ in range(150):
            with self.cluster.session() as session:
                session.get(Pin, pin_id)
        return pin_id

    def fail_jobs(self, count: int) -> list[str]:
        """Enqueue jobs that have failed, and return their ids."""
        ids = [
            fail_job(self.cluster, number * 37 % self.shards) for number in range(count)
        ]
        self.observer.expire_jobs()
        return ids

    # -- filling ----------------------------------------------------------

    def _create_account(self) -> None:
        user = self.accounts.operator
        name = user.user
        privilege = self._kind.lag_privilege
        # The standby gets it by replication.
        for server in self.servers:
            for sql in (
                f"CREATE USER '{name}' IDENTIFIED BY '{user.password}'",
                f"GRANT SELECT, {privilege} ON *.* TO '{name}'",
            ):
                server.root_execute(sql)

    def _fill(self) -> None:
        place = next(iter(self.cluster.places.servers()))[1]
        dialect = place.engine.dialect
        tables = (Base.metadata.tables["pins"], OUTBOX, JOBS, JOB_KEYS)
        # Not create_all(), with a round trip for each of more tables.
        ddl = [
            str(one.compile(dialect=dialect))
            for table in tables
            for one in (CreateTable(table), *map(CreateIndex, table.indexes))
        ]
        self._limits = str(CreateTable(QUEUES).compile(dialect=dialect))
        in_parallel(
            list(enumerate(self.servers)),
            lambda numbered: self._fill_server(*numbered, ddl),
        )
        for _ in range(3):
            fetch_title.enqueue_now(self.cluster, 7)
        self._pair.wait_caught_up()

    def _fill_server(
        self, number: int, server: DatabaseServer, ddl: Sequence[str]
    ) -> None:
        each = self.shards // len(self.servers)
        with server.connect(
            autocommit=True, client_flag=CLIENT.MULTI_STATEMENTS
        ) as connection:
            cursor = connection.cursor()
            for shard_id in range(number * each, (number + 1) * each):
                revision = NEW if shard_id % each < each // 3 else OLD
                statements = [
                    f"CREATE DATABASE db{shard_id:05d}",
                    f"USE db{shard_id:05d}",
                    *ddl,
                    *([self._limits] if shard_id == 0 else ()),
                    "CREATE TABLE alembic_version (version_num VARCHAR(32))",
                    f"INSERT INTO alembic_version VALUES ('{revision}')",
                ]
                rows = (shard_id * 7919 % 97) ** 2 // 8
                if shard_id % 8 == 0 and rows:
                    values = ", ".join(["('{\"board_id\": 0}')"] * rows)
                    statements.append(f"INSERT INTO pins (data) VALUES {values}")
                cursor.execute(";".join(statements))
                while cursor.nextset():
                    pass

    def _stop(self) -> None:
        in_parallel([self._pair, *self.servers[1:]], lambda one: one.stop())


def fail_job(cluster: Cluster, shard_id: int) -> str:
    """Enqueue a job that has failed, and return its id."""
    pin_id = pack(shard_id, 1, 1)
    job = fetch_title.enqueue_now(cluster, pin_id, near=pin_id)
    cluster.run(_fail, job)
    return str(job)


def _fail(session: ShardSession, job: EnqueuedJob) -> None:
    keyspace = session.places.keyspace(job.keyspace, "objects")
    place = session.places.place(keyspace, job.shard_id)
    session.execute(
        update(JOBS)
        .where(JOBS.c.id == job.local_id)
        .values(
            state=JobState.FAILED.value,
            attempts=10,
            error="Traceback (most recent call last):\n  ...\n"
            "TimeoutError: example.com has not responded within 10 s",
        ),
        bind_arguments={"place": place},
    )
