"""Statements whose answer a careless router would get wrong."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from sqla_shard import Cluster, pack
from tests.models.clusters import on_sqlite
from tests.models.data import Rows, store
from tests.models.models import BOARD, COMMENT, NOTE, PIN, PLAIN, PlainBase, SHARDED
from tests.suites.traps_of_many_rows import ACCEPTED, REFUSED

_OPTIONS = {"enable_from_linting": False}
cluster = on_sqlite(engine_options=_OPTIONS)

A, A2, B = pack(0, PIN, 1), pack(0, PIN, 2), pack(17, PIN, 1)
IDS = SimpleNamespace(a=A, a2=A2, b=B, c=pack(0, COMMENT, 1))


def some_rows() -> Rows:
    tables = {name: [] for name in ("Board", "Pin", "Comment", "Tag", "Note")}
    for shard in (0, 17):
        home = pack(shard, BOARD, 1)
        tables["Board"].append({"id": home, "name": "b", "n": shard})
        for local in (1, 2, 3):
            pin = pack(shard, PIN, local)
            tables["Pin"].append(
                {
                    "id": pin,
                    "title": "t",
                    "n": local,
                    "board_id": pack(0, BOARD, 1),
                    "home_id": home,
                    "root_id": pack(shard, PIN, 1) if local == 2 else None,
                }
            )
            tables["Tag"].append({"pin_id": pin, "name": "x", "n": 1})
        for local, of in ((1, 1), (2, 1), (3, 3)):
            tables["Comment"].append(
                {
                    "id": pack(shard, COMMENT, local),
                    "pin_id": pack(shard, PIN, of),
                    "body": "c1",
                    "n": local,
                    "reply_to_id": None,
                }
            )
        tables["Note"].append(
            {
                "id": pack(shard, NOTE, 1),
                "pin_id": pack(shard, PIN, 1),
                "text": "n",
                "n": None,
            }
        )
    return Rows(tables)


@pytest.fixture(scope="module")
def filled(cluster):
    store(some_rows(), SHARDED, cluster)
    return cluster


@pytest.fixture(scope="module")
def plain():
    engine = create_engine("sqlite://", **_OPTIONS)
    PlainBase.metadata.create_all(engine)
    with Session(engine) as session:
        store(some_rows(), PLAIN, session)
        yield session
    engine.dispose()


@pytest.mark.parametrize("name", REFUSED)
def test_refused(filled: Cluster, name: str) -> None:
    build, error = REFUSED[name]
    with filled.session() as session, pytest.raises(error) as caught:
        session.execute(build(SHARDED, IDS)).all()
    assert type(caught.value) is error


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted_and_equal(filled: Cluster, plain: Session, name: str):
    build, shards = ACCEPTED[name]
    statement = build(SHARDED, IDS)
    found = filled.explain(statement)
    assert found.refusal is None, found
    with filled.session() as session:
        got = [tuple(row) for row in session.execute(statement)]
    want = [tuple(row) for row in plain.execute(build(PLAIN, IDS))]
    assert Counter(got) == Counter(want)
    assert max(1, len(found.shards)) == shards
    if name != "ids_of_two_shards_at_once":
        assert want
