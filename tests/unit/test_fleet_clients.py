"""Names of sessions and processes in messages."""

from __future__ import annotations

import json

import pytest

from sqla_shard.fleet.clients import (
    AppSession,
    Client,
    Clients,
    described,
    ended_lines,
    ended_note,
    host_of,
    late_lines,
    Program,
)


def session(number, address="10.0.0.7:51000", user="app", database=None):
    return AppSession(id=number, user=user, address=address, database=database)


@pytest.mark.parametrize(
    ("address", "host"),
    [
        ("10.0.0.7:51234", "10.0.0.7"),
        ("::1:51234", "::1"),
        ("web.example.com:1", "web.example.com"),
        ("localhost", "localhost"),
        ("", ""),
    ],
)
def test_the_host_of_an_address(address, host):
    assert host_of(address) == host


def test_sessions_are_grouped_by_host_user_and_program():
    sessions = [
        session(1, "10.0.0.7:51001", database="db1"),
        session(2, "10.0.0.7:51002", database="db2"),
        session(3, "10.0.0.7:51003", user="cron"),
        session(4, "localhost"),
        session(5, "10.0.0.7:51005"),
    ]
    known = {
        1: Program(name="pinboard", pid=7),
        2: Program(name="pinboard", pid=7),
        5: Program(name="pinboard", pid=None),
    }
    admin = "server1 primary (db1:3306)"
    note = ended_note(admin, sessions, known)
    assert json.loads(json.dumps(note)) == note
    assert note["killed"] == 5
    assert [line.partition("): ")[2] for line in ended_lines(note)] == [
        "10.0.0.7 app (pinboard): 3 sessions, in db1, db2, pid 7, port 51005",
        "10.0.0.7 cron: 1 session, port 51003",
        "localhost app: 1 session",
    ]
    assert described(sessions[3:4]) == "localhost app: 1 session"


def test_a_note_does_not_grow_with_the_clients():
    sessions = [
        session(number, f"10.0.{host}.1:{5000 + number}")
        for host in range(150)
        for number in range(30)
    ]
    note = ended_note("server1", sessions)
    assert len(note["ended"]) == 100
    assert max(len(group["ports"]) for group in note["ended"]) == 20
    assert ended_lines(note)[-1] == "ended on server1: 1500 more sessions"
    assert len(json.dumps(note)) < 100_000
    assert ended_lines({"killed": 0, "ended": []}) == []


def test_late_clients_are_lines():
    one = Client(
        role="cluster",
        host="web1",
        pid=7,
        program="gunicorn",
        epoch=4,
        resets=0,
        behind=0.25,
    )
    note = {"late_clients": [vars(one)], "late": 3}
    end = "was published"
    assert str(one) == "gunicorn on web1, pid 7"
    assert late_lines(note) == [
        f"old epoch: epoch 4 is used by {one}, 0 s after a newer one {end}",
        "old epoch: 2 more processes",
    ]
    late = Clients(epoch=5, known=(one,) * 120, late=(one,) * 120)
    assert str(late).splitlines()[-1] == "old epoch: 20 others; see --json"
    assert str(late).count("gunicorn") == 100
    note = {"clients_unknown": "away"}
    assert late_lines(note) == ["clients are unknown: away"]
