"""The cluster of the application, and the session of a request."""

from __future__ import annotations

from flask import current_app
from flask import Flask

from examples.pinboard.importing import Importer
from examples.pinboard.models import Base
from sqla_shard import Cluster
from sqla_shard.ext.flask import FlaskCluster

__all__ = ["connect", "db", "importer"]

_IMPORTER = "pinboard-importer"

#: ``db.session`` is for reading, ``db.run`` for writing: it repeats what it
#: is given after a deadlock, in a transaction of its own.
db = FlaskCluster(metadata=Base.metadata)


def connect(app: Flask, cluster: Cluster) -> None:
    """Give an application its cluster, and an importer that writes to it."""
    db.init_app(app, cluster)
    app.extensions[_IMPORTER] = Importer(cluster)


def importer() -> Importer:
    """Return the importer of the application."""
    found: Importer = current_app.extensions[_IMPORTER]
    return found
