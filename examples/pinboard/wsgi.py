"""The application for a WSGI server, and for the command ``flask``.

::

    export SQLA_SHARD_TOPOLOGY=topology.toml PINBOARD_SECRET_KEY=...
    flask --app examples.pinboard.wsgi shard create-all
    flask --app examples.pinboard.wsgi shard --help

Several processes must sign cookies with the same key; without one each start
signs everybody out.
"""

from __future__ import annotations

import os

from examples.pinboard.app import create_app
from sqla_shard import Cluster

__all__ = ["app"]

app = create_app(
    Cluster.from_file(os.environ["SQLA_SHARD_TOPOLOGY"]),
    secret_key=os.environ.get("PINBOARD_SECRET_KEY"),
)
