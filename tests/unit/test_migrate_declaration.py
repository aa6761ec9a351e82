"""Declarations of future keys: forms, files, and what does not fit."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard.exc import DeclarationError
from sqla_shard.migrate import (
    Declaration,
    Global,
    Lookup,
    MappingTable,
    Owned,
    Owner,
    Reference,
    Shadow,
)

WHOLE = Declaration(
    Owner("users.id", type_id=7),
    Owner("shops"),
    Owned("posts", colocate_with="user_id"),
    Owned(
        "replies",
        colocate_with="post",
        parent="posts",
        same_shard=["reply_to"],
        type_id=9,
    ),
    MappingTable("likes", source="user_id", target="post_id", order_by="position"),
    MappingTable("follows", source="a", target="b", inverse=True),
    Lookup("users.name"),
    Lookup('odd "name".x', normalize="email"),
    Lookup("posts.slug"),
    Reference("countries"),
    Global("settings"),
)


def test_files(tmp_path: Any) -> None:
    path = tmp_path / "declaration.toml"
    path.write_text(WHOLE.as_toml())
    again = Declaration.from_file(path)
    assert again.as_dict() == WHOLE.as_dict()
    assert set(again.items) == set(WHOLE.items)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Post(Base):
    __tablename__ = "posts"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    editor_id: Mapped[int] = mapped_column(ForeignKey("users.id"))
    parent_id: Mapped[int] = mapped_column(ForeignKey("posts.id"))


class Like(Base):
    __tablename__ = "likes"
    user_id: Mapped[int] = mapped_column(ForeignKey("users.id"), primary_key=True)
    label: Mapped[str] = mapped_column(primary_key=True)


def test_tables_classes_and_columns() -> None:
    assert Declaration(
        Owner(User), Owned(Post.__table__, colocate_with="user_id"), Lookup(User.name)
    ).items == (
        Owner("users"),
        Owned("posts", colocate_with="user_id"),
        Lookup("users.name"),
    )
    assert Owner(User.id) == Owner("users.id")
    with pytest.raises(DeclarationError, match="not a table"):
        Owner(object())
    with pytest.raises(DeclarationError, match="name a column"):
        Lookup("users")


def problems(*items: Any) -> str:
    with pytest.raises(DeclarationError) as raised:
        Shadow(Declaration(*items), Base.metadata)
    return str(raised.value)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([Owner("user.id")], "there is no table 'user'"),
        ([Owner("users.key")], "table 'users' has no column 'key'"),
        ([Owner("likes")], "primary key of 'likes' has several columns"),
        ([Owner("users"), Owner("users")], "users is declared twice"),
        ([Owned("posts", colocate_with="user_id")], "neither an Owner"),
        (
            [Owner("users"), Owned("likes", colocate_with="label")],
            "likes.label has no foreign key; name the table with parent=",
        ),
        ([Owned("posts", colocate_with="parent_id")], "posts is colocated with itself"),
        (
            [
                Owner("users", type_id=3),
                Owned("posts", colocate_with="user_id", type_id=3),
            ],
            "posts has the type_id 3 of users",
        ),
        ([Owner("users", type_id=1024)], "type_id must be from 1 to 1023"),
        (
            [Owner("users"), MappingTable("likes", source="user_id", target="label")],
            "likes.label has no foreign key to an Owner",
        ),
        ([Lookup("users.name")], "needs objects"),
    ],
)
def test_declarations_that_do_not_fit(items: Any, message: str) -> None:
    assert message in problems(*items)


def test_all_problems_are_listed() -> None:
    text = problems(Owner("a.id"), Owner("b.id"))
    assert "'a'" in text
    assert "'b'" in text


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"owner": {}}, "'owner' is not one of"),
        ({"owners": []}, "owners: it must be a table of tables"),
        ({"owners": {"a": 1}}, "owners.a: it must be a table"),
        ({"owned": {"a": {}}}, "owned.a: colocate_with is missing"),
        ({"owners": {"a": {"key": "id"}}}, "owners.a.key: it must be one of"),
        ({"reference": "a"}, "reference: it must be a list"),
        ({"lookups": {"a": "b"}}, "lookups.a: it must be a list"),
        ({"lookups": ["a"]}, "lookups: it must be a table"),
    ],
)
def test_documents_that_are_not_valid(document: Any, message: str) -> None:
    with pytest.raises(DeclarationError, match=r"^d\.toml: ") as raised:
        Declaration.from_mapping(document, source="d.toml")
    assert message in str(raised.value)


@pytest.mark.parametrize("text", ["[owners", "a = " + "[" * 100_000])
def test_a_file_that_is_no_toml(tmp_path: Any, text: str) -> None:
    path = tmp_path / "d.toml"
    path.write_text(text)
    with pytest.raises(DeclarationError, match=r"d\.toml"):
        Declaration.from_file(path)


def test_foreign_keys_that_are_lost() -> None:
    metadata = MetaData()
    for name in ("users", "tags"):
        Table(name, metadata, Column("id", Integer, primary_key=True))
    Table(
        "posts",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("user_id", ForeignKey("users.id")),
        Column("editor_id", ForeignKey("users.id")),
        Column("reply_to", ForeignKey("posts.id")),
        Column("tag_id", ForeignKey("tags.id")),
        Column("lang_id", ForeignKey("langs.id")),
    )
    Table("langs", metadata, Column("id", Integer, primary_key=True))
    shadow = Shadow(
        Declaration(
            Owner("users.id"),
            Owned("posts", colocate_with="user_id", same_shard=["reply_to"]),
            Reference("langs"),
        ),
        metadata,
    )
    report = shadow.report()
    assert list(report.foreign_keys) == ["posts.editor_id", "posts.tag_id"]
    assert report.undeclared == ("tags",)
