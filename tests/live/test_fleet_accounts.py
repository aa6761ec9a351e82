"""The privileges of the operator: each is needed for a statement."""

from __future__ import annotations

import itertools
from contextlib import suppress

import pymysql
import pytest

from sqla_shard.cli.dev_command import FLEET_OPTIONS
from sqla_shard.fleet import Account, Accounts
from sqla_shard.fleet.admin import Admin
from sqla_shard.fleet.replication import replication_kind, replication_of
from sqla_shard.fleet.requirements import bypass_problems, privilege_problems
from tests.servers.fleet_pairs import MYSQL_OPTIONS

pytestmark = pytest.mark.live

#: A statement as the operations send it, which fails without the privilege.
BOTH = {
    "SELECT": "SELECT * FROM db1.there",
    "INSERT": "INSERT INTO mysql.db (host, db, user) VALUES ('h', 'd', 'u')",
    "UPDATE": "UPDATE db1.there SET id = id + 1",
    "DELETE": "DELETE FROM mysql.db WHERE user = 'u'",
    "CREATE": "CREATE TABLE IF NOT EXISTS db1.new (id INT)",
    "ALTER": "ALTER TABLE db1.there AUTO_INCREMENT = 9",
    "DROP": "DROP TABLE IF EXISTS db1.missing",
    "INDEX": "CREATE INDEX {index} ON db1.there (id)",
    "LOCK TABLES": "LOCK TABLES db1.there READ",
    "CREATE VIEW": "CREATE OR REPLACE VIEW db1.new_view AS SELECT 1",
    "SHOW VIEW": "SHOW CREATE VIEW db1.seen",
    "TRIGGER": "SHOW CREATE TRIGGER db1.fires",
    "CREATE ROUTINE": "CREATE PROCEDURE IF NOT EXISTS db1.there() DO 1",
    "ALTER ROUTINE": "ALTER PROCEDURE db1.there COMMENT 'x'",
    "EXECUTE": "CALL db1.there()",
    "EVENT": "ALTER EVENT db1.daily DISABLE",
    "RELOAD": "FLUSH TABLES WITH READ LOCK",
    "PROCESS": "SELECT * FROM information_schema.innodb_trx",
}
MARIADB = {
    **BOTH,
    "READ_ONLY ADMIN": "SET GLOBAL read_only = 0",
    "CONNECTION ADMIN": "KILL {session}",
    "SUPER": "SET GLOBAL event_scheduler = OFF",
    "SET USER": "CREATE OR REPLACE DEFINER = 'other'@'%' VIEW db1.new_view AS SELECT 1",
    "REPLICATION SLAVE ADMIN": "STOP SLAVE",
    "REPLICATION MASTER ADMIN": "SET GLOBAL rpl_semi_sync_master_enabled = 0",
    "SLAVE MONITOR": "SHOW SLAVE STATUS",
    "BINLOG ADMIN": "SET SESSION sql_log_bin = 0",
    "BINLOG MONITOR": "SHOW BINARY LOGS",
    "BINLOG REPLAY": "SET SESSION gtid_seq_no = 7777",
}
MYSQL = {
    **BOTH,
    "REFERENCES": "CREATE TABLE IF NOT EXISTS db1.{index}"
    " (id INT, FOREIGN KEY (id) REFERENCES db1.there (id))",
    # Without it a trigger is refused while there is a binary log.
    "SUPER": "CREATE TRIGGER IF NOT EXISTS db1.fires AFTER INSERT ON db1.there"
    " FOR EACH ROW DO 1",
    "SET_ANY_DEFINER": "CREATE OR REPLACE DEFINER = 'other'@'%' VIEW"
    " db1.new_view AS SELECT 1",
    "ALLOW_NONEXISTENT_DEFINER": "CREATE OR REPLACE DEFINER = 'gone'@'%' VIEW"
    " db1.new_view AS SELECT 1",
    "SYSTEM_USER": "CREATE OR REPLACE DEFINER = 'root'@'localhost' VIEW"
    " db1.new_view AS SELECT 1",
    "CONNECTION_ADMIN": "KILL {session}",
    "SYSTEM_VARIABLES_ADMIN": "SET GLOBAL event_scheduler = OFF",
    "XA_RECOVER_ADMIN": "XA RECOVER",
    "REPLICATION_SLAVE_ADMIN": "STOP REPLICA",
    "REPLICATION CLIENT": "SHOW REPLICA STATUS",
    "REPLICATION SLAVE": "SHOW BINLOG EVENTS LIMIT 1",
    "BINLOG_ADMIN": "PURGE BINARY LOGS BEFORE '2000-01-01'",
    "BACKUP_ADMIN": "LOCK INSTANCE FOR BACKUP",
    "CLONE_ADMIN": "CLONE INSTANCE FROM 'nobody'@'127.0.0.1':1 IDENTIFIED BY 'x'",
}
NEEDED = {"mariadb": MARIADB, "mysql": MYSQL}
#: How the servers refuse a statement for a missing privilege.
REFUSED = {1044, 1095, 1142, 1227, 1370, 1401, 1419}
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
def attempt(server_kind):
    """Run a statement with some privileges; return the error, if any."""
    options = (*FLEET_OPTIONS, *(MYSQL_OPTIONS if server_kind.is_mysql else ()))
    numbers = itertools.count()
    with (
        server_kind.server("privileges", fast=True, options=options) as server,
        server.root_connect() as connection,
        connection.cursor() as root,
    ):
        for statement in _SETUP:
            root.execute(statement)

        def connect(user):
            return pymysql.connect(
                host=server.host, port=server.port, user=user, password=user
            )

        def grant(privileges):
            root.execute("REVOKE ALL PRIVILEGES, GRANT OPTION FROM 'tried'@'%'")
            names = ", ".join(sorted(privileges))
            root.execute(f"GRANT {names} ON *.* TO 'tried'@'%'")

        def run(privileges, statement):
            grant(privileges)
            other = connect("other")
            try:
                with connect("tried") as mine, mine.cursor() as cursor:
                    number = other.thread_id()
                    cursor.execute(
                        statement.format(session=number, index=f"i{next(numbers)}")
                    )
            except pymysql.Error as error:
                return error.args[0]
            finally:
                # It may have been killed.
                with suppress(pymysql.Error):
                    other.close()
            return None

        run.grant = grant
        run.server = server
        kind = replication_kind(is_mariadb=not server_kind.is_mysql)
        run.granted = set(kind.operator_privileges)
        yield run


def test_each_is_needed_and_suffices_with_the_others(attempt, server_kind):
    needed = NEEDED[server_kind.name]
    assert needed.keys() == attempt.granted
    found = {
        name: (
            attempt(attempt.granted, statement),
            # SUPER includes some of the others.
            attempt(attempt.granted - {name, "SUPER"}, statement),
        )
        for name, statement in needed.items()
    }
    # There is no server to clone.
    refused, _ = found.pop("CLONE_ADMIN", (None, None))
    assert refused not in REFUSED
    assert {
        name: errors
        for name, errors in found.items()
        if errors[0] is not None or errors[1] not in REFUSED
    } == {}


def test_missing_ones_are_named_together(attempt, server_kind):
    account = Account(user="tried", password="tried")
    url = Accounts(operator=account).url(attempt.server.url)
    attempt.grant(attempt.granted)
    with Admin(url, name="server1") as admin:
        assert privilege_problems(replication_of(admin)) == []
    names = ("SELECT", "SET_ANY_DEFINER", "XA_RECOVER_ADMIN")
    if not server_kind.is_mysql:
        names = ("SELECT", "SET USER", "READ_ONLY ADMIN")
    attempt.grant(attempt.granted - {*names})
    with Admin(url, name="server1") as admin:
        (problem,) = privilege_problems(replication_of(admin))
    assert problem.place == "server1"
    assert f"lacks {', '.join(names)}; grant" in problem.message


BY_ROLES = [
    "CREATE ROLE IF NOT EXISTS strong",
    "GRANT {strong} ON *.* TO strong",
    "CREATE ROLE IF NOT EXISTS outer_role",
    "GRANT strong TO outer_role",
]


@pytest.mark.parametrize(
    ("granted", "revoked"),
    [
        (
            ["GRANT {strong} ON *.* TO 'other'@'%'"],
            ["REVOKE {strong} ON *.* FROM 'other'@'%'"],
        ),
        (
            [*BY_ROLES, "GRANT outer_role TO 'other'@'%'"],
            ["DROP ROLE outer_role, strong"],
        ),
        (
            [
                *BY_ROLES,
                "GRANT strong TO 'other'@'%'",
                "SET DEFAULT ROLE strong {for} 'other'@'%'",
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
            ["GRANT {strong} ON *.* TO PUBLIC"],
            ["REVOKE {strong} ON *.* FROM PUBLIC"],
            id="PUBLIC",
        ),
    ],
)
def test_sessions_that_bypass_read_only(
    attempt, server_kind, request, granted, revoked
):
    words = {"strong": "READ_ONLY ADMIN", "for": "FOR"}
    if server_kind.is_mysql:
        if "PUBLIC" in request.node.name:
            pytest.skip("MySQL has no PUBLIC")
        words = {"strong": "CONNECTION_ADMIN", "for": "TO"}
    server = attempt.server
    attempt.grant(attempt.granted)
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
                return [one for one in problems if "of 'root'" not in one.message]

            assert found() == []
            for statement in granted:
                root.execute(statement.format(**words))
            try:
                (problem,) = found()
            finally:
                for statement in revoked:
                    root.execute(statement.format(**words))
            assert f"session {other.thread_id()} of 'other' can write" in (
                problem.message
            )
            assert found() == []
