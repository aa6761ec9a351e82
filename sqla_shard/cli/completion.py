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
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl

import click
from click.shell_completion import CompletionItem

from sqla_shard.cli.options import DEFAULT_FILE, Settings
from sqla_shard.util.json_values import parsed_json, parsed_toml

Kind = Literal["keyspace", "server", "servers", "shard", "ranges", "epoch"]

_KEYSPACE: dict[str, Kind] = {"--keyspace": "keyspace"}
_SERVER: dict[str, Kind] = {"server": "server"}
_SOME: dict[str, Kind] = {"--shards": "ranges", "--servers": "servers"}
_EXPECTED: dict[str, Kind] = {"--expect-epoch": "epoch"}

COMPLETED: Mapping[str, Mapping[str, Kind]] = {
    "id": {**_KEYSPACE, "--shard": "shard"},
    "where": _KEYSPACE,
    "explain": _KEYSPACE,
    "shell": {**_KEYSPACE, "--shard": "shard"},
    "topology push": _EXPECTED,
    "topology rollback": {"--to": "epoch"},
    "schema upgrade": {**_SOME, "--new": "ranges"},
    "schema downgrade": _SOME,
    "schema status": _SOME,
    "schema verify": {**_SOME, **_KEYSPACE},
    "schema resolve": {"shard": "shard"},
    "fleet capacity": _KEYSPACE,
    "fleet verify": {**_SERVER, "--shards": "ranges"},
    "fleet failover": _SERVER,
    "fleet reopen": _SERVER,
    "fleet replica build": _SERVER,
    "fleet replica rebuild": _SERVER,
    "fleet replica replace": _SERVER,
    "fleet split": {**_SERVER, "--shards": "ranges"},
    "fleet move": _SERVER,
    "fleet orphans drop": _SERVER,
    "fleet orphans fence": _SERVER,
    "fleet orphans list": _SERVER,
    "fleet orphans rename": _SERVER,
    "fleet orphans restore": _SERVER,
    "fleet backup binlogs": _SERVER,
    "fleet backup create": {**_KEYSPACE, "--server": "server", "--shard": "shard"},
    "fleet restore": {"keyspace": "keyspace", "shard": "shard", "--server": "server"},
}
"""Completions of options and arguments, by command."""

#: Commands on the shards of the keyspace that ``alembic.ini`` names.
_BY_INI = frozenset(
    {"schema upgrade", "schema downgrade", "schema status", "schema resolve"}
)

_ZOOKEEPER = ("zookeeper://", "zookeeper+tls://")
#: Seconds for ZooKeeper; a shell must not wait longer.
_LIMIT = 1.0


class _Sketch(click.Command):
    """A command of which one value is completed, without its module.

    :param kind: what the value is; it is also an argument, so that a word
        with ``-`` completes the options of the command.
    :param named: topology that the words of the command name.
    :param load: returns the command.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        named: str | None,
        load: Callable[[], click.Command],
    ) -> None:
        super().__init__(
            name,
            params=[],
            add_help_option=False,
            context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
        )
        self._kind = kind
        self._named = named
        self._load = load

    def shell_complete(
        self, ctx: click.Context, incomplete: str
    ) -> list[CompletionItem]:
        """Complete a value, or an option instead of an argument."""
        if not incomplete.startswith("-"):
            if self._named is not None:
                ctx.obj = Settings(named=self._named)
            return _items(self._kind, ctx, incomplete)
        command = self._load()
        with command.make_context(
            self.name, [], parent=ctx.parent, resilient_parsing=True
        ) as inner:
            return command.shell_complete(inner, incomplete)


def sketch(
    ctx: click.Context, args: Sequence[str], load: Callable[[], click.Command]
) -> click.Command | None:
    """Return what completes the word after some arguments; None if unknown.

    It is known without the command if the word is its first one, or follows
    the name of an option.

    :param ctx: context of the group of the command.
    :param args: name of the command, and words after it.
    :param load: returns the command.
    """
    name, *words = args
    completed = COMPLETED.get(_path(ctx, name), {})
    if words:
        kind = completed.get(words[-1]) if words[-1][:1] == "-" else None
    else:
        first = next(iter(completed), "-")
        kind = None if first.startswith("-") else completed[first]
    if kind is None:
        return None
    named = None
    for word, following in pairwise(words):
        if word in ("-t", "--topology"):
            named = following
    return _Sketch(name, kind, named, load)


def add_completion(ctx: click.Context, command: click.Command) -> None:
    """Let the parameters of a command complete their values.

    :param ctx: context of its group.
    """
    completed = COMPLETED.get(_path(ctx, command.name or ""), {})
    for param in command.params:
        for word in (*param.opts, param.name):
            if word in completed:
                param.shell_complete = partial(  # type: ignore[method-assign]  # each has other values
                    _items, completed[word]
                )


def _path(ctx: click.Context, name: str) -> str:
    """Return the path of a command, without the name of the program."""
    names = [name]
    found: click.Context | None = ctx
    while found is not None and found.parent is not None:
        names.insert(0, found.info_name or "")
        found = found.parent
    return " ".join(names)


def _items(kind: Kind, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    """Return the values of a kind that begin with what was typed."""
    # Lists are separated by commas; the last item is completed.
    before, comma, typed = incomplete.rpartition(",")
    if kind not in ("servers", "ranges"):
        before, comma, typed = "", "", incomplete
    location, keyspace = _source(ctx)
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


def _source(ctx: click.Context) -> tuple[str | None, str | None]:
    """Return the location of the topology, as the command would have it.

    It is None if ``alembic.ini`` names none.

    :returns: also the keyspace whose shards the command has, or None for all.
    """
    settings = ctx.find_object(Settings)
    named = None if settings is None else settings.named
    named = named or ctx.find_root().params.get("topology")
    group = ctx.parent
    assert group is not None  # noqa: S101 - the program completes no values
    if _path(group, ctx.info_name or "") not in _BY_INI:
        return str(named or DEFAULT_FILE), None
    options = _ini_options(group)
    return named or options.get("topology"), options.get("keyspace")


def _ini_options(group: click.Context) -> Mapping[str, str]:
    """Return the options of ``alembic.ini``; none if it cannot be read.

    :param group: context of the group ``schema``, with its options.
    """
    ini, section = group.params["ini"], group.params["name"]
    with suppress(IniError, OSError, ValueError):
        # As alembic reads it.
        parser = ConfigParser({"here": ini.absolute().parent.as_posix()})
        parser.read([ini], encoding="locale")
        return {
            name: parser.get(section, name)
            for name in ("topology", "keyspace")
            if parser.has_option(section, name)
        }
    return {}


def _document(location: str) -> Mapping[str, Any]:
    """Return the document of a topology; an empty one if it is not read."""
    found: Any = None
    if location.startswith(_ZOOKEEPER):
        data = _in_time(partial(_node, location, "/topology"), b"null")
        with suppress(ValueError):
            found = parsed_json(data)
    else:
        with suppress(OSError, ValueError):
            text = Path(location).read_text("utf-8")
            is_toml = location.lower().endswith(".toml")
            found = parsed_toml(text) if is_toml else parsed_json(text)
    return found if isinstance(found, dict) else {}


# -- ZooKeeper


def _in_time(read: Callable[[], Any], default: Any) -> Any:
    """Return what a function reads from ZooKeeper within the limit."""
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
            found[0] = read()

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


def _node(location: str, path: str) -> bytes:
    client = _client(location)
    try:
        data: bytes
        data, _ = client.get(path)
        return data
    finally:
        client.stop()
        client.close()


def _epochs(location: str) -> Iterator[tuple[str, str]]:
    """Yield the epochs of the history, the newest first; none for a file."""
    if location.startswith(_ZOOKEEPER):
        names = _in_time(partial(_children, location, "/history"), [])
        for epoch in sorted(map(int, filter(str.isdecimal, names)))[::-1]:
            yield str(epoch), ""


def _children(location: str, path: str) -> list[str]:
    client = _client(location)
    try:
        names: list[str] = client.get_children(path)
        return names
    finally:
        client.stop()
        client.close()


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
