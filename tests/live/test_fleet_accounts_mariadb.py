"""The privileges of the operator: each is needed for a statement."""

from __future__ import annotations

from contextlib import suppress

import pymysql
import pytest

from sqla_shard.cli.dev_command import FLEET_OPTIONS
from sqla_shard.fleet import Account
from sqla_shard.fleet import Accounts
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.pair_checks import bypass_problems
from sqla_shard.fleet.pair_checks import privilege_problems
from sqla_shard.fleet.replication import MariaDBReplication
from sqla_shard.fleet.replication import replication_of
from sqla_shard.testing import MariaDBServer

pytestmark = pytest.mark.live

#: A statement as the operations send it, which fails without the privilege.
NEEDED = {
    "SELECT": "SELECT * FROM db1.there",
    "INSERT": "INSERT INTO mysql.db (host, db, user) VALUES ('h', 'd', 'u')",
    "UPDATE": "UPDATE db1.there SET id = id + 1",
    "DELETE": "DELETE FROM mysql.db WHERE user = 'u'",
    "CREATE": "CREATE TABLE IF NOT EXISTS db1.new (id INT)",
    "ALTER": "ALTER TABLE db1.there AUTO_INCREMENT = 9",
    "DROP": "DROP TABLE IF EXISTS db1.missing",
    "INDEX": "CREATE INDEX IF NOT EXISTS i ON db1.there (id)",
    "LOCK TABLES": "LOCK TABLES db1.there READ",
    "CREATE VIEW": "CREATE OR REPLACE VIEW db1.new_view AS SELECT 1",
    "SHOW VIEW": "SHOW CREATE VIEW db1.seen",
    "TRIGGER": "SHOW CREATE TRIGGER db1.fires",
    "CREATE ROUTINE": "CREATE PROCEDURE IF NOT EXISTS db1.there() DO 1",
    "ALTER ROUTINE": "ALTER PROCEDURE db1.there COMMENT 'x'",
    "EXECUTE": "CALL db1.there()",
    "EVENT": "ALTER EVENT db1.daily DISABLE",
    "RELOAD": "FLUSH TABLES WITH READ LOCK",
    "READ_ONLY ADMIN": "SET GLOBAL read_only = 0",
    "CONNECTION ADMIN": "KILL {session}",
    "PROCESS": "SELECT * FROM information_schema.innodb_trx",
    "SUPER": "SET GLOBAL event_scheduler = OFF",
    "SET USER": "CREATE OR REPLACE DEFINER = 'other'@'%' VIEW db1.new_view"
    " AS SELECT 1",
    "REPLICATION SLAVE ADMIN": "STOP SLAVE",
    "REPLICATION MASTER ADMIN": "SET GLOBAL rpl_semi_sync_master_enabled = 0",
    "SLAVE MONITOR": "SHOW SLAVE STATUS",
    "BINLOG ADMIN": "SET SESSION sql_log_bin = 0",
    "BINLOG MONITOR": "SHOW BINARY LOGS",
    "BINLOG REPLAY": "SET SESSION gtid_seq_no = 7777",
}
GRANTED = set(MariaDBReplication.operator_privileges)
_SETUP = (
    "CREATE DATABASE db1",
    "CREATE TABLE db1.there (id INT PRIMARY KEY AUTO_INCREMENT)",
    "CREATE VIEW db1.seen AS SELECT 1",
    "CREATE PROCEDURE db1.there() DO 1",
    "CREATE EVENT db1.daily ON SCHEDULE EVERY 1 DAY DO DO 1",
    "CREATE TRIGGER db1.fires AFTER INSERT ON db1.there FOR EACH ROW DO 1",
    "CREATE USER 'other'@'%' IDENTIFIED BY 'other'",
    "CREATE USER 'tried'@'%' IDENTIFIED BY 'tried'",
)


@pytest.fixture(scope="module")
def attempt(mariadb_installed):
    """Run a statement with some privileges; return the error, if any."""
    with (
        MariaDBServer(
            "privileges", fast=True, options=FLEET_OPTIONS
        ) as server,
        server.root_connect() as connection,
        connection.cursor() as root,
    ):
        for statement in _SETUP:
            root.execute(statement)

        def connect(user):
            return pymysql.connect(
                host=server.host,
                port=server.port,
                user=user,
                password=user,
                ssl_disabled=True,
            )

        def grant(privileges):
            root.execute(
                "REVOKE ALL PRIVILEGES, GRANT OPTION FROM 'tried'@'%'"
            )
            names = ", ".join(sorted(privileges))
            root.execute(f"GRANT {names} ON *.* TO 'tried'@'%'")

        def run(privileges, statement):
            grant(privileges)
            other = connect("other")
            try:
                with connect("tried") as mine, mine.cursor() as cursor:
                    number = other.thread_id()
                    cursor.execute(statement.format(session=number))
            except pymysql.Error as error:
                return error.args[0]
            finally:
                # It may have been killed.
                with suppress(pymysql.Error):
                    other.close()
            return None

        run.grant = grant
        run.server = server
        yield run


def test_each_has_a_statement():
    assert NEEDED.keys() == GRANTED


@pytest.mark.parametrize("name", NEEDED)
def test_it_is_needed_and_suffices_with_the_others(attempt, name):
    assert attempt(GRANTED, NEEDED[name]) is None
    # Before MariaDB 11, SUPER includes some of the others.
    assert attempt(GRANTED - {name, "SUPER"}, NEEDED[name]) in (
        1044,
        1095,
        1142,
        1227,
        1370,
    )


def test_missing_ones_are_named_together(attempt):
    account = Account(user="tried", password="tried")
    url = Accounts(operator=account).url(attempt.server.url)
    attempt.grant(GRANTED)
    with Admin(url, name="server1") as admin:
        assert privilege_problems(replication_of(admin)) == []
    attempt.grant(GRANTED - {"SELECT", "SET USER", "READ_ONLY ADMIN"})
    with Admin(url, name="server1") as admin:
        (problem,) = privilege_problems(replication_of(admin))
    assert problem.place == "server1"
    assert "lacks SELECT, SET USER, READ_ONLY ADMIN; grant" in problem.message


BY_ROLES = [
    "CREATE ROLE IF NOT EXISTS strong",
    "GRANT READ_ONLY ADMIN ON *.* TO strong",
    "CREATE ROLE IF NOT EXISTS outer_role",
    "GRANT strong TO outer_role",
]


@pytest.mark.parametrize(
    ("granted", "revoked"),
    [
        (
            ["GRANT READ_ONLY ADMIN ON *.* TO 'other'@'%'"],
            ["REVOKE READ_ONLY ADMIN ON *.* FROM 'other'@'%'"],
        ),
        (
            [*BY_ROLES, "GRANT outer_role TO 'other'@'%'"],
            ["DROP ROLE outer_role, strong"],
        ),
        (
            [
                *BY_ROLES,
                "GRANT strong TO 'other'@'%'",
                "SET DEFAULT ROLE strong FOR 'other'@'%'",
            ],
            ["DROP ROLE outer_role, strong"],
        ),
        (
            [
                "CREATE ROLE `it's all`",
                "GRANT ALL ON *.* TO `it's all`",
                "GRANT `it's all` TO 'other'@'%'",
            ],
            ["DROP ROLE `it's all`"],
        ),
        pytest.param(
            ["GRANT READ_ONLY ADMIN ON *.* TO PUBLIC"],
            ["REVOKE READ_ONLY ADMIN ON *.* FROM PUBLIC"],
            id="PUBLIC",
        ),
    ],
)
def test_sessions_that_bypass_read_only(attempt, request, granted, revoked):
    server = attempt.server
    attempt.grant(GRANTED)
    accounts = Accounts(operator=Account(user="tried", password="tried"))
    with (
        Admin(accounts.url(server.url), name="server1") as admin,
        server.root_connect() as connection,
        connection.cursor() as root,
    ):
        root.execute("SELECT VERSION()")
        ((version,),) = root.fetchall()
        if "PUBLIC" in request.node.name and version.startswith("10.6"):
            pytest.skip("MariaDB 10.6 has no PUBLIC")
        with pymysql.connect(
            host=server.host, port=server.port, user="other", password="other"
        ) as other:

            def found():
                problems = bypass_problems(accounts, replication_of(admin))
                return [
                    one for one in problems if "of 'root'" not in one.message
                ]

            assert found() == []
            for statement in granted:
                root.execute(statement)
            try:
                (problem,) = found()
            finally:
                for statement in revoked:
                    root.execute(statement)
            assert f"session {other.thread_id()} of 'other' can write" in (
                problem.message
            )
            assert found() == []
