"""From a document, as TOML or JSON give it, to drafts of keyspaces.

This module looks at each value by itself: is it there, is it of the right
type, can it be used at all.  What two values say together is for
:mod:`~sqla_shard.topology.validate`.  A draft has None wherever the document
has nothing usable; the reason is then among the problems.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from typing import get_args

from sqla_shard.exc import Problem
from sqla_shard.topology.keyspaces import Kind
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.ranges import MAX_SHARDS
from sqla_shard.topology.ranges import ShardRange
from sqla_shard.topology.tables import MISSING
from sqla_shard.topology.tables import shown
from sqla_shard.topology.tables import Table
from sqla_shard.topology.urls import Address
from sqla_shard.topology.urls import Url

__all__ = ["Draft", "ServerDraft", "parse", "parse_ranges"]

MAX_EPOCH = 2**63 - 1
MAX_GENERATION = MAX_EPOCH
MAX_RESETS = MAX_EPOCH
_KEYSPACE_KEYS = ("kind", "shards", "database", "servers")
_SERVER_KEYS = (
    "name",
    "primary",
    "standby",
    "shards",
    "weight",
    "generation",
)
_KEYSPACE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_SERVER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}")
_RANGE_REMEDY = "write [first, last], both included, or a list of such pairs"


@dataclass(slots=True, kw_only=True)
class ServerDraft:
    """A server as far as the document gives one.

    :ivar ranges: each with its place in the document.
    :ivar is_complete: whether no range was left out as unusable.
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
        """The name, or the place of a server that has none."""
        return self.place if self.name is None else shown(self.name)

    @property
    def addresses(self) -> set[Address]:
        """Where its databases are: the standby has a copy of each."""
        urls = (self.primary, self.standby)
        return {url.address for url in urls if url and url.address}


@dataclass(slots=True, kw_only=True)
class Draft:
    """A keyspace as far as the document gives one.

    :ivar servers: None when there is no list of them.
    """

    place: str
    name: str
    kind: Kind | None = None
    shards: int | None = None
    database: str | None = None
    servers: list[ServerDraft] | None = None


def parse(
    document: Mapping[object, object],
    *,
    policy: Policy,
    problems: list[Problem],
) -> tuple[int | None, int | None, list[Draft]]:
    """Return the epoch, the resets and the keyspaces of a document.

    :param document: the whole document.
    :param policy: the placeholders that it may use.
    :param problems: added to.
    """
    table = Table(document, place="", problems=problems)
    table.refuse_others(("epoch", "resets", "keyspaces"))
    epoch = table.integer(
        "epoch",
        remedy="number the versions of the topology, each higher than the "
        "one before",
    )
    if epoch is not None and not 0 <= epoch <= MAX_EPOCH:
        remedy = "is negative; count from 0 upwards"
        if epoch > 0:
            remedy = (
                "is more than 63 bits; count from 0 upwards, and where no "
                "number is left: sqla-shard topology reset"
            )
        table.note("epoch", f"{shown(epoch)} {remedy}")
    resets = _resets(table)
    remedy = "give each keyspace a table, such as [keyspaces.objects]"
    keyspaces = table.get("keyspaces", remedy=remedy)
    if keyspaces is MISSING:
        return epoch, resets, []
    if not isinstance(keyspaces, Mapping):
        table.note("keyspaces", f"{shown(keyspaces)} is not a table; {remedy}")
        return epoch, resets, []
    if not keyspaces:
        table.note("keyspaces", f"is empty; {remedy}")
    inner = Table(keyspaces, place="keyspaces", problems=problems)
    drafts = [_keyspace(inner, name, policy) for name in keyspaces]
    return epoch, resets, drafts


def _resets(table: Table) -> int | None:
    if table.get("resets") is MISSING:
        return 0
    remedy = "count from 0 upwards, or leave the key out"
    number = table.integer("resets", remedy=remedy)
    if number is not None and not 0 <= number <= MAX_RESETS:
        fault = "negative" if number < 0 else "more than 63 bits"
        table.note("resets", f"{shown(number)} is {fault}; {remedy}")
    return number


def _keyspace(parent: Table, name: object, policy: Policy) -> Draft:
    draft = Draft(place=parent.at(name), name=str(name))
    if not isinstance(name, str) or not _KEYSPACE_NAME.fullmatch(name):
        parent.note(
            name,
            f"{shown(name)} is no name for a keyspace; use 1 to 64 letters, "
            "digits, '_' and '-', and begin with a letter or '_'",
        )
    values = parent.values[name]
    if not isinstance(values, Mapping):
        parent.note(
            name,
            f"{shown(values)} is not a table; give the keyspace one with "
            f"the keys {', '.join(_KEYSPACE_KEYS)}",
        )
        return draft
    table = Table(values, place=draft.place, problems=parent.problems)
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
    return draft


def _kind(table: Table) -> Kind | None:
    kinds: tuple[Kind, ...] = get_args(Kind)
    remedy = f"write one of {', '.join(map(repr, kinds))}"
    value = table.text("kind", remedy=remedy)
    for kind in kinds:
        if value == kind:
            return kind
    if value is not None:
        table.note("kind", f"{shown(value)} is no kind of keyspace; {remedy}")
    return None


def _shards(table: Table, kind: Kind | None) -> int | None:
    if kind == "global":
        if table.get("shards") is not MISSING:
            table.note(
                "shards",
                f"{shown(table.get('shards'))} cannot stand here: a global "
                "keyspace is one database; remove the key",
            )
        return 1
    # Without a kind nobody can say whether the key has to be here.
    remedy = f"say how many shards are open, from 1 to {MAX_SHARDS}"
    count = table.integer("shards", remedy=remedy if kind else "")
    if count is not None and not 1 <= count <= MAX_SHARDS:
        table.note("shards", f"{shown(count)} is not possible; {remedy}")
        return None
    return count


def _servers(
    table: Table, kind: Kind | None, policy: Policy
) -> list[ServerDraft] | None:
    remedy = f"give each server a table [[{table.at('servers')}]]"
    values = table.get("servers", remedy=remedy)
    if values is MISSING:
        return None
    if not isinstance(values, list | tuple):
        table.note("servers", f"{shown(values)} is not a list; {remedy}")
        return None
    if not values:
        table.note("servers", f"is empty; {remedy}")
        return None
    drafts = []
    for index, value in enumerate(values):
        key = f"servers[{index}]"
        if isinstance(value, Mapping):
            inner = Table(value, place=table.at(key), problems=table.problems)
            drafts.append(_server(inner, kind, policy))
        else:
            table.note(
                key,
                f"{shown(value)} is not a table; give each server a table "
                "of its own",
            )
            drafts.append(ServerDraft(place=table.at(key), is_complete=False))
    return drafts


def _server(table: Table, kind: Kind | None, policy: Policy) -> ServerDraft:
    draft = ServerDraft(place=table.place)
    table.refuse_others(_SERVER_KEYS)
    name = table.text("name", remedy="give the server a name of its own")
    if name is not None and not _SERVER_NAME.fullmatch(name):
        table.note(
            "name",
            f"{shown(name)} is no name for a server; use 1 to 128 letters, "
            "digits, '_', '-', '.' and ':', and begin with one of the first "
            "three kinds",
        )
    draft.name = name
    remedy = "write its URL, such as mysql://user:password@host:3306"
    draft.primary = _url(table, "primary", remedy, policy)
    if table.get("standby") is not None:
        draft.standby = _url(table, "standby", "", policy)
    draft.weight = _weight(table)
    draft.generation = _generation(table)
    if kind != "global":
        parse_ranges(table, "shards", draft, is_required=kind is not None)
    elif table.get("shards") is not MISSING:
        table.note(
            "shards",
            f"{shown(table.get('shards'))} cannot stand here: the server of "
            "a global keyspace holds all of it; remove the key",
        )
    return draft


def _url(table: Table, key: str, remedy: str, policy: Policy) -> Url | None:
    text = table.text(key, remedy=remedy)
    if text is None:
        return None
    url = Url(text, policy)
    for fault in url.faults:
        table.note(key, fault)
    return url


def _weight(table: Table) -> float | None:
    value = table.get("weight")
    if value is MISSING:
        return 1.0
    if type(value) in (int, float):
        try:
            weight = float(value)  # type: ignore[arg-type] # told by type()
        except OverflowError:
            weight = math.inf
        if math.isfinite(weight) and weight >= 0:
            return weight
    table.note(
        "weight",
        f"{shown(value)} is not a share of new roots; write a number, 0 or "
        "more, such as 1.0",
    )
    return None


def _generation(table: Table) -> int | None:
    if table.get("generation") is None:
        return None
    remedy = "count from 0 upwards, or leave the key out"
    number = table.integer("generation", remedy="")
    if number is not None and not 0 <= number <= MAX_GENERATION:
        fault = "negative" if number < 0 else "more than 63 bits"
        table.note("generation", f"{shown(number)} is {fault}; {remedy}")
    return number


def parse_ranges(
    table: Table, key: str, draft: ServerDraft, *, is_required: bool
) -> None:
    """Read the ranges of a server into its draft.

    :param table: the table of the server.
    :param key: the key of the ranges.
    :param draft: added to.
    :param is_required: whether it is a problem that there are none.
    """
    value = table.get(key, remedy=_RANGE_REMEDY if is_required else "")
    if value is MISSING:
        draft.is_complete = False
        return
    if not isinstance(value, list | tuple):
        table.note(key, f"{shown(value)} is not a range; {_RANGE_REMEDY}")
        draft.is_complete = False
        return
    if not value:
        table.note(
            key,
            "is empty, so the server would hold nothing; give it a range, "
            "or remove the server",
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
            table.note(place, f"{shown(pair)} {fault}")
            draft.is_complete = False
        else:
            draft.ranges.append((table.at(place), ShardRange(*pair)))


def _range_fault(pair: object) -> str:
    """Return what is wrong with a range, or nothing."""
    if (
        not isinstance(pair, list | tuple)
        or len(pair) != 2
        or any(type(item) is not int for item in pair)
    ):
        return f"is not a pair of integers; {_RANGE_REMEDY}"
    first, last = pair
    if first < 0 or last < 0:
        return "has a negative shard; shards count from 0"
    if max(first, last) >= MAX_SHARDS:
        return (
            f"goes past {MAX_SHARDS - 1}, the highest shard that an id can "
            "name; end it there"
        )
    if first > last:
        return f"is reversed; write [{last}, {first}]"
    return ""
