"""Comparisons of what applications may do on two servers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sqla_shard.fleet.accounts import Login
from sqla_shard.fleet.app_access import Access, Attempt, attempt, gaps, gaps_alone
from sqla_shard.fleet.fences import GrantRow

DATABASES = ["db1", "db2", "my_db"]
NATIVE = "mysql_native_password:"


def login(user="app", host="%", privileges=(), **changes):
    return Login(user=user, host=host, privileges=frozenset(privileges), **changes)


def grant(*names, user="app", host="%", pattern="%"):
    columns = frozenset(f"{name}_priv" for name in names)
    return GrantRow(account=(user, host), pattern=pattern, privileges=columns)


def may(user="app", host="%", pattern="%"):
    names = "Select", "Insert", "Create_tmp_table"
    return grant(*names, user=user, host=host, pattern=pattern)


ALL = ["SELECT", "INSERT", "CREATE TEMPORARY TABLES"]


APP, MAY = login(), may()


def access(logins=(APP,), grants=(MAY,), known="app", **changes):
    return Access(
        name="name",
        address="host:1",
        logins=logins,
        grants=grants,
        attempt=Attempt(known, **changes),
    )


def found(primary, standby):
    return [one.what for one in gaps(primary, standby, DATABASES, exempt=["operator"])]


#: Accounts that need not be on the standby.
OTHERS = access(
    [APP, login("dba", privileges=ALL), login("operator"), login("root")],
    [MAY, may("dba"), may("operator"), may("root")],
)
FENCED = access(grants=[MAY, grant(pattern="db1")])
LOCAL = access([login(host="localhost")], [may(host="localhost")])
NEAR = access([login(host="10.1.%")], [may(host="10.1.%")])
BY_A_ROLE = access(
    [login(roles=frozenset(["writer"])), login("writer", "")], [may("writer", "")]
)
REFUSED = access(is_tried=True, error=1045)


@pytest.mark.parametrize(
    ("primary", "standby"),
    [
        pytest.param(access(), access(), id="equal"),
        pytest.param(NEAR, access(), id="a wider host"),
        pytest.param(
            access(),
            access(grants=[may(pattern="db_"), may(pattern="my\\_db")]),
            id="other patterns",
        ),
        pytest.param(access(), BY_A_ROLE, id="by a role"),
        pytest.param(access(), access([login(privileges=ALL)], []), id="globally"),
        pytest.param(access([login(privileges=["PROCESS"])]), access(), id="PROCESS"),
        pytest.param(FENCED, FENCED, id="fenced on both"),
        pytest.param(OTHERS, access(), id="others"),
        pytest.param(LOCAL, access([], []), id="on the server itself"),
        pytest.param(
            access(),
            access([login("app2")], [may("app2")], "app2"),
            id="a user for each server",
        ),
        pytest.param(
            access([login(proof=f"{NATIVE}1")]),
            access([login(proof="ed25519:2")]),
            id="another plugin",
        ),
        pytest.param(REFUSED, REFUSED, id="another password here"),
        pytest.param(access(), REFUSED, id="not tried on the primary"),
    ],
)
def test_nothing_is_missing(primary, standby):
    assert found(primary, standby) == []


@pytest.mark.parametrize(
    ("primary", "standby", "text"),
    [
        (
            access(known=None),
            access([login("app2")], known=None),
            "has no account 'app'@'%'",
        ),
        (access(), NEAR, "has no account 'app'@'%'"),
        (
            access([APP, login("reader")], [MAY, grant("Select", user="reader")]),
            access(),
            "has no account 'reader'@'%'",
        ),
        (
            access(),
            access(grants=[grant("Select")]),
            "CREATE TEMPORARY TABLES, INSERT in db1, db2, my_db, as name does",
        ),
        (
            access(),
            access(grants=[MAY, grant("Select", pattern="my\\_db")]),
            "INSERT in my_db, as name does",
        ),
        (
            access([login(proof=f"{NATIVE}1")]),
            access([login(proof=f"{NATIVE}2")]),
            "has another password of 'app'@'%' than name",
        ),
        (access(), access([login(is_locked=True)]), "has locked 'app'@'%'"),
        (
            access(is_tried=True),
            REFUSED,
            "does not let 'app' of the topology in (error 1045)",
        ),
    ],
)
def test_what_is_missing_is_named(primary, standby, text):
    (what,) = found(primary, standby)
    assert text in what


@pytest.mark.parametrize(
    ("standby", "text"),
    [
        (access(), None),
        (access(known=None), None),
        (access(known="operator"), None),
        (access(grants=[may(pattern="db1")]), None),
        (REFUSED, "does not let 'app'"),
        # Not from the machine of the operator.
        (replace(NEAR, attempt=REFUSED.attempt), None),
        (access([]), "has no account of the user 'app'"),
        (access([login(is_locked=True)]), "has no account of the user 'app'"),
        (access([], known=None), "has no account of any application"),
        (access(grants=[grant("Select")]), "does not allow the user 'app'"),
        (
            access(grants=[], known=None),
            "does not allow any application SELECT and INSERT",
        ),
    ],
)
def test_a_standby_whose_primary_is_lost(standby, text):
    lacking = gaps_alone(standby, DATABASES, exempt=["operator"], here="192.0.2.1")
    if text is None:
        assert lacking == []
    else:
        (gap,) = lacking
        assert text in gap.what


@pytest.mark.parametrize(
    ("url", "environ", "user"),
    [
        ("mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@host", {}, None),
        ("mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@host", {"MYSQL_USER": "app"}, "app"),
        ("mysql://app@host", {}, "app"),
        ("mysql://host", {}, None),
    ],
)
def test_a_login_whose_password_is_not_known_is_not_tried(url, environ, user):
    made = attempt(url, environ, name="server", timeout=1.0)
    assert made == Attempt(user)
