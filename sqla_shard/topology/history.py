"""The history of topologies: who has published one, when and why."""

from __future__ import annotations

import getpass
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import datetime

from sqla_shard.util.json_values import parsed_json

LONGEST_NOTE = 2000
"""Maximum number of characters of an author or a message."""


@dataclass(frozen=True, kw_only=True)
class PublicationNote:
    """A note about a publication.

    :ivar author: who has published, such as ``deploy@web1``; None if unknown.
    :ivar message: why; None if unknown.
    """

    author: str | None = None
    message: str | None = None

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and len(value) > LONGEST_NOTE:
                raise ValueError(
                    f"{name} must have at most {LONGEST_NOTE} characters, "
                    f"not {len(value)}"
                )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to store."""
        return self.author is None and self.message is None

    def to_json(self) -> bytes:
        """Return the document of the note, in ASCII."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def from_json(cls, data: bytes) -> PublicationNote:
        """Return the note of a document; an empty note if it is damaged.

        A note decides nothing, so a damaged one must not hide the history.
        """
        try:
            document = parsed_json(data)
        except ValueError:
            return cls()
        if not isinstance(document, dict):
            return cls()
        found = {
            name: text[:LONGEST_NOTE]
            for name in ("author", "message")
            if isinstance(text := document.get(name), str)
        }
        return cls(**found)


@dataclass(frozen=True, kw_only=True)
class HistoryEntry:
    """A topology in the history.

    :ivar epoch: epoch of the topology.
    :ivar published: time of publication, by the clock of ZooKeeper; for a
        file, by that of the operator's machine.
    :ivar size: size of its document in bytes.
    :ivar author: who has published it; None if that is not known.
    :ivar message: why; None if that is not known.
    """

    epoch: int
    published: datetime
    size: int
    author: str | None = None
    message: str | None = None


def current_author() -> str:
    """Return the user and the host of this process, as ``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        # A container may have no entry for the user.
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
