"""A FastAPI application for type checkers."""

from __future__ import annotations

from typing import Annotated, assert_type

from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import (
    AsyncShardSession,
    blob_field,
    Cluster,
    ObjectMixin,
    Page,
    ShardSession,
)
from sqla_shard.ext.fastapi import (
    add_cluster,
    cluster_of,
    ClusterDep,
    IdOf,
    ObjectIdStr,
    PageDep,
    PageOf,
    SessionDep,
    SyncSessionDep,
)


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()


UserId = Annotated[int, IdOf(User)]


class UserOut(BaseModel):
    id: UserId
    name: str
    parent: ObjectIdStr | None = None


app = FastAPI()
add_cluster(app, "topology.toml", health="/health", driver="mysqldb")


@app.get("/users/{user_id}", response_model=UserOut)
async def show(user_id: UserId, session: SessionDep) -> User:
    return assert_type(await session.get_one(User, user_id), User)


@app.get("/users", response_model=PageOf[UserOut])
async def every(page: PageDep, session: SessionDep) -> Page[User]:
    return await session.scatter_page(select(User), page.limit, page.after)


@app.get("/sync/{user_id}", response_model=UserOut)
def show_sync(user_id: UserId, session: SyncSessionDep) -> User | None:
    return assert_type(session.get(User, user_id), User | None)


@app.put("/users/{user_id}")
async def rename(user_id: UserId, name: str, cluster: ClusterDep) -> str:
    return assert_type(await cluster.async_run(save, user_id, name=name), str)


async def save(session: AsyncShardSession, user_id: int, name: str) -> str:
    (await session.get_one(User, user_id)).name = name
    return name


def title(session: ShardSession, user_id: int) -> str:
    return session.get_one(User, user_id).name


@app.get("/names/{user_id}")
async def name_of(user_id: UserId, session: SessionDep) -> str:
    return assert_type(await session.run_sync(title, user_id), str)


assert_type(cluster_of(app), Cluster)
assert_type(UserOut(id=1, name="a").id, int)
