"""From a key to the virtual shard that its row is on."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any

from sqla_shard.exc import InvalidKeyError
from sqla_shard.exc import KeyspaceKindError
from sqla_shard.exc import LookupPolicyError
from sqla_shard.exc import UnsupportedStatementError
from sqla_shard.ids import check_type
from sqla_shard.lookup.definition import Definition
from sqla_shard.lookup.definition import link
from sqla_shard.rendering import Place
from sqla_shard.session import ShardSession
from sqla_shard.topology import Keyspace
from sqla_shard.types import LookupKey

__all__ = ["Form", "Table", "shard_of", "table_of"]


def shard_of(key: bytes, modulus: int) -> int:
    """Return the shard of a key: its MD5 as a number, modulo the shards."""
    digest = md5(key, usedforsecurity=False).digest()
    return int.from_bytes(digest, "big") % modulus


@dataclass(frozen=True, kw_only=True)
class Form:
    """A key as one policy writes it.

    :ivar text: the key.
    :ivar label: ``name/version`` of the policy.
    """

    text: str
    label: str


class Table:
    """A lookup class in a session: where its keys are.

    :raises KeyspaceKindError: when its keyspace is not of kind ``mod``.
    """

    def __init__(self, cls: Any, session: ShardSession) -> None:
        self.cls = cls
        self.session = session
        self.definition: Definition = link(cls)
        space: Keyspace = session.places.keyspace(
            self.definition.keyspace, "mod"
        )
        if space.kind != "mod":
            raise KeyspaceKindError(
                lookup=self.name, keyspace=space.name, kind=space.kind
            )
        self.keyspace = space

    @property
    def name(self) -> str:
        """Name of the lookup class."""
        return str(self.cls.__name__)

    def form(self, key: str) -> Form:
        """Return a key as the class writes it.

        :raises InvalidKeyError: when it cannot be a key.
        """
        policy = self.definition.policies[0]
        return Form(text=policy(key), label=policy.label)

    def forms(self, key: str) -> tuple[Form, ...]:
        """Return a key as it may have been written, the present form first.

        What only some policies take for a key has the forms of those.

        :raises InvalidKeyError: when it cannot be a key under any of them.
        """
        found = []
        refused = None
        for policy in self.definition.policies:
            try:
                found.append(Form(text=policy(key), label=policy.label))
            except InvalidKeyError as error:
                refused = refused or error
        if not found and refused is not None:
            raise refused
        return tuple(found)

    def shard_of(self, text: str) -> int:
        """Return the shard of a key that was normalised."""
        return shard_of(LookupKey.encoded(text), self.keyspace.shards)

    def place(self, text: str) -> Place:
        """Return where the row of a key is that was normalised."""
        return self.session.places.place(self.keyspace, self.shard_of(text))

    def execute(self, text: str, statement: Any, **parameters: Any) -> Any:
        """Run a statement on the shard of a key."""
        return self.session.execute(
            statement, parameters, bind_arguments={"place": self.place(text)}
        )

    def check_id(self, target_id: int) -> None:
        """Refuse what is no id of an object that has keys.

        :raises WrongTypeError: when it is the id of another class.
        :raises InvalidIdError: when it is none.
        """
        name = f"{self.name}.{self.definition.column}"
        check_type(target_id, self.definition.type_id, name)

    def check_policy(self, row: Any) -> None:
        """Refuse a row that may mean another key.

        :raises LookupPolicyError: when its policy is not known.
        """
        if row.policy not in self.definition.labels:
            raise LookupPolicyError(
                lookup=self.name,
                key=row.key,
                policy=row.policy,
                known=self.definition.labels,
            )

    def choose(self, forms: Sequence[Form], rows: Mapping[str, Any]) -> Any:
        """Return the row that a key means; None where there is none.

        :param forms: of the key.
        :param rows: the rows that were found, by key.
        :raises LookupPolicyError: when the policy of one is not known.
        """
        found = [
            (form, rows[form.text]) for form in forms if form.text in rows
        ]
        for _, row in found:
            self.check_policy(row)
        # A row that was written under the policy that finds it comes first:
        # it is the one that has been found so far.
        for form, row in found:
            if row.policy == form.label:
                return row
        return found[0][1] if found else None


def table_of(
    cls: type[Any], session: ShardSession, *, unique: bool, name: str
) -> Table:
    """Return a lookup in a session, for what only some lookups can.

    :raises UnsupportedStatementError: for the others.
    """
    table = Table(cls, session)
    if table.definition.unique is unique:
        return table
    if unique:
        reason = "several objects share a key: use add() and resolve_all()"
    else:
        reason = "a key belongs to one object: use claim() and resolve()"
    raise UnsupportedStatementError(
        f"{cls.__name__} has unique={not unique}, so that {reason}",
        construct=name,
    )
