"""Flask: a session for each request, ids in URLs, and commands.

It never commits for you, it has one cluster for an application, and it does
not know SQLAlchemy's own ``Session`` or Flask-SQLAlchemy.  ::

    db = FlaskCluster(metadata=Base.metadata)

    def create_app():
        app = Flask(__name__)
        app.config["SQLA_SHARD_TOPOLOGY"] = "topology.toml"
        db.init_app(app)

        @app.get("/boards/<object_id(2):board_id>")
        def board(board_id):
            found = db.session.get(Board, board_id)
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
:meth:`.Health.to_mapping` as JSON.  The status is 200 as long as this process
can serve something: also when one server is down, or ZooKeeper, for else one
outage would take all processes out of service at once.  It is 503 when the
cluster is closed or no server answers.  Names of servers and texts of errors
are for operators, a password is never part of them: let nobody else reach
that path.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from typing import TYPE_CHECKING
from typing import TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import MetaData
from sqlalchemy.exc import SQLAlchemyError

from sqla_shard.cluster import Cluster
from sqla_shard.exc import ExtensionSetupError
from sqla_shard.exc import InvalidIdError
from sqla_shard.exc import MissingExtraError
from sqla_shard.ids import check_type
from sqla_shard.ids import TypeRegistry
from sqla_shard.session import ShardSession
from sqla_shard.topology import Topology

try:
    from flask import current_app
    from flask import Flask
    from flask import g
    from flask import jsonify
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

if TYPE_CHECKING:
    from sqla_shard.cache import Cached

__all__ = ["FlaskCluster", "ObjectIdConverter"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SESSION = "_sqla_shard_session"


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
        health = _health_path(app)
        given = cluster or self._cluster
        with ExitStack() as stack:
            cluster = given or stack.enter_context(_configured(app))
            self._keep(app, cluster)
            stack.pop_all()
        app.teardown_appcontext(_close_session)
        # One that the application has chosen itself stays.
        app.url_map.converters.setdefault("object_id", ObjectIdConverter)
        app.cli.add_command(shard_commands)
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
            regions, classes, prefix = _of_file(app, regions, classes, prefix)
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
            session = cluster.session()
            setattr(g, _SESSION, session)
        return session

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


def _configured(app: Flask) -> Cluster:
    """Return the cluster that the configuration of an application names."""
    topology: Any = app.config.get("SQLA_SHARD_TOPOLOGY")
    options: Any = app.config.get("SQLA_SHARD_OPTIONS") or {}
    if not isinstance(options, Mapping):
        raise ExtensionSetupError(
            "has an SQLA_SHARD_OPTIONS that is not a mapping, but "
            f"{type(options).__name__}",
            app=app.name,
        )
    if not topology:
        raise ExtensionSetupError(
            "has no topology; set SQLA_SHARD_TOPOLOGY to the path of a "
            "topology file before init_app(), or pass cluster=",
            app=app.name,
        )
    if isinstance(topology, (str, os.PathLike)):
        return Cluster.from_location(topology, **options)
    if isinstance(topology, (Mapping, Topology)):
        return Cluster.from_topology(topology, **options)
    raise ExtensionSetupError(
        "has an SQLA_SHARD_TOPOLOGY that is neither path nor topology, but "
        f"{type(topology).__name__}",
        app=app.name,
    )


def _of_file(
    app: Flask,
    path: str | os.PathLike[str],
    classes: Mapping[Any, Any] | None,
    prefix: Any,
) -> tuple[Mapping[str, Any], Mapping[Any, Any] | None, Any]:
    """Return the regions of a file, and what it says of the rest.

    :raises CacheConfigError: when it cannot be used.
    :raises ExtensionSetupError: when the application says the same, too.
    """
    from sqla_shard.cache.settings import read_cache

    file = read_cache(path)
    wrong = None
    # Programs beside the application would write for others than it reads.
    if file.classes is not None and classes is not None:
        wrong = "with classes, and FlaskCluster(cached=...)"
    elif file.prefix is not None and prefix not in (None, file.prefix):
        wrong = f"with another prefix than {prefix!r}"
    if wrong is not None:
        raise ExtensionSetupError(
            f"has an SQLA_SHARD_CACHE {wrong}; leave one out", app=app.name
        )
    return (
        file.regions,
        classes if file.classes is None else file.classes,
        prefix if file.prefix is None else file.prefix,
    )


def _health_path(app: Flask) -> str | None:
    path: Any = app.config.get("SQLA_SHARD_HEALTH")
    if path is None:
        return None
    if not isinstance(path, str) or not path.startswith("/"):
        raise ExtensionSetupError(
            f"has an SQLA_SHARD_HEALTH that is not the path of a route, but "
            f"{path!r}; write one such as '/health/shards'",
            app=app.name,
        )
    return path


def _health(cluster: Cluster) -> Response:
    """Tell how the cluster is; see above for the status."""
    found = cluster.health()
    response = jsonify(found.to_mapping())
    answers = any(wrong is None for wrong in found.servers.values())
    if found.state == "closed" or not answers:
        response.status_code = 503
    response.cache_control.no_store = True
    return response


def _close_session(error: BaseException | None) -> None:
    session: ShardSession | None = g.pop(_SESSION, None)
    if session is None:
        return
    try:
        session.close()
    except SQLAlchemyError:
        # Nothing of it was to be kept, and the response is made: that a
        # server is lost by now must not turn it into an error.
        _log.warning(
            "a session could not be rolled back; its connections are closed",
            exc_info=True,
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
