"""FastAPI: the lifespan, sessions, ids, pages, and responses to errors."""

from __future__ import annotations

import json
from contextlib import asynccontextmanager
from typing import Annotated, Any

import pytest
from fastapi import (
    BackgroundTasks,
    Depends,
    FastAPI,
    Query,
    WebSocket,
    WebSocketDisconnect,
)
from fastapi.exceptions import HTTPException as FastAPIError
from fastapi.responses import JSONResponse
from fastapi.testclient import TestClient
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from sqlalchemy import select
from sqlalchemy.exc import InvalidRequestError, OperationalError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route

from sqla_shard import Cluster, exc, pack, Page, scatter
from sqla_shard.ext.fastapi import (
    add_cluster,
    cluster_of,
    ClusterDep,
    IdOf,
    ObjectIdStr,
    PageDep,
    PageOf,
    PageQuery,
    RESPONSES,
    SessionDep,
    SyncSessionDep,
)
from sqla_shard.testing import sqlite_topology
from tests.models.flask_app import add_board, Base, BOARD, Board, busy, title_of
from tests.models.sqlite_files import with_files

BoardId = Annotated[int, IdOf(Board)]


class Long(PageQuery):
    limit: int = Field(default=50, ge=1, le=1000)


class BoardOut(BaseModel):
    id: BoardId
    title: str


@pytest.fixture
def document(tmp_path):
    found = sqlite_topology(tmp_path, servers=2, shards=4, main=True)
    with Cluster.from_topology(found) as cluster:
        cluster.create_all(Base.metadata)
    return found


@pytest.fixture
def app(document):
    app = FastAPI(title="shop")
    add_cluster(app, document)
    return app


def opened(app):
    return TestClient(app, raise_server_exceptions=False)


# -- the lifespan -------------------------------------------------------------


def test_opens_and_closes_with_the_application(document):
    seen = []

    @asynccontextmanager
    async def lifespan(app):
        seen.append(cluster_of(app))
        board_id = await seen[-1].async_run(add_title, "Boats")
        yield {"inner": True}
        seen.append(title_of(cluster_of(app), board_id))

    app = FastAPI(title="shop", lifespan=lifespan)
    add_cluster(app, document)
    for _ in range(2):
        with TestClient(app) as client:
            assert client.app_state["inner"]
        cluster, title = seen[-2:]
        assert title == "Boats"
        with pytest.raises(exc.ClusterClosedError):
            title_of(cluster, pack(3, BOARD, 1))
        with pytest.raises(exc.ExtensionSetupError, match="with TestClient"):
            cluster_of(app)
    assert seen[0] is not seen[2]


async def add_title(session, title):
    board = Board(title=title, shard_id=3)
    session.add(board)
    await session.flush()
    return board.id


def test_closes_when_the_lifespan_of_the_application_fails(document):
    cluster = Cluster.from_topology(document)

    @asynccontextmanager
    async def lifespan(app):
        raise RuntimeError("no")
        yield

    app = FastAPI(lifespan=lifespan)
    add_cluster(app, cluster)
    with pytest.raises(RuntimeError, match="no"), TestClient(app):
        pass
    with pytest.raises(exc.ClusterClosedError):
        title_of(cluster, pack(3, BOARD, 1))


def test_a_cluster_starts_once(document):
    cluster = Cluster.from_topology(document)
    app = FastAPI()
    add_cluster(app, cluster)
    with TestClient(app):
        pass
    with pytest.raises(exc.ExtensionSetupError, match="a topology"), TestClient(app):
        pass


def test_applications_without_a_cluster(app):
    with pytest.raises(exc.ExtensionSetupError, match=r"add_cluster.*APIRouter"):
        cluster_of(FastAPI())
    with pytest.raises(exc.ExtensionSetupError, match=r"not started.*APIRouter"):
        cluster_of(app)


def test_settings_that_contradict(app, document):
    with pytest.raises(exc.ExtensionSetupError, match="'shop' already has a cluster"):
        add_cluster(app, document)
    with (
        Cluster.from_topology(document) as cluster,
        pytest.raises(exc.ExtensionSetupError, match="pass driver to it"),
    ):
        add_cluster(FastAPI(), cluster, driver="mysqldb")


def test_a_topology_file(tmp_path, document):
    path = tmp_path / "topology.json"
    path.write_text(json.dumps(document))
    app = FastAPI()
    add_cluster(app, path, bookmark_keys=["a secret of 32 characters, or more"])
    with TestClient(app):
        assert cluster_of(app).source_report().source == str(path)


def test_starlette(document):
    async def show(request):
        async with cluster_of(request.app).async_session() as session:
            board = await session.get_one(Board, request.path_params["board_id"])
        return JSONResponse(board.title)

    app = Starlette(routes=[Route("/{board_id:int}", show)])
    add_cluster(app, document, health="/health")
    with TestClient(app) as client:
        board_id = client.portal.call(cluster_of(app).async_run, add_title, "Boats")
        assert client.get(f"/{board_id}").json() == "Boats"
        assert client.get(f"/{pack(999, BOARD, 1)}").status_code == 404
        assert client.get("/health").json()["down"] == []


# -- sessions -----------------------------------------------------------------


def test_sessions(app):
    @app.post("/{title}")
    async def add(title: str, session: SessionDep, commit: bool = True) -> str:
        board_id = await add_title(session, title)
        if commit:
            await session.commit()
        return str(board_id)

    @app.get("/{board_id}")
    async def show(board_id: BoardId, session: SessionDep) -> str:
        return (await session.get_one(Board, board_id)).title

    @app.get("/sync/{board_id}")
    def show_sync(board_id: BoardId, session: SyncSessionDep) -> str:
        return session.get_one(Board, board_id).title

    with opened(app) as client:
        board_id = client.post("/Boats").json()
        assert client.get(f"/{board_id}").json() == "Boats"
        assert client.get(f"/sync/{board_id}").json() == "Boats"
        lost = client.post("/Ships?commit=false").json()
        for path in ("", "/sync"):
            assert client.get(f"{path}/{lost}").status_code == 500
        assert busy(cluster_of(app)) == 0


def test_a_session_ends_before_the_response_is_sent(app):
    """A client that reads slowly holds no connection."""
    used = []

    class Counted(JSONResponse):
        async def __call__(self, *arguments: Any) -> None:
            used.append(busy(cluster_of(app)))
            await super().__call__(*arguments)

    @app.get("/")
    async def show(session: SessionDep) -> Any:
        await session.get(Board, pack(3, BOARD, 1))
        used.append(busy(cluster_of(app)))
        return Counted(None)

    @app.get("/sync")
    def show_sync(session: SyncSessionDep) -> Any:
        session.get(Board, pack(3, BOARD, 1))
        used.append(busy(cluster_of(app)))
        return Counted(None)

    with TestClient(app) as client:
        client.get("/")
        client.get("/sync")
    assert used == [1, 0, 1, 0]


@pytest.mark.parametrize("path", ["/", "/sync"])
def test_a_server_that_is_lost_at_the_end(app, path, caplog, monkeypatch):
    def lose(session):
        monkeypatch.setattr(session, "close", fail)
        return "ready"

    def fail():
        raise OperationalError("ROLLBACK", {}, Exception("gone"))

    @app.get("/")
    async def show(session: SessionDep) -> str:
        return lose(session.sync_session)

    @app.get("/sync")
    def show_sync(session: SyncSessionDep) -> str:
        return lose(session)

    with opened(app) as client:
        assert client.get(path).json() == "ready"
    assert "a session could not be rolled back" in caplog.text


@pytest.mark.parametrize("path", ["/", "/sync"])
def test_what_runs_after_the_endpoint_cannot_use_its_session(app, path):
    """It would take a connection that nothing gives back."""

    @app.get("/")
    async def later(session: SessionDep, tasks: BackgroundTasks) -> None:
        tasks.add_task(session.get, Board, pack(3, BOARD, 1))

    @app.get("/sync")
    def later_sync(session: SyncSessionDep, tasks: BackgroundTasks) -> None:
        tasks.add_task(session.get, Board, pack(3, BOARD, 1))

    with TestClient(app) as client:
        with pytest.raises(InvalidRequestError, match="permanently closed"):
            client.get(path)
        assert busy(cluster_of(app)) == 0


# -- ids ----------------------------------------------------------------------


def test_ids_are_strings_in_json():
    board_id = pack(3, BOARD, 1)
    for given in (board_id, str(board_id)):
        shown = BoardOut(id=given, title="Boats")
        assert shown.id == board_id
        assert shown.model_dump()["id"] == board_id
        assert shown.model_dump(mode="json")["id"] == str(board_id)
    assert str(board_id) in shown.model_dump_json()


@pytest.mark.parametrize(
    "value",
    [
        *("", "boats", "0", "01", "-1", "1.0", " 1", "1_0", "٣", "9" * 19, "9" * 400),
        *(0, -1, 1.5, True, None, 2**63),
        *(7, pack(3, BOARD + 1, 1), str(pack(3, BOARD + 1, 1)), 2**62 + 1),
    ],
)
def test_what_is_no_id_of_the_class(value):
    with pytest.raises(ValidationError, match="id"):
        BoardOut(id=value, title="Boats")


@pytest.mark.parametrize("other", [int | None, list[int], str, str | int])
def test_ids_are_ints(other):
    with pytest.raises(TypeError, match=r"IdOf marks an int, not .*list\[Annotated"):
        TypeAdapter(Annotated[other, IdOf(Board)])
    inside = TypeAdapter(list[BoardId] | BoardId | None)
    board_id = pack(3, BOARD, 1)
    assert inside.validate_python([str(board_id)]) == [board_id]
    assert inside.validate_python(None) is None


@pytest.mark.parametrize(
    "bounded",
    [Annotated[int, Field(gt=5), IdOf()], Annotated[int, IdOf(), Field(gt=5)]],
)
def test_ids_with_a_limit(bounded):
    adapter = TypeAdapter(bounded)
    assert adapter.validate_python("6") == 6
    with pytest.raises(ValidationError, match="greater than 5"):
        adapter.validate_python("5")
    assert adapter.json_schema()["type"] == "string"


def test_any_id(app):
    @app.get("/")
    async def echo(ids: Annotated[list[ObjectIdStr], Query()]) -> list[ObjectIdStr]:
        return ids

    ids = [str(pack(3, BOARD, 1)), "7", str(2**63 - 1)]
    with TestClient(app) as client:
        assert client.get("/", params={"ids": ids}).json() == ids
        assert client.get("/?ids=0").status_code == 422


def test_ids_and_pages_in_openapi(app):
    @app.get("/{board_id}", response_model=PageOf[BoardOut])
    async def show(board_id: BoardId, page: PageDep) -> None: ...

    found = app.openapi()
    shown = {"type": "string", "pattern": "^[1-9][0-9]{0,18}$"}
    in_path, limit, after = found["paths"]["/{board_id}"]["get"]["parameters"]
    schemas = found["components"]["schemas"]
    for schema in (in_path["schema"], schemas["BoardOut"]["properties"]["id"]):
        assert shown.items() <= schema.items()
        assert schema["examples"] == [str(pack(5, BOARD, 1))]
    assert (limit["name"], limit["schema"]["maximum"]) == ("limit", 100)
    assert (after["name"], after["required"]) == ("after", False)
    page = schemas["PageOf_BoardOut_"]
    assert set(page["required"]) == {"items", "next", "previous"}
    assert page["properties"]["items"]["items"]["$ref"].endswith("/BoardOut")


# -- pages --------------------------------------------------------------------


def test_pages(app):
    @app.get("/", response_model=PageOf[BoardOut])
    async def list_boards(page: PageDep, session: SessionDep) -> Page[Board]:
        boards = select(Board).order_by(Board.id).options(scatter())
        return await session.scatter_page(boards, page.limit, page.after)

    with TestClient(app) as client:
        for shard_id in range(3):
            cluster_of(app).run(add_board, shard_id)
        first = client.get("/?limit=2").json()
        after = {"limit": 2, "after": first["next"]}
        second = client.get("/", params=after).json()
        assert [len(page["items"]) for page in (first, second)] == [2, 1]
        assert second["items"] == [{"id": str(pack(2, BOARD, 1)), "title": "Boats"}]
        assert first["previous"] is second["next"] is None
        assert client.get("/?after=boats").status_code == 400
        for wrong in ("limit=0", "limit=101", "limit=x"):
            assert client.get(f"/?{wrong}").status_code == 422
    assert PageQuery() == PageQuery(limit=20, after=None)


def test_pages_beside_another_parameter(app):
    @app.get("/")
    async def show(page: PageDep, word: str = "") -> list[Any]:
        return [page.limit, page.after, word]

    @app.get("/long")
    async def show_long(page: Annotated[Long, Depends()], word: str) -> list[Any]:
        return [page.limit, page.after, word]

    with TestClient(app) as client:
        assert client.get("/?limit=3&word=sloop").json() == [3, None, "sloop"]
        assert client.get("/long?after=b&word=sloop").json() == [50, "b", "sloop"]
        assert client.get("/long?limit=1001&word=sloop").status_code == 422


# -- responses ----------------------------------------------------------------


_ERRORS = [
    (exc.InvalidBookmarkError("m", bookmark="b"), 400, None),
    (exc.UnknownShardError(shard_id=9, keyspace="objects", opened=4), 404, None),
    (exc.KeyTakenError(lookup="A", key="k", target_id=3, expires_at=None), 409, None),
    (exc.KeyNotHeldError(lookup="A", key="k", target_id=3), 409, None),
    (exc.ServerUnreachableError(server="s", error=OSError("no")), 503, "5"),
    (exc.CommitUnknownError(server="s"), 503, None),
    (exc.ScatterTimeoutError(servers=("s",), timeout=5.0), 503, "5"),
    (exc.ScatterFailedError({0: OSError("no")}), 503, "5"),
    (exc.ClusterClosedError("the cluster is closed"), 503, "5"),
    (exc.BlobTooLargeError(size=2, limit=1), 413, None),
    (OperationalError("UPDATE", {}, Exception(1213, "Deadlock")), 503, "5"),
    (OperationalError("UPDATE", {}, Exception("database is locked")), 503, "5"),
    (OperationalError("SELECT", {}, Exception("unknown column")), 500, None),
    (
        OperationalError("SELECT", {}, Exception("gone"), connection_invalidated=True),
        503,
        "5",
    ),
]


@pytest.mark.parametrize(
    ("error", "status", "after"),
    _ERRORS,
    ids=[f"{number} {type(e).__name__}" for number, (e, _, _) in enumerate(_ERRORS)],
)
def test_errors_have_a_status(app, error, status, after, caplog):
    @app.get("/")
    async def fail(session: SessionDep) -> None:
        raise error

    with opened(app) as client:
        response = client.get("/")
    assert response.status_code == status
    assert response.headers.get("Retry-After") == after
    assert "server s" not in response.text
    assert ("a request failed" in caplog.text) is (status in {404, 503})


def test_a_shard_without_its_database(tmp_path):
    """It is being moved, as far as the process knows."""
    app = FastAPI()
    add_cluster(app, sqlite_topology(tmp_path, servers=1, shards=4))

    @app.get("/")
    async def show(session: SessionDep) -> None:
        await session.get(Board, pack(3, BOARD, 1))

    with TestClient(app) as client:
        assert client.get("/").headers["Retry-After"] == "5"


@pytest.mark.parametrize("is_async", [True, False])
def test_handlers_of_the_application_take_precedence(document, is_async):
    app = FastAPI()

    @app.exception_handler(exc.StaleDataError)
    async def stale(request, error):
        return JSONResponse("stale", 410)

    add_cluster(app, document)

    def page(request, error):
        return JSONResponse("own page", error.status_code, headers=error.headers)

    async def async_page(request, error):
        return page(request, error)

    app.exception_handler(HTTPException)(async_page if is_async else page)

    @app.exception_handler(exc.KeyTakenError)
    async def taken(request, error):
        return JSONResponse("taken", 422)

    @app.get("/{number}")
    async def fail(number: int) -> None:
        raise [
            exc.StaleDataError(class_name="A", object_id=1, fields=["f"]),
            exc.KeyTakenError(lookup="A", key="k", target_id=3, expires_at=None),
            exc.ServerUnreachableError(server="s", error=OSError("no")),
        ][number]

    with TestClient(app) as client:
        answers = [client.get(f"/{number}") for number in range(3)]
    assert [answer.json() for answer in answers] == ["stale", "taken", "own page"]
    assert answers[2].headers["Retry-After"] == "5"


@pytest.mark.parametrize("kind", [503, FastAPIError, HTTPException])
def test_handlers_of_a_status_or_of_either_class(app, kind):
    @app.exception_handler(kind)
    async def page(request, error):
        return JSONResponse("own page", error.status_code)

    @app.get("/")
    async def fail() -> None:
        raise exc.ServerUnreachableError(server="s", error=OSError("no"))

    with TestClient(app) as client:
        assert client.get("/").json() == "own page"


def test_statuses_of_errors_in_openapi():
    app = FastAPI(responses=RESPONSES)

    @app.get("/")
    async def show() -> None: ...

    found = app.openapi()["paths"]["/"]["get"]["responses"]
    assert list(found) == ["200", "400", "404", "409", "413", "503"]
    assert found["409"] == {"description": "Conflict"}


@pytest.mark.parametrize(("key", "code"), [(1, 1013), (999, 1008)])
def test_errors_of_a_websocket(tmp_path, key, code):
    app = FastAPI()
    add_cluster(app, sqlite_topology(tmp_path, servers=1, shards=4))

    @app.websocket("/{shard_id}")
    async def show(shard_id: int, socket: WebSocket, session: SessionDep) -> None:
        await socket.accept()
        await session.get(Board, pack(shard_id, BOARD, 1))

    with (
        TestClient(app) as client,
        client.websocket_connect(f"/{key}") as socket,
        pytest.raises(WebSocketDisconnect) as closed,
    ):
        socket.receive_text()
    assert closed.value.code == code


# -- routes -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("down", "status", "every"),
    [
        ([], 200, 200),
        ([("server2", 1)], 200, 503),
        ([("server1", 0), ("server2", 1)], 503, 503),
    ],
    ids=["all are up", "one is down", "all are down"],
)
def test_health(tmp_path, down, status, every):
    document = with_files(sqlite_topology(tmp_path, servers=2, shards=2))
    for name, shard in down:
        # A directory is no database.
        path = tmp_path / name / f"db{shard:05d}.sqlite"
        path.unlink()
        path.mkdir()
    app = FastAPI()
    add_cluster(app, document, health="/health")
    with TestClient(app) as client:
        response = client.get("/health")
        assert response.status_code == status
        assert response.headers["Cache-Control"] == "no-store"
        assert response.json()["down"] == [name for name, _ in down]
        assert client.get("/health?all=1").status_code == every
    assert "/health" not in app.openapi()["paths"]


@pytest.mark.parametrize("kind", [FastAPI, Starlette])
def test_routes_before_the_application_has_started(document, kind):
    app = kind()
    add_cluster(app, document, health="/health", metrics="/metrics")
    for path in ("/health", "/metrics"):
        assert opened(app).get(path).status_code == 503


def test_routes_are_protected_by_the_dependencies_of_the_application(document):
    async def deny():
        raise HTTPException(401)

    app = FastAPI(dependencies=[Depends(deny)])
    add_cluster(app, document, health="/health", metrics="/metrics")
    with TestClient(app) as client:
        for path in ("/health", "/metrics"):
            assert client.get(path).status_code == 401
            assert client.head(path).status_code == 401


def test_metrics(document):
    app = FastAPI()
    add_cluster(app, document, metrics="/metrics")

    @app.post("/")
    async def add(cluster: ClusterDep) -> None:
        await cluster.async_run(add_title, "Boats")

    for _ in range(2):
        with TestClient(app) as client:
            client.post("/")
            response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=")
        assert 'commits_total{outcome="committed"} 1.0' in response.text
