"""Lookup classes: their creation and statements, the shards and rows of keys.

The statements use the table, not the class: rows do not become objects of
the session.

:func:`define` runs before SQLAlchemy maps the class and adds the columns.
:func:`finish` runs after it was mapped and declares the table to routing.
A target given by name may be defined later; :func:`link` resolves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Any

from sqlalchemy import (
    BigInteger,
    bindparam,
    Boolean,
    Delete,
    delete,
    inspect,
    Integer,
    LargeBinary,
    null,
    or_,
    Select,
    select,
    String,
    type_coerce,
    Update,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.orm import Mapped, mapped_column, Mapper

from sqla_shard.dialects.sql import InsertMissing, ServerTime
from sqla_shard.engine import scatter
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import (
    ClassDefinitionError,
    InvalidKeyError,
    LookupPolicyError,
    LookupTableError,
    UnsupportedStatementError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.models.class_checks import (
    built_once,
    check_abstract,
    check_bases,
    check_declarative,
    check_members,
    check_table,
    check_unique,
    class_named,
    dataclass_options,
    default_tablename,
    first_of_dataclass,
    id_column_name,
    own_definition,
    spec_of_objects,
    whole_or_not_at_all,
)
from sqla_shard.models.id_sources import layout_of
from sqla_shard.models.normalization import LONGEST_LABEL, Normalization
from sqla_shard.planning import declare, TableSpec
from sqla_shard.session import ShardSession
from sqla_shard.session.paging import check_limit
from sqla_shard.topology import Keyspace
from sqla_shard.types import LookupKey, ObjectRef, UTCTimestamp
from sqla_shard.types.shard_bound import KeySlot

#: Bytes of the token of a claim.
TOKEN_BYTES = 16

_OWN = frozenset({"key", "policy", "token", "expires_at"})
_RESERVED = _OWN | {"metadata", "registry"}

#: Number of ids that one statement reads.
_PAGE = 1000


@dataclass
class LookupDefinition:
    """The definition of a lookup class.

    :ivar target: the class of the objects, or its name.
    :ivar column: name of the column with the ids of the objects.
    :ivar policies: the policy of new rows, then the policies of older rows.
    :ivar unique: whether a key belongs to one object only.
    :ivar keyspace: name of the keyspace; None for the only one of kind mod.
    :ivar field: attribute of the objects that contains their key, or None.
    :ivar type_id: type of the objects, once their class is resolved.
    :ivar layout: layout of their ids, once their class is resolved.
    """

    target: Any
    column: str
    policies: tuple[Normalization, ...]
    unique: bool
    keyspace: str | None
    field: str | None = None
    type_id: int | None = None
    layout: IdLayout = DEFAULT_LAYOUT

    def shard_of(self, cls: Any, object_id: Any) -> int:
        """Return the shard of an object; check its id.

        :param cls: the lookup class.
        :raises InvalidIdError: if it is not an object id.
        :raises WrongTypeError: if it is the id of another class.
        """
        name = f"{cls.__name__}.{self.column}"
        return self.layout.shard_of(object_id, self.type_id, name)

    @property
    def labels(self) -> tuple[str, ...]:
        """``name/version`` of each policy."""
        return tuple(policy.label for policy in self.policies)


def define(
    cls: Any,
    mixin: type[Any],
    *,
    target: Any,
    normalize: Any,
    previous: Any,
    unique: bool,
    target_column: str | None,
    keyspace: str | None,
    field: str | None,
) -> None:
    """Check a class before it is mapped, and create its columns.

    :raises ClassDefinitionError: if the class is not valid.
    """
    if check_abstract(cls, target=target):
        return
    example = "target=User, normalize=normalization.email"
    check_declarative(cls, mixin, example)
    if target is None:
        raise ClassDefinitionError(
            f"target is missing: class {cls.__name__}(LookupMixin, Base, {example})",
            class_name=cls.__name__,
        )
    check_bases(cls)
    definition = LookupDefinition(
        target=target,
        column=id_column_name(cls, mixin, "target", target, target_column, _RESERVED),
        policies=_policies(cls, normalize, previous),
        unique=bool(unique),
        keyspace=keyspace,
        field=field,
        layout=layout_of(cls),
    )
    check_members(cls, mixin, _OWN | {definition.column}, "lookup")
    default_tablename(cls)
    _make_columns(cls, definition)
    cls.__sqla_shard_lookup__ = definition


def _policies(
    cls: type[Any], normalize: Any, previous: Any
) -> tuple[Normalization, ...]:
    if isinstance(previous, Normalization):
        previous = (previous,)
    policies = (normalize, *previous)
    for policy in policies:
        if not isinstance(policy, Normalization):
            raise ClassDefinitionError(
                f"{policy!r} is not a Normalization: use "
                "normalize=normalization.exact, .casefold, .email or one of "
                "your own, and previous= for the policies of older rows",
                class_name=cls.__name__,
            )
    labels = [policy.label for policy in policies]
    if len(set(labels)) < len(labels):
        raise ClassDefinitionError(
            f"two of its policies have the same label: {', '.join(labels)}; "
            "give the newer one another version",
            class_name=cls.__name__,
        )
    return policies


def _make_columns(cls: Any, definition: LookupDefinition) -> None:
    unique = definition.unique
    annotations = {"key": Mapped[str], definition.column: Mapped[int]}
    first_of_dataclass(cls, annotations)
    # Rows are written by methods, not by adding an object.
    options = dataclass_options(cls, init=False)
    cls.key = mapped_column(
        "key", LookupKey(), primary_key=True, sort_order=-30, **options
    )
    setattr(
        cls,
        definition.column,
        mapped_column(
            ObjectRef(layout=definition.layout),
            primary_key=not unique,
            nullable=unique,
            autoincrement=False,
            sort_order=-20,
            **options,
        ),
    )
    cls.policy = mapped_column(
        "policy", String(LONGEST_LABEL), nullable=False, sort_order=-19
    )
    if unique:
        token = LargeBinary(TOKEN_BYTES).with_variant(
            mysql.VARBINARY(TOKEN_BYTES), "mysql", "mariadb"
        )
        # The method ``claim`` has the name of the column.
        cls.token = mapped_column("claim", token, nullable=True, sort_order=-18)
        cls.expires_at = mapped_column(
            "expires_at", UTCTimestamp(), nullable=True, sort_order=-17
        )


@whole_or_not_at_all
def finish(mapper: Mapper[Any], cls: Any) -> None:
    """Handle ``after_mapper_constructed``: declare the table to routing.

    :raises ClassDefinitionError: if the class is not valid.
    """
    definition: LookupDefinition = cls.__sqla_shard_lookup__
    table: Any = mapper.local_table
    key = ["key"] if definition.unique else ["key", definition.column]
    check_table(cls, table, key)
    check_unique(table, "key")
    declare(table, TableSpec(kind="mod", keyspace=definition.keyspace))
    if isinstance(definition.target, type):
        _resolve_target(cls, definition, definition.target)


def link(cls: Any) -> LookupDefinition:
    """Resolve the class that a lookup class was given by name.

    :returns: the definition, complete.
    :raises ClassDefinitionError: if the class is not found.
    """
    definition: LookupDefinition = own_definition(cls, "__sqla_shard_lookup__")
    if definition.type_id is None:
        _resolve_target(cls, definition, class_named(cls, definition.target))
    return definition


def _resolve_target(cls: Any, definition: LookupDefinition, entity: Any) -> None:
    """Set the class of the objects, and the type of their ids."""
    spec = spec_of_objects(cls, definition.column, entity, "lookup")
    assert spec.layout is not None  # noqa: S101  # objects have ids
    definition.type_id, definition.layout = spec.type_id, spec.layout
    _check_field(cls, definition.field, entity)
    definition.target = entity


def _check_field(cls: Any, field: object, entity: Any) -> None:
    """Reject an unknown field: a check would report all rows as stale."""
    if field is None:
        return
    if not isinstance(field, str) or not hasattr(entity, field):
        raise ClassDefinitionError(
            f"field={field!r} is not an attribute of {entity.__name__}; name "
            "the one that holds the key, or leave it out",
            class_name=cls.__name__,
        )


def shard_of(key: bytes, modulus: int) -> int:
    """Return the shard of a key: its MD5 as a number, modulo the shards."""
    digest = md5(key, usedforsecurity=False).digest()
    return int.from_bytes(digest, "big") % modulus


@dataclass(frozen=True, kw_only=True)
class NormalizedKey:
    """A key as normalized by one policy.

    :ivar text: the key.
    :ivar label: ``name/version`` of the policy.
    """

    text: str
    label: str


class LookupAccess:
    """A lookup class in a session.

    :raises LookupTableError: if its keyspace is not of kind ``mod``.
    """

    def __init__(self, cls: Any, session: ShardSession) -> None:
        self.cls = cls
        self.session = session
        self.definition: LookupDefinition = link(cls)
        space: Keyspace = session.places.keyspace(self.definition.keyspace, "mod")
        if space.kind != "mod":
            raise LookupTableError(
                f"{self.name} is in keyspace {space.name!r}, which is of kind "
                f"{space.kind!r}: its number of shards may change, and keys "
                "would be searched on other shards. Use a keyspace of kind "
                '"mod"'
            )
        self.keyspace = space

    @property
    def name(self) -> str:
        """Name of the lookup class."""
        return str(self.cls.__name__)

    def form(self, key: str) -> NormalizedKey:
        """Return a key as normalized by the current policy.

        :raises InvalidKeyError: if it cannot be a key.
        """
        policy = self.definition.policies[0]
        return NormalizedKey(text=policy(key), label=policy.label)

    def forms(self, key: str) -> tuple[NormalizedKey, ...]:
        """Return a key as normalized by each policy, the current one first.

        A policy that rejects the key is left out.

        :raises InvalidKeyError: if it cannot be a key under any of them.
        """
        forms = []
        refused = None
        for policy in self.definition.policies:
            try:
                forms.append(NormalizedKey(text=policy(key), label=policy.label))
            except InvalidKeyError as error:
                refused = refused or error
        if not forms and refused is not None:
            raise refused
        return tuple(forms)

    def shard_of(self, text: str) -> int:
        """Return the shard of a normalized key."""
        return shard_of(LookupKey.encoded(text), self.keyspace.shards)

    def place(self, text: str) -> Place:
        """Return the location of the row of a normalized key."""
        return self.session.places.place(self.keyspace, self.shard_of(text))

    def execute(self, text: str, statement: Any, **parameters: Any) -> Any:
        """Run a statement on the shard of a key."""
        return self.session.execute(
            statement, parameters, bind_arguments={"place": self.place(text)}
        )

    def check_id(self, target_id: int) -> None:
        """Reject an id that is not an id of the target class.

        :raises WrongTypeError: if it is the id of another class.
        :raises InvalidIdError: if it is not an object id.
        """
        self.definition.shard_of(self.cls, target_id)

    def check_policy(self, row: Any) -> None:
        """Reject a row whose key may have another meaning.

        :raises LookupPolicyError: if its policy is not known.
        """
        if row.policy not in self.definition.labels:
            raise LookupPolicyError(
                lookup=self.name,
                key=row.key,
                policy=row.policy,
                known=self.definition.labels,
            )

    def choose(self, forms: Sequence[NormalizedKey], rows: Mapping[str, Any]) -> Any:
        """Return the row of a key; None if not found.

        :param forms: forms of the key.
        :param rows: the rows that were found, by key.
        :raises LookupPolicyError: if the policy of one is not known.
        """
        candidates = [(form, rows[form.text]) for form in forms if form.text in rows]
        for _, row in candidates:
            self.check_policy(row)
        # A row with the policy of the form is preferred: earlier versions of
        # the class found that one.
        for form, row in candidates:
            if row.policy == form.label:
                return row
        return candidates[0][1] if candidates else None


def table_with_keys(
    cls: type[Any], session: ShardSession, *, unique: bool, name: str
) -> LookupAccess:
    """Return a lookup class in a session, if it has the kind of keys.

    :param unique: whether the method is for unique keys; False for shared
        keys.
    :param name: name of the method, for the message.
    :raises UnsupportedStatementError: if the keys are of the other kind.
    """
    table = LookupAccess(cls, session)
    if table.definition.unique is unique:
        return table
    if unique:
        reason = "several objects may share a key: use add() and resolve_all()"
    else:
        reason = "a key belongs to one object: use claim() and resolve()"
    raise UnsupportedStatementError(
        f"{cls.__name__} has unique={not unique}: {reason}", construct=name
    )


class LookupStatements:
    """The statements of a lookup class.

    Their parameters: ``the_keys`` (a slot), ``the_key``, ``the_id``,
    ``the_policy``, ``the_token``, ``the_lifetime`` (microseconds), and
    ``old_token`` and ``old_end`` of the claim that is taken over.

    The columns of their rows: ``key``, ``target_id``, ``policy``, and of
    unique keys ``token``, ``expires_at`` and ``expired``.

    :ivar rows: SELECT of all rows, to which conditions are added.
    """

    def __init__(self, cls: Any) -> None:
        definition = link(cls)
        self._table: Any = inspect(cls).local_table
        self._target = self._table.c[definition.column]
        self._here = self._table.c.key == bindparam("the_key")
        shown = [
            self._table.c.key,
            self._target.label("target_id"),
            self._table.c.policy,
        ]
        if definition.unique:
            ends = self._table.c.expires_at
            shown += [
                self._table.c.claim.label("token"),
                ends,
                type_coerce(ends <= ServerTime(), Boolean()).label("expired"),
            ]
        statement = select(*shown)
        self.rows: Select[Any] = statement
        wanted: Any = bindparam("the_keys", expanding=True)
        self.read: Select[Any] = statement.where(self._table.c.key.in_(wanted))
        self.locked: Select[Any] = statement.where(self._here).with_for_update()
        held = self._here, self._target == bindparam("the_id")
        self.of_object: Select[Any] = select(*shown[:3]).where(*held)
        self.of_object_locked: Select[Any] = self.of_object.with_for_update()
        self.delete: Delete = delete(self._table).where(*held)
        self.rewrite: Update = (
            update(self._table).where(*held).values(policy=bindparam("the_policy"))
        )
        if definition.unique:
            self._build_claims()
        else:
            self._build_shared()

    def _build_claims(self) -> None:
        table, target = self._table, self._target
        lifetime = bindparam("the_lifetime", type_=BigInteger())
        claimed = {
            table.c.policy: bindparam("the_policy"),
            table.c.claim: bindparam("the_token"),
            target: null(),
            table.c.expires_at: ServerTime(lifetime),
        }
        owned = {
            table.c.policy: bindparam("the_policy"),
            table.c.claim: bindparam("the_token"),
            target: bindparam("the_id"),
            table.c.expires_at: null(),
        }
        key: Any = {table.c.key: bindparam("the_key")}
        pending = target.is_(None)
        mine = table.c.claim == bindparam("the_token")
        abandoned = update(table).where(
            self._here,
            pending,
            table.c.claim == bindparam("old_token"),
            table.c.expires_at == bindparam("old_end"),
            table.c.expires_at <= ServerTime(),
        )
        self.claim: InsertMissing = InsertMissing(table).values({**key, **claimed})
        self.give: InsertMissing = InsertMissing(table).values({**key, **owned})
        self.take_over: Update = abandoned.values(claimed)
        self.give_abandoned: Update = abandoned.values(owned)
        self.give_again: Update = (
            update(table)
            .where(self._here, target == bindparam("the_id"))
            .values(
                {
                    table.c.policy: bindparam("the_policy"),
                    table.c.claim: bindparam("the_token"),
                }
            )
        )
        self.confirm: Update = (
            update(table)
            .where(self._here, pending, mine)
            .values({target: bindparam("the_id"), table.c.expires_at: null()})
        )
        self.give_up: Delete = delete(table).where(self._here, pending, mine)
        self.forget: Delete = delete(table).where(
            self._here,
            or_(pending, target == bindparam("the_id")),
            table.c.claim.is_not_distinct_from(bindparam("the_token")),
        )
        self.discard: Delete = delete(table).where(
            self._here,
            pending,
            table.c.claim == bindparam("old_token"),
            table.c.expires_at == bindparam("old_end"),
        )

    def _build_shared(self) -> None:
        table, target = self._table, self._target
        self.add: InsertMissing = InsertMissing(table).values(
            {
                table.c.key: bindparam("the_key"),
                target: bindparam("the_id"),
                table.c.policy: bindparam("the_policy"),
            }
        )
        number = bindparam("the_number", type_=Integer())
        shown = table.c.key, target.label("target_id"), table.c.policy
        page = select(*shown).order_by(target).limit(number)
        self.first: Select[Any] = page.where(self._here)
        self.after: Select[Any] = page.where(self._here, target > bindparam("the_id"))


def statements_of(cls: Any) -> LookupStatements:
    """Return the statements of a lookup class.

    :raises ClassDefinitionError: if a class given by name is not found.
    """
    return built_once(cls, LookupStatements)


# -- from keys to ids: one statement for each server


#: Maximum bytes of keys in a statement, far below the smallest
#: max_allowed_packet in use, 16 MB: each byte takes two characters.
_MOST_BYTES = 2_000_000


def read_keys(
    table: LookupAccess,
    texts: Iterable[str],
    statement: Any = None,
    timeout: float | None = None,
    **parameters: Any,
) -> list[Any]:
    """Return the rows of normalized keys.

    :param statement: SELECT of the rows; by default it reads all rows of the
        keys.
    :param timeout: timeout of each statement in seconds, as for ``scatter()``.
    :param parameters: parameters of the statement, except ``the_keys``.
    """
    if statement is None:
        statement = statements_of(table.cls).read
    limits = None if timeout is None else scatter(timeout=timeout)
    places = table.session.places
    rows: list[Any] = []
    for groups in _groups(texts, table.keyspace.shards):
        result = table.session.execute(
            statement,
            {"the_keys": KeySlot(groups)(), **parameters},
            bind_arguments={
                "places": [
                    places.place(table.keyspace, shard_id)
                    for shard_id in sorted(groups)
                ],
                "limits": limits,
            },
        )
        rows += result.all()
    return rows


def _groups(texts: Iterable[str], modulus: int) -> Iterator[dict[int, list[bytes]]]:
    """Yield keys by shard, in chunks for one statement each."""
    groups: dict[int, list[bytes]] = {}
    size = 0
    for text in texts:
        key = LookupKey.encoded(text)
        groups.setdefault(shard_of(key, modulus), []).append(key)
        size += len(key)
        if size > _MOST_BYTES:
            yield groups
            groups, size = {}, 0
    if groups:
        yield groups


def resolve_many(
    table: LookupAccess, keys: Iterable[str], timeout: float | None = None
) -> dict[str, int]:
    """Return the ids of the objects with the given keys, by key."""
    # The letters of a text would be keys without a row.
    if isinstance(keys, str) or not hasattr(keys, "__iter__"):
        raise InvalidKeyError(key=keys, reason="resolve_many() takes a list of keys")
    forms = {key: table.forms(key) for key in keys}
    texts = dict.fromkeys(form.text for given in forms.values() for form in given)
    # Rows without an id are claims.
    rows = {
        row.key: row
        for row in read_keys(table, texts, timeout=timeout)
        if row.target_id is not None
    }
    ids = {}
    for key, given in forms.items():
        row = table.choose(given, rows)
        if row is not None:
            ids[key] = row.target_id
    return ids


def resolve_all(
    table: LookupAccess, key: str, limit: int | None, after: int | None
) -> list[int]:
    """Return the ids of the objects that share a key, ascending."""
    if limit is not None:
        return _resolve_page(table, key, limit, after)
    ids: list[int] = []
    while page := _resolve_page(table, key, _PAGE, after):
        ids += page
        after = page[-1]
        if len(page) < _PAGE:
            break
    return ids


def _resolve_page(
    table: LookupAccess, key: str, limit: int, after: int | None
) -> list[int]:
    check_limit(limit)
    statements = statements_of(table.cls)
    parameters: dict[str, Any] = {"the_number": limit}
    statement = statements.first
    if after is not None:
        table.check_id(after)
        parameters["the_id"] = after
        statement = statements.after
    ids: set[int] = set()
    for text in dict.fromkeys(form.text for form in table.forms(key)):
        for row in table.execute(text, statement, the_key=text, **parameters):
            table.check_policy(row)
            ids.add(row.target_id)
    return sorted(ids)[:limit]
