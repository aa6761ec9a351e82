"""The SQL of docs/operate/restore.rst for the next ids of restored tables.

MySQL reads AUTO_INCREMENT from statistics that are up to a day old, and has
none before the first row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pymysql.constants import CLIENT

from sqla_shard.testing import MariaDBServer, MySQLServer
from tests.servers.command_line import ROOT
from tests.test_docs import blocks_of

pytestmark = pytest.mark.live

PAGE = ROOT / "docs" / "operate" / "restore.rst"
TABLES = {"unused": 0, "few": 3, "many": 20}


@pytest.fixture(scope="module", params=["mariadb", "mysql"])
def server(request: pytest.FixtureRequest) -> Iterator[Any]:
    request.getfixturevalue(f"{request.param}_installed")
    kind = MySQLServer if request.param == "mysql" else MariaDBServer
    with kind("server1", fast=True) as server:
        yield server


def test_each_table_continues_a_million_ids_later(server: Any) -> None:
    (sql,) = (
        block.code
        for block in blocks_of(PAGE)
        if block.language == "sql" and "AUTO_INCREMENT = " in block.code
    )
    with server.root_connect(client_flag=CLIENT.MULTI_STATEMENTS) as root:
        cursor = root.cursor()
        cursor.execute("CREATE DATABASE restored_db00007")
        cursor.execute("USE restored_db00007")
        for table in TABLES:
            cursor.execute(
                f"CREATE TABLE {table} (id BIGINT AUTO_INCREMENT PRIMARY KEY)"
            )
        cursor.execute("CREATE TABLE plain (id BIGINT PRIMARY KEY)")
        # The statistics are stored by whoever reads them first.
        cursor.execute(
            "SELECT auto_increment FROM information_schema.tables"
            " WHERE table_schema = 'restored_db00007'"
        )
        for table, count in TABLES.items():
            for _ in range(count):
                cursor.execute(f"INSERT INTO {table} VALUES ()")
    with server.root_connect(client_flag=CLIENT.MULTI_STATEMENTS) as root:
        cursor = root.cursor()
        cursor.execute(sql)
        assert cursor.nextset()
        printed = [row[0] for row in cursor.fetchall()]
        changed = {re.findall("`(.*?)`", line)[1] for line in printed}
        assert changed == set(TABLES)
        for line in printed:
            cursor.execute(line)
        for table, count in TABLES.items():
            cursor.execute(f"INSERT INTO restored_db00007.{table} VALUES ()")
            assert cursor.lastrowid == count + 1 + 1_000_000
