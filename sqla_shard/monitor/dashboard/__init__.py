"""The dashboard: pages that show a fleet.

::

    $ sqla-shard dashboard

serves them on the loopback interface; an application mounts them behind its
own login::

    observer = Observer(cluster, models=[Base])
    app.register_blueprint(dashboard_blueprint(observer), url_prefix="/shards")

The pages read only, unless changes of jobs are allowed.  They need no
JavaScript to be read, and load nothing from elsewhere.

``readings``    what the pages show of servers, revisions and topologies
``statements``  statements as text, read without executing Python
``observer``    all of these, for one cluster
``maps``        a cell for each shard, as paths of SVG, coloured by a value
``pages``       the views, the blueprint, the application, the server
"""

from __future__ import annotations

from sqla_shard.monitor.dashboard.observer import Observer
from sqla_shard.monitor.dashboard.pages import (
    create_app,
    dashboard_blueprint,
    DashboardServer,
)

__all__ = ["DashboardServer", "Observer", "create_app", "dashboard_blueprint"]
