"""From a document to the parts of a topology, or every problem it has."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Mapping
from typing import TypeVar

from sqla_shard.exc import Problem
from sqla_shard.exc import TopologyError
from sqla_shard.topology.keyspaces import Keyspace
from sqla_shard.topology.keyspaces import Server
from sqla_shard.topology.parse import Draft
from sqla_shard.topology.parse import parse
from sqla_shard.topology.parse import ServerDraft
from sqla_shard.topology.placeholders import Policy
from sqla_shard.topology.ranges import ShardRange
from sqla_shard.topology.shorthand import expand
from sqla_shard.topology.shorthand import is_short
from sqla_shard.topology.tables import in_document_order
from sqla_shard.topology.tables import shown
from sqla_shard.topology.validate import validate

__all__ = ["Checked", "load"]

_T = TypeVar("_T")


class Checked(dict[str, Keyspace]):
    """Keyspaces that have passed every check, together with their epoch.

    Only :func:`load` makes them, and only what passes them on at once has
    them: nothing can have been changed since.

    :ivar epoch: of the same document.
    :ivar resets: likewise.
    """

    def __init__(
        self, epoch: int, resets: int, keyspaces: Iterable[Keyspace]
    ) -> None:
        super().__init__((one.name, one) for one in keyspaces)
        self.epoch = epoch
        self.resets = resets


def load(
    document: object, *, source: str, policy: Policy, url: str
) -> Checked:
    """Return the keyspaces by name, and the epoch.

    :param document: the full or the short form.
    :param source: where it came from, for the error.
    :param policy: the placeholders that it may use.
    :param url: template for the bare hosts of the short form.
    :raises TopologyError: with all problems, in the order of the document.
    """
    problems: list[Problem] = []
    if not isinstance(document, Mapping):
        message = (
            f"{shown(document)} is not a table; a topology is one with the "
            "keys epoch and keyspaces"
        )
        raise TopologyError([Problem("document", message)], source=source)
    full, places = document, None
    if is_short(document):
        full, places = expand(document, url=url, problems=problems)
    known = len(problems)
    epoch, resets, drafts = parse(full, policy=policy, problems=problems)
    validate(drafts, problems)
    if places is not None:
        problems[known:] = map(places.restore, problems[known:])
    if problems:
        raise TopologyError(
            in_document_order(document, problems), source=source
        )
    return Checked(_given(epoch), _given(resets), map(_keyspace, drafts))


def _keyspace(draft: Draft) -> Keyspace:
    is_global = draft.kind == "global"
    return Keyspace(
        name=draft.name,
        kind=_given(draft.kind),
        shards=_given(draft.shards),
        database=_given(draft.database),
        servers=tuple(
            _server(server, is_global=is_global)
            for server in _given(draft.servers)
        ),
    )


def _server(draft: ServerDraft, *, is_global: bool) -> Server:
    return Server(
        name=_given(draft.name),
        primary=_given(draft.primary).text,
        standby=None if draft.standby is None else draft.standby.text,
        shards=(ShardRange(0, 0),)
        if is_global
        else tuple(item for _, item in draft.ranges),
        weight=_given(draft.weight),
        generation=draft.generation,
    )


def _given(value: _T | None) -> _T:
    if value is None:
        raise AssertionError("a draft without a value and without a problem")
    return value
