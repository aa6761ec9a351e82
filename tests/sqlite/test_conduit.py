"""The example of a service with FastAPI."""

from __future__ import annotations

import asyncio
from functools import partial

import httpx
import pytest
from fastapi import HTTPException
from fastapi.testclient import TestClient

from examples.conduit.__main__ import main, show
from examples.conduit.models import Article, User, UserName
from examples.conduit.service import create_app, set_fields, show_article
from sqla_shard import Cluster, pack
from sqla_shard.ext.fastapi import cluster_of
from sqla_shard.testing import sqlite_topology

ARTICLE = {"title": "Boats", "description": "d", "body": "b"}


@pytest.fixture
def client(tmp_path):
    app = create_app(sqlite_topology(tmp_path, servers=2, shards=4, lookup=4))
    with TestClient(app) as client:
        yield client


def test_the_demonstration(capsys):
    main()
    assert capsys.readouterr().out.endswith("What is deleted is in no list.\n")


def test_no_request_waits_for_a_second_connection(tmp_path):
    """As many requests as connections would wait for each other."""
    topology = sqlite_topology(tmp_path, servers=1, shards=2, lookup=1)
    options = {"pool_size": 1, "max_overflow": 0, "pool_timeout": 1}
    asyncio.run(show(Cluster.from_topology(topology, engine_options=options)))


def test_ids_of_comments_are_strings_in_openapi(client):
    found = client.get("/openapi.json").json()
    shown = found["components"]["schemas"]["ShownComment"]["properties"]["id"]
    assert shown["type"] == "string"
    comment = "/api/articles/{slug}/comments/{comment_id}"
    parameters = found["paths"][comment]["delete"]["parameters"]
    schemas = {one["name"]: one["schema"] for one in parameters}
    assert schemas["comment_id"]["examples"] == [str(pack(5, 3, 1))]


async def _sign_up(client, name):
    user = {"email": f"{name}@example.com", "username": name, "password": "x" * 8}
    answer = await client.post("/api/users", json={"user": user})
    token = answer.json()["user"]["token"]
    return {"Authorization": f"Token {token}"}


def test_names_after_a_race(tmp_path):
    """No name that a user has lost is taken for ever."""

    async def race():
        topology = sqlite_topology(tmp_path, servers=1, shards=2, lookup=1)
        app = create_app(topology)
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x") as client,
        ):
            headers = await _sign_up(client, "ada")
            await _sign_up(client, "grace")

            def change(**values):
                return client.put("/api/user", headers=headers, json={"user": values})

            assert (await change(email="x@y.z", username="grace")).status_code == 409
            mine = (await client.get("/api/user", headers=headers)).json()["user"]
            assert mine["email"] == "ada@example.com"

            names = ["ada", "a", "b", "c", "d"]
            answers = await asyncio.gather(
                *(change(username=name) for name in names[1:])
            )
            assert {answer.status_code for answer in answers} <= {200, 409}
            mine = (await client.get("/api/user", headers=headers)).json()["user"]
            async with cluster_of(app).async_session() as session:
                found = [await session.run_sync(UserName.resolve, n) for n in names]
            left = [name for name, key in zip(names, found, strict=True) if key]
            assert left == [mine["username"]]

    asyncio.run(race())


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/users", {"user": {"email": "a", "username": "a", "password": "x" * 101}}),
        ("/articles", {"article": {**ARTICLE, "tagList": ["boats"] * 21}}),
    ],
)
def test_what_is_too_long_is_refused(client, path, given):
    user = {"email": "a@b.c", "username": "ada", "password": "x" * 100}
    token = client.post("/api/users", json={"user": user}).json()["user"]["token"]
    headers = {"Authorization": f"Token {token}"}
    assert client.post(f"/api{path}", headers=headers, json=given).status_code == 422


def test_an_article_that_is_deleted_meanwhile(client):
    cluster, key = cluster_of(client.app), pack(0, 2, 7)
    for change in (
        partial(show_article, cluster, key, User()),
        partial(cluster.async_run, set_fields, Article, key, {}),
    ):
        with pytest.raises(HTTPException, match="404"):
            client.portal.call(change)


def test_the_token_is_a_security_scheme(client):
    found = client.get("/openapi.json").json()
    scheme = found["components"]["securitySchemes"]["APIKeyHeader"]
    assert scheme == {"type": "apiKey", "in": "header", "name": "Authorization"}
    refused = client.get("/api/user").headers
    assert refused["WWW-Authenticate"] == "Token"


def test_tokens_that_were_not_signed(client):
    for token in ("", "x", "7", "7.", ".7", "-7.x", "9" * 30, "Token", "\u0663.x"):
        headers = {"Authorization": f"Token {token}".encode()}
        answer = client.get("/api/user", headers=headers)
        assert answer.status_code == 401
        assert answer.json() == {"errors": {"body": ["Unauthorized"]}}
