"""Reading a topology document into drafts of keyspaces.

Each value is checked on its own: present, of the right type, and usable.
Rules about several values are in :mod:`~sqla_shard.topology.model`.

Mistakes in the document are recorded with their place, and reading continues,
so that one attempt shows all problems.  A draft has None for each value that
is missing or not valid.  All messages mask URLs, since these may contain
passwords.

The short form of a topology has servers, each with a range and two hosts, as
Pinterest's had::

    {
        "sharddb001": {
            "range": (0, 511), "master": "MySQL001A", "slave": "MySQL001B"
        },
        "sharddb002": {
            "range": (512, 1023), "master": "MySQL002A", "slave": "MySQL002B"
        },
    }

It is one keyspace ``objects`` of epoch 0, with databases ``db00000``,
``db00001`` and so on up to the highest shard.  A server is a host,
``host:port``, or a URL.  A topology that changes while processes run needs an
epoch, and so the full form: ``Topology.from_mapping(short).to_mapping()``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import get_args

from sqla_shard.exc import IdLayoutError, Problem
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout, TimeLayout
from sqla_shard.topology.keyspaces import Kind, MAX_SHARDS, ShardRange
from sqla_shard.topology.urls import Address, Policy, Url
from sqla_shard.util import masking

MISSING = object()

"""Returned by :meth:`DocumentTable.get` for a missing key."""

# Names of keys in other systems, and in the short form.
_SYNONYMS = {
    "master": "primary",
    "slave": "standby",
    "replica": "standby",
    "url": "primary",
    "host": "primary",
    "range": "shards",
    "ranges": "shards",
    "type": "kind",
    "db": "database",
    "version": "epoch",
}

_DEPTH = 8

_COMPARED = 20


def brief(value: object) -> str:
    """Return a short representation of a value of a document, for messages."""
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, list | tuple):
        if value and all(type(item) in (int, float) for item in value):
            return masking.cut(f"[{', '.join(map(brief, value))}]")
        return f"a list of {len(value)}"
    if value is None:
        return "null"
    if isinstance(value, int) and value.bit_length() > 128:
        # Python refuses to write out integers of thousands of digits.
        return f"an integer of {value.bit_length()} bits"
    return masking.masked(value)


def key_name(key: object) -> str:
    """Return a key in the form in which places show it.

    The key may be a URL, contain control characters of terminals, or be very
    long.
    """
    name = str(key)
    if name.isidentifier():  # no URL
        return masking.cut(name)
    name = masking.redact(name)
    return masking.cut(name if name.isprintable() else repr(name[:81])[1:-1])


class DocumentTable:
    """One table of a document.

    :param values: the table.
    :param place: path of the table; empty for the whole document.
    :param problems: list of the problems of all tables; this object appends to
        it.
    """

    def __init__(
        self, values: Mapping[object, object], *, place: str, problems: list[Problem]
    ) -> None:
        self.values = values
        self.place = place
        self.problems = problems

    def place_of(self, key: object) -> str:
        """Return the place of a key."""
        name = key_name(key)
        return f"{self.place}.{name}" if self.place else name

    def report(self, key: object, message: str) -> None:
        """Record a problem with the value of a key."""
        self.problems.append(Problem(self.place_of(key), message))

    def get(self, key: str, *, remedy: str = "") -> object:
        """Return the value of a key, or :data:`MISSING`.

        :param remedy: makes the key required: the end of a message, which says
            what to write.
        """
        value = self.values.get(key, MISSING)
        if value is MISSING and remedy:
            self.report(key, f"is missing; {remedy}")
        return value

    def text(self, key: str, *, remedy: str = "") -> str | None:
        """Return the string of a key, or None.

        :param remedy: as for :meth:`get`.
        """
        value = self.get(key, remedy=remedy)
        if value is MISSING or isinstance(value, str):
            return value if isinstance(value, str) else None
        self.report(
            key, f"{brief(value)} is not a string; {remedy or 'put it in quotes'}"
        )
        return None

    def integer(self, key: str, *, remedy: str = "") -> int | None:
        """Return the integer of a key, or None.

        :param remedy: as for :meth:`get`.
        """
        value = self.get(key, remedy=remedy)
        # True is an int in Python, but "epoch = true" is a mistake.
        if value is MISSING or type(value) is int:
            return value if type(value) is int else None
        self.report(
            key, f"{brief(value)} is not an integer; {remedy or 'write a number'}"
        )
        return None

    def refuse_others(self, known: Iterable[str]) -> None:
        """Record a problem for every unknown key.

        :param known: the valid keys.
        """
        known = list(known)
        others = [key for key in self.values if key not in known]
        for index, key in enumerate(others):
            # The comparison of long keys, or of many, would be slow.
            name = str(key)[:81]
            near: list[str] = []
            if index < _COMPARED:
                near = get_close_matches(name.lower(), known, n=1)
            synonym = _SYNONYMS.get(name.lower())
            if not near and synonym in known:
                near = [synonym]
            hint = f"did you mean {near[0]!r}?" if near else "remove it"
            self.report(key, f"is not a valid key here ({', '.join(known)}); {hint}")


def in_document_order(document: object, problems: Iterable[Problem]) -> list[Problem]:
    """Return the problems in the order of the document.

    A missing key counts as the beginning of its table.

    :param problems: problems in any order; the order within a place is
        preserved.
    """
    order: dict[str, int] = {}
    _number(document, "", order, _DEPTH)

    def position(problem: Problem) -> int:
        place = problem.place
        while place and place not in order:
            place = above(place)
        return order[place]

    return sorted(problems, key=position)


def above(place: str) -> str:
    """Return the place that contains a place; empty for the document."""
    return place[: max(place.rfind("."), place.rfind("["), 0)]


def _number(value: object, place: str, order: dict[str, int], depth: int) -> None:
    order.setdefault(place, len(order))
    if depth == 0:
        # A mapping that a program has built may contain itself.
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            name = key_name(key)
            inner = f"{place}.{name}" if place else name
            _number(item, inner, order, depth - 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _number(item, f"{place}[{index}]", order, depth - 1)


MAX_EPOCH = 2**63 - 1

MAX_STEP = 10**14

"""Maximum difference between the epoch in use and a new one.

Dates with the time can be used as epochs; a mistaken or malicious epoch
leaves enough higher ones.
"""

_KEYSPACE_KEYS = ("kind", "shards", "database", "servers", "id_layout")

_LAYOUT_KEYS = tuple(DEFAULT_LAYOUT.to_mapping())

_TIME_LAYOUT_KEYS = ("epoch_ms", "shard_bits", "sequence_bits")

_SERVER_KEYS = ("name", "primary", "standby", "shards", "weight", "generation")

_KEYSPACE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")

_SERVER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")

_RANGE_REMEDY = "write [first, last], both included, or a list of such pairs"


@dataclass(slots=True, kw_only=True)
class ServerDraft:
    """A server as read from a document.

    :ivar ranges: the ranges, each with its place in the document.
    :ivar is_complete: whether all ranges of the server are valid.
    """

    place: str
    name: str | None = None
    primary: Url | None = None
    standby: Url | None = None
    ranges: list[tuple[str, ShardRange]] = field(default_factory=list)
    is_complete: bool = True
    weight: float | None = 1.0
    generation: int | None = None

    @property
    def label(self) -> str:
        """The name, or the place of a server without a name."""
        return self.place if self.name is None else brief(self.name)

    @property
    def addresses(self) -> set[Address]:
        """The addresses of its databases; the standby has a copy of each."""
        urls = (self.primary, self.standby)
        return {url.address for url in urls if url and url.address}


@dataclass(slots=True, kw_only=True)
class Draft:
    """A keyspace as read from a document.

    :ivar servers: None if the list is missing or not valid.
    :ivar id_layout: None if it is not valid.
    """

    place: str
    name: str
    kind: Kind | None = None
    shards: int | None = None
    database: str | None = None
    servers: list[ServerDraft] | None = None
    id_layout: IdLayout | None = DEFAULT_LAYOUT


def parse(
    document: Mapping[object, object], *, policy: Policy, problems: list[Problem]
) -> tuple[int | None, int | None, list[Draft]]:
    """Return the epoch, the resets and the keyspaces of a document.

    :param document: the whole document.
    :param policy: the placeholders that the document may use.
    :param problems: list to which problems are appended.
    """
    table = DocumentTable(document, place="", problems=problems)
    table.refuse_others(("epoch", "resets", "keyspaces"))
    epoch = table.integer(
        "epoch", remedy="number the versions of the topology in ascending order"
    )
    if epoch is not None and not 0 <= epoch <= MAX_EPOCH:
        remedy = "is negative; use 0 or more"
        if epoch > 0:
            remedy = (
                "has more than 63 bits; use a smaller number, or, if none is "
                "left: sqla-shard topology reset"
            )
        table.report("epoch", f"{brief(epoch)} {remedy}")
    resets = 0 if table.get("resets") is MISSING else _count(table, "resets")
    remedy = "give each keyspace a table, such as [keyspaces.objects]"
    keyspaces = table.get("keyspaces", remedy=remedy)
    if keyspaces is MISSING:
        return epoch, resets, []
    if not isinstance(keyspaces, Mapping):
        table.report("keyspaces", f"{brief(keyspaces)} is not a table; {remedy}")
        return epoch, resets, []
    if not keyspaces:
        table.report("keyspaces", f"is empty; {remedy}")
    inner = DocumentTable(keyspaces, place="keyspaces", problems=problems)
    drafts = [_keyspace(inner, name, policy) for name in keyspaces]
    return epoch, resets, drafts


def _count(table: DocumentTable, key: str) -> int | None:
    """Return the number of an optional key."""
    remedy = "use 0 or more, or omit the key"
    number = table.integer(key, remedy=remedy)
    if number is not None and not 0 <= number <= MAX_EPOCH:
        fault = "is negative" if number < 0 else "has more than 63 bits"
        table.report(key, f"{brief(number)} {fault}; {remedy}")
    return number


def _keyspace(parent: DocumentTable, name: object, policy: Policy) -> Draft:
    draft = Draft(place=parent.place_of(name), name=str(name))
    if not isinstance(name, str) or not _KEYSPACE_NAME.fullmatch(name):
        parent.report(
            name,
            f"{brief(name)} is not a valid keyspace name; use 1 to 64 "
            "letters, digits, '_' and '-', and begin with a letter or '_'",
        )
    values = parent.values[name]
    if not isinstance(values, Mapping):
        parent.report(
            name,
            f"{brief(values)} is not a table; give the keyspace one with "
            f"the keys {', '.join(_KEYSPACE_KEYS)}",
        )
        return draft
    table = DocumentTable(values, place=draft.place, problems=parent.problems)
    table.refuse_others(_KEYSPACE_KEYS)
    draft.kind = _kind(table)
    draft.shards = _shards(table, draft.kind)
    draft.database = table.text(
        "database",
        remedy="name the database"
        if draft.kind == "global"
        else "give a template of the database names, such as 'db{shard:05d}'",
    )
    draft.servers = _servers(table, draft.kind, policy)
    draft.id_layout = _id_layout(table, draft.kind)
    return draft


def _id_layout(table: DocumentTable, kind: Kind | None) -> IdLayout | None:
    given = table.get("id_layout")
    if given is MISSING:
        return DEFAULT_LAYOUT
    if kind not in (None, "objects"):
        table.report(
            "id_layout",
            f"is not allowed here: a keyspace of kind {kind!r} has no object "
            "ids; remove the key",
        )
        return None
    if not isinstance(given, Mapping):
        table.report(
            "id_layout",
            f"{brief(given)} is not a table; write "
            f"{{ {', '.join(f'{key} = ...' for key in _LAYOUT_KEYS)} }}",
        )
        return None
    inner = DocumentTable(
        given, place=table.place_of("id_layout"), problems=table.problems
    )
    # The time distinguishes the layouts.
    of_time = "epoch_ms" in given
    keys = _TIME_LAYOUT_KEYS if of_time else _LAYOUT_KEYS
    inner.refuse_others(keys)
    remedy = "write the number that the existing ids have"
    bits = {key: inner.integer(key, remedy=remedy) for key in keys}
    known = {key: value for key, value in bits.items() if value is not None}
    if len(known) < len(bits):
        return None
    try:
        return TimeLayout(**known) if of_time else IdLayout(**known)
    except IdLayoutError as error:
        table.report("id_layout", str(error))
        return None


def _kind(table: DocumentTable) -> Kind | None:
    kinds: tuple[Kind, ...] = get_args(Kind)
    remedy = f"write one of {', '.join(map(repr, kinds))}"
    value = table.text("kind", remedy=remedy)
    for kind in kinds:
        if value == kind:
            return kind
    if value is not None:
        table.report("kind", f"{brief(value)} is not a valid kind; {remedy}")
    return None


def _shards(table: DocumentTable, kind: Kind | None) -> int | None:
    if kind == "global":
        if table.get("shards") is not MISSING:
            table.report(
                "shards",
                f"{brief(table.get('shards'))} is not allowed here: a global "
                "keyspace is one database; remove the key",
            )
        return 1
    # If there is no kind, it is unknown whether the key is required.
    remedy = f"write the number of open shards, from 1 to {MAX_SHARDS}"
    count = table.integer("shards", remedy=remedy if kind else "")
    if count is not None and not 1 <= count <= MAX_SHARDS:
        table.report("shards", f"{brief(count)} is out of range; {remedy}")
        return None
    return count


def _servers(
    table: DocumentTable, kind: Kind | None, policy: Policy
) -> list[ServerDraft] | None:
    remedy = f"give each server a table [[{table.place_of('servers')}]]"
    values = table.get("servers", remedy=remedy)
    if values is MISSING:
        return None
    if not isinstance(values, list | tuple):
        table.report("servers", f"{brief(values)} is not a list; {remedy}")
        return None
    if not values:
        table.report("servers", f"is empty; {remedy}")
        return None
    drafts = []
    for index, value in enumerate(values):
        key = f"servers[{index}]"
        if isinstance(value, Mapping):
            inner = DocumentTable(
                value, place=table.place_of(key), problems=table.problems
            )
            drafts.append(_server(inner, kind, policy))
        else:
            table.report(
                key, f"{brief(value)} is not a table; give each server its own table"
            )
            drafts.append(ServerDraft(place=table.place_of(key), is_complete=False))
    return drafts


def _server(table: DocumentTable, kind: Kind | None, policy: Policy) -> ServerDraft:
    draft = ServerDraft(place=table.place)
    table.refuse_others(_SERVER_KEYS)
    name = table.text("name", remedy="give each server its own name")
    if name is not None and not _SERVER_NAME.fullmatch(name):
        table.report(
            "name",
            f"{brief(name)} is not a valid server name; use 1 to 128 letters, digits, "
            "'_', '-', '.' and ':', and begin with a letter, a digit or '_'",
        )
    draft.name = name
    remedy = "write its URL, such as mysql://user:password@host:3306"
    draft.primary = _url(table, "primary", remedy, policy)
    if table.get("standby") is not None:
        draft.standby = _url(table, "standby", "", policy)
    draft.weight = _weight(table)
    if table.get("generation") not in (MISSING, None):
        draft.generation = _count(table, "generation")
    if kind != "global":
        parse_ranges(table, "shards", draft, is_required=kind is not None)
    elif table.get("shards") is not MISSING:
        table.report(
            "shards",
            f"{brief(table.get('shards'))} is not allowed here: the server of "
            "a global keyspace has all of it; remove the key",
        )
    return draft


def _url(table: DocumentTable, key: str, remedy: str, policy: Policy) -> Url | None:
    text = table.text(key, remedy=remedy)
    if text is None:
        return None
    url = Url(text, policy)
    for fault in url.faults:
        table.report(key, fault)
    return url


def _weight(table: DocumentTable) -> float | None:
    value = table.get("weight")
    if value is MISSING:
        return 1.0
    if type(value) in (int, float):
        try:
            weight = float(value)  # type: ignore[arg-type] # type() is checked
        except OverflowError:
            weight = math.inf
        if math.isfinite(weight) and weight >= 0:
            return weight
    table.report(
        "weight",
        f"{brief(value)} is not a valid weight; write a number, 0 or more, such as 1.0",
    )
    return None


def parse_ranges(
    table: DocumentTable, key: str, draft: ServerDraft, *, is_required: bool
) -> None:
    """Read the ranges of a server into its draft.

    :param table: the table of the server.
    :param key: the key of the ranges.
    :param is_required: whether missing ranges are a problem.
    """
    value = table.get(key, remedy=_RANGE_REMEDY if is_required else "")
    if value is MISSING:
        draft.is_complete = False
        return
    if not isinstance(value, list | tuple):
        table.report(key, f"{brief(value)} is not a range; {_RANGE_REMEDY}")
        draft.is_complete = False
        return
    if not value:
        table.report(
            key,
            "is empty, so the server would have no shards; give it a "
            "range, or remove the server",
        )
        draft.is_complete = False
        return
    if any(isinstance(item, list | tuple) for item in value):
        pairs = [(f"{key}[{i}]", item) for i, item in enumerate(value)]
    else:
        pairs = [(key, value)]
    for place, pair in pairs:
        fault = _range_fault(pair)
        if fault:
            table.report(place, f"{brief(pair)} {fault}")
            draft.is_complete = False
        else:
            draft.ranges.append((table.place_of(place), ShardRange(*pair)))


def _range_fault(pair: object) -> str:
    """Return a message if a range is not valid."""
    if (
        not isinstance(pair, list | tuple)
        or len(pair) != 2
        or any(type(item) is not int for item in pair)
    ):
        return f"is not a pair of integers; {_RANGE_REMEDY}"
    first, last = pair
    if first < 0 or last < 0:
        return "has a negative shard; shards are numbered from 0"
    if max(first, last) >= MAX_SHARDS:
        return f"exceeds {MAX_SHARDS - 1}, the highest shard of an id; end it there"
    if first > last:
        return f"is reversed; write [{last}, {first}]"
    return ""


DEFAULT_URL = "mysql://${MYSQL_USER}:${MYSQL_PASSWORD}@{host}"

"""Template for URLs of bare hosts."""

_FULL = {"shards": "range", "primary": "master", "standby": "slave"}

_HOST = re.compile(r"(?:[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]+)?")

_DATABASE = "db{shard:05d}"


def is_short(document: object) -> bool:
    """Return whether a document has the short form."""
    return (
        isinstance(document, Mapping)
        and not document.keys() & {"epoch", "keyspaces"}
        and any(
            isinstance(entry, Mapping) and entry.keys() & set(_FULL.values())
            for entry in document.values()
        )
    )


class FormPlaces:
    """Maps places of the full form to places of the short form."""

    def __init__(self) -> None:
        self._origins: dict[str, str] = {}

    def add(self, full: str, short: str) -> None:
        """Record that ``full`` was created from ``short``."""
        self._origins[full] = short

    def restore(self, problem: Problem) -> Problem:
        """Return the problem with its place in the short form."""
        full = problem.place
        while full:
            if full in self._origins:
                rest = problem.place[len(full) :]
                return Problem(self._origins[full] + rest, problem.message)
            full = above(full)
        return Problem("document", problem.message)


def expand(
    document: Mapping[object, object], *, url: str, problems: list[Problem]
) -> tuple[dict[object, object], FormPlaces]:
    """Return the full form of a document in the short form.

    :param document: the short form.
    :param url: template with ``{host}`` for bare hosts.
    :param problems: list to which problems are appended, with places in the
        short form.
    """
    if url.count("{host}") != 1:
        problems.append(
            Problem(
                "url",
                f"{brief(url)} needs {{host}} exactly once, such as {DEFAULT_URL!r}",
            )
        )
    places = FormPlaces()
    servers: list[object] = []
    highest = 0
    for name, entry in document.items():
        base = f"keyspaces.objects.servers[{len(servers)}]"
        if isinstance(entry, Mapping):
            table = DocumentTable(entry, place=key_name(name), problems=problems)
            for key, short in _FULL.items():
                places.add(f"{base}.{key}", table.place_of(short))
            places.add(f"{base}.name", table.place)
            highest = max(highest, _highest(entry))
            servers.append(_shorthand_server(table, name, url))
        else:
            servers.append(entry)
        places.add(base, key_name(name))
    keyspace = {
        "kind": "objects",
        "shards": highest + 1,
        "database": _DATABASE,
        "servers": servers,
    }
    return {"epoch": 0, "keyspaces": {"objects": keyspace}}, places


def _shorthand_server(
    table: DocumentTable, name: object, url: str
) -> dict[str, object]:
    table.refuse_others(_FULL.values())
    server = {"name": name}
    for key, short in _FULL.items():
        value = table.get(short)
        if value is MISSING:
            continue
        if isinstance(value, str) and _HOST.fullmatch(value):
            # str.format() would also replace ${NAME}.
            value = url.replace("{host}", value)
        server[key] = value
    return server


def _highest(entry: Mapping[object, object]) -> int:
    """Return the highest shard of a server; 0 if it has no shards."""
    draft = ServerDraft(place="")
    parse_ranges(
        DocumentTable(entry, place="", problems=[]), "range", draft, is_required=False
    )
    return max((item.last for _, item in draft.ranges), default=0)
