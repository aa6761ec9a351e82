"""Topology documents in TOML and JSON, and sources that read them.

Placeholders are not expanded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast, Literal, Protocol

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.topology.model import Topology
from sqla_shard.topology.parse import DEFAULT_URL
from sqla_shard.topology.urls import DEFAULT_PLACEHOLDERS, Policy
from sqla_shard.util.json_values import parsed_json, parsed_toml
from sqla_shard.util.masking import masked, redact

Format = Literal["toml", "json"]


MAX_BYTES = 4_000_000
"""Maximum size of a document; enough for one range per shard."""

# The parser of Python 3.11 takes quadratic time for dotted keys.
_LONG_KEY = re.compile(
    r"""(?<![A-Za-z0-9_-])
    (?:(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')[ \t]*\.[ \t]*){32}""",
    re.VERBOSE,
)


def read_document(
    data: bytes,
    form: Format,
    *,
    source: str,
    placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
    environ: Mapping[str, str] | None = None,
    url: str = DEFAULT_URL,
) -> Topology:
    """Return the topology of a document.

    :param data: content of the file, in UTF-8.
    :param form: format of the file, ``"toml"`` or ``"json"``.
    :param source: origin of the data, for errors.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`.
    :param url: see :meth:`Topology.from_mapping`.
    :raises TopologyError: if the document is not valid, or larger than
        :data:`MAX_BYTES`.
    """
    return Topology.from_mapping(
        _parsed(data, form, source),
        source=source,
        placeholders=placeholders,
        environ=environ,
        url=url,
    )


def to_json(topology: Topology) -> bytes:
    """Return the document of a topology, indented.

    :param topology: passwords in its URLs are written in clear text.
    """
    text = json.dumps(topology.to_mapping(), indent=1, ensure_ascii=False)
    return f"{text}\n".encode()


def _parsed(data: bytes, form: Format, source: str) -> Any:
    text = ""
    if len(data) > MAX_BYTES:
        # Checked first: parsing takes many times the size of the data in
        # memory.
        raise TopologyError(
            [
                Problem(
                    "file",
                    f"is larger than {MAX_BYTES} bytes; give servers fewer "
                    "and longer ranges",
                )
            ],
            source=source,
        )
    try:
        text = data.decode("utf-8")
        return FORMATS[form](text)
    except UnicodeDecodeError as error:
        problem = ("file", f"is not UTF-8 at byte {error.start}; save it as UTF-8")
    except ValueError as error:
        problem = _line(error, text), f"{error}; correct the syntax"
    # Raised here: the error of the parser, which contains the document with
    # its passwords, must not be the context of this one.
    raise TopologyError([Problem(*problem)], source=source)


def _load_toml(text: str) -> Any:
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 32 parts")
    return parsed_toml(text)


def _load_json(text: str) -> Any:
    return parsed_json(text, _unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json silently drops the first of two equal keys, which may be a keyspace
    # or a server.  TOML refuses duplicates.
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {masked(key)} occurs twice in one object")
            seen.add(key)
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


#: Parsers by form, which is the suffix of a file.
FORMATS: dict[Format, Callable[[str], Any]] = {"toml": _load_toml, "json": _load_json}


class TopologySource(Protocol):
    """A source of topologies.

    It does no I/O before :meth:`load`, and never returns an older topology
    than before.  Sources that can be followed implement
    :class:`~sqla_shard.topology.follow.FollowedSource`.
    """

    def load(self) -> Topology:
        """Return the current topology.

        :raises TopologyError: if the topology cannot be read or is not valid.
        """
        ...


class FileSource:
    """A TOML or JSON file, by its suffix.

    Relative directories in ``sqlite:///`` URLs are relative to the current
    directory of the process, as in SQLAlchemy, not to the file.

    :param path: path that ends in ``.toml`` or ``.json``.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: see :meth:`Topology.from_mapping`; None reads
        ``os.environ`` at each load.
    :param url: see :meth:`Topology.from_mapping`.
    :raises TopologyError: if the path has another suffix.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        url: str = DEFAULT_URL,
    ) -> None:
        # Keep the string: Path removes one of the two slashes of a URL.
        self._shown = redact(os.fspath(path))
        self.path: Path = Path(path)
        self.placeholders = placeholders
        self.environ = environ
        self.url = url
        Policy.of(placeholders, environ)
        if self._form not in FORMATS:
            suffixes = " or ".join(f".{form}" for form in FORMATS)
            raise self._refusal(
                "file name",
                f"{masked(self._shown)} does not end in {suffixes}; add the "
                "suffix of its format",
            )

    @property
    def _form(self) -> str:
        return self.path.suffix.lower()[1:]

    def __repr__(self) -> str:
        return f"FileSource({str(self.path)!r})"

    def load(self) -> Topology:
        """Return the current topology of the file.

        :raises TopologyError: if the file cannot be read or is not valid; its
            ``source`` is the path.
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
                # Read at most one byte more than allowed: a device, or a log
                # file that was passed by mistake, may be endless.
                return file.read(MAX_BYTES + 1)
        except OSError as error:
            message = f"cannot be read: {error.strerror or error}"
        raise self._refusal("file", message)

    def _refusal(self, place: str, message: str) -> TopologyError:
        return TopologyError([Problem(place, message)], source=self._shown)
