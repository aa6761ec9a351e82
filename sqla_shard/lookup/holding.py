"""The keys of an object: giving, taking and renaming."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqla_shard.exc import CrossShardWriteError
from sqla_shard.exc import KeyNotHeldError
from sqla_shard.lookup.claiming import claim
from sqla_shard.lookup.claiming import LIFETIME
from sqla_shard.lookup.keys import Table
from sqla_shard.lookup.statements import statements_of

__all__ = ["add", "release", "rename"]


def add(table: Table, key: str, target_id: int) -> None:
    """Give a key to an object that shares it with others."""
    table.check_id(target_id)
    form = table.form(key)
    values = {
        "the_key": form.text,
        "the_id": target_id,
        "the_policy": form.label,
    }
    statements = statements_of(table.cls)
    table.execute(form.text, statements.add, **values)
    if len(table.definition.policies) > 1:
        # It may have been there, under an older policy.
        table.execute(form.text, statements.rewrite, **values)


def release(table: Table, key: str, target_id: int) -> bool:
    """Take a key from an object; tell whether it had it."""
    table.check_id(target_id)
    texts = _texts(table, key)
    if len(texts) > 1:
        # They are on several shards, of which one may be written.  Locked,
        # or a row that is rewritten meanwhile under the present policy
        # would be missed in both forms; and in the order of shards, as
        # everybody does who locks two, or each would wait for the other.
        texts.sort(key=table.shard_of)
        statement = statements_of(table.cls).held_locked
        texts = _held(table, texts, target_id, statement)
    return _delete(table, texts, target_id)


def _texts(table: Table, key: str) -> list[str]:
    """Return the forms of a key, the present one first."""
    return list(dict.fromkeys(form.text for form in table.forms(key)))


def _held(
    table: Table, texts: Sequence[str], target_id: int, statement: Any = None
) -> list[str]:
    """Return those of some keys that are an object's.

    :param statement: reads a row; by default without a lock.
    """
    if statement is None:
        statement = statements_of(table.cls).held
    held = []
    for text in texts:
        row = table.execute(
            text, statement, the_key=text, the_id=target_id
        ).one_or_none()
        if row is not None:
            table.check_policy(row)
            held.append(text)
    return held


def _delete(table: Table, texts: Sequence[str], target_id: int) -> bool:
    statement = statements_of(table.cls).delete
    gone = 0
    for text in texts:
        result = table.execute(text, statement, the_key=text, the_id=target_id)
        gone += result.rowcount
    return gone > 0


def rename(table: Table, old_key: str, new_key: str, target_id: int) -> None:
    """Give an object another key for one that it has.

    :raises KeyNotHeldError: when it has neither.
    :raises KeyTakenError: when the new one is another's.
    :raises CrossShardWriteError: when the two are on two shards, and the
        transaction may write one.
    """
    table.check_id(target_id)
    new = table.form(new_key).text
    old = _texts(table, old_key)
    held = _held(table, old, target_id)
    missing = KeyNotHeldError(
        lookup=table.name, key=old[0], target_id=target_id
    )
    # Done before, where only the answer of COMMIT was lost.
    if not held and not _held(table, [new], target_id):
        raise missing
    gone = [text for text in held if text != new]
    _check_one_shard(table, [new, *gone])
    if table.definition.unique:
        claim(table, new_key, target_id, LIFETIME)
    else:
        add(table, new_key, target_id)
    if gone and not _delete(table, gone, target_id):
        raise missing


def _check_one_shard(table: Table, texts: Sequence[str]) -> None:
    """Refuse two shards before one of them is written."""
    if not table.session.log.is_of_one_shard:
        return
    first, *others = (table.place(text) for text in texts)
    for other in others:
        if other.address != first.address:
            raise CrossShardWriteError(
                first=(first.shard_id, f"the new key, in {first}"),
                second=(other.shard_id, f"the old key, in {other}"),
                remedy="call sqla_shard.lookup.change(), which takes two "
                'transactions; or rename in one of cross_shard="ordered"',
            )
