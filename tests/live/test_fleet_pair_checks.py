"""Each check before a change of roles finds its fault, on real servers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing, contextmanager, ExitStack
from dataclasses import replace
from typing import NamedTuple

import pytest

from sqla_shard.fleet import Account
from sqla_shard.fleet.dead_failover import DeadFailover
from sqla_shard.fleet.doctor import examine
from sqla_shard.fleet.failover import Failover
from sqla_shard.fleet.fleet import all_pairs
from sqla_shard.fleet.replication import replication_of
from sqla_shard.fleet.requirements import Requirements
from sqla_shard.fleet.watcher import _View
from sqla_shard.testing.local_server import wait_until
from tests.servers.fleet_pairs import FleetPairs
from tests.servers.server_statements import change_source

pytestmark = pytest.mark.live


class Fault(NamedTuple):
    """Statements on one server of a pair, and the resulting message.

    :ivar on: ``"primary"`` or ``"standby"``; ``{id}`` is the server_id of the
        other one.
    """

    on: str
    change: Iterable[str]
    back: Iterable[str]
    text: str


AGAIN = "START REPLICA"
#: Statements of each kind, by the names that faults have for them.
STATEMENTS = {
    "mariadb": {
        "file": "CHANGE MASTER TO MASTER_USE_GTID = no",
        "gtid": "CHANGE MASTER TO MASTER_USE_GTID = slave_pos",
        "filter": "SET GLOBAL replicate_do_db = 'db00000'",
        "unfilter": "SET GLOBAL replicate_do_db = ''",
    },
    "mysql": {
        "file": "CHANGE REPLICATION SOURCE TO SOURCE_AUTO_POSITION = 0",
        "gtid": "CHANGE REPLICATION SOURCE TO SOURCE_AUTO_POSITION = 1",
        "filter": "CHANGE REPLICATION FILTER REPLICATE_DO_DB = (db00000)",
        "unfilter": "CHANGE REPLICATION FILTER REPLICATE_DO_DB = ()",
    },
}
FAULTS = {
    "stopped": Fault(
        "standby",
        ["STOP REPLICA"],
        [AGAIN],
        "it does not replicate: receiver No, applier No",
    ),
    "applier": Fault(
        "standby",
        ["STOP REPLICA SQL_THREAD"],
        [AGAIN],
        "it does not replicate: receiver Yes, applier No",
    ),
    "position in a file": Fault(
        "standby",
        ["STOP REPLICA", "{file}", AGAIN],
        ["STOP REPLICA", "{gtid}", AGAIN],
        "it does not find its position by GTID; sqla-shard fleet replica rebuild",
    ),
    "filter": Fault(
        "standby",
        ["STOP REPLICA", "{filter}", AGAIN],
        ["STOP REPLICA", "{unfilter}", AGAIN],
        "it leaves out data: Replicate_Do_DB=db00000; remove the filters",
    ),
    "writable": Fault(
        "standby",
        ["SET GLOBAL read_only = 0"],
        ["SET GLOBAL read_only = 1"],
        "it is writable, as only its primary may be",
    ),
    "equal ids": Fault(
        "standby",
        ["SET GLOBAL server_id = {id}"],
        ["SET GLOBAL server_id = {own}"],
        "of server1 primary: a standby of one ignores",
    ),
    "format": Fault(
        "primary",
        ["SET GLOBAL binlog_format = STATEMENT"],
        ["SET GLOBAL binlog_format = ROW"],
        "it has binlog_format = STATEMENT: a failover",
    ),
    "closed": Fault(
        "primary",
        ["SET GLOBAL read_only = 1"],
        ["SET GLOBAL read_only = 0"],
        "it is read-only: applications cannot write; sqla-shard fleet reopen server1",
    ),
}


@pytest.fixture(scope="module")
def pairs(server_kind, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checks")
    with FleetPairs(folder, pairs=2, shards=4, pair=server_kind.pair) as pairs:
        pairs["server1"].primary.root_execute("CREATE DATABASE db00000")
        yield pairs


@pytest.fixture
def pair(pairs):
    """A healthy pair, before and after."""
    pair = pairs["server1"]
    assert wait_until(lambda: problems(pairs) == "", seconds=60)
    yield pair
    pair.wait_caught_up()
    assert wait_until(lambda: problems(pairs) == "", seconds=60), problems(pairs)


def problems(pairs, **options):
    plan = Failover.planned(pairs.fleet(**options), "server1")
    return "\n".join(map(str, plan.problems))


@contextmanager
def changed(server, fault, other):
    def run(statements):
        with server.root_connect() as connection:
            for one in statements:
                connection.cursor().execute(
                    one.format(
                        id=other.server_id,
                        own=server.server_id,
                        **STATEMENTS[server.kind],
                    )
                )

    try:
        run(fault.change)
        yield
    finally:
        run(fault.back)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found(pairs, pair, name):
    fault = FAULTS[name]
    other = "primary" if fault.on == "standby" else "standby"
    with changed(getattr(pair, fault.on), fault, getattr(pair, other)):
        found = wait_until(lambda: fault.text in problems(pairs), seconds=60)
        assert found, problems(pairs)


def test_a_standby_that_does_not_replicate(pairs, pair):
    with pair.standby.root_connect() as connection:
        connection.cursor().execute("STOP REPLICA")
        connection.cursor().execute("RESET REPLICA ALL")
    shown = problems(pairs)
    pair.attach(pair.standby)
    assert "it does not replicate; sqla-shard fleet replica rebuild server1" in shown


def test_a_standby_of_another_server(pairs, pair):
    other = pairs["server2"]
    other.attach(pair.standby)
    try:
        text = f"(server_id {other.primary.server_id}), not from server1"
        assert wait_until(lambda: text in problems(pairs), seconds=60)
    finally:
        pair.attach(pair.standby)


def test_a_standby_that_is_late(pairs, pair):
    late = Fault(
        "standby",
        ["STOP REPLICA", change_source(pair.standby, delay=3600), AGAIN],
        ["STOP REPLICA", change_source(pair.standby, delay=0), AGAIN],
        "s behind its primary; wait until it is less than 0 s",
    )

    def shown():
        with ExitStack() as stack:
            one, two = (
                replication_of(
                    stack.enter_context(
                        pairs.fleet().admin(server.url, name=server.name)
                    )
                )
                for server in (pair.primary, pair.standby)
            )
            required = Requirements(pairs.fleet())
            return "\n".join(map(str, required.standby("server1", one, two, lag=0.0)))

    assert shown() == ""
    with changed(pair.standby, late, pair.primary):
        pair.primary.root_execute("CREATE DATABASE late")
        assert wait_until(lambda: late.text in shown(), seconds=60), shown()
    pair.primary.root_execute("DROP DATABASE late")


def test_a_replication_account_that_is_missing(pairs, pair):
    accounts = pairs.accounts
    try:
        pairs.accounts = replace(accounts, replication=None)
        assert "SQLA_SHARD_REPLICATION_USER: it is not set" in problems(pairs)
        pairs.accounts = replace(
            accounts, replication=Account(user="nobody", password="")
        )
        for role in ("primary", "standby"):
            assert f"server1 {role}: it has no user 'nobody'" in problems(pairs)
    finally:
        pairs.accounts = accounts


def test_a_replication_account_with_another_password(pairs, pair):
    account = pairs.accounts.replication

    def alter(password):
        with pair.standby.root_connect() as connection:
            connection.cursor().execute("SET SESSION sql_log_bin = 0")
            connection.cursor().execute(
                f"ALTER USER '{account.user}'@'127.0.0.1' IDENTIFIED BY %s", (password,)
            )

    alter("another")
    try:
        assert f"it does not let {account.user!r} in as server1 " in problems(pairs)
    finally:
        alter(account.password)


class Shut(NamedTuple):
    """A change on the standby after which the application cannot write.

    :ivar text: what plans, the doctor and watchers say.
    :ivar dead: what is said if the primary is lost.
    :ivar remedy: the statement that puts it right.
    """

    change: str
    text: str
    dead: str
    remedy: str


#: ``{app}`` is the account of the application.
SHUT = {
    "privileges": Shut(
        "REVOKE INSERT, UPDATE ON `db%`.* FROM {app}",
        "does not allow {app} INSERT, UPDATE in db00000, db00001, as server1",
        "does not allow the user 'app' SELECT and INSERT in any database",
        "GRANT INSERT, UPDATE ON `db%`.* TO {app}",
    ),
    "password": Shut(
        "ALTER USER {app} IDENTIFIED BY 'another'",
        "does not let 'app' of the topology in (error 1045), as server1",
        "does not let 'app' of the topology in (error 1045)",
        "ALTER USER {app} IDENTIFIED BY '{password}'",
    ),
    "account": Shut(
        "RENAME USER {app} TO 'gone'@'127.0.0.1'",
        "has no account {app}, which may use databases of its shards on",
        "has no account of the user 'app'",
        "RENAME USER 'gone'@'127.0.0.1' TO {app}",
    ),
}


def test_an_application_that_could_not_write(pairs, pair):
    words = {"app": "'app'@'127.0.0.1'", "password": pair.standby.password}
    fleet = pairs.fleet()

    def run(statement):
        with pair.standby.root_connect() as connection:
            for one in ("SET SESSION sql_log_bin = 0", statement):
                connection.cursor().execute(one.format(**words))

    def said():
        """Return what plans, the doctor and a watcher say."""
        dead = DeadFailover.planned(fleet, "server1").problems
        doctor = [
            f"{one.what} {one.remedy}"
            for one in examine(fleet).findings
            if one.check == "application-access"
        ]
        first = all_pairs(fleet.topology())[0]
        with closing(_View(fleet, first, 5.0)) as view:
            found = doctor, view.look(), map(str, dead)
        return problems(pairs), *map("\n".join, found)

    for fault in SHUT.values():
        run(fault.change)
        try:
            *alive, dead = said()
        finally:
            run(fault.remedy)
        for text in alive:
            assert fault.text.format(**words) in text
            assert "SET SESSION sql_log_bin = 0; " in text
        assert fault.dead in dead
        if fault is SHUT["privileges"]:
            assert fault.remedy.format(**words) in alive[0]
    *alive, dead = said()
    assert alive == ["", "", ""]
    assert "'app'" not in dead


@pytest.mark.thorough
def test_long_work_is_a_warning(pairs, pair):
    def warnings():
        return "\n".join(Failover.planned(pairs.fleet(), "server1").warnings)

    with pair.primary.connect() as busy:
        number = busy.thread_id()
        busy.cursor().execute("CREATE TABLE db00000.t (id INT PRIMARY KEY)")
        busy.begin()
        busy.cursor().execute("INSERT INTO db00000.t VALUES (1)")
        text = f"session {number} has a transaction of "
        assert wait_until(lambda: text in warnings(), seconds=60), warnings()
        busy.rollback()
        busy.cursor().execute("DROP TABLE db00000.t")
        # The server caches its list of transactions.
        text = f"session {number} "
        assert wait_until(lambda: text not in warnings(), seconds=60)
        # The answer is not waited for.
        busy._execute_command(3, "SELECT SLEEP(60)")
        text = f"session {number} of '{pair.primary.user}' runs a statement"
        try:
            assert wait_until(lambda: text in warnings(), seconds=60)
        finally:
            pair.primary.root_execute(f"KILL {number}")
            busy._force_close()
