"""Flask: a session for each request, ids in URLs, and commands.

The extension never commits for you, has one cluster per application, and does
not manage SQLAlchemy's own ``Session``.  Views that were written for
Flask-SQLAlchemy can use ``get_or_404()``, ``first_or_404()``, ``paginate()``
and ``session.remove()``.  ::

    db = FlaskCluster(metadata=Base.metadata)

    def create_app():
        app = Flask(__name__)
        app.config["SQLA_SHARD_TOPOLOGY"] = "topology.toml"
        db.init_app(app)

        @app.get("/boards/<object_id(2):board_id>")
        def board(board_id):
            found = db.get_or_404(Board, board_id)
            ...

        return app

Each application context has its own session: each request, each command of
``flask``, and each ``with app.app_context()``.  The session is opened on first
use and closed at the end of the context; uncommitted changes are rolled back.
Two limits follow from Flask itself.  A request that is made inside ``with
app.app_context()``, as tests do, shares that context and its session.  A new
thread has no application context; it has to push its own.

``SQLA_SHARD_HEALTH = "/health/shards"`` adds a route for load balancers and
monitoring.  It pings every server and returns :meth:`.Health.as_dict` as JSON,
after two seconds at most; servers that hang are listed in ``down``.  The
status is 200 if this process can serve some requests, even if one server or
ZooKeeper is down: otherwise one outage would take all processes out of service
at the same time.  It is 503 if the cluster is closed or no server responds.
Monitoring should request ``/health/shards?all=1``, which is 503 as soon as one
server is down.  The response contains names of servers and error messages, but
no passwords; do not expose it to the public.

``SQLA_SHARD_METRICS = "/metrics"`` adds a route for Prometheus, with the
metrics of :mod:`sqla_shard.monitor.prometheus`; it needs the extra
``prometheus``.

With ``SQLA_SHARD_ERRORS``, errors of the cluster are HTTP responses with the
statuses of :mod:`sqla_shard.ext.responses`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial, wraps
from typing import (
    Any,
    Concatenate,
    overload,
    ParamSpec,
    TYPE_CHECKING,
    TypeVar,
    TypeVarTuple,
)
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, event, MetaData, Select
from sqlalchemy.exc import MultipleResultsFound, NoResultFound, SQLAlchemyError
from sqlalchemy.orm import Mapper

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.exc import (
    ExtensionSetupError,
    InvalidIdError,
    MissingExtraError,
    ScatterLimitError,
    UnknownShardError,
)
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout, TypeRegistry
from sqla_shard.session import ShardSession
from sqla_shard.session.commit import CommitReport
from sqla_shard.session.transaction import CrossShard
from sqla_shard.topology import Topology
from sqla_shard.util import sqlalchemy_private as private

try:
    from flask import (
        abort,
        current_app,
        Flask,
        g,
        has_app_context,
        jsonify,
        request,
        Response,
    )
    from flask.typing import ResponseReturnValue
    from werkzeug.exceptions import default_exceptions
    from werkzeug.routing import BaseConverter, Map, ValidationError
except ImportError as _error:
    raise MissingExtraError(
        package="Flask", extra="flask", reason=str(_error)
    ) from _error

from sqla_shard.ext.flask_commands import EXTENSION, shard_commands
from sqla_shard.ext.flask_pagination import count_rows, page_argument, Pagination
from sqla_shard.ext.responses import (
    ERROR_RESPONSES,
    health_status,
    losses_logged,
    response_to,
)

if TYPE_CHECKING:
    from sqla_shard.cache import Cached

__all__ = ["ContextSession", "FlaskCluster", "ObjectIdConverter"]


def register_errors(app: Flask) -> None:
    """Register handlers that map errors of the cluster to HTTP statuses.

    Handlers that the application registers later for the same errors take
    precedence.  Its handlers for the statuses render the pages.
    """
    for kind in ERROR_RESPONSES:
        app.register_error_handler(kind, _answer)


def _answer(error: Exception) -> ResponseReturnValue:
    status, retry_after = response_to(error)
    response: Any = default_exceptions[status]()
    if retry_after is not None:
        response.retry_after = retry_after
    return current_app.handle_http_exception(response)


P = ParamSpec("P")

T = TypeVar("T")

Ts = TypeVarTuple("Ts")

_SESSION = "_sqla_shard_session"


#: Options of statements whose rows are read while others are executed.
_STREAMS = frozenset(["stream_results", "yield_per"])


class ContextSession(ShardSession):
    """The session of an application context.

    A transaction of a server reads a snapshot, which does not have what
    ``run()``, ``sign_up()`` or another session commits in the meantime.  If
    such a one has committed in this context, the next statement of this
    session ends its transaction, unless that has more than read: it has
    changes, locks, a savepoint, a connection of the application, textual SQL,
    or rows that are still being read.

    :ivar is_outdated: whether another session of the context has committed.
    """

    is_outdated: bool = False
    _has_only_read = True

    def _reset_transaction(self) -> None:
        super()._reset_transaction()
        self._has_only_read = True

    def _end_outdated(self) -> None:
        self.is_outdated = False
        if (
            self.has_connections
            and self._has_only_read
            and self.log.first is None
            and not self.in_nested_transaction()
            and not (self.new or self.dirty or self.deleted)
        ):
            self.commit()

    def _execute_internal(self, statement: Any, *args: Any, **kwargs: Any) -> Any:
        if self.is_outdated:
            self._end_outdated()
        self._has_only_read = self._has_only_read and _only_reads(
            statement, kwargs.get("execution_options")
        )
        return super()._execute_internal(statement, *args, **kwargs)

    def get(self, entity: type[T] | Mapper[T], ident: Any, **kwargs: Any) -> T | None:
        """Return the object of an id; see :meth:`.ShardSession.get`."""
        if self.is_outdated:
            self._end_outdated()
        return super().get(entity, ident, **kwargs)

    def get_many(
        self, entity: type[T], ids: Iterable[int], **kwargs: Any
    ) -> list[T | None]:
        """Return the objects of ids; see :meth:`.ShardSession.get_many`."""
        if self.is_outdated:
            self._end_outdated()
        return super().get_many(entity, ids, **kwargs)

    def connection(
        self, bind_arguments: Any = None, execution_options: Any = None
    ) -> Connection:
        """Return the connection to one shard; see ``Session.connection``."""
        self._has_only_read = False
        return super().connection(bind_arguments, execution_options)

    def remove(self) -> None:
        """Close this session; the context opens a new one on next use.

        Use it in code that was written for a ``scoped_session``.
        """
        if has_app_context() and g.get(_SESSION) is self:
            g.pop(_SESSION)
        self.close()


def _only_reads(statement: Any, options: Any) -> bool:
    """Return whether a statement leaves neither locks nor unread rows.

    A SELECT without FROM may be one of GET_LOCK().
    """
    return (
        isinstance(statement, Select)
        and private.for_update_arg(statement) is None
        and _STREAMS.isdisjoint(statement.get_execution_options())
        and _STREAMS.isdisjoint(options or ())
        # The last of these plans the statement, which takes 100 times as long.
        and bool(
            statement.columns_clause_froms
            or private.from_obj(statement)
            or statement.get_final_froms()
        )
    )


def _note_commit(cluster: Cluster, report: CommitReport) -> None:
    """Handle ``commit_ended``."""
    session: Any = g.get(_SESSION) if has_app_context() else None
    if session is not None and report.outcome != "read":
        session.is_outdated = True


class FlaskCluster:
    """The cluster of a Flask application, and its sessions.

    One object can serve several applications, each with its own cluster.
    Attributes and methods use the cluster of the current application, so
    they need an application context.

    :param app: the application; or call :meth:`init_app` later.
    :param cluster: the default cluster of applications; by default, each
        application opens its ``SQLA_SHARD_TOPOLOGY``.
    :param metadata: the tables that ``flask shard create-all`` creates.
    :param cached: the classes whose rows are cached, with their regions, as
        for :meth:`Cluster.configure_cache`; only if the file in
        ``SQLA_SHARD_CACHE`` does not define them.
    :raises ExtensionSetupError: see :meth:`init_app`.
    :raises TopologyError: see :meth:`init_app`.
    """

    def __init__(
        self,
        app: Flask | None = None,
        cluster: Cluster | None = None,
        *,
        metadata: MetaData | None = None,
        cached: Mapping[Any, str | Cached] | None = None,
    ) -> None:
        self.metadata = metadata
        self._cached = dict(cached or {})
        self._cluster = cluster
        self._clusters: WeakKeyDictionary[Flask, Cluster] = WeakKeyDictionary()
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask, cluster: Cluster | None = None) -> None:
        """Set up an application; call it before adding its URL rules.

        It reads the configuration of the application and does not connect to
        databases:

        ``SQLA_SHARD_TOPOLOGY``
            path of the topology file, relative to the working directory; or
            the URL of a ZooKeeper, such as
            ``zookeeper://zk1:2181,zk2:2181/prod``, which is read immediately;
            or a topology; or a mapping with the content of a topology file.
        ``SQLA_SHARD_OPTIONS``
            a mapping of keyword arguments for :meth:`Cluster.from_file` or
            :meth:`Cluster.from_zookeeper`, such as ``driver`` and
            ``snapshot``.
        ``SQLA_SHARD_SESSION``
            a mapping of keyword arguments for sessions, such as
            ``cross_shard`` and ``expire_on_commit``.
        ``SQLA_SHARD_ERRORS``
            if true, errors of the cluster become responses with status 400,
            404, 409 or 503, as in the table above; by default,
            Flask responds with status 500.
        ``SQLA_SHARD_HEALTH``
            path of a health route, such as ``/health/shards``; none by
            default.
        ``SQLA_SHARD_CACHE``
            the cache configuration (:doc:`/howto/cache`): path of a TOML
            file, or a mapping of regions; no cache by default.  If the file
            defines classes, their modules are imported immediately.
        ``SQLA_SHARD_CACHE_PREFIX``
            prefix of all cache keys, the same for all processes; only if the
            file does not define it.

        :param cluster: used instead of ``SQLA_SHARD_TOPOLOGY``.
        :raises ExtensionSetupError: if the application was already set up,
            has neither a topology nor a cluster, or has an invalid
            ``SQLA_SHARD_HEALTH``; or if the prefix or the classes of
            ``SQLA_SHARD_CACHE`` are missing or defined twice.
        :raises TopologyError: if the topology is not valid.
        :raises TopologyUnavailableError: if ZooKeeper does not respond
            and there is no snapshot.
        :raises CacheConfigError: if the cache file is not valid.
        :raises OptionError: if the cache configuration is not valid.
        """
        if EXTENSION in app.extensions:
            raise ExtensionSetupError(
                "already has a FlaskCluster; call init_app() once for each application",
                app=app.name,
            )
        health = _route_path(app, "SQLA_SHARD_HEALTH", "/health/shards")
        metrics = _route_path(app, "SQLA_SHARD_METRICS", "/metrics")
        given = cluster or self._cluster
        with ExitStack() as stack:
            cluster = given or stack.enter_context(_configured_cluster(app))
            self._configure_cache(app, cluster)
            stack.pop_all()
        event.listen(cluster, "commit_ended", _note_commit)
        app.teardown_appcontext(_close_session)
        # A converter of the application takes precedence.
        app.url_map.converters.setdefault("object_id", _converter_for(cluster))
        app.cli.add_command(shard_commands)
        if app.config.get("SQLA_SHARD_ERRORS"):
            register_errors(app)
        if health is not None:
            app.add_url_rule(health, "sqla_shard_health", partial(_health, cluster))
        if metrics is not None:
            _add_metrics(app, metrics, cluster)
        app.extensions[EXTENSION] = self
        self._clusters[app] = cluster

    def _configure_cache(self, app: Flask, cluster: Cluster) -> None:
        """Configure the cache of an application's cluster."""
        regions: Any = app.config.get("SQLA_SHARD_CACHE")
        prefix: Any = app.config.get("SQLA_SHARD_CACHE_PREFIX")
        if not regions and prefix is not None:
            # Other processes would read rows that this one does not
            # invalidate.
            raise ExtensionSetupError(
                f"has SQLA_SHARD_CACHE_PREFIX={prefix!r}, but no "
                "SQLA_SHARD_CACHE; set both or neither",
                app=app.name,
            )
        if not regions:
            return
        classes: Mapping[Any, Any] | None = self._cached or None
        if isinstance(regions, (str, os.PathLike)):
            regions, classes, prefix = _read_cache_file(app, regions, classes, prefix)
        problem = None
        if not isinstance(regions, Mapping):
            kind = type(regions).__name__
            problem = f"that must be a path or a mapping, not {kind}"
        elif not isinstance(prefix, str):
            problem = "but no SQLA_SHARD_CACHE_PREFIX; set it to a short text"
        elif classes is None:
            problem = "but no classes; pass FlaskCluster(cached={Pin: region})"
        elif cluster.cache is not None:
            problem = "but its cluster already has a cache; remove one"
        if problem is not None:
            raise ExtensionSetupError(
                f"has an SQLA_SHARD_CACHE {problem}", app=app.name
            )
        cluster.configure_cache(regions, classes=classes or {}, prefix=prefix)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the current application.

        :raises ExtensionSetupError: if :meth:`init_app` was not called for
            it.
        """
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # of Werkzeug's proxy
        try:
            return self._clusters[app]
        except KeyError:
            pass
        raise ExtensionSetupError(
            "is not set up; call init_app(app) of its FlaskCluster", app=app.name
        )

    @property
    def session(self) -> ShardSession:
        """The session of the current application context.

        It is opened on first use and closed at the end of the context.
        Changes are rolled back unless you call ``commit()``.

        :raises ExtensionSetupError: see :attr:`cluster`.
        """
        cluster = self.cluster
        session: ShardSession | None = g.get(_SESSION)
        if session is None:
            options = current_app.config.get("SQLA_SHARD_SESSION") or {}
            session = cluster.session(class_=ContextSession, **options)
            setattr(g, _SESSION, session)
        return session

    def get_or_404(
        self,
        entity: type[T],
        ident: Any,
        *,
        description: str | None = None,
        **options: Any,
    ) -> T:
        """Return an object by its id, or abort with 404.

        It also aborts if ``ident`` is not an id of the class, or is on a shard
        that is not open.

        :param description: message for the error page.
        :param options: options of ``session.get()``.
        """
        try:
            found = self.session.get(entity, ident, **options)
        except (InvalidIdError, UnknownShardError):
            found = None
        if found is None:
            abort(404, description=description)
        return found

    def first_or_404(self, statement: Any, *, description: str | None = None) -> Any:
        """Return the first row of a select, or abort with 404.

        :returns: the value if one entity or column is selected, else the
            row.
        """
        found = self.session.execute(statement).unique().first()
        if found is None:
            abort(404, description=description)
        return found[0] if len(found) == 1 else found

    def one_or_404(self, statement: Any, *, description: str | None = None) -> Any:
        """Return the only row of a select, or abort with 404.

        :returns: see :meth:`first_or_404`.
        """
        try:
            found = self.session.execute(statement).unique().one()
        except (NoResultFound, MultipleResultsFound):
            abort(404, description=description)
        return found[0] if len(found) == 1 else found

    def paginate(
        self,
        statement: Select[Any],
        *,
        page: int | None = None,
        per_page: int | None = None,
        max_per_page: int = 100,
        error_out: bool = True,
        count: bool = True,
    ) -> Pagination[Any]:
        """Return a numbered page of a select, for templates with page links.

        One statement reads the rows with LIMIT and OFFSET, and one counts
        them.  A select on several shards needs ``scatter(max_offset=...)``,
        which limits the offset.

        :param statement: select of one entity or column, with ORDER BY.
        :param page: number of the page, from 1; by default the argument
            ``page`` of the request, or 1.
        :param per_page: rows per page; by default the argument ``per_page``
            of the request, or 20.
        :param max_per_page: upper limit of ``per_page``.
        :param error_out: abort with 404 if the page does not exist, exceeds
            ``max_offset``, or is not a valid number.  If false, such a page
            is empty, and an invalid number is replaced by the default.
        :param count: whether to count the rows.
        """
        page = page_argument("page", page, 1, error_out)
        per_page = page_argument("per_page", per_page, 20, error_out)
        per_page = min(per_page, max_per_page)
        rows = statement.limit(per_page).offset((page - 1) * per_page)
        try:
            items = list(self.session.scalars(rows).unique())
        except ScatterLimitError as error:
            if error.limit != "max_offset" or not error_out:
                raise
            abort(404)
        if not items and page > 1 and error_out:
            abort(404)
        total = count_rows(self.session, statement) if count else None
        return Pagination(items, page, per_page, total)

    def repeat_reads(
        self, view: Callable[P, T] | None = None, *, timeout: float = 3.0
    ) -> Any:
        """Repeat a view while a shard moves or a primary is replaced.

        It is a decorator, below that of the route::

            @app.get("/boards/<object_id(2):board_id>")
            @db.repeat_reads
            def board(board_id): ...

        Only GET and HEAD requests are repeated, after the same errors as in
        :meth:`Cluster.run`, each time with a new session.  Uncommitted
        changes of the view are rolled back.

        :param timeout: seconds after which no further attempt is made.
        """
        if view is None:
            return partial(self.repeat_reads, timeout=timeout)

        @wraps(view)
        def repeated(*args: P.args, **kwargs: P.kwargs) -> T:
            if request.method not in ("GET", "HEAD"):
                return view(*args, **kwargs)

            failed: list[SQLAlchemyError] = []

            def attempt(_: ShardSession) -> Any:
                try:
                    return view(*args, **kwargs)
                except SQLAlchemyError as error:
                    session: ShardSession | None = g.get(_SESSION)
                    if session is None or not session.has_committed:
                        # The next attempt opens a session with the current
                        # topology.
                        _close_session(None)
                        raise
                    # Repeating the view would write the rows twice.
                    failed.append(error)

            # The transaction of run() itself is not used.
            done: T = self.cluster.run(attempt, timeout=timeout)
            if failed:
                raise failed[0]
            return done

        return repeated

    @overload
    def run(
        self,
        fn: Callable[Concatenate[ShardSession, P], T],
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> T: ...

    @overload
    def run(
        self,
        fn: Callable[[ShardSession, *Ts], T],
        *args: *Ts,
        attempts: int | None = ...,
        timeout: float = ...,
        key: str | None = ...,
        cross_shard: CrossShard = ...,
    ) -> T: ...

    def run(  # type: ignore[misc]  # its options are not those of fn
        self, fn: Callable[..., T], *args: Any, **kwargs: Any
    ) -> T:
        """Run ``fn(session, *args)`` in a transaction, as :meth:`Cluster.run`.

        It has its own session, is committed, and is repeated if that is
        safe.  :attr:`session` is not used: commit its writes to the same rows
        first.  Its next statement reads what was committed, if it has only
        read so far; objects that it has already loaded do not change.

        :returns: what ``fn`` returns.
        :raises ExtensionSetupError: see :attr:`cluster`.
        """
        return self.cluster.run(fn, *args, **kwargs)


def _configured_cluster(app: Flask) -> Cluster:
    """Return the cluster of ``SQLA_SHARD_TOPOLOGY``."""
    topology: Any = app.config.get("SQLA_SHARD_TOPOLOGY")
    options: Any = app.config.get("SQLA_SHARD_OPTIONS") or {}
    if not isinstance(options, Mapping):
        problem = (
            "has an SQLA_SHARD_OPTIONS that must be a mapping, not "
            f"{type(options).__name__}"
        )
    elif not topology:
        problem = (
            "has no topology; set SQLA_SHARD_TOPOLOGY to the path of a "
            "topology file before init_app(), or pass cluster="
        )
    elif isinstance(topology, (str, os.PathLike)):
        return Cluster.from_location(topology, **options)
    elif isinstance(topology, (Mapping, Topology)):
        return Cluster.from_topology(topology, **options)
    else:
        problem = (
            "has an SQLA_SHARD_TOPOLOGY that must be a path or a topology, "
            f"not {type(topology).__name__}"
        )
    raise ExtensionSetupError(problem, app=app.name)


def _read_cache_file(
    app: Flask,
    path: str | os.PathLike[str],
    classes: Mapping[Any, Any] | None,
    prefix: Any,
) -> tuple[Mapping[str, Any], Mapping[Any, Any] | None, Any]:
    """Return the regions of a cache file, its classes and its prefix.

    :param classes: the classes of the extension, if the file has none.
    :param prefix: the prefix of the application, if the file has none.
    """
    from sqla_shard.cache.regions import read_cache

    file = read_cache(path)
    problem = None
    # Commands that read the same file would invalidate keys other than those
    # that the application reads.
    if file.classes is not None and classes is not None:
        problem = "with classes, and FlaskCluster(cached=...)"
    elif file.prefix is not None and prefix not in (None, file.prefix):
        problem = f"with another prefix than {prefix!r}"
    if problem is not None:
        raise ExtensionSetupError(
            f"has an SQLA_SHARD_CACHE {problem}; remove one", app=app.name
        )
    return (
        file.regions,
        classes if file.classes is None else file.classes,
        prefix if file.prefix is None else file.prefix,
    )


def _route_path(app: Flask, name: str, example: str) -> str | None:
    path: Any = app.config.get(name)
    if path is None or (isinstance(path, str) and path.startswith("/")):
        return path
    raise ExtensionSetupError(
        f"has an {name} that must be the path of a route, such as "
        f"{example!r}, not {path!r}",
        app=app.name,
    )


def _add_metrics(app: Flask, path: str, cluster: Cluster) -> None:
    """Add the route of ``SQLA_SHARD_METRICS``."""
    # Import the package only if there is such a route.
    from sqla_shard.monitor.prometheus import CONTENT_TYPE, PrometheusMetrics

    metrics = PrometheusMetrics(cluster)

    def respond() -> Response:
        return Response(metrics.render(), content_type=CONTENT_TYPE)

    app.add_url_rule(path, "sqla_shard_metrics", respond)


def _health(cluster: Cluster) -> Response:
    """Respond to the health route; the module describes the status."""
    found = cluster.health()
    response = jsonify(found.as_dict())
    every = request.args.get("all") == "1"
    response.status_code = health_status(found, every=every)
    response.cache_control.no_store = True
    return response


def _close_session(error: BaseException | None) -> None:
    session: ShardSession | None = g.pop(_SESSION, None)
    if session is not None:
        with losses_logged():
            session.close()


class ObjectIdConverter(BaseConverter):
    """Object ids in URLs: ``<object_id:id>``, of type 2 ``<object_id(2):id>``.

    The URL contains the id in decimal; the view gets an ``int``.  Other
    values, local ids and ids of other types are 404.  The view has to check
    that the object exists and its shard is open.

    :param type_id: type of the ids; None accepts any.
    :param keyspace: keyspace of the ids, ``<object_id(2, "photos"):id>``;
        required if the keyspaces of the topology have different id layouts.
    :raises InvalidIdError: if ``type_id`` is not a valid type; raised when
        the rule is added.
    :raises UnknownKeyspaceError: if the keyspace does not exist or is missing.
    """

    #: Returns the layout of a keyspace.
    _layout_of: Callable[[str | None], IdLayout] | None = None

    # No leading zeros: otherwise an object would have several URLs.
    regex = "[1-9][0-9]{0,18}"
    # Use the weight of Werkzeug's number converters, which match before
    # strings.
    weight = 50

    def __init__(
        self, url_map: Map, type_id: int | None = None, keyspace: str | None = None
    ) -> None:
        super().__init__(url_map)
        self._layout = DEFAULT_LAYOUT
        if self._layout_of is not None:
            self._layout = self._layout_of(keyspace)
        if type_id is not None:
            TypeRegistry().check(type_id, "the converter 'object_id'", self._layout)
        self._type_id = type_id

    def to_python(self, value: str) -> int:
        """Return the id of a URL."""
        try:
            parts = self._layout.check_type(int(value), self._type_id, "the URL")
        except InvalidIdError as error:
            raise ValidationError(str(error)) from error
        if self._layout.names_type and parts.type_id == 0:
            raise ValidationError(f"{value} is a local id")
        return int(parts)

    def to_url(self, value: Any) -> str:
        """Return the decimal form of an id.

        :raises InvalidIdError: if it is not an id.
        :raises WrongTypeError: if it is an id of another type.
        """
        parts = self._layout.check_type(value, self._type_id, "the URL")
        return str(int(parts))


def _converter_for(cluster: Cluster) -> type[ObjectIdConverter]:
    """Return the converter for ids with the layouts of a topology."""

    class Converter(ObjectIdConverter):
        _layout_of = staticmethod(lambda name: cluster.topology.id_layout(name))

    return Converter
