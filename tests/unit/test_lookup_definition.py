"""Lookup classes that can be created, and those that cannot."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from sqlalchemy import select, String
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, MappedAsDataclass
from sqlalchemy.schema import CreateTable

from sqla_shard import blob_field, LookupMixin, ObjectMixin
from sqla_shard.exc import ClassDefinitionError, InvalidKeyError
from sqla_shard.models import normalization
from sqla_shard.models.lookup_table import link
from sqla_shard.planning import spec_of
from sqla_shard.types import LookupKey
from sqla_shard.types.shard_bound import KeySlot


@pytest.fixture
def base() -> Any:
    return type("Base", (DeclarativeBase,), {})


@pytest.fixture
def user(base: Any) -> Any:
    class User(ObjectMixin, base, type_id=3):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()

    return User


def make(base: Any, name: str = "UserEmail", **keywords: Any) -> Any:
    namespace = keywords.pop("namespace", {})
    keywords.setdefault("normalize", normalization.email)
    return type(LookupMixin)(name, (LookupMixin, base), namespace, **keywords)


def created(cls: Any, dialect: Any) -> str:
    text = str(CreateTable(cls.__table__).compile(dialect=dialect))
    return " ".join(text.split())


def test_the_field_of_the_key(base, user):
    cls = make(base, target=user, field="name")
    assert link(cls).field == "name"
    assert "name" not in cls.__table__.columns


@pytest.mark.parametrize("field", ["nmae", "", 7])
def test_no_field_of_the_objects(base, user, field):
    with pytest.raises(ClassDefinitionError, match="not an attribute of User"):
        make(base, target=user, field=field)
    by_name = make(base, "UserName", target="User", field=field)
    with pytest.raises(ClassDefinitionError, match="not an attribute of User"):
        link(by_name)


def test_a_table_of_unique_keys(base, user):
    cls = make(base, target=user)
    assert cls.__tablename__ == "user_email"
    assert created(cls, mysql.dialect(is_mariadb=True)) == (
        "CREATE TABLE user_email ( `key` VARBINARY(255) NOT NULL, "
        "user_id BIGINT, policy VARCHAR(40) NOT NULL, "
        "claim VARBINARY(16), expires_at TIMESTAMP(6) NULL, "
        "PRIMARY KEY (`key`) )"
    )
    assert created(cls, sqlite.dialect()) == (
        'CREATE TABLE user_email ( "key" BLOB NOT NULL, '
        "user_id BIGINT, policy VARCHAR(40) NOT NULL, "
        'claim BLOB, expires_at DATETIME, PRIMARY KEY ("key") )'
    )
    spec = spec_of(cls.__table__)
    assert (spec.kind, spec.keyspace, spec.id_index) == ("mod", None, None)


def test_a_table_of_shared_keys(base, user):
    cls = make(
        base, "Tags", target=user, unique=False, target_column="who", keyspace="tags"
    )
    assert created(cls, mysql.dialect(is_mariadb=True)) == (
        "CREATE TABLE tags ( `key` VARBINARY(255) NOT NULL, "
        "who BIGINT NOT NULL, policy VARCHAR(40) NOT NULL, "
        "PRIMARY KEY (`key`, who) )"
    )
    assert spec_of(cls.__table__).keyspace == "tags"


def test_columns_of_its_own(base, user):
    class Named(LookupMixin, base, target=user, normalize=normalization.exact):
        __tablename__ = "names"
        note: Mapped[str | None] = mapped_column(String(20))

    assert Named.__table__.name == "names"
    assert "note" in Named.__table__.c


def test_a_target_that_comes_later(base):
    cls = make(base, target="User")
    with pytest.raises(ClassDefinitionError, match="no class 'User'"):
        link(cls)

    class User(ObjectMixin, base, type_id=7):
        __tablename__ = "users"
        name: Mapped[str] = blob_field()

    assert link(cls).type_id == 7
    assert link(cls).target is User
    assert cls.__table__.c.user_id.type.type_id == 7


def test_an_abstract_base(base, user):
    class Lookup(LookupMixin, base):
        __abstract__ = True

    class UserName(Lookup, target=user, normalize=normalization.exact):
        pass

    assert UserName.__tablename__ == "user_name"
    with pytest.raises(ClassDefinitionError, match="abstract"):
        link(Lookup)
    with pytest.raises(ClassDefinitionError, match="abstract"):

        class Other(LookupMixin, base, target=user):
            __abstract__ = True


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({}, "target is missing"),
        ({"target": 3}, "object class or its name"),
        ({"target": ""}, "object class or its name"),
        ({"target": "User", "normalize": None}, "not a Normalization"),
        ({"target": "User", "normalize": str.lower}, "not a Normalization"),
        ({"target": "User", "previous": [str.lower]}, "not a Normalization"),
        (
            {"target": "User", "previous": normalization.email},
            "the same label: email/1, email/1",
        ),
        ({"target": "User", "target_column": "key"}, "use another"),
        ({"target": "User", "target_column": "a b"}, "not a valid"),
        ({"target": "User", "target_column": "__x"}, "use another"),
        ({"target": "User", "target_column": "claim"}, "target_column"),
        ({"target": "User", "namespace": {"key": 3}}, "every lookup class"),
        ({"target": "User", "namespace": {"resolve": 3}}, "every lookup class"),
        (
            {"target": "User", "namespace": {"__table_args__": {"schema": "x"}}},
            "schema",
        ),
    ],
)
def test_invalid_definitions(base, keywords, message):
    with pytest.raises(ClassDefinitionError, match=message) as caught:
        make(base, **keywords)
    assert caught.value.class_name == "UserEmail"
    del caught
    gc.collect()
    # It can be corrected.
    assert "user_email" not in base.metadata.tables
    make(base, target="User")


def test_no_base():
    with pytest.raises(ClassDefinitionError, match="no declarative base"):
        type(LookupMixin)(
            "UserEmail",
            (LookupMixin,),
            {},
            target="User",
            normalize=normalization.email,
        )


def test_a_base_that_is_mapped(base, user):
    cls = make(base, target=user)
    with pytest.raises(ClassDefinitionError, match="mapped to a table"):
        type(LookupMixin)(
            "Other", (cls,), {}, target=user, normalize=normalization.email
        )


def test_a_dataclass():
    class Base(MappedAsDataclass, DeclarativeBase):
        pass

    class User(ObjectMixin, Base, type_id=3):
        __tablename__ = "users"

    made = type(Base)(
        "UserEmail", (LookupMixin, Base), {}, target=User, normalize=normalization.email
    )
    row = made()
    row.key = "a"
    assert repr(row).endswith("(key='a', user_id=None)")
    assert row != made()
    assert "claim" in made.__table__.c


def test_a_target_without_ids(base):
    class Plain(base):
        __tablename__ = "plain"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(ClassDefinitionError, match="not an object class"):
        make(base, target=Plain)
    assert "user_email" not in base.metadata.tables


def test_a_method_of_its_own(base, user):
    class UserEmail(LookupMixin, base, target=user, normalize=normalization.email):
        @classmethod
        def resolve(cls, session: Any, key: str) -> int | None:
            """Do more."""
            return super().resolve(session, key)

    assert UserEmail.resolve.__doc__ == "Do more."


# -- the column


def test_a_key_that_is_printed(base, user):
    cls = make(base, target=user)
    wanted = select(cls.policy).where(cls.key == "é'")
    shown = str(
        wanted.compile(dialect=mysql.dialect(), compile_kwargs={"literal_binds": True})
    )
    assert shown.endswith("= X'c3a927'")


def test_keys_that_are_bound():
    bind = LookupKey().bind_processor(mysql.dialect())
    assert bind("é") == b"\xc3\xa9"
    assert bind(None) is None
    slot = KeySlot({})
    assert bind(slot) is slot
    for wrong in (b"x", 3, "x" * 256, "\udc00"):
        with pytest.raises(InvalidKeyError):
            bind(wrong)


def test_a_slot_of_keys():
    slot = KeySlot({3: [b"a", b"'"]})
    assert slot.text_at(3) == "X'61',X'27'"
    assert slot.text_at(4) == "NULL"
    assert repr(slot) == "<keys of 1 shards>"
