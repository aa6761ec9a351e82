"""Schemas of what the service reads and sends."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from examples.conduit.models import Comment
from sqla_shard.ext.fastapi import IdOf


class Schema(BaseModel):
    """Has the names of JavaScript in JSON."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


Text = Annotated[str, Field(min_length=1)]
Short = Annotated[str, Field(min_length=1, max_length=100)]


class Login(Schema):
    """A sign-in."""

    email: Short
    password: Short


class NewUser(Login):
    """A sign-up."""

    username: Short


class UserChanges(Schema):
    """Changes of a user; None is left as it is."""

    email: Short | None = None
    username: Short | None = None
    password: Short | None = None
    bio: str | None = None
    image: str | None = None


class Profile(Schema):
    """The part of a user that others see."""

    username: str
    bio: str | None
    image: str | None
    following: bool


class Account(Schema):
    """The part of a user that the user sees."""

    email: str
    token: str
    username: str
    bio: str | None
    image: str | None


class NewArticle(Schema):
    """An article of the editor."""

    title: Text
    description: Text
    body: Text
    tag_list: Annotated[list[Short], Field(max_length=20)] = []


class ArticleChanges(Schema):
    """Changes of an article; None is left as it is."""

    title: Text | None = None
    description: Text | None = None
    body: Text | None = None


class ShownArticle(Schema):
    """An article, as the reader sees it."""

    slug: str
    title: str
    description: str
    body: str
    tag_list: list[str]
    created_at: datetime
    updated_at: datetime
    favorited: bool
    favorites_count: int
    author: Profile


class NewComment(Schema):
    """A comment of a reader."""

    body: Text


class ShownComment(Schema):
    """A comment, as the reader sees it."""

    id: Annotated[int, IdOf(Comment)]
    body: str
    created_at: datetime
    updated_at: datetime
    author: Profile


class Articles(Schema):
    """A list of articles, and how many there are."""

    articles: list[ShownArticle]
    articles_count: int
