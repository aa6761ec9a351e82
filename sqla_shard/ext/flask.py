"""Flask: a session for each request, ids in URLs, and commands.

It never commits for you, it has one cluster for an application, and it does
not know SQLAlchemy's own ``Session``.  Views that were written for
Flask-SQLAlchemy find ``get_or_404()``, ``first_or_404()``, ``paginate()`` and
``session.remove()``.  ::

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

A session belongs to an application context: a request has one, so has a
command of ``flask``, and so has each ``with app.app_context()``.  It is
opened when it is first used and closed when the context ends; what was not
committed is rolled back.  Two limits follow from Flask itself.  A request
made inside ``with app.app_context()``, as tests do, shares the context and
so the session with what is around it.  A thread has no context of yours; it
begins its own.

``SQLA_SHARD_HEALTH = "/health/shards"`` makes a route for load balancers and
monitoring.  It asks every server for a sign of life, and answers with
:meth:`.Health.to_mapping` as JSON, after two seconds at the latest: servers
that hang are among those that are ``down``.  The status is 200 as long as this
process can serve something: also when one server is down, or ZooKeeper, for
else one outage would take all processes out of service at once.  It is 503
when the cluster is closed or no server answers.  Monitoring asks for
``/health/shards?all=1``, which is 503 as soon as one server is down.  Names of
servers and texts of errors are for operators, a password is never part of
them: let nobody else reach that path.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from functools import wraps
from typing import Any
from typing import ParamSpec
from typing import TYPE_CHECKING
from typing import TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import MetaData
from sqlalchemy import Select
from sqlalchemy.exc import MultipleResultsFound
from sqlalchemy.exc import NoResultFound
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster import Cluster
from sqla_shard.exc import ExtensionSetupError
from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import MissingExtraError
from sqla_shard.exc import UnknownShardError
from sqla_shard.exc.summaries import summary
from sqla_shard.ids import check_type
from sqla_shard.ids import TypeRegistry
from sqla_shard.session import ShardSession

try:
    from flask import abort
    from flask import current_app
    from flask import Flask
    from flask import g
    from flask import has_app_context
    from flask import jsonify
    from flask import request
    from flask import Response
    from werkzeug.routing import BaseConverter
    from werkzeug.routing import Map
    from werkzeug.routing import ValidationError
except ImportError as error:
    raise MissingExtraError(
        package="Flask", extra="flask", reason=str(error)
    ) from error

from sqla_shard.ext.flask_cli import EXTENSION
from sqla_shard.ext.flask_cli import shard_commands
from sqla_shard.ext.flask_config import cache_of_file
from sqla_shard.ext.flask_config import configured
from sqla_shard.ext.flask_config import health_path
from sqla_shard.ext.flask_errors import register_errors
from sqla_shard.ext.flask_pagination import paginate
from sqla_shard.ext.flask_pagination import Pagination

if TYPE_CHECKING:
    from sqla_shard.cache import Cached

__all__ = ["ContextSession", "FlaskCluster", "ObjectIdConverter"]

P = ParamSpec("P")
T = TypeVar("T")

_log = logging.getLogger(__name__)

_SESSION = "_sqla_shard_session"


class ContextSession(ShardSession):
    """The session of an application context."""

    def remove(self) -> None:
        """Close it; the context opens another one when it needs it.

        That is what a ``scoped_session`` does, for code that was written
        for one.
        """
        if has_app_context() and g.get(_SESSION) is self:
            g.pop(_SESSION)
        self.close()


class FlaskCluster:
    """The cluster of a Flask application, and its sessions.

    One object can serve several applications, each with a cluster of its
    own.  What it gives is that of the current application, so it needs an
    application context.

    :param app: the application; or call :meth:`init_app` later.
    :param cluster: for every application that is given none; None makes one
        of the application's ``SQLA_SHARD_TOPOLOGY``.
    :param metadata: the tables that ``flask shard create-all`` creates.
    :param cached: the classes that are kept where ``SQLA_SHARD_CACHE`` says
        so, as for :meth:`Cluster.configure_cache`; not needed where its file
        has them.
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
        """Set up an application; call it before you add its URL rules.

        Its configuration is read now, and no database is connected to:

        ``SQLA_SHARD_TOPOLOGY``
            path of the topology file, relative to the working directory;
            or the URL of a ZooKeeper, such as
            ``zookeeper://zk1:2181,zk2:2181/prod``, which is asked now; or a
            topology, or a mapping in the form of the file.
        ``SQLA_SHARD_OPTIONS``
            a mapping of keyword arguments for :meth:`Cluster.from_file` or
            :meth:`Cluster.from_zookeeper`, such as ``driver`` and
            ``snapshot``.
        ``SQLA_SHARD_SESSION``
            a mapping of keyword arguments for the sessions of contexts, such
            as ``cross_shard`` and ``expire_on_commit``.
        ``SQLA_SHARD_ERRORS``
            whether errors of the cluster are answered with 400, 404, 409
            and 503 (:mod:`sqla_shard.ext.flask_errors`); by default they are
            errors like others, which Flask answers with 500.
        ``SQLA_SHARD_HEALTH``
            the path of a route that tells how the cluster is, such as
            ``/health/shards``; by default there is none.
        ``SQLA_SHARD_CACHE``
            the regions of the cache (:doc:`/howto/cache`): the path of a
            TOML file, or a mapping; by default there is none.  Where the
            file has classes, their modules are imported now.
        ``SQLA_SHARD_CACHE_PREFIX``
            what its keys begin with, the same for all processes; not needed
            where the file has it.

        :param cluster: in place of what the configuration says.
        :raises ExtensionSetupError: when the application is set up already,
            has neither topology nor cluster, an ``SQLA_SHARD_HEALTH``
            that is not a path, or an ``SQLA_SHARD_CACHE`` without a prefix
            or classes, or with two of them.
        :raises TopologyError: when the topology cannot be used.
        :raises TopologyUnavailableError: when a ZooKeeper does not answer,
            and there is no snapshot.
        :raises CacheConfigError: when the file of the cache cannot be used.
        :raises CacheOptionError: when what it says makes no sense.
        """
        if EXTENSION in app.extensions:
            raise ExtensionSetupError(
                "has a FlaskCluster already; call init_app() once for each "
                "application",
                app=app.name,
            )
        health = health_path(app)
        given = cluster or self._cluster
        with ExitStack() as stack:
            cluster = given or stack.enter_context(configured(app))
            self._keep(app, cluster)
            stack.pop_all()
        app.teardown_appcontext(_close_session)
        # One that the application has chosen itself stays.
        app.url_map.converters.setdefault("object_id", ObjectIdConverter)
        app.cli.add_command(shard_commands)
        if app.config.get("SQLA_SHARD_ERRORS"):
            register_errors(app)
        if health is not None:
            app.add_url_rule(
                health, "sqla_shard_health", partial(_health, cluster)
            )
        app.extensions[EXTENSION] = self
        self._clusters[app] = cluster

    def _keep(self, app: Flask, cluster: Cluster) -> None:
        """Give a cluster the cache that the configuration names."""
        regions: Any = app.config.get("SQLA_SHARD_CACHE")
        prefix: Any = app.config.get("SQLA_SHARD_CACHE_PREFIX")
        if not regions and prefix is not None:
            # Others would go on reading what this process makes old.
            raise ExtensionSetupError(
                f"has SQLA_SHARD_CACHE_PREFIX={prefix!r} and no "
                "SQLA_SHARD_CACHE; set both, or none",
                app=app.name,
            )
        if not regions:
            return
        classes: Mapping[Any, Any] | None = self._cached or None
        if isinstance(regions, (str, os.PathLike)):
            regions, classes, prefix = cache_of_file(
                app, regions, classes, prefix
            )
        wrong = None
        if not isinstance(regions, Mapping):
            kind = type(regions).__name__
            wrong = f"that is neither path nor mapping, but {kind}"
        elif not isinstance(prefix, str):
            wrong = "and no SQLA_SHARD_CACHE_PREFIX; set it to a short text"
        elif classes is None:
            wrong = "and no classes; write FlaskCluster(cached={Pin: region})"
        elif cluster.cache is not None:
            wrong = "and a cluster with a cache of its own; leave one out"
        if wrong is not None:
            raise ExtensionSetupError(
                f"has an SQLA_SHARD_CACHE {wrong}", app=app.name
            )
        cluster.configure_cache(regions, classes=classes or {}, prefix=prefix)

    @property
    def cluster(self) -> Cluster:
        """The cluster of the current application.

        :raises ExtensionSetupError: when :meth:`init_app` was not called
            for it.
        """
        app: Flask = current_app._get_current_object()  # type: ignore[attr-defined]  # of Werkzeug's proxy
        try:
            return self._clusters[app]
        except KeyError:
            pass
        raise ExtensionSetupError(
            "is not set up; call init_app(app) of the FlaskCluster that it "
            "uses",
            app=app.name,
        )

    @property
    def session(self) -> ShardSession:
        """The session of the current application context.

        It is opened on first use and closed, rolled back, when the context
        ends.  Call its ``commit()`` to keep what you wrote.

        :raises ExtensionSetupError: see :attr:`cluster`.
        """
        cluster = self.cluster
        session: ShardSession | None = g.get(_SESSION)
        if session is None:
            options = current_app.config.get("SQLA_SHARD_SESSION") or {}
            session = cluster.session(class_=ContextSession, **options)
            setattr(g, _SESSION, session)
        return session

    # -- what views ask for

    def get_or_404(
        self,
        entity: type[T],
        ident: Any,
        *,
        description: str | None = None,
        **options: Any,
    ) -> T:
        """Return an object by its id, or abort with 404.

        That is also done for what is not an id of the class, and for the id
        of a shard that is not open.

        :param description: for the page of the error.
        :param options: as for ``session.get()``.
        """
        try:
            found = self.session.get(entity, ident, **options)
        except (InvalidIdError, UnknownShardError):
            found = None
        if found is None:
            abort(404, description=description)
        return found

    def first_or_404(
        self, statement: Any, *, description: str | None = None
    ) -> Any:
        """Return the first row of a select, or abort with 404.

        :returns: the object, where one entity or column is selected; else
            the row.
        """
        found = self.session.execute(statement).unique().first()
        if found is None:
            abort(404, description=description)
        return found[0] if len(found) == 1 else found

    def one_or_404(
        self, statement: Any, *, description: str | None = None
    ) -> Any:
        """Return the only row of a select, or abort with 404.

        :returns: as :meth:`first_or_404`.
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

        One statement reads the rows, by LIMIT and OFFSET, and one counts
        them.  Over several shards that takes ``scatter(max_offset=...)``,
        which bounds how far it may go.

        :param statement: selects one entity or column, in an order.
        :param page: number of the page, from 1; by default the argument
            ``page`` of the request, or 1.
        :param per_page: rows of a page; by default the argument ``per_page``
            of the request, or 20.
        :param max_per_page: how many at most, whatever the request says.
        :param error_out: abort with 404 for a page that does not exist, or
            is farther than ``max_offset`` allows; otherwise it is empty, and
            the first one for a number that is none.
        :param count: whether to count the rows.
        """
        return paginate(
            self.session,
            statement,
            page=page,
            per_page=per_page,
            max_per_page=max_per_page,
            error_out=error_out,
            count=count,
        )

    def repeat_reads(
        self, view: Callable[P, T] | None = None, *, timeout: float = 3.0
    ) -> Any:
        """Repeat a view while a shard moves or a primary is exchanged.

        A decorator, below that of the route::

            @app.get("/boards/<object_id(2):board_id>")
            @db.repeat_reads
            def board(board_id): ...

        GET and HEAD requests alone are repeated, with a new session each
        time, after the errors after which :meth:`Cluster.run` repeats.  What
        the view does not commit itself is rolled back.

        :param timeout: seconds after which no further attempt begins.
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
                        # The next attempt opens another one, of the
                        # topology that is in use then.
                        _close_session(None)
                        raise
                    # Repeated, the view would do it twice.
                    failed.append(error)

            # The transaction of run() itself stays empty.
            done: T = self.cluster.run(attempt, timeout=timeout)
            if failed:
                raise failed[0]
            return done

        return repeated

    def run(self, fn: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run ``fn(session, *args)`` as :meth:`Cluster.run` does.

        That is in a session of its own, which is committed, and repeated
        when that is safe.  :attr:`session` does not take part: commit what
        it has written to the same rows before, and do not expect it to see
        the change in what it has read already.

        :returns: what ``fn`` returns.
        :raises ExtensionSetupError: see :attr:`cluster`.
        """
        return self.cluster.run(fn, *args, **kwargs)


def _health(cluster: Cluster) -> Response:
    """Tell how the cluster is; see above for the status."""
    found = cluster.health()
    response = jsonify(found.to_mapping())
    wanted = all if request.args.get("all") == "1" else any
    serves = wanted(wrong is None for wrong in found.servers.values())
    if found.state == "closed" or not serves:
        response.status_code = 503
    response.cache_control.no_store = True
    return response


def _close_session(error: BaseException | None) -> None:
    session: ShardSession | None = g.pop(_SESSION, None)
    if session is None:
        return
    try:
        session.close()
    except SQLAlchemyError as lost:
        # Nothing of it was to be kept, and the response is made: that a
        # server is lost by now must not turn it into an error.
        _log.warning(
            "a session could not be rolled back; its connections are closed: "
            "%s",
            summary(lost),
            extra={"action": "close session"},
        )


class ObjectIdConverter(BaseConverter):
    """Object ids in URLs: ``<object_id:id>``, of type 2 ``<object_id(2):id>``.

    The URL has the id in decimal, the view gets an ``int``.  What is not an
    id, or not one of the type, is 404; so is a bare local id.  Whether the
    object exists, and its shard is open, is for the view to find out.

    :param type_id: type that the ids must have; None for any.
    :raises InvalidIdError: when ``type_id`` is none, where the rule is
        added.
    """

    # Without leading zeros, which would give an object several URLs.
    regex = "[1-9][0-9]{0,18}"
    # As Werkzeug's numbers: tried before strings.
    weight = 50

    def __init__(self, url_map: Map, type_id: int | None = None) -> None:
        super().__init__(url_map)
        if type_id is not None:
            TypeRegistry().check(type_id, "the converter 'object_id'")
        self._type_id = type_id

    def to_python(self, value: str) -> int:
        """Return the id of a URL."""
        try:
            parts = check_type(int(value), self._type_id, "the URL")
        except InvalidIdError as error:
            raise ValidationError(str(error)) from error
        if parts.type_id == 0:
            raise ValidationError(f"{value} is a local id")
        return int(parts)

    def to_url(self, value: Any) -> str:
        """Return the id as it stands in a URL.

        :raises InvalidIdError: when it is not an id.
        :raises WrongTypeError: when it is an id of another type.
        """
        parts = check_type(value, self._type_id, "the URL")
        return str(int(parts))
