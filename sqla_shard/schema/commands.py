"""The commands of this package, beside those of alembic.

Each takes alembic's ``Config``, as the functions of ``alembic.command`` do,
and runs the ``env.py`` of the application to learn its cluster::

    from alembic.config import Config
    from sqla_shard import schema

    report = schema.upgrade(Config("alembic.ini"))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from typing import TypeVar

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError

from sqla_shard.cluster import Cluster
from sqla_shard.exc import SchemaError
from sqla_shard.schema.environment import ATTRIBUTE
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.options import RunOptions
from sqla_shard.schema.progress import Progress
from sqla_shard.schema.progress import SilentProgress
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.resolving import Answer
from sqla_shard.schema.resolving import Resolution
from sqla_shard.schema.resolving import resolve_shard
from sqla_shard.schema.status import status_of
from sqla_shard.schema.status import StatusReport
from sqla_shard.topology import Topology

__all__ = ["downgrade", "in_environment", "resolve", "status", "upgrade"]

T = TypeVar("T")


def in_environment(
    config: Config,
    command: Callable[[Environment, Callable[..., Any]], T],
    *,
    verb: str = "upgrade",
    target: str = "heads",
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
    published: Callable[[], Topology] | None = None,
) -> T:
    """Run the application's ``env.py``, and a command in its place.

    :param command: is called with the environment, and with what gives the
        steps of a database.
    :param verb: the direction of these, ``"upgrade"`` or ``"downgrade"``.
    :param target: the revision that they lead to.
    :param published: reads the topology that is published by now.
    :raises SchemaError: when ``env.py`` does not call ``run_env()``.
    """
    script = ScriptDirectory.from_config(config)
    fn = _steps_of(script, verb, target)
    results: list[T] = []

    def run(environment: Environment, _: Callable[..., Any]) -> None:
        entered.context_opts.update(fn=fn, dont_mutate=False)
        results.append(command(environment, fn))

    def refuse(*args: object) -> Any:
        raise SchemaError(
            f"{script.env_py_location} does not call run_env(), so it would "
            "change one database, and no virtual shard; write it as "
            "sqla-shard schema init does, with: from sqla_shard.schema "
            "import run_env"
        )

    given = _given(options, cluster, progress, published)
    config.attributes[ATTRIBUTE] = {**given, "command": run}
    # An env.py that knows nothing of shards would run these steps on the
    # database that it has, even for status().
    entered = EnvironmentContext(
        config, script, fn=refuse, dont_mutate=True, destination_rev=target
    )
    try:
        with entered:
            script.run_env()
    finally:
        del config.attributes[ATTRIBUTE]
    if not results:
        refuse()
    return results[0]


def _steps_of(
    script: ScriptDirectory, verb: str, revision: str
) -> Callable[..., Any]:
    """Return what gives the steps of a database, as alembic's commands do."""
    revisions = {
        "upgrade": script._upgrade_revs,
        "downgrade": script._downgrade_revs,
    }[verb]

    def steps(heads: Any, context: Any) -> Any:
        return revisions(revision, heads)

    # By which alembic's own are known, too.
    steps.__name__ = verb
    return steps


def _given(
    options: RunOptions | None,
    cluster: Cluster | None,
    progress: Progress | None,
    published: Callable[[], Topology] | None,
) -> dict[str, Any]:
    given: dict[str, Any] = {
        "options": options or RunOptions(),
        "progress": progress or SilentProgress(),
    }
    if cluster is not None:
        given["cluster"] = cluster
    if published is not None:
        given["published"] = published
    return given


def upgrade(
    config: Config,
    revision: str = "head",
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
    published: Callable[[], Topology] | None = None,
) -> RunReport:
    """Upgrade every virtual shard, as ``alembic upgrade`` does.

    :param revision: the target.
    :param options: which shards, and how many at a time.
    :param cluster: where the shards are; by default ``env.py`` says it.
    :param progress: told of each shard as it is done.
    :param published: reads the topology that is published by now, to find
        shards that are moved during the run; by default that of the
        cluster, or of alembic.ini.
    :raises MigrationFailedError: when not every shard could be upgraded.
    """
    return _changed(
        config, "upgrade", revision, options, cluster, progress, published
    )


def downgrade(
    config: Config,
    revision: str,
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
    published: Callable[[], Topology] | None = None,
) -> RunReport:
    """Downgrade every virtual shard, as ``alembic downgrade`` does.

    :param revision: the target.
    :param options: which shards, and how many at a time.
    :param cluster: where the shards are; by default ``env.py`` says it.
    :param progress: told of each shard as it is done.
    :param published: reads the topology that is published by now, to find
        shards that are moved during the run; by default that of the
        cluster, or of alembic.ini.
    :raises MigrationFailedError: when not every shard could be downgraded.
    """
    return _changed(
        config, "downgrade", revision, options, cluster, progress, published
    )


def _changed(
    config: Config,
    verb: str,
    revision: str,
    options: RunOptions | None,
    cluster: Cluster | None,
    progress: Progress | None,
    published: Callable[[], Topology] | None,
) -> RunReport:
    if not revision:
        raise CommandError(
            "the revision is empty; name one, or head, base or a step such "
            "as -1"
        )
    if ":" in revision:
        raise CommandError(
            f"{revision!r} is a range, which is for: alembic upgrade --sql"
        )
    return in_environment(
        config,
        lambda environment, fn: environment.everywhere(fn, revision),
        verb=verb,
        target=revision,
        options=options,
        cluster=cluster,
        progress=progress,
        published=published,
    )


def status(
    config: Config,
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
) -> StatusReport:
    """Tell at which revision every virtual shard is; changes nothing.

    :param options: which shards.
    :param cluster: where the shards are; by default ``env.py`` says it.
    """
    return in_environment(config, status_of, options=options, cluster=cluster)


def resolve(
    config: Config,
    shard_id: int,
    answer: Answer,
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
) -> Resolution:
    """Say what is true of a shard whose revision is in doubt.

    :param shard_id: the shard; somebody has looked at its database.
    :param answer: what was found there.
    :param cluster: where the shards are; by default ``env.py`` says it.
    :raises SchemaError: when nothing is in doubt there.
    """

    def run(environment: Environment, steps: Any) -> Resolution:
        return resolve_shard(environment, shard_id, answer)

    return in_environment(config, run, options=options, cluster=cluster)
