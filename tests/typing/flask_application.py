"""A Flask application for type checkers."""

from __future__ import annotations

from typing import assert_type

from flask import Flask
from sqlalchemy.orm import DeclarativeBase, Mapped

from sqla_shard import blob_field, Cluster, ObjectMixin, ShardSession
from sqla_shard.ext.flask import FlaskCluster


class Base(DeclarativeBase):
    pass


class User(ObjectMixin, Base, type_id=3):
    __tablename__ = "users"
    name: Mapped[str] = blob_field()


db = FlaskCluster(metadata=Base.metadata)


def create_app(cluster: Cluster | None = None) -> Flask:
    app = Flask(__name__)
    db.init_app(app, cluster)
    return app


def rename(session: ShardSession, user_id: int, name: str) -> str:
    session.get_one(User, user_id).name = name
    return name


def view(user_id: int) -> str:
    assert_type(db.session, ShardSession)
    assert_type(db.cluster, Cluster)
    assert_type(db.session.get(User, user_id), User | None)
    return assert_type(db.run(rename, user_id, name="x"), str)
