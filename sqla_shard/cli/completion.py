"""Completion of servers, keyspaces, shards and epochs from the topology.

A shell waits for it at each Tab: SQLAlchemy, the drivers, alembic and the
parser of topologies, which take a second to import, are not loaded.  The
document is read as far as names need it, and whatever cannot be read completes
nothing: a message would be in the middle of the line that is being typed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser, Error as IniError
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

import click
from click.shell_completion import CompletionItem

from sqla_shard.util.json_values import parsed_json, parsed_toml

Kind = Literal["keyspace", "server", "servers", "shard", "ranges", "epoch"]
"""Values that the topology completes."""

_ZOOKEEPER = ("zookeeper://", "zookeeper+tls://")
#: Seconds for ZooKeeper; a shell must not wait longer.
_LIMIT = 1.0


def items(
    kind: Kind,
    ctx: click.Context,
    incomplete: str,
    *,
    named: str | None,
    default: str | None,
) -> list[CompletionItem]:
    """Return the values of a kind that begin with what was typed.

    :param ctx: context of the command, with what was parsed of it.
    :param named: location of the topology that the line names.
    :param default: location if it names none; None for a command that has the
        topology, and the keyspace, that ``alembic.ini`` names.
    """
    # Lists are separated by commas; the last item is completed.
    before, comma, typed = incomplete.rpartition(",")
    if kind not in ("servers", "ranges"):
        before, comma, typed = "", "", incomplete
    location, keyspace = named or default, None
    if default is None:
        assert ctx.parent is not None  # noqa: S101 - the group has the option --config
        options = _ini_options(ctx.parent)
        location = named or options.get("topology")
        keyspace = options.get("keyspace")
    if location is None:
        return []
    if kind == "epoch":
        values = _epochs(location)
    else:
        values = _VALUES[kind](
            [
                (name, one)
                for name, one in _keyspaces(_document(location))
                if keyspace in (None, name)
            ]
        )
    return [
        CompletionItem(f"{before}{comma}{value}", help=what or None)
        for value, what in values
        if value.startswith(typed)
    ]


def _ini_options(group: click.Context) -> Mapping[str, str]:
    """Return the options of ``alembic.ini``; none if it cannot be read.

    :param group: context of the group ``schema``, with its options.
    """
    ini = group.params["ini"]
    with suppress(IniError, OSError, ValueError):
        # As alembic reads it.
        parser = ConfigParser({"here": ini.absolute().parent.as_posix()})
        parser.read([ini], encoding="locale")
        keyspaces = {
            one: parser.get(one, "keyspace", raw=True, fallback=None)
            for one in parser.sections()
            if parser.has_option(one, "script_location")
        }
        # Several are an error of the command: there are no values to complete.
        (section,) = sections_of(keyspaces, group.params["name"])
        return {
            name: parser.get(section, name)
            for name in ("topology", "keyspace")
            if parser.has_option(section, name)
        }
    return {}


def sections_of(keyspaces: Mapping[str, str | None], name: str) -> list[str]:
    """Return the sections of ``alembic.ini`` that ``schema --name`` means.

    :param keyspaces: the keyspace of each section with scripts.
    :param name: a section, or a keyspace, which several of them may have.
    """
    # The first keyspace has alembic's own section, and not one of its name.
    if name in keyspaces:
        return [name]
    return [one for one, keyspace in keyspaces.items() if keyspace == name]


def _document(location: str) -> Mapping[str, Any]:
    """Return the document of a topology; an empty one if it is not read."""
    found: Any = None
    if location.startswith(_ZOOKEEPER):
        data = _asked(location, lambda client: client.get("/topology")[0], b"null")
        with suppress(ValueError):
            found = parsed_json(data)
    else:
        with suppress(OSError, ValueError):
            text = Path(location).read_text("utf-8")
            is_toml = location.lower().endswith(".toml")
            found = parsed_toml(text) if is_toml else parsed_json(text)
    return found if isinstance(found, dict) else {}


# -- ZooKeeper


def _asked(location: str, ask: Callable[[Any], Any], default: Any) -> Any:
    """Return what a function asks a client of ZooKeeper within the limit."""
    found = [default]
    try:
        # Not in the thread: the limit is for ZooKeeper.
        from kazoo.exceptions import KazooException
        from kazoo.handlers.threading import KazooTimeoutError
    except ImportError:
        # It is an extra.
        return default

    def run() -> None:
        with suppress(KazooException, KazooTimeoutError, OSError):
            client = _client(location)
            try:
                found[0] = ask(client)
            finally:
                client.stop()
                client.close()

    # The name of a host may take longer than any limit of kazoo.
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(2 * _LIMIT)
    return found[0]


def _client(location: str) -> Any:
    """Return a started client of kazoo, which logs nothing."""
    from kazoo.client import KazooClient

    hosts, _, query = location.partition("://")[2].partition("?")
    options: dict[str, Any] = dict(parse_qsl(query))
    if location.startswith(_ZOOKEEPER[1]):
        options["use_ssl"] = True
    scheme, found, secret = os.environ.get("SQLA_SHARD_ZOOKEEPER_AUTH", "").partition(
        ":"
    )
    if found:
        options["auth_data"] = [(scheme, secret)]
    log = logging.Logger("completion")
    log.addHandler(logging.NullHandler())
    client = KazooClient(
        hosts.rstrip("/"), timeout=_LIMIT, logger=log, read_only=True, **options
    )
    client.start(timeout=_LIMIT)
    return client


def _epochs(location: str) -> Iterator[tuple[str, str]]:
    """Yield the epochs of the history, the newest first; none for a file."""
    if location.startswith(_ZOOKEEPER):
        names = _asked(location, lambda client: client.get_children("/history"), [])
        for epoch in sorted(map(int, filter(str.isdecimal, names)))[::-1]:
            yield str(epoch), ""


# -- documents

#: Keyspaces of a document, by name.
_Keyspaces = Sequence[tuple[str, Mapping[str, Any]]]


def _keyspaces(document: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the keyspaces of a document of any form, by name."""
    found = document.get("keyspaces")
    if found is None and "epoch" not in document:
        # The short form: servers by name, each with a range.
        servers = [
            {"name": name, "shards": one.get("range")}
            for name, one in document.items()
            if isinstance(one, dict)
        ]
        found = {"objects": {"servers": servers}}
    if isinstance(found, dict):
        for name, keyspace in found.items():
            if isinstance(keyspace, dict):
                yield str(name), keyspace


def _entries(keyspaces: _Keyspaces) -> Iterator[tuple[str, str, Any]]:
    """Yield keyspace, name and shards of each server."""
    for name, keyspace in keyspaces:
        servers = keyspace.get("servers")
        for server in servers if isinstance(servers, list) else ():
            if isinstance(server, dict) and "name" in server:
                yield name, str(server["name"]), server.get("shards")


def _ranges(shards: Any) -> Iterator[tuple[int, int]]:
    """Yield the first and the last shard of each range."""
    match shards:
        case [int(first), int(last)]:
            yield first, last
        case list():
            for one in shards:
                if isinstance(one, list):
                    yield from _ranges(one)


def _names(keyspaces: _Keyspaces) -> Iterator[tuple[str, str]]:
    held: dict[str, list[str]] = {}
    for keyspace, name, shards in _entries(keyspaces):
        texts = [f"{first}-{last}" for first, last in _ranges(shards)]
        held.setdefault(name, []).append(" ".join([keyspace, ", ".join(texts)]).strip())
    for name, texts in held.items():
        yield name, "; ".join(texts)


def _shards(keyspaces: _Keyspaces) -> Iterator[tuple[str, str]]:
    found: dict[int, str] = {}
    for _, name, shards in _entries(keyspaces):
        for first, last in _ranges(shards):
            # A document that is not valid may have any numbers.
            for number in range(first, min(last, first + 65_535) + 1):
                found.setdefault(number, name)
    yield from ((str(number), found[number]) for number in sorted(found))


def _range_texts(keyspaces: _Keyspaces) -> Iterator[tuple[str, str]]:
    for keyspace, name, shards in _entries(keyspaces):
        for first, last in _ranges(shards):
            yield f"{first}-{last}", f"{keyspace} on {name}"


_VALUES: dict[Kind, Callable[[_Keyspaces], Iterator[tuple[str, str]]]] = {
    "keyspace": lambda keyspaces: (
        (name, str(keyspace.get("kind", ""))) for name, keyspace in keyspaces
    ),
    "server": _names,
    "servers": _names,
    "shard": _shards,
    "ranges": _range_texts,
}
