"""What the configuration of a Flask application says of its cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from flask import Flask

from sqla_shard.cluster import Cluster
from sqla_shard.exc import ExtensionSetupError
from sqla_shard.topology import Topology

__all__ = ["cache_of_file", "configured", "health_path"]


def configured(app: Flask) -> Cluster:
    """Return the cluster that the configuration of an application names.

    :raises ExtensionSetupError: when it names none.
    """
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


def cache_of_file(
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


def health_path(app: Flask) -> str | None:
    """Return the path of the health route; None for no route.

    :raises ExtensionSetupError: when it is not a path.
    """
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
