r"""The application for a WSGI server, and for the command ``flask``.

::

    export SQLA_SHARD_TOPOLOGY=topology.toml PINBOARD_SECRET_KEY=...
    sqla-shard schema -c examples/pinboard/alembic.ini provision --initial
    sqla-shard schema -c examples/pinboard/alembic.ini -n lookup \
        provision --initial
    flask --app examples.pinboard.wsgi shard --help

It makes no table and changes none: several processes would do it at the same
time.  A later version of the program may come with revisions; then it is
``upgrade`` in the place of ``provision --initial``, before it is started.

``PINBOARD_CACHE=10.0.0.1:11211,10.0.0.2:11211`` caches rows on these memcached
nodes; all processes have to name the same.  Run ``sqla-shard cache repair``
as well, then.

Several processes must sign cookies with the same key; without one each start
signs everybody out.
"""

from __future__ import annotations

import os

from examples.pinboard.app import create_app
from examples.pinboard.caching import keep, NONE
from sqla_shard import Cluster

_cluster = Cluster.from_file(os.environ["SQLA_SHARD_TOPOLOGY"])
keep(_cluster, os.environ.get("PINBOARD_CACHE", NONE))
app = create_app(_cluster, secret_key=os.environ.get("PINBOARD_SECRET_KEY"))
