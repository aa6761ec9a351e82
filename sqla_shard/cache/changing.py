"""Changing items of one memcached node, each as long as others change it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sqla_shard.cache.wire import Answer
from sqla_shard.cache.wire import Connection

__all__ = [
    "LEASE",
    "TOMBSTONE",
    "VALUE",
    "Decide",
    "Item",
    "Lease",
    "change",
    "put_command",
    "take",
]

#: Client flags of an item, which tell what it is.
LEASE, VALUE, TOMBSTONE = b"0", b"1", b"2"
#: How often a key is looked at that changes all the time.
_TRIES = 50


class Lease(NamedTuple):
    """The number of an item, and of the last connection that knows it."""

    cas: bytes
    upto: int


class Item(NamedTuple):
    """What a key has now; ``data`` is None for what was not asked for."""

    kind: bytes
    cas: bytes
    left: int
    data: bytes | None


#: Makes a command of what a key has, or None to leave it alone.
Decide = Callable[[bytes, "Item | None"], "bytes | None"]


def put_command(key: bytes, data: bytes, how: bytes, expire: int) -> bytes:
    """Return the command that puts a tombstone.

    :param data: its tokens.
    :param how: flags that say under which conditions.
    """
    return b"ms %s %d F%s %s T%d\r\n%s\r\n" % (
        *(key, len(data), TOMBSTONE, how, expire),
        data,
    )


def change(
    connection: Connection, keys: list[str], decide: Decide, values: bool
) -> set[str]:
    """Change items, each as long as others change it meanwhile.

    :param values: whether the values are needed from the first look on: they
        may be large, and are of no use unless they are tombstones.
    :returns: the keys where that was not possible.
    """
    failed: set[str] = set()
    left = keys
    for _ in range(_TRIES):
        items = _look(connection, left, values)
        again = []
        commands: dict[str, bytes] = {}
        for key, item in items.items():
            if item and item.kind == TOMBSTONE and item.data is None:
                again.append(key)
            elif (command := decide(key.encode(), item)) is not None:
                commands[key] = command
        answers = connection.exchange(list(commands.values()))
        for key, answer in zip(commands, answers, strict=True):
            if answer.code == b"SERVER_ERROR":
                failed.add(key)
            elif answer.code != b"HD":
                again.append(key)
        if not again:
            return failed
        left, values = again, True
    return failed | set(left)


def take(
    connection: Connection,
    keys: list[str],
    tombstone: bytes,
    expire: int,
    upto: int,
) -> dict[str, tuple[Lease, bytes]]:
    """Put a tombstone in the place of each value; return these."""
    values = {
        key: item
        for key, item in _look(connection, keys, True).items()
        if item is not None and item.kind == VALUE
    }
    answers = connection.exchange(
        [
            # With its new number, by which it is known again.
            put_command(key.encode(), tombstone, b"c C" + item.cas, expire)
            for key, item in values.items()
        ]
    )
    return {
        key: (Lease(answer.flag(b"c"), upto), item.data or b"")
        for (key, item), answer in zip(values.items(), answers, strict=True)
        if answer.code == b"HD"
    }


def _look(
    connection: Connection, keys: list[str], values: bool
) -> dict[str, Item | None]:
    what = b"k f c t v" if values else b"k f c t"
    answers = connection.exchange(
        [b"mg %s %s\r\n" % (key.encode(), what) for key in keys]
    )
    return {
        key: _item(key, answer)
        for key, answer in zip(keys, answers, strict=True)
    }


def _item(key: str, answer: Answer) -> Item | None:
    if answer.code == b"EN":
        return None
    answer.check_key(key)
    return Item(
        answer.flag(b"f"), answer.flag(b"c"), answer.number(b"t"), answer.data
    )
