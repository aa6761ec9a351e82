"""Bookmarks of lists: what they remember, and how they are written."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from sqla_shard.exc import InvalidBookmarkError
from sqla_shard.exc import InvalidIdError
from sqla_shard.ids import MAX_ID
from sqla_shard.paging import Seal
from sqla_shard.paging import shown
from sqla_shard.paging import Subject
from sqla_shard.types.sequences import MAX_SEQUENCE

__all__ = ["WITNESSES", "Bookmarks", "Key", "Mark"]

#: How many of the rows shown a bookmark remembers, besides the row ahead.
WITNESSES = 4
_KEY = struct.Struct(">QQQ")
#: What a bookmark begins with that pages backwards.
_BACK = b"<"
#: Bookmarks of the last page, and of the first one.
_EDGES = {True: _BACK, False: b">"}
_HALF = 64


class Key(NamedTuple):
    """Where a row stands in its list."""

    sequence: int
    target_id: int


class Mark(NamedTuple):
    """What a bookmark remembers.

    :ivar seen: the last rows shown, in the order of the page.
    :ivar ahead: the first row not shown.
    """

    seen: tuple[Key, ...]
    ahead: Key


@dataclass(frozen=True)
class Bookmarks:
    """The bookmarks of a list and its order.

    :ivar seal: that of the cluster.
    :ivar subject: the list and its order.
    """

    seal: Seal
    subject: Subject

    def made(self, last: tuple[Key, ...], ahead: Key, *, back: bool) -> str:
        """Return the bookmark of the page after some rows.

        :param last: the last rows shown, at least one.
        :param ahead: the first row not shown.
        :param back: whether it pages backwards.
        """
        payload = b"".join(
            _KEY.pack(
                key.sequence >> _HALF,
                key.sequence & (1 << _HALF) - 1,
                key.target_id,
            )
            for key in (*last, ahead)
        )
        return self.seal.seal(
            _BACK + payload if back else payload, self.subject
        )

    def edge(self, *, back: bool) -> str:
        """Return the bookmark of the first page, or of the last one.

        :param back: whether it pages backwards, from the end.
        """
        return self.seal.seal(_EDGES[back], self.subject)

    def opened(
        self, bookmark: str, checked: Callable[[int], int]
    ) -> tuple[Mark | None, bool]:
        """Return what a bookmark remembers, and whether it pages backwards.

        :param checked: raises for what is no id of a target.
        :returns: None where the page begins at an end of the list.
        :raises InvalidBookmarkError: when it is no bookmark of this.
        """
        payload = self.seal.unseal(bookmark, self.subject)
        for edge_back, edge in _EDGES.items():
            if payload == edge:
                return None, edge_back
        back = len(payload) % _KEY.size == len(_BACK) and payload[:1] == _BACK
        if back:
            payload = payload[len(_BACK) :]
        number, rest = divmod(len(payload), _KEY.size)
        keys: tuple[Key, ...] = ()
        if not rest and 2 <= number <= WITNESSES + 1:
            keys = tuple(
                Key(high << _HALF | low, target_id)
                for high, low, target_id in _KEY.iter_unpack(payload)
            )
        # One can be forged, and then numbers that are no keys must not end
        # in an error that the caller does not expect.
        if not keys or not all(_makes_sense(key, checked) for key in keys):
            raise InvalidBookmarkError(
                f"{shown(bookmark)} is not a bookmark of {self.subject.name}",
                bookmark=bookmark,
            )
        return Mark(keys[:-1], keys[-1]), back


def _makes_sense(key: Key, checked: Callable[[int], int]) -> bool:
    try:
        checked(key.target_id)
    except InvalidIdError:
        return False
    # A page begins right beside it, and that is to be a number of 62 bits.
    return key.sequence <= MAX_SEQUENCE and 0 < key.target_id < MAX_ID
