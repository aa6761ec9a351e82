"""Pins and boards as templates and the API show them."""

from __future__ import annotations

import zlib
from typing import Any

from examples.pinboard.inputs import host_of
from examples.pinboard.models import Board, Pin, User
from examples.pinboard.relations import OwnedBoard

HUES = 24
"""Number of colours in ``hues.css``; a host has one of them."""
TONES = 4
"""Variants of each colour, so that pins of one host look different."""


def hue_of(text: str) -> int:
    """Return the colour of a host: always the same, 0 to 23."""
    # Not hash(), which differs between processes.
    return zlib.crc32(text.encode()) % HUES


def letter_of(text: str) -> str:
    """Return the letter that stands for a title or a name."""
    return next((c for c in text if c.isalnum()), "?").upper()[:1]


def pin_json(pin: Pin) -> dict[str, Any]:
    """Return a pin for the API; ids are strings, since they exceed 2**53."""
    host = host_of(pin.link)
    title = pin.title or host
    return {
        "id": str(pin.id),
        "board_id": str(pin.board_id),
        "link": pin.link,
        "host": host,
        "title": title,
        "details": pin.details,
        "hue": hue_of(host),
        "tone": zlib.crc32(pin.link.encode()) % TONES,
        "letter": letter_of(title),
        "removed": not pin.active,
    }


def board_json(board: Board, count: int) -> dict[str, Any]:
    """Return a board for the API.

    :param count: of the pins that it shows.
    """
    return {
        "id": str(board.id),
        "user_id": str(board.user_id),
        "title": board.title,
        "details": board.details,
        "count": count,
    }


def owned_json(owned: OwnedBoard) -> dict[str, Any]:
    """Return a board and its owner for the API."""
    return {
        "id": str(owned.board.id),
        "title": owned.board.title,
        "user": user_json(owned.owner),
    }


def user_json(user: User) -> dict[str, Any]:
    """Return the public attributes of a user, for the API."""
    return {"id": str(user.id), "name": user.name, "about": user.about}
