"""A topology as text: TOML or JSON, and back.

Placeholders stay as they are, both ways.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Mapping
from typing import Any
from typing import Literal

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.masking import shown
from sqla_shard.topology.model import Topology
from sqla_shard.topology.placeholders import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.shorthand import DEFAULT_URL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FORMATS", "MAX_BYTES", "Format", "read_document", "to_json"]

Format = Literal["toml", "json"]


MAX_BYTES = 4_000_000
"""Bytes of a document: enough for each shard in a range of its own."""

# The parser of Python 3.11 takes time by the square of the number of parts.
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
    """Return the topology that a text describes.

    :param data: UTF-8.
    :param form: ``"toml"`` or ``"json"``.
    :param source: where it came from, for the error.
    :param placeholders: see :meth:`Topology.from_mapping`.
    :param environ: likewise.
    :param url: likewise.
    :raises TopologyError: when it is no UTF-8, not of that form, has more
        than :data:`MAX_BYTES`, or has problems.
    """
    return Topology.from_mapping(
        _parsed(data, form, source),
        source=source,
        placeholders=placeholders,
        environ=environ,
        url=url,
    )


def to_json(topology: Topology) -> bytes:
    """Return the document of a topology, for reading by people as well.

    :param topology: a password that was typed into a URL is there in clear.
    """
    text = json.dumps(topology.to_mapping(), indent=1, ensure_ascii=False)
    return f"{text}\n".encode()


def _parsed(data: bytes, form: Format, source: str) -> Any:
    text = ""
    if len(data) > MAX_BYTES:
        # Before it is parsed, which takes many times its size.
        raise TopologyError(
            [
                Problem(
                    "file",
                    f"has more than {MAX_BYTES} bytes, which no topology "
                    "needs; give servers fewer and longer ranges",
                )
            ],
            source=source,
        )
    try:
        text = data.decode("utf-8")
        return FORMATS[form](text)
    except UnicodeDecodeError as error:
        problem = (
            "file",
            f"is not UTF-8 at byte {error.start}; save it as UTF-8",
        )
    except RecursionError:
        problem = "file", "is nested too deeply for a topology"
    except ValueError as error:
        problem = _line(error, text), f"{error}; correct the syntax"
    # Raised here, so that the parser's error, which has the whole text
    # with the passwords typed into it, is not the context of ours.
    raise TopologyError([Problem(*problem)], source=source)


def _load_toml(text: str) -> Any:
    if _LONG_KEY.search(text):
        raise ValueError("a key has more than 32 parts")
    return tomllib.loads(text)


def _load_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=_unique)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # json keeps the last of two equal keys and drops the other: a keyspace
    # or a server would be gone without a word.  TOML refuses by itself.
    result = dict(pairs)
    if len(result) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(
                    f"the key {shown(key)} is twice in one object"
                )
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


#: What reads each form, by its name, which is the suffix of a file.
FORMATS: dict[Format, Callable[[str], Any]] = {
    "toml": _load_toml,
    "json": _load_json,
}
