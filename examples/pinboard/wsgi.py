r"""The application for a WSGI server, and for the command ``flask``.

::

    export SQLA_SHARD_TOPOLOGY=topology.toml PINBOARD_SECRET_KEY=...
    sqla-shard schema -c examples/pinboard/alembic.ini provision --initial
    sqla-shard schema -c examples/pinboard/alembic.ini -n main \
        provision --initial
    flask --app examples.pinboard.wsgi shard --help

It makes no table and changes none: several processes would do it at the same
time.  A later version of the program may come with revisions; then it is
``upgrade`` in the place of ``provision --initial``, before it is started.

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
