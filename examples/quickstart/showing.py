"""Print the shards of the imported objects."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter

from examples.quickstart.models import Board, Pin, User
from examples.quickstart.pinboard import Stored
from sqla_shard import Cluster, ShardSession, Topology, unpack

_BOARDS = 3
_PINS = 2


def show_topology(topology: Topology) -> None:
    """Print which server holds which shards."""
    keyspace = topology.sole("objects")
    print(f"{keyspace.shards} virtual shards on {len(keyspace.servers)} servers:")
    for server in keyspace.servers:
        print(f"  {server.name} has {' and '.join(map(str, server.shards))}")


def show_objects(cluster: Cluster, imported: Sequence[Stored]) -> None:
    """Print the objects by user, each with the parts of its id."""
    by_user = attrgetter("user_id")
    with cluster.session() as session:
        for user_id, group in groupby(sorted(imported, key=by_user), by_user):
            (target,) = cluster.explain(user_id).targets
            print(
                f"\nshard {target.shard_id}, on {target.server}, in {target.database}"
            )
            _show_user(session, user_id, list(group))


def _show_user(session: ShardSession, user_id: int, imported: Sequence[Stored]) -> None:
    user = session.get(User, user_id)
    assert user is not None
    _line(0, "user", user.name, user_id)
    for stored in imported[:_BOARDS]:
        board = session.get(Board, stored.board_id)
        assert board is not None
        _line(1, "board", board.title, board.id)
        for pin in session.get_many(Pin, stored.pin_ids[:_PINS]):
            assert pin is not None
            _line(2, "pin", pin.title or pin.link, pin.id)
        _more(2, len(stored.pin_ids) - _PINS, "pin")
    _more(1, len(imported) - _BOARDS, "board")


def _line(depth: int, kind: str, name: str, object_id: int) -> None:
    label = f"{'  ' * depth}  {kind} {_printable(name)}"
    if len(label) > 36:
        label = f"{label[:33]}..."
    parts = unpack(object_id)
    print(
        f"{label:<36} {object_id:>19} = shard {parts.shard_id}, "
        f"type {parts.type_id}, local {parts.local_id}"
    )


def _more(depth: int, count: int, kind: str) -> None:
    if count > 0:
        print(f"{'  ' * depth}  {count} more {kind}{'s' if count > 1 else ''}")


def _printable(text: str) -> str:
    # A title is user input and may contain anything.
    return "".join(c if c.isprintable() else " " for c in text)


def show_explanation(cluster: Cluster, imported: Sequence[Stored]) -> None:
    """Print a summary, and commands to look at the result."""
    pin_id = imported[0].pin_ids[0]
    where = cluster.explain(pin_id)
    (target,) = where.targets
    select = f"SELECT * FROM pins WHERE local_id = {unpack(pin_id).local_id}"  # noqa: S608  # printed
    if target.database.endswith(".sqlite"):
        look = f'sqlite3 {target.database} "{select}"'
        what = "Each virtual shard is a file"
    else:
        look = f"USE {target.database}; {select};    -- on {target.server}"
        what = "Each virtual shard is a database"
    lines = "\n    ".join(str(where).splitlines())
    print(
        f"""
What happened: each user was given a shard, a board went to the shard of its
user, and a pin to that of its board.  So a board and all its pins were one
transaction, on one server.  Then everything was read back by its id alone,
which says where an object is; nothing is looked up anywhere:

    >>> print(cluster.explain({pin_id}))
    {lines}

{what} with ordinary tables.  See for yourself:

    {look}
"""
    )
