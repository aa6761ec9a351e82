"""Where a topology comes from.

:class:`TopologySource` is what a cluster needs of a source; a file is the
simplest.  A process that reads a file has the topology of the moment when
it read it: whoever changes the file tells the processes, or restarts them.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from typing import Protocol

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.topology.model import Topology
from sqla_shard.topology.placeholders import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.shorthand import DEFAULT_URL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

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
        self.path = Path(path)
        self.placeholders = placeholders
        self.environ = environ
        self.url = url
        Policy.of(placeholders, environ)
        if self.path.suffix.lower() not in _PARSERS:
            raise self._refusal(
                "file name",
                f"{self.path.name!r} does not end in "
                f"{' or '.join(_PARSERS)}; give it the suffix of its format",
            )

    def __repr__(self) -> str:
        return f"FileSource({str(self.path)!r})"

    def load(self) -> Topology:
        """Return the topology that the file describes now.

        :raises TopologyError: when the file cannot be read, is not valid
            TOML or JSON, or has problems; its ``source`` is the path.
        """
        return Topology.from_mapping(
            self._parse(self._read()),
            source=str(self.path),
            placeholders=self.placeholders,
            environ=self.environ,
            url=self.url,
        )

    def _read(self) -> str:
        try:
            return self.path.read_bytes().decode("utf-8")
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
        except UnicodeDecodeError as error:
            message = f"is not UTF-8 at byte {error.start}; save it as UTF-8"
        raise self._refusal("file", message)

    def _parse(self, text: str) -> Any:
        try:
            return _PARSERS[self.path.suffix.lower()](text)
        except RecursionError:
            problem = "file", "is nested too deeply for a topology"
        except ValueError as error:
            problem = _line(error, text), f"{error}; correct the syntax"
        # Raised here, so that the parser's error, which has the whole text
        # with the passwords typed into it, is not the context of ours.
        raise self._refusal(*problem)

    def _refusal(self, place: str, message: str) -> TopologyError:
        return TopologyError([Problem(place, message)], source=str(self.path))


def _load_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two equal keys and drops the other: a keyspace
    # or a server would be gone without a word.  TOML refuses by itself.
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is twice in one object")
    return result


def _line(error: ValueError, text: str) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno}"
    match = re.search(r"\(at line (\d+)", str(error))
    if match:
        return f"line {match[1]}"
    if "end of document" in str(error):
        return f"line {len(text.splitlines())}"
    return "file"


_PARSERS: dict[str, Callable[[str], Any]] = {
    ".toml": tomllib.loads,
    ".json": _load_json,
}
