"""Messages of refused publications about the databases of a server."""

from __future__ import annotations

from typing import Any, cast

from sqla_shard.fleet.publish_checks import _of_versions
from sqla_shard.schema.ledger import Version
from sqla_shard.schema.selection import Shard


def version(keyspace: str, **values: Any) -> Version:
    shard = Shard(
        keyspace=keyspace,
        shard_id=0,
        server="server1",
        database=f"{keyspace}00000",
        place=cast("Any", None),
    )
    return Version(shard=shard, **values)


def test_a_command_about_one_of_several_keyspaces_names_its_section() -> None:
    unprovisioned = version("lookup")
    ((what, remedy),) = _of_versions([unprovisioned], {})
    assert what == "has 1 shard 0 of lookup without a revision"
    provision = "create them: sqla-shard schema provision --initial"
    assert remedy == provision

    ready = version("objects", heads=("1",))
    unreadable = version("main", error="denied")
    found = dict(_of_versions([ready, unprovisioned, unreadable], {"objects": ("1",)}))
    assert found.pop(what) == (
        f"{provision} (with schema --name, the section of lookup)"
    )
    (granted,) = found.values()
    assert "--name" not in granted
