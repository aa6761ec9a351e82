"""Writers of an application, and of a process that has an old topology.

They write shard after shard and remember the ids that they were given, while
databases are dropped, made anew, and moved.
"""

from __future__ import annotations

import copy
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pymysql
from sqlalchemy.dialects import mysql
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.schema import CreateTable

from sqla_shard import Cluster, Topology
from sqla_shard.util.files import replace_file
from tests.models.schema import Project, until
from tests.servers.following import Pin

_TABLE = str(CreateTable(Pin.__table__).compile(dialect=mysql.dialect()))
#: A revision that makes the table of pins.
PINS = f'op.execute("""{_TABLE}""")'


class Writer:
    """A thread that inserts a pin on each shard, again and again.

    :param cluster: it is closed with the thread.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        #: The ids whose COMMIT was acknowledged, by shard.
        self.given: dict[int, list[int]] = {}
        self.wrong: list[BaseException] = []
        self.rounds = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)
        self.cluster.close()

    def _work(self) -> None:
        try:
            while not self._stop.is_set():
                for shard_id in self.cluster.topology.keyspace("objects").shard_ids:
                    self._write(shard_id)
                self.rounds += 1
        except BaseException as error:
            self.wrong.append(error)

    def _write(self, shard_id: int) -> None:
        pin = Pin(title="a pin", shard_id=shard_id)
        try:
            with self.cluster.begin() as session:
                session.add(pin)
                session.flush()
                pin_id = int(pin.id)
        except SQLAlchemyError:
            return  # not acknowledged
        self.given.setdefault(shard_id, []).append(pin_id)


@contextmanager
def writing(*clusters: Cluster) -> Iterator[list[Writer]]:
    """Let each cluster write, and look that none has ended before."""
    writers = [Writer(cluster) for cluster in clusters]
    try:
        yield writers
    finally:
        for writer in writers:
            writer.close()
    for writer in writers:
        assert writer.wrong == []


def rounds(writers: list[Writer], count: int = 2) -> None:
    """Wait until each has written all shards again, from the beginning."""
    before = [writer.rounds for writer in writers]
    until(
        lambda: all(
            writer.wrong or writer.rounds >= number + count
            for writer, number in zip(writers, before, strict=True)
        ),
        "writers that go on",
    )


def twice(writers: list[Writer]) -> list[int]:
    """Return the ids that were given more than once."""
    counts = Counter(
        pin_id for writer in writers for ids in writer.given.values() for pin_id in ids
    )
    return sorted(pin_id for pin_id, count in counts.items() if count > 1)


class Databases:
    """Destroys, moves and restores the databases of a project.

    :ivar document: the topology that says where they are now.
    """

    def __init__(self, project: Project) -> None:
        self._project = project
        self.document: dict[str, Any] = copy.deepcopy(project.document)
        self._names = list(project.servers)[:2]
        self._home = {i: project.place(i)[0] for i in project.shards}
        self._first = dict(self._home)

    def _run(self, server: str, *statements: str) -> list[tuple[Any, ...]]:
        connection = self._project.servers[server].root_connect(ssl_disabled=True)
        try:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)
                rows = list(cursor.fetchall())
            connection.commit()
        finally:
            connection.close()
        return rows

    def _tables(self, server: str, name: str) -> list[str]:
        rows = self._run(
            server,
            "SELECT table_name FROM information_schema.tables WHERE "
            f"table_schema = '{name}' AND table_name NOT LIKE '%\\_old'",
        )
        return [row[0] for row in rows]

    def name(self, shard_id: int) -> str:
        return self._project.place(shard_id)[1]

    @classmethod
    @contextmanager
    def of(cls, project: Project) -> Iterator[Databases]:
        """Yield them, and drop them in the end, wherever they are."""
        found = cls(project)
        try:
            yield found
        finally:
            project.close()
            for server in found._names:
                for shard_id in found._home:
                    name = found.name(shard_id)
                    found._run(server, f"DROP DATABASE IF EXISTS {name}")
            for shard_id, server in found._first.items():
                found._run(server, f"CREATE DATABASE {found.name(shard_id)}")

    @property
    def is_last(self) -> bool:
        """Whether no more than one shard has its tables.

        Without any, a keyspace is a new one: an upgrade creates all tables.
        """
        have = [
            shard_id
            for shard_id, home in self._home.items()
            if "pins" in self._tables(home, self.name(shard_id))
        ]
        return len(have) < 2

    # -- what can happen; each leaves its server without the tables

    def drop(self, shard_id: int) -> None:
        """Drop it, and nothing else."""
        name = self.name(shard_id)
        self._run(self._home[shard_id], f"DROP DATABASE IF EXISTS {name}")

    def drop_and_create(self, shard_id: int) -> None:
        name = self.name(shard_id)
        self.drop(shard_id)
        self._run(self._home[shard_id], f"CREATE DATABASE {name}")

    def set_aside(self, shard_id: int) -> None:
        """Rename its tables, all at once."""
        name, server = self.name(shard_id), self._home[shard_id]
        tables = self._tables(server, name)
        renamed = ", ".join(f"{name}.{t} TO {name}.{t}_old" for t in tables)
        if renamed:
            self._run(
                server,
                # Without the guard it may have been done before.
                *(f"DROP TABLE IF EXISTS {name}.{t}_old" for t in tables),
                f"RENAME TABLE {renamed}",
            )

    def move(self, shard_id: int) -> None:
        """Set its tables aside, copy them to the other server, publish."""
        shard_id = self._movable(shard_id)
        name, old = self.name(shard_id), self._home[shard_id]
        tables = self._tables(old, name)
        if "pins" not in tables:
            return  # it has lost them before
        self.set_aside(shard_id)
        (new,) = {*self._names} - {old}
        self._run(new, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
        for table in tables:
            ((_, made),) = self._run(old, f"SHOW CREATE TABLE {name}.{table}_old")
            rows = self._run(old, f"SELECT * FROM {name}.{table}_old")
            self._copy(new, name, made.replace(f"{table}_old", table, 1), rows)
        self._home[shard_id] = new
        self._publish()

    def _movable(self, shard_id: int) -> int:
        """Return a shard, or another where it is the last of its server."""
        homes = list(self._home.values())
        if homes.count(self._home[shard_id]) > 1:
            return shard_id
        return next(i for i in self._home if homes.count(self._home[i]) > 1)

    def _copy(
        self, server: str, name: str, made: str, rows: list[tuple[Any, ...]]
    ) -> None:
        connection = self._project.servers[server].root_connect(ssl_disabled=True)
        table = made.split("`")[1]
        try:
            with connection.cursor() as cursor:
                cursor.execute(f"USE {name}")
                cursor.execute(made)
                if rows:
                    marks = ", ".join(["%s"] * len(rows[0]))
                    cursor.executemany(f"INSERT INTO `{table}` VALUES ({marks})", rows)
            connection.commit()
        finally:
            connection.close()

    def copy_and_publish(self, shard_id: int) -> None:
        """Copy it to the other server as it is, and leave the old one."""
        shard_id = self._movable(shard_id)
        name, old = self.name(shard_id), self._home[shard_id]
        (new,) = {*self._names} - {old}
        self._run(new, f"DROP DATABASE IF EXISTS {name}", f"CREATE DATABASE {name}")
        connection = self._project.servers[old].root_connect(ssl_disabled=True)
        with closing(connection), connection.cursor() as cursor:
            # No process creates or writes a table meanwhile.
            cursor.execute("FLUSH TABLES WITH READ LOCK")
            cursor.execute(f"USE {name}")
            cursor.execute("SHOW TABLES")
            for (table,) in cursor.fetchall():
                cursor.execute(f"SHOW CREATE TABLE `{table}`")
                ((_, made),) = cursor.fetchall()
                cursor.execute(f"SELECT * FROM `{table}`")
                self._copy(new, name, made, list(cursor.fetchall()))
        self._home[shard_id] = new
        self._publish()
        # As a whole, for a run reads it at any time.
        path = self._project.directory / "topology.json"
        replace_file(path, json.dumps(self.document).encode(), 0o644)
        self._project.document = copy.deepcopy(self.document)

    def end_connections(self) -> None:
        """End all connections to databases of the project."""
        for server in self._names:
            rows = self._run(
                server,
                "SELECT id FROM information_schema.processlist WHERE db IN "
                f"({', '.join(repr(self.name(i)) for i in self._home)})",
            )
            for (number,) in rows:
                with suppress(pymysql.err.OperationalError):
                    # One that has ended by itself is not known any more.
                    self._run(server, f"KILL {number}")

    def _publish(self) -> None:
        self.document["epoch"] += 1
        for server in self.document["keyspaces"]["objects"]["servers"]:
            server["shards"] = [
                [i, i] for i, home in self._home.items() if home == server["name"]
            ]

    @property
    def topology(self) -> Topology:
        return Topology.from_mapping(self.document)
