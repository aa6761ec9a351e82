"""Where a topology comes from.

:class:`TopologySource` is what a cluster needs of a source; a file is the
simplest.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from collections.abc import Mapping
from pathlib import Path
from typing import cast
from typing import Protocol

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.masking import redact
from sqla_shard.masking import shown
from sqla_shard.topology.documents import Format
from sqla_shard.topology.documents import FORMATS
from sqla_shard.topology.documents import MAX_BYTES
from sqla_shard.topology.documents import read_document
from sqla_shard.topology.model import Topology
from sqla_shard.topology.placeholders import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.shorthand import DEFAULT_URL

__all__ = ["FileSource", "TopologySource"]


class TopologySource(Protocol):
    """Yields the current topology, each time that it is asked.

    A source does no I/O before :meth:`load`, and keeps nothing between two
    calls that would make the second answer older than the first.  What more
    a source can do, such as tell of changes, is a Protocol of its own:
    a source that cannot is complete without.
    """

    def load(self) -> Topology:
        """Return the topology as it is now.

        :raises TopologyError: when it cannot be read or cannot be used.
        """
        ...


class FileSource:
    """A TOML or JSON file, told apart by its suffix.

    Relative directories in ``sqlite:///`` URLs are relative to the current
    directory of the process, as they are in SQLAlchemy, not to the file.

    :param path: ends in ``.toml`` or ``.json``.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: likewise; None reads ``os.environ`` at each load.
    :param url: likewise.
    :raises TopologyError: for another suffix.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        url: str = DEFAULT_URL,
    ) -> None:
        # As it was given: a Path makes one slash of the two of a URL.
        self._shown = redact(os.fspath(path))
        self.path = Path(path)
        self.placeholders = placeholders
        self.environ = environ
        self.url = url
        Policy.of(placeholders, environ)
        if self._form not in FORMATS:
            suffixes = " or ".join(f".{form}" for form in FORMATS)
            raise self._refusal(
                "file name",
                f"{shown(self._shown)} does not end in {suffixes}; give "
                "it the suffix of its format",
            )

    @property
    def _form(self) -> str:
        return self.path.suffix.lower()[1:]

    def __repr__(self) -> str:
        return f"FileSource({str(self.path)!r})"

    def load(self) -> Topology:
        """Return the topology that the file describes now.

        :raises TopologyError: when the file cannot be read, is not valid
            TOML or JSON, or has problems; its ``source`` is the path.
        """
        return read_document(
            self._read(),
            cast(Format, self._form),
            source=str(self.path),
            placeholders=self.placeholders,
            environ=self.environ,
            url=self.url,
        )

    def _read(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                # One more shows that there are too many: a device, or a log
                # by mistake, may have no end.
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
        raise self._refusal("file", message)

    def _refusal(self, place: str, message: str) -> TopologyError:
        return TopologyError([Problem(place, message)], source=self._shown)
