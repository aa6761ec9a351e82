"""The cluster of the application, and the session of a request."""

from __future__ import annotations

from examples.pinboard.models import Base
from sqla_shard.ext.flask import FlaskCluster

#: ``db.session`` is for reading, ``db.run`` for writing: it runs a function in
#: a transaction, again after a deadlock.
db = FlaskCluster(metadata=Base.metadata)
