"""FastAPI and Starlette: sessions as dependencies, ids and pages in OpenAPI.

::

    app = FastAPI()
    add_cluster(app, "topology.toml", health="/health/shards")

    @app.get("/boards/{board_id}")
    async def board(
        board_id: Annotated[int, IdOf(Board)], session: SessionDep
    ) -> BoardOut: ...

The lifespan of the application opens the cluster and closes it.  Errors of the
cluster become the responses of :mod:`sqla_shard.ext.responses`.

A session is opened for each request, without a connection, and closed after
the endpoint, before the response is sent; uncommitted changes are rolled back.
What runs later cannot use it.
"""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from inspect import isawaitable
from itertools import count
from typing import Annotated, Any, Generic, TypeVar

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.cluster.event_loops import AsyncShardSession
from sqla_shard.exc import ExtensionSetupError, InvalidIdError, MissingExtraError
from sqla_shard.ext.responses import (
    ERROR_RESPONSES,
    health_status,
    losses_logged,
    response_to,
)
from sqla_shard.models import ObjectMixin
from sqla_shard.session import ShardSession
from sqla_shard.topology import Topology

try:
    from fastapi import Depends, FastAPI, HTTPException
    from fastapi.exception_handlers import http_exception_handler
    from pydantic import BaseModel, Field
    from pydantic_core import core_schema
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException as AnyHTTPException
    from starlette.requests import HTTPConnection, Request
    from starlette.responses import JSONResponse, Response
    from starlette.websockets import WebSocket, WebSocketState
except ImportError as _error:
    raise MissingExtraError(
        package="FastAPI", extra="fastapi", reason=str(_error)
    ) from _error

__all__ = [
    "RESPONSES",
    "ClusterDep",
    "IdOf",
    "ObjectIdStr",
    "PageDep",
    "PageOf",
    "PageQuery",
    "SessionDep",
    "SyncSessionDep",
    "add_cluster",
    "cluster_of",
]

T = TypeVar("T")

_CLUSTER = "sqla_shard_cluster"


def add_cluster(
    app: Starlette,
    cluster: str | os.PathLike[str] | Mapping[str, Any] | Topology | Cluster,
    *,
    health: str | None = None,
    metrics: str | None = None,
    **options: Any,
) -> None:
    """Give an application a cluster, before it serves its first request.

    The lifespan of the application, inside that of the cluster, may use
    :func:`cluster_of`.  A handler that the application has for an error, or
    for ``HTTPException``, takes precedence.  The routes of health and metrics
    are 503 until the application has started, and dependencies of the
    application, ``FastAPI(dependencies=...)``, protect them, too.

    :param cluster: path of the topology file, or URL of a ZooKeeper, which is
        read when the application starts; a topology; or a cluster, which is
        closed when the application ends, so that it can start once.
    :param health: path of a health route, such as ``/health/shards``.  It
        pings every server, for two seconds at most, and returns
        :meth:`.Health.as_dict`.  The status is 503 only if no server responds
        or the cluster is closed: otherwise one outage would take all processes
        out of service.  With ``?all=1`` it is 503 as soon as one server is
        down.  Allow access only to operators.
    :param metrics: path of a route for Prometheus, such as ``/metrics``; it
        needs the extra ``prometheus``.
    :param options: keyword arguments for the cluster, such as ``driver``.
    :raises ExtensionSetupError: if the application has a cluster, or
        ``options`` are given for a cluster that is open.
    """
    if hasattr(app.state, _CLUSTER):
        raise _setup_error(app, "already has a cluster; call add_cluster() once")
    if options and isinstance(cluster, Cluster):
        raise _setup_error(
            app, f"has a cluster that is open; pass {', '.join(options)} to it"
        )
    inner = app.router.lifespan_context
    starts = count()
    measure = None if metrics is None else _add_metrics(app, metrics)
    setattr(app.state, _CLUSTER, None)

    @asynccontextmanager
    async def lifespan(started: Any) -> AsyncIterator[Any]:
        if next(starts) and isinstance(cluster, Cluster):
            raise _setup_error(
                app,
                "has closed its cluster when it ended; give add_cluster() a "
                "topology, from which each start opens one",
            )
        opened = _opened(cluster, options)
        setattr(app.state, _CLUSTER, opened)
        try:
            if measure is not None:
                measure(opened)
            async with inner(started) as state:
                yield state
        finally:
            setattr(app.state, _CLUSTER, None)
            await opened.aclose()

    app.router.lifespan_context = lifespan
    for kind in ERROR_RESPONSES:
        app.exception_handlers.setdefault(kind, _respond)
    if health is not None:
        _add_route(app, health, _health)


def _opened(cluster: Any, options: Mapping[str, Any]) -> Cluster:
    if isinstance(cluster, Cluster):
        return cluster
    if isinstance(cluster, (str, os.PathLike)):
        return Cluster.from_location(cluster, **options)
    return Cluster.from_topology(cluster, **options)


def cluster_of(app: Starlette) -> Cluster:
    """Return the cluster of an application.

    :raises ExtensionSetupError: if it has none, or is not started.
    """
    if not hasattr(app.state, _CLUSTER):
        raise _setup_error(
            app,
            "has no cluster; call add_cluster(app, ...), or, if another "
            "application mounts it, write its routes in an APIRouter",
        )
    cluster: Cluster | None = getattr(app.state, _CLUSTER)
    if cluster is None:
        raise _setup_error(
            app,
            "is not started; in tests write `with TestClient(app) as client:`. "
            "What another application mounts is never started: write its routes "
            "in an APIRouter",
        )
    return cluster


def _setup_error(app: Starlette, problem: str) -> ExtensionSetupError:
    return ExtensionSetupError(problem, app=getattr(app, "title", "Starlette"))


# -- dependencies -------------------------------------------------------------


# FastAPI calls what is no coroutine in a thread.
async def _cluster(connection: HTTPConnection) -> Cluster:
    return cluster_of(connection.app)


ClusterDep = Annotated[Cluster, Depends(_cluster)]
"""The cluster of the application, as for ``await cluster.async_run(fn)``."""


async def _session(cluster: ClusterDep) -> AsyncIterator[AsyncShardSession]:
    session = cluster.async_session(close_resets_only=False)
    try:
        yield session
    finally:
        with losses_logged():
            # close() alone would be interrupted when the task is cancelled.
            async with session:
                pass


def _sync_session(cluster: ClusterDep) -> Iterator[ShardSession]:
    session = cluster.session(close_resets_only=False)
    try:
        yield session
    finally:
        with losses_logged():
            session.close()


# A session that were open until the response is sent would hold its
# connections for as long as a slow client reads.  One that were reset, not closed,
# would connect again for a background task, and hold that connection for ever.
SessionDep = Annotated[AsyncShardSession, Depends(_session, scope="function")]
"""The session of a request, for endpoints with ``async def``."""

SyncSessionDep = Annotated[ShardSession, Depends(_sync_session, scope="function")]
"""The session of a request, for endpoints with ``def``."""


# -- ids ------------------------------------------------------------------------

# No leading zeros: otherwise an object would have several URLs.
_ID = re.compile("[1-9][0-9]{0,18}")


@dataclass(frozen=True)
class IdOf:
    """Marks an object id in a schema: an ``int`` in Python, a string in JSON.

    JavaScript rounds numbers of more than 53 bits. ::

        BoardId = Annotated[int, IdOf(Board)]

    Use it for fields of Pydantic models and for parameters of the path, the
    query or a header.  What is no id of the class is refused with status 422;
    the endpoint checks that the object exists.

    :param cls: the object class; None accepts any id.
    :raises TypeError: if it marks anything but an ``int``; raised when the
        schema is built.
    """

    cls: type[ObjectMixin] | None = None

    def _read(self, value: Any) -> int:
        if isinstance(value, str) and _ID.fullmatch(value):
            value = int(value)
        if type(value) is not int or not 0 < value < 2**63:
            raise ValueError("it is not the id of an object, in decimal")
        if self.cls is not None:
            definition = self.cls.__sqla_shard__
            try:
                definition.layout.shard_of(value, definition.type_id, self.cls.__name__)
            except InvalidIdError as error:
                raise ValueError(str(error)) from error
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        inner = handler(source)
        if inner["type"] != "int":
            raise TypeError(
                f"IdOf marks an int, not {source}; write Annotated[int, IdOf(...)] "
                "inside it, such as list[Annotated[int, IdOf(...)]]"
            )
        return core_schema.no_info_before_validator_function(
            self._read,
            inner,
            serialization=core_schema.to_string_ser_schema(when_used="json"),
        )

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        example = 241294492511762325
        if self.cls is not None:
            definition = self.cls.__sqla_shard__
            example = int(definition.layout.pack(5, definition.type_id, 1))
        return {
            "type": "string",
            "pattern": f"^{_ID.pattern}$",
            "examples": [str(example)],
        }


ObjectIdStr = Annotated[int, IdOf()]
"""The id of any object; see :class:`IdOf`."""


# -- pages ------------------------------------------------------------------------

_Limit = Annotated[int, Field(ge=1, le=100)]
_After = Annotated[
    str | None, Field(description="The `next` or `previous` of another page.")
]


class PageQuery(BaseModel):
    """The page of a list that a client asks for.

    For other limits, derive a class and use ``Annotated[..., Depends()]``.

    :ivar limit: maximum number of items.
    :ivar after: bookmark of the page; None for the first.
    """

    limit: _Limit = 20
    after: _After = None


# As Query(), the class could not have another query parameter beside it, up to
# FastAPI 0.150; with Depends() alone, a thread would make it.
async def _page(limit: _Limit = 20, after: _After = None) -> PageQuery:
    return PageQuery(limit=limit, after=after)


PageDep = Annotated[PageQuery, Depends(_page)]
"""The parameters ``limit`` and ``after`` of a request."""


class PageOf(BaseModel, Generic[T]):
    """A page of a list, as ``response_model=PageOf[PinOut]``.

    The endpoint returns a :class:`~sqla_shard.Page`.

    :ivar next: bookmark of the next page; None on the last page.
    :ivar previous: bookmark of the page before; None on the first page.
    """

    items: list[T]
    next: str | None
    previous: str | None


# -- responses ------------------------------------------------------------------

RESPONSES: dict[int | str, dict[str, Any]] = {
    answer.status: {} for answer in ERROR_RESPONSES.values()
}
"""The statuses of errors, for OpenAPI: ``FastAPI(responses=RESPONSES)``."""


async def _respond(request: HTTPConnection, error: Exception) -> Response | None:
    """Handle an error as the application handles its own ``HTTPException``."""
    status, retry_after = response_to(error)
    if (
        isinstance(request, WebSocket)
        and request.application_state is WebSocketState.CONNECTED
    ):
        # Too late for a response: try again later, or a violation of the policy.
        await request.close(1013 if status == 503 else 1008)
        return None
    headers = None if retry_after is None else {"Retry-After": str(retry_after)}
    known = request.app.exception_handlers
    kinds = [one for one in (status, HTTPException, AnyHTTPException) if one in known]
    handler: Any = known[kinds[0]] if kinds else http_exception_handler
    found = handler(request, HTTPException(status, headers=headers))
    response: Response = await found if isawaitable(found) else found
    return response


async def _health(request: Request) -> Response:
    """Respond to the health route; :func:`add_cluster` describes the status."""
    found = await cluster_of(request.app).async_health()
    every = request.query_params.get("all") == "1"
    return JSONResponse(
        found.as_dict(),
        health_status(found, every=every),
        headers={"Cache-Control": "no-store"},
    )


def _add_metrics(app: Starlette, path: str) -> Callable[[Cluster], None]:
    """Add the route of metrics; return a function that begins to record."""
    # Import the package only if there is such a route.
    from sqla_shard.monitor.prometheus import CONTENT_TYPE, PrometheusMetrics

    async def respond(request: Request) -> Response:
        recorded: PrometheusMetrics = request.app.state.sqla_shard_metrics
        return Response(recorded.render(), media_type=CONTENT_TYPE)

    def record(cluster: Cluster) -> None:
        app.state.sqla_shard_metrics = PrometheusMetrics(cluster)

    _add_route(app, path, respond)
    return record


def _add_route(
    app: Starlette, path: str, respond: Callable[[Request], Awaitable[Response]]
) -> None:
    async def route(request: Request) -> Response:
        if getattr(app.state, _CLUSTER) is None:
            raise HTTPException(503, "the application has not started")
        return await respond(request)

    # FastAPI's add_route() ignores the dependencies of the application.
    add = app.add_api_route if isinstance(app, FastAPI) else app.add_route
    add(path, route, methods=["GET", "HEAD"], include_in_schema=False)
