"""The routes of the service."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any, TypeVar

from fastapi import (
    APIRouter,
    Body,
    Depends,
    FastAPI,
    HTTPException,
    Query,
    Request,
    Response,
)
from fastapi.responses import JSONResponse
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, Field
from sqlalchemy import func, Select, select
from starlette.exceptions import HTTPException as AnyHTTPException

from examples.conduit.models import (
    Article,
    ArticleFans,
    ArticleTag,
    Base,
    Comment,
    User,
    UserEmail,
    UserFavorites,
    UserFollows,
    UserName,
)
from examples.conduit.schemas import (
    Account,
    ArticleChanges,
    Articles,
    Login,
    NewArticle,
    NewComment,
    NewUser,
    Profile,
    Schema,
    ShownArticle,
    ShownComment,
    UserChanges,
)
from sqla_shard import AsyncShardSession, Cluster, scatter, ShardSession
from sqla_shard.exc import InvalidIdError
from sqla_shard.ext.fastapi import add_cluster, cluster_of, ClusterDep, IdOf, SessionDep
from sqla_shard.lookup import async_change, async_sign_up
from sqla_shard.models.deletion import async_delete_object
from sqla_shard.testing import sqlite_topology

T = TypeVar("T")

MAX_OFFSET = 1000
"""Articles that a client can skip."""


# -- who asks -----------------------------------------------------------------

# What is found before an endpoint runs is read in a short session of its own:
# the session of the request would hold its connection while the endpoint waits
# for another one, until all requests wait for each other.


def token_for(user_id: int, secret: bytes) -> str:
    """Return a signed id; a real service lets it expire."""
    signature = hmac.digest(secret, str(user_id).encode(), "sha256")
    return f"{user_id}.{signature.hex()}"


async def hash_password(password: str, salt: bytes | None = None) -> str:
    """Return the salt and the hash of a password."""
    salt = secrets.token_bytes(16) if salt is None else salt
    # In a thread: it is slow on purpose.
    made = await asyncio.to_thread(
        hashlib.scrypt, password.encode(), salt=salt, n=2**14, r=8, p=1
    )
    return f"{salt.hex()}.{made.hex()}"


TOKEN = APIKeyHeader(name="Authorization", auto_error=False)
"""The header ``Authorization: Token ...``, as a security scheme of OpenAPI."""


def no_entry() -> HTTPException:
    """Return the error of whoever has to sign in."""
    return HTTPException(401, headers={"WWW-Authenticate": "Token"})


async def find_viewer(
    request: Request,
    cluster: ClusterDep,
    authorization: Annotated[str | None, Depends(TOKEN)],
) -> User | None:
    """Return the user who asks, or None."""
    token = (authorization or "").removeprefix("Token ")
    number = token.partition(".")[0]
    if not re.fullmatch("[0-9]{1,19}", number):
        return None
    right = token_for(int(number), request.app.state.secret)
    if not hmac.compare_digest(token.encode(), right.encode()):
        return None
    async with cluster.async_session() as session:
        return await session.get(User, int(number))


Viewer = Annotated[User | None, Depends(find_viewer)]


async def require_user(viewer: Viewer) -> User:
    """Return the user who asks, or answer 401."""
    if viewer is None:
        raise no_entry()
    return viewer


Me = Annotated[User, Depends(require_user)]


# -- what a path names --------------------------------------------------------


async def find_user(username: str, cluster: ClusterDep) -> User:
    """Return the user of a path, or answer 404."""
    async with cluster.async_session() as session:
        user_id = await session.run_sync(UserName.resolve, username)
        user = None if user_id is None else await session.get(User, user_id)
    if user is None:
        raise HTTPException(404)
    return user


async def find_article(slug: str, cluster: ClusterDep) -> Article:
    """Return the article of a path, by the id at its end, or answer 404."""
    number = slug.rpartition("-")[2]
    article = None
    if re.fullmatch("[0-9]{1,19}", number):
        with suppress(InvalidIdError):
            async with cluster.async_session() as session:
                article = await session.get(Article, int(number))
    if article is None:
        raise HTTPException(404)
    return article


async def find_own_article(
    article: Annotated[Article, Depends(find_article)], me: Me
) -> Article:
    """Return the article of a path, or answer 403 if it is another author's."""
    if article.author_id != me.id:
        raise HTTPException(403)
    return article


Named = Annotated[User, Depends(find_user)]
Read = Annotated[Article, Depends(find_article)]
Own = Annotated[Article, Depends(find_own_article)]


# -- what is shown ------------------------------------------------------------


def fields_of(found: object, schema: type[Schema]) -> dict[str, Any]:
    """Return the attributes of an object that a schema has, too."""
    return {
        name: getattr(found, name)
        for name in schema.model_fields
        if hasattr(found, name)
    }


async def profiles(
    session: AsyncShardSession, user_ids: Sequence[int], viewer: User | None
) -> dict[int, Profile]:
    """Return the profiles of users on any shards, in two statements."""
    ids = list(dict.fromkeys(user_ids))
    followed: set[int] = set()
    if viewer is not None and ids:
        followed = await session.run_sync(UserFollows.contains, viewer.id, ids)
    return {
        user.id: Profile(following=user.id in followed, **fields_of(user, Profile))
        for user in await session.get_many(User, ids)
        if user is not None
    }


async def show_articles(
    session: AsyncShardSession, found: Sequence[Article], viewer: User | None
) -> list[ShownArticle]:
    """Return articles with their authors and favourites."""
    ids = [article.id for article in found]
    fans = ArticleFans.article_id.in_(ids)
    counted = select(ArticleFans.article_id, func.count()).where(fans)
    counts: dict[int, int] = {}
    liked: set[int] = set()
    if ids:
        rows = await session.execute(counted.group_by(ArticleFans.article_id))
        counts = {row[0]: row[1] for row in rows}
    if ids and viewer is not None:
        liked = await session.run_sync(UserFavorites.contains, viewer.id, ids)
    authors = await profiles(session, [one.author_id for one in found], viewer)
    return [
        ShownArticle(
            updated_at=one.ts,
            favorited=one.id in liked,
            favorites_count=counts.get(one.id, 0),
            author=authors[one.author_id],
            **fields_of(one, ShownArticle),
        )
        for one in found
    ]


async def show_article(
    cluster: Cluster, article_id: int, viewer: User
) -> dict[str, ShownArticle]:
    """Return an article as it is now, after a change."""
    async with cluster.async_session() as session:
        article = await session.get(Article, article_id)
        if article is None:
            raise HTTPException(404)
        (shown,) = await show_articles(session, [article], viewer)
    return {"article": shown}


def show_account(user: User, request: Request) -> dict[str, Account]:
    """Return what a user sees of itself."""
    token = token_for(user.id, request.app.state.secret)
    return {"user": Account(token=token, **fields_of(user, Account))}


# -- functions that run in a transaction, retried when that is safe -----------


def new_user(session: ShardSession, given: NewUser, password: str) -> int:
    """Store a user and return its id."""
    user = User(email=given.email, username=given.username, password=password)
    session.add(user)
    session.flush()
    return user.id


def switch_key(
    session: ShardSession, user_id: int, name: str, old: str, new: str
) -> None:
    """Change the address or the name of a user, or answer 409.

    Another request may have changed it after this one has read the user.
    """
    user = session.get_one(User, user_id, with_for_update=True)
    if getattr(user, name) not in (old, new):
        raise HTTPException(409)
    setattr(user, name, new)


async def set_fields(
    session: AsyncShardSession, cls: type[T], key: int, values: Mapping[str, Any]
) -> T:
    """Change fields of an object and return it, or answer 404."""
    found = await session.get(cls, key, with_for_update=True)
    if found is None:
        raise HTTPException(404)
    for name, value in values.items():
        setattr(found, name, value)
    return found


async def new_article(
    session: AsyncShardSession, author_id: int, given: NewArticle
) -> int:
    """Store an article and its tags, on several shards, and return its id."""
    tags = sorted(set(given.tag_list))
    values = {**given.model_dump(), "tag_list": tags}
    article = Article(author_id=author_id, **values)
    session.add(article)
    await session.flush()
    for tag in tags:
        await session.run_sync(ArticleTag.add, tag, article.id)
    return article.id


async def release_tags(session: AsyncShardSession, article: Article) -> None:
    """Remove an article from its tags."""
    for tag in article.tag_list:
        await session.run_sync(ArticleTag.release, tag, article.id)


async def new_comment(
    session: AsyncShardSession, article_id: int, author_id: int, body: str
) -> Comment:
    """Store a comment and return it."""
    comment = Comment(article_id=article_id, author_id=author_id, body=body)
    session.add(comment)
    await session.flush()
    return await session.get_one(Comment, comment.id, populate_existing=True)


async def remove_comment(
    session: AsyncShardSession, article_id: int, comment_id: int, author_id: int
) -> None:
    """Delete a comment, or answer 403 if it is another author's."""
    comment = await session.get(Comment, comment_id)
    if comment is None or comment.article_id != article_id:
        raise HTTPException(404)
    if comment.author_id != author_id:
        raise HTTPException(403)
    await session.delete(comment)


async def change_list(
    session: AsyncShardSession, method: str, links: Any, source_id: int, target_id: int
) -> None:
    """Append to a list by POST, or remove from it."""
    change = links.append if method == "POST" else links.remove
    await session.run_sync(change, source_id, target_id)


# -- users --------------------------------------------------------------------

routes = APIRouter(prefix="/api")


@routes.post("/users", status_code=201)
async def sign_up(
    given: Annotated[NewUser, Body(alias="user", embed=True)],
    request: Request,
    cluster: ClusterDep,
) -> dict[str, Account]:
    """Create a user; an address or a name that is taken is 409."""
    keys = {UserEmail: given.email, UserName: given.username}
    password = await hash_password(given.password)
    user_id = await async_sign_up(cluster, keys, new_user, given, password)
    async with cluster.async_session() as session:
        return show_account(await session.get_one(User, user_id), request)


@routes.post("/users/login")
async def sign_in(
    given: Annotated[Login, Body(alias="user", embed=True)],
    request: Request,
    session: SessionDep,
) -> dict[str, Account]:
    """Return the user of an address and a password."""
    user_id = await session.run_sync(UserEmail.resolve, given.email)
    user = None if user_id is None else await session.get(User, user_id)
    kept = "00." if user is None else user.password
    salt = bytes.fromhex(kept.partition(".")[0])
    entered = await hash_password(given.password, salt)
    if user is None or not hmac.compare_digest(kept, entered):
        raise no_entry()
    return show_account(user, request)


@routes.get("/user")
async def show_me(me: Me, request: Request) -> dict[str, Account]:
    """Return the user who asks."""
    return show_account(me, request)


@routes.put("/user")
async def change_me(
    given: Annotated[UserChanges, Body(alias="user", embed=True)],
    me: Me,
    request: Request,
    cluster: ClusterDep,
) -> dict[str, Account]:
    """Change the user who asks; each key is a transaction of its own.

    A key that is taken is 409, and nothing is changed, unless another user takes
    it at this moment.
    """
    values = given.model_dump(exclude_none=True)
    if given.password is not None:
        values["password"] = await hash_password(given.password)
    keys: dict[Any, str] = {UserEmail: "email", UserName: "username"}
    changes = [
        (lookup, name, getattr(me, name), values.pop(name))
        for lookup, name in keys.items()
        if name in values
    ]
    async with cluster.async_session() as session:
        for lookup, _, _, new in changes:
            if await session.run_sync(lookup.resolve, new) not in (None, me.id):
                raise HTTPException(409)
    for lookup, name, old, new in changes:
        await async_change(
            cluster, lookup, old, new, me.id, switch_key, me.id, name, old, new
        )
    user = await cluster.async_run(set_fields, User, me.id, values)
    return show_account(user, request)


@routes.get("/profiles/{username}")
async def show_profile(
    user: Named, viewer: Viewer, session: SessionDep
) -> dict[str, Profile]:
    """Return the profile of a user."""
    shown = await profiles(session, [user.id], viewer)
    return {"profile": shown[user.id]}


@routes.post("/profiles/{username}/follow")
@routes.delete("/profiles/{username}/follow")
async def follow(
    user: Named, me: Me, cluster: ClusterDep, request: Request
) -> dict[str, Profile]:
    """Follow a user, or no longer."""
    await cluster.async_run(change_list, request.method, UserFollows, me.id, user.id)
    async with cluster.async_session() as session:
        return await show_profile(user, me, session)


# -- articles -----------------------------------------------------------------


class Slice(BaseModel):
    """The part of a list that a client asks for."""

    limit: int = Field(default=20, ge=1, le=100)
    offset: int = Field(default=0, ge=0, le=MAX_OFFSET)


class Filters(Slice):
    """The articles that a client asks for."""

    tag: str | None = None
    author: str | None = None
    favorited: str | None = None


async def list_slice(
    session: AsyncShardSession, statement: Select[Any], part: Slice, viewer: User | None
) -> Articles:
    """Return a part of a list, the newest first, from all its shards."""
    limits = scatter(max_offset=MAX_OFFSET, timeout=5)
    counted = select(func.count()).select_from(statement.subquery())
    total = await session.scalar(counted.options(limits))
    newest = statement.order_by(Article.created_at.desc(), Article.id.desc())
    newest = newest.limit(part.limit).offset(part.offset)
    found = (await session.scalars(newest.options(limits))).all()
    shown = await show_articles(session, found, viewer)
    return Articles(articles=shown, articles_count=total or 0)


@routes.get("/articles")
async def list_articles(
    filters: Annotated[Filters, Query()], viewer: Viewer, session: SessionDep
) -> Articles:
    """Return articles of everybody, of an author, with a tag, or liked."""
    statement = select(Article)
    if filters.author is not None:
        author_id = await session.run_sync(UserName.resolve, filters.author)
        ids = [] if author_id is None else [author_id]
        statement = statement.where(Article.author_id.in_(ids))
    if filters.tag is not None:
        ids = await session.run_sync(ArticleTag.resolve_all, filters.tag)
        statement = statement.where(Article.id.in_(ids))
    if filters.favorited is not None:
        fan_id = await session.run_sync(UserName.resolve, filters.favorited)
        fans = [] if fan_id is None else [fan_id]
        liked = select(UserFavorites.article_id).where(UserFavorites.user_id.in_(fans))
        ids = list(await session.scalars(liked))
        statement = statement.where(Article.id.in_(ids))
    return await list_slice(session, statement, filters, viewer)


@routes.get("/articles/feed")
async def feed(
    part: Annotated[Slice, Query()], me: Me, session: SessionDep
) -> Articles:
    """Return articles of the users who are followed, from their shards only."""
    followed = select(UserFollows.followed_id).where(UserFollows.follower_id == me.id)
    ids = list(await session.scalars(followed))
    statement = select(Article).where(Article.author_id.in_(ids))
    return await list_slice(session, statement, part, me)


@routes.post("/articles", status_code=201)
async def add_article(
    given: Annotated[NewArticle, Body(alias="article", embed=True)],
    me: Me,
    cluster: ClusterDep,
) -> dict[str, ShownArticle]:
    """Create an article."""
    article_id = await cluster.async_run(
        new_article, me.id, given, cross_shard="ordered"
    )
    return await show_article(cluster, article_id, me)


@routes.get("/articles/{slug}")
async def read_article(
    article: Read, viewer: Viewer, session: SessionDep
) -> dict[str, ShownArticle]:
    """Return an article."""
    (shown,) = await show_articles(session, [article], viewer)
    return {"article": shown}


@routes.put("/articles/{slug}")
async def change_article(
    given: Annotated[ArticleChanges, Body(alias="article", embed=True)],
    article: Own,
    me: Me,
    cluster: ClusterDep,
) -> dict[str, ShownArticle]:
    """Change an article of one's own."""
    values = given.model_dump(exclude_none=True)
    await cluster.async_run(set_fields, Article, article.id, values)
    return await show_article(cluster, article.id, me)


@routes.delete("/articles/{slug}", status_code=204)
async def delete_article(article: Own, cluster: ClusterDep) -> None:
    """Delete an article of one's own, with its comments and favourites."""
    await cluster.async_run(release_tags, article, cross_shard="ordered")
    await async_delete_object(cluster, Article, article.id)


@routes.post("/articles/{slug}/favorite")
@routes.delete("/articles/{slug}/favorite")
async def favorite(
    article: Read, me: Me, cluster: ClusterDep, request: Request
) -> dict[str, ShownArticle]:
    """Like an article, or no longer."""
    await cluster.async_run(
        change_list, request.method, UserFavorites, me.id, article.id
    )
    return await show_article(cluster, article.id, me)


@routes.get("/tags")
async def list_tags(session: SessionDep) -> dict[str, list[str]]:
    """Return some tags, from all shards of the lookup."""
    statement = select(ArticleTag.key).distinct().order_by(ArticleTag.key).limit(20)
    found = await session.scalars(statement.options(scatter(timeout=5)))
    return {"tags": list(found)}


# -- comments -----------------------------------------------------------------


async def show_comments(
    session: AsyncShardSession, found: Sequence[Comment], viewer: User | None
) -> list[ShownComment]:
    """Return comments with their authors."""
    authors = await profiles(session, [one.author_id for one in found], viewer)
    return [
        ShownComment(
            updated_at=one.ts,
            author=authors[one.author_id],
            **fields_of(one, ShownComment),
        )
        for one in found
    ]


@routes.get("/articles/{slug}/comments")
async def list_comments(
    article: Read, viewer: Viewer, session: SessionDep
) -> dict[str, list[ShownComment]]:
    """Return the last comments of an article."""
    statement = select(Comment).where(Comment.article_id == article.id)
    statement = statement.order_by(Comment.id.desc()).limit(100)
    found = (await session.scalars(statement)).all()
    return {"comments": await show_comments(session, found, viewer)}


@routes.post("/articles/{slug}/comments", status_code=201)
async def add_comment(
    given: Annotated[NewComment, Body(alias="comment", embed=True)],
    article: Read,
    me: Me,
    cluster: ClusterDep,
) -> dict[str, ShownComment]:
    """Comment an article."""
    comment = await cluster.async_run(new_comment, article.id, me.id, given.body)
    async with cluster.async_session() as session:
        (shown,) = await show_comments(session, [comment], me)
    return {"comment": shown}


@routes.delete("/articles/{slug}/comments/{comment_id}", status_code=204)
async def delete_comment(
    article: Read,
    comment_id: Annotated[int, IdOf(Comment)],
    me: Me,
    cluster: ClusterDep,
) -> None:
    """Delete a comment of one's own."""
    await cluster.async_run(remove_comment, article.id, comment_id, me.id)


# -- the application ----------------------------------------------------------


def create_app(cluster: Cluster | Mapping[str, Any] | None = None) -> FastAPI:
    """Return the application.

    :param cluster: by default two servers that are directories in ``data``.
    """
    if cluster is None:
        cluster = sqlite_topology("data", servers=2, shards=16, lookup=16)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await cluster_of(app).async_create_all(Base.metadata)
        yield

    app = FastAPI(title="Conduit", lifespan=lifespan)
    # Users of another process would have to sign in again.
    app.state.secret = secrets.token_bytes(32)
    add_cluster(app, cluster, health="/health/shards")
    app.include_router(routes)

    @app.exception_handler(AnyHTTPException)
    async def answer(request: Request, error: AnyHTTPException) -> Response:
        # Errors of the cluster come here, too.
        body = {"errors": {"body": [error.detail]}}
        return JSONResponse(body, error.status_code, headers=error.headers)

    return app
