"""The example of a service with FastAPI."""

from __future__ import annotations

import asyncio

import pytest
from fastapi.testclient import TestClient

from examples.conduit.__main__ import main, show
from examples.conduit.service import create_app
from sqla_shard import Cluster, pack
from sqla_shard.testing import sqlite_topology


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


def test_tokens_that_were_not_signed(client):
    for token in ("", "x", "7", "7.", ".7", "-7.x", "9" * 30, "Token", "\u0663.x"):
        headers = {"Authorization": f"Token {token}".encode()}
        answer = client.get("/api/user", headers=headers)
        assert answer.status_code == 401
        assert answer.json() == {"errors": {"body": ["Unauthorized"]}}
