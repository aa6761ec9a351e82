"""MariaDB Spider: a server that keeps nothing and asks the others.

Its plugin is not part of ``mariadb-server-core``; ``make bench`` fetches it.
It is asked for rows with PyMySQL alone, and for objects with a plain session,
from tables that have whole ids, as an application of Spider would have them:

* one partition for each virtual shard, where the rows are today;
* one partition for each server, with the rows of all of its shards in one
  table, as one would divide them for Spider.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import BigInteger, create_engine, DateTime, select, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, Session

from sqla_shard import pack
from sqla_shard.testing import MariaDBFleet, MariaDBServer
from tests.benchmarks.pins import JSONText

# Of whoever runs this, of `make bench`, of Debian's own package.
_PLACES = (
    os.environ.get("SQLA_SHARD_SPIDER", ""),
    f"{sys.prefix}/spider/ha_spider.so",
    "/usr/lib/mysql/plugin/ha_spider.so",
)

Ways = dict[str, Callable[[], object]]


class Whole(DeclarativeBase):
    pass


class WholePin(Whole):
    __tablename__ = "by_server"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    data: Mapped[Any] = mapped_column(JSONText)
    ts: Mapped[Any] = mapped_column(DateTime)


_COLUMNS = (
    "(id BIGINT PRIMARY KEY, data MEDIUMTEXT CHARACTER SET utf8mb4 COLLATE "
    "utf8mb4_bin NOT NULL, ts TIMESTAMP(6) NOT NULL)"
)


@contextmanager
def ways(fleet: MariaDBFleet, ids: list[int]) -> Iterator[Ways]:
    """Read pins through Spider; nothing where there is no plugin."""
    plugin = next((p for p in map(Path, _PLACES) if p.is_file()), None)
    if plugin is None:
        print("\nwithout MariaDB Spider: its plugin is not there")
        yield {}
        return
    with tempfile.TemporaryDirectory() as folder:
        # Not below a home directory that the server's account cannot enter.
        Path(folder).chmod(0o755)
        shutil.copy(plugin, folder)
        options = [f"--plugin-dir={folder}", "--plugin-load-add=ha_spider"]
        with MariaDBServer("spider", fast=True, options=options) as server:
            _define(server, fleet)
            yield from _reading(server, ids)


def _define(server: MariaDBServer, fleet: MariaDBFleet) -> None:
    server.root_execute("CREATE DATABASE dbspider")
    each = fleet.shards // len(fleet.servers)
    shards, servers = [], []
    for number, there in enumerate(fleet.servers):
        server.root_execute(
            f"CREATE SERVER {there.name} FOREIGN DATA WRAPPER mysql OPTIONS ("
            f"HOST '{there.host}', PORT {there.port}, USER '{there.user}', "
            f"PASSWORD '{there.password}')"
        )
        own = range(number * each, (number + 1) * each)
        _copy(there, own)
        servers.append(_partition(own[-1], there.name, "dbspider"))
        shards += [_partition(s, there.name, f"db{s:05d}") for s in own]
    for name, partitions in (("by_shard", shards), ("by_server", servers)):
        server.root_execute(
            f"CREATE TABLE dbspider.{name} {_COLUMNS} ENGINE=SPIDER "
            'COMMENT=\'wrapper "mysql", table "whole"\' '
            f"PARTITION BY RANGE (id) ({', '.join(partitions)})"
        )


def _partition(last: int, server: str, database: str) -> str:
    return (
        f"PARTITION {server}_{database} "
        f"VALUES LESS THAN ({pack(last, 1023, 2**36 - 1) + 1}) "
        f'COMMENT=\'srv "{server}", database "{database}"\''
    )


def _copy(there: Any, shards: range) -> None:
    """Copy pins into tables with whole ids."""
    with there.connect(autocommit=True) as connection:
        cursor = connection.cursor()
        cursor.execute("CREATE DATABASE dbspider")
        cursor.execute(f"CREATE TABLE dbspider.whole {_COLUMNS}")
        for shard_id in shards:
            rows = (
                f"SELECT local_id + {pack(shard_id, 1, 0)}, data, ts "
                f"FROM db{shard_id:05d}.pins"
            )
            table = f"db{shard_id:05d}.whole"
            cursor.execute(f"CREATE TABLE {table} {_COLUMNS}")
            for target in (table, "dbspider.whole"):
                cursor.execute(f"INSERT INTO {target} {rows}")


def _reading(server: MariaDBServer, ids: list[int]) -> Iterator[Ways]:
    wanted = ", ".join(map(str, ids))
    engine = create_engine(
        server.url.replace("mysql://", "mysql+pymysql://") + "/dbspider"
    )
    # Without it, one server is asked after the other.
    parallel = "SET SESSION spider_bgs_mode = 1"
    with server.connect() as connection, Session(engine) as session:
        cursor = connection.cursor()
        cursor.execute(parallel)
        session.execute(text(parallel))

        def way(table: str) -> Callable[[], None]:
            def read() -> None:
                cursor.execute(
                    f"SELECT id, data, ts FROM dbspider.{table} WHERE id IN ({wanted})"
                )
                assert len(cursor.fetchall()) == len(ids)

            return read

        def objects() -> None:
            session.expunge_all()
            statement = select(WholePin).where(WholePin.id.in_(ids))
            assert len(session.scalars(statement).all()) == len(ids)

        yield {
            "MariaDB Spider, a partition for each shard, PyMySQL": way("by_shard"),
            "MariaDB Spider, a partition for each server, PyMySQL": way("by_server"),
            "the same, SQLAlchemy's Session, session open": objects,
        }
    engine.dispose()
