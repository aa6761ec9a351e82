"""Changes of orphans, as they are sent; nothing is connected to."""

from __future__ import annotations

import pytest

from sqla_shard.fleet import FleetPlan, orphans
from sqla_shard.fleet.orphans import OrphanChange, OrphanDatabase
from sqla_shard.testing.topology_documents import topology_document
from tests.models.scripted_admin import ScriptedAdmin
from tests.servers.command_line import write
from tests.servers.toy_operation import toy_fleet

NAMES = ("moved_db00007_20250101000000", "moved_db00007_20260101000000")


class Change(OrphanChange):
    """A change whose databases were checked."""

    _primary = ScriptedAdmin({"SHOW DATABASES": [(name,) for name in NAMES]})

    def _compared(self, names):
        return [], []


@pytest.fixture
def change(tmp_path):
    document = topology_document({"server1": "mysql+pymysql://127.0.0.1:1"}, 8)
    fleet = toy_fleet(str(write(tmp_path, document)))

    def made(action):
        arguments = {
            "server": "server1",
            "action": action,
            "databases": [*NAMES],
            "older_than": 0,
            "allowed_users": [],
            "accept_differences": False,
        }
        plan = FleetPlan(kind="orphans", title="test", epoch=1, arguments=arguments)
        return Change(fleet, plan)

    return made


def test_databases_are_dropped_one_by_one(change):
    """The rest of one text would be dropped after the process has ended."""
    done = change("drop")
    done.run("drop")
    drops = [f"DROP DATABASE IF EXISTS `{name}`" for name in NAMES]
    assert done._primary.texts[-2:] == drops


def test_two_orphans_of_one_database_are_not_restored(change, monkeypatch):
    both = [
        OrphanDatabase(
            server="a", database=name, original="db00007", home="b", renamed=0.0
        )
        for name in NAMES
    ]
    (problem,) = orphans._rivals(both)
    assert problem.place == NAMES[1]
    assert NAMES[0] in problem.message
    assert not [*orphans._rivals(both[:1])]
    # Of an operation that began before they were refused, the first one has moved.
    moved = []
    monkeypatch.setattr(
        orphans, "_move_tables", lambda admin, names: moved.append(names) or ()
    )
    change("restore")._rename_back()
    assert moved == [{"db00007": NAMES[0]}]
