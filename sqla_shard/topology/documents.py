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
from sqla_shard.topology.model import Topology
from sqla_shard.topology.placeholders import DEFAULT_PLACEHOLDERS
from sqla_shard.topology.shorthand import DEFAULT_URL

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["FORMATS", "Format", "read_document", "to_json"]

Format = Literal["toml", "json"]


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
    :raises TopologyError: when it is no UTF-8, not of that form, or has
        problems.
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


#: What reads each form, by its name, which is the suffix of a file.
FORMATS: dict[Format, Callable[[str], Any]] = {
    "toml": tomllib.loads,
    "json": _load_json,
}
