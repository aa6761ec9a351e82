"""Commands on all virtual shards: upgrade, downgrade, status, resolve.

Each command has alembic's ``Config`` as its first argument, as the functions
of ``alembic.command`` have, and runs the ``env.py`` of the application to get
its cluster::

    from alembic.config import Config
    from sqla_shard import schema

    report = schema.upgrade(Config("alembic.ini"))
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from time import monotonic
from typing import Any, TypeVar

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, update
from sqlalchemy.exc import DBAPIError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine.unreachable import (
    Cause,
    cause_of,
    unreachable_values,
    UnreachableServer,
)
from sqla_shard.exc import InDoubtError, SchemaError
from sqla_shard.exc.base import original
from sqla_shard.outbox.tables import LEDGER
from sqla_shard.schema.environment import ATTRIBUTE, Environment
from sqla_shard.schema.ledger import (
    DONE,
    FAILED,
    FINISHED,
    last_sent,
    LedgerEntry,
    one_line,
    open_entries,
    revisions_text,
    took_effect,
    UNDONE,
    Version,
    without_ledger,
)
from sqla_shard.schema.reports import CommandProgress, RunReport, servers_of
from sqla_shard.schema.selection import RunOptions, Shard, shards_of
from sqla_shard.topology import Topology
from sqla_shard.topology.keyspaces import as_ranges
from sqla_shard.util.json_values import JsonObject

#: Conditions of a shard, from the best to the worst.
CURRENT = "current"
BEHIND = "behind"
UNKNOWN_REVISION = "unknown revision"
RUNNING = "a runner is at work"
UNFINISHED = "interrupted"
FAILED_STEP = "failed"
IN_DOUBT = "in doubt"
EMPTIED = "no revision, where others have one"
NO_LEDGER = "no ledger"
MISSING = "no such database"
UNREACHABLE = "server not reached"
#: Conditions of shards that could not be read.
NOT_READ = (MISSING, UNREACHABLE)


@dataclass(frozen=True, kw_only=True)
class ShardStatus(JsonObject):
    """The status of one virtual shard.

    :ivar revisions: the current revisions of the shard; empty if it has no
        tables.
    :ivar condition: ``"current"``, ``"behind"``, ``"unknown revision"``, ``"a
        runner is at work"``, ``"interrupted"`` (the next run resumes it),
        ``"failed"`` (the next run resumes it, too), ``"in doubt"`` (see
        :func:`resolve`), ``"no revision, where others have one"`` (its objects
        may be on another server, or lost), ``"no ledger"`` (an unfinished
        revision would not be noticed), ``"no such database"`` or ``"server not
        reached"``.
    :ivar detail: details for an operator, or None.
    :ivar cause: why it could not be read, or None.
    """

    shard_id: int
    server: str
    database: str
    revisions: tuple[str, ...]
    condition: str
    detail: str | None = None
    cause: Cause | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes but for the cause as JSON values."""
        values = super().as_dict()
        del values["cause"]
        return values


@dataclass(frozen=True, kw_only=True)
class StatusReport:
    """The revisions of every virtual shard.

    ``str()`` of it is a histogram of the revisions, and a list of the shards
    that need attention.

    :ivar keyspace: name of the keyspace.
    :ivar heads: the head revisions of the scripts.
    :ivar shards: one status for each shard, in order.
    :ivar seconds: duration of the command.
    """

    keyspace: str
    heads: tuple[str, ...]
    shards: tuple[ShardStatus, ...]
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether every shard is at the newest revisions."""
        return all(one.condition == CURRENT for one in self.shards)

    @property
    def unreachable(self) -> tuple[UnreachableServer, ...]:
        """The servers of the shards that could not be read."""
        found = (one for one in self.shards if one.condition in NOT_READ)
        return servers_of(self.keyspace, found)

    def histogram(self) -> dict[tuple[str, ...], list[int]]:
        """Return the shard ids by their current revisions."""
        groups: dict[tuple[str, ...], list[int]] = {}
        for one in self.shards:
            if one.condition not in NOT_READ:
                groups.setdefault(one.revisions, []).append(one.shard_id)
        return groups

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "keyspace": self.keyspace,
            "heads": list(self.heads),
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "revisions": [
                {"revisions": list(revisions), "shards": ids}
                for revisions, ids in self.histogram().items()
            ],
            "shards": [one.as_dict() for one in self.shards],
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield (
            f"{self.keyspace}: {len(self.shards)} virtual shards, newest "
            f"revision {', '.join(self.heads) or 'none'}"
        )
        newest = {one.revisions for one in self.shards if one.condition == CURRENT}
        # List each shard once: a shard with a failed revision is not among the
        # shards in order.
        in_order: dict[str, list[ShardStatus]] = {}
        others: dict[str, list[ShardStatus]] = {}
        for one in self.shards:
            revisions = one.revisions
            is_head = revisions in newest or set(revisions) == set(self.heads)
            name = f"at {revisions_text(revisions)}{' (head)' if is_head else ''}"
            if one.condition in (CURRENT, BEHIND):
                in_order.setdefault(name, []).append(one)
                continue
            is_known = revisions and one.condition != UNREACHABLE
            where = f", {name}" if is_known else ""
            others.setdefault(f"{one.condition}{where}", []).append(one)
        for name, outcomes in (*in_order.items(), *others.items()):
            if outcomes[0].condition == UNREACHABLE:
                yield from (f"  {one}" for one in servers_of(self.keyspace, outcomes))
                continue
            ids = as_ranges(one.shard_id for one in outcomes)
            yield f"  {len(outcomes):6} {name}: {ids}"
            yield from _details(outcomes)


def _details(found: Sequence[ShardStatus]) -> Iterator[str]:
    """Yield the details of shards in one condition."""
    if found[0].condition != MISSING:
        for one in found[:5]:
            if one.detail:
                yield f"         {one.database}: {one.detail}"
        return
    by_server: dict[str, list[int]] = {}
    for one in found:
        by_server.setdefault(one.server, []).append(one.shard_id)
    for server, statuses in by_server.items():
        yield f"         {server}: {as_ranges(statuses)}"


def _status(environment: Environment, steps: Any) -> StatusReport:
    """Return the status of the selected shards."""
    began = monotonic()
    script = environment.script
    known = {one.revision for one in script.walk_revisions()}
    shards = []
    for version in environment.with_lost_marked(environment.versions()):
        condition, detail = _condition(environment, version, known)
        cause = None
        if isinstance(detail, Exception):
            cause = cause_of(detail, responds=False)
            detail = version.error or str(original(detail))
        shards.append(
            ShardStatus(
                shard_id=version.shard.shard_id,
                server=version.shard.server,
                database=version.shard.database,
                revisions=version.heads,
                condition=condition,
                detail=detail,
                cause=cause,
            )
        )
    return StatusReport(
        keyspace=environment.keyspace.name,
        heads=tuple(sorted(script.get_heads())),
        shards=tuple(shards),
        seconds=monotonic() - began,
    )


def _condition(
    environment: Environment, version: Version, known: set[str]
) -> tuple[str, str | Exception | None]:
    """Return the condition of a shard, with its detail or the error."""
    if version.is_missing:
        return MISSING, None
    if version.error is not None:
        return UNREACHABLE, version.cause
    if not version.has_ledger:
        return NO_LEDGER, without_ledger(version)
    if version.open is not None:
        return _unfinished(environment, version)
    if version.lost is not None:
        return EMPTIED, version.lost
    strange = [one for one in version.heads if one not in known]
    if strange:
        return UNKNOWN_REVISION, f"no script for {', '.join(strange)}"
    is_newest = environment.is_newest(version.heads)
    return (CURRENT if is_newest else BEHIND), None


def _unfinished(
    environment: Environment, version: Version
) -> tuple[str, str | Exception | None]:
    """Return the condition of a shard with an unfinished revision."""
    shard = version.shard
    ddl = shard.place.backend.ddl
    engines = environment.places.engines
    try:
        with engines.visit(shard.place.engine) as connection:
            ddl.enter(connection, shard.schema)
            if ddl.hold(connection, shard.database, 0) is not None:
                return RUNNING, None
            try:
                return _open_revision(connection, version)
            finally:
                ddl.release(connection, shard.database)
    except DBAPIError as error:
        return UNREACHABLE, error


def _open_revision(connection: Any, version: Version) -> tuple[str, str | None]:
    entries = open_entries(connection)
    if not entries:
        return BEHIND, None  # The revision has finished since.
    sent = last_sent(entries)
    last = sent[0]
    try:
        took_effect(connection, version.shard.place.backend.ddl, sent)
    except InDoubtError as error:
        return IN_DOUBT, str(error)
    if last.error is not None:
        condition = FAILED_STEP if last.state == FAILED else IN_DOUBT
        return condition, f"{last.step}: {one_line(last.error)}"
    return UNFINISHED, (
        f"{last.step}, in its statement {last.number + 1}: {one_line(last.statement)}"
    )


class Answer(Enum):
    """An operator's decision about a shard in doubt.

    ``statement-done``: the statement took effect, the next run resumes after
    it; ``statement-undone``: it had no effect, the next run repeats it;
    ``revision-done``: the whole revision is applied; ``revision-undone``:
    nothing of it is left, the next run repeats it from the start.
    """

    STATEMENT_DONE = "statement-done"
    STATEMENT_UNDONE = "statement-undone"
    REVISION_DONE = "revision-done"
    REVISION_UNDONE = "revision-undone"


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """The decision that was recorded for a shard.

    :ivar step: the revision that was in doubt.
    :ivar statement: the last statement of that revision.
    """

    shard_id: int
    database: str
    step: str
    statement: str
    answer: Answer


def _resolve(environment: Environment, shard_id: int, answer: Answer) -> Resolution:
    """Record the decision about a shard in its ledger."""
    [shard] = shards_of(environment.places, environment.keyspace, [shard_id])
    [version] = environment.versions([shard])
    if version.is_missing:
        raise SchemaError(f"database not found: {shard}")
    if version.error is not None:
        raise SchemaError(
            f"the ledger of {shard} could not be read: {version.error}"
        ) from version.cause
    if not version.has_ledger:
        raise SchemaError(without_ledger(version))
    if version.open is None:
        raise SchemaError(f"no revision is unfinished on {shard}")
    ddl = shard.place.backend.ddl
    with environment.places.engines.visit(shard.place.engine) as connection:
        ddl.enter(connection, shard.schema)
        holder = ddl.hold(connection, shard.database, 0)
        if holder is not None:
            raise SchemaError(
                f"{shard} is locked by {holder}; wait until that run has ended"
            )
        last = _record(environment, connection, shard, answer)
        ddl.release(connection, shard.database)
        connection.commit()
    return Resolution(
        shard_id=shard_id,
        database=shard.database,
        step=last.step,
        statement=last.statement,
        answer=answer,
    )


def _record(
    environment: Environment, connection: Connection, shard: Shard, answer: Answer
) -> LedgerEntry:
    entries = open_entries(connection)
    if not entries:
        raise SchemaError(f"no revision is unfinished on {shard} any more")
    sent = last_sent(entries)
    last = sent[0]
    values: dict[str, Any] = {"is_open": False, "state": FINISHED}
    of_last = LEDGER.c.id == last.id
    if answer is Answer.REVISION_DONE:
        environment.stamp(connection, shard, last.direction, last.revision)
    elif answer is Answer.REVISION_UNDONE:
        values["state"] = UNDONE
    elif not last.statement:
        raise SchemaError(
            f"{last.step} failed between two statements on {shard}, so no statement is "
            "in doubt; answer with revision-done or revision-undone"
        )
    elif len(sent) > 1 and not _is_in_doubt(connection, shard, sent):
        # An operator may have seen the table without its indexes.
        raise SchemaError(
            f"{last.step} was interrupted on {shard} in a CREATE TABLE with "
            f"{len(sent) - 1} index(es), which is not in doubt: the table "
            "exists with all of them, or does not exist. Repeat the command, "
            "after restoring the file of the revision if it was changed; or "
            "complete the revision or undo it by hand, and answer with "
            f"revision-done or revision-undone: {one_line(last.statement)}"
        )
    else:
        state = DONE if answer is Answer.STATEMENT_DONE else UNDONE
        connection.execute(
            update(LEDGER).where(of_last).values(state=state, error=None)
        )
        return last
    connection.execute(
        update(LEDGER).where(LEDGER.c.is_open.is_(True)).values(**values)
    )
    return last


def _is_in_doubt(
    connection: Connection, shard: Shard, sent: Sequence[LedgerEntry]
) -> bool:
    """Return whether an operator may answer about a CREATE TABLE."""
    if sent[0].state in (DONE, UNDONE):
        return True  # An answer can be corrected.
    try:
        took_effect(connection, shard.place.backend.ddl, sent)
    except InDoubtError:
        return True
    return False


T = TypeVar("T")


def in_environment(
    config: Config,
    command: Callable[[Environment, Callable[..., Any]], T],
    *,
    verb: str = "upgrade",
    target: str = "heads",
    **arguments: Any,
) -> T:
    """Run the application's ``env.py`` with a command of this package.

    :param command: called with the environment, and with the function that
        returns the migration steps of a database.
    :param verb: ``"upgrade"`` or ``"downgrade"``.
    :param target: the target revision.
    :param arguments: ``options``, ``cluster``, ``progress`` and
        ``published`` of :func:`upgrade`; None for the default.
    :raises SchemaError: if ``env.py`` does not call ``run_env()``.
    """
    script = ScriptDirectory.from_config(config)
    revisions = {"upgrade": script._upgrade_revs, "downgrade": script._downgrade_revs}[
        verb
    ]
    results: list[T] = []

    def steps(heads: Any, context: Any) -> Any:
        return revisions(target, heads)

    # Applier checks the name, as for the functions of alembic.
    steps.__name__ = verb

    def run(environment: Environment, _: Callable[..., Any]) -> None:
        entered.context_opts.update(fn=steps, dont_mutate=False)
        results.append(command(environment, steps))

    def refuse(*args: object) -> Any:
        raise SchemaError(
            f"{script.env_py_location} does not call run_env(), so it would migrate "
            "one database instead of the virtual shards; write it as sqla-shard schema "
            "init does, with: from sqla_shard.schema import run_env"
        )

    given = {name: value for name, value in arguments.items() if value is not None}
    # Otherwise run_env() would print the progress and the report.
    given.setdefault("progress", CommandProgress())
    given.setdefault("options", RunOptions())
    config.attributes[ATTRIBUTE] = {**given, "command": run}
    # An env.py without run_env() would run these steps on its own database,
    # even for status().
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


def upgrade(
    config: Config,
    revision: str = "head",
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: CommandProgress | None = None,
    published: Callable[[], Topology] | None = None,
) -> RunReport:
    """Upgrade every virtual shard, as ``alembic upgrade`` does.

    :param revision: the target revision.
    :param options: the shards to change, and how many at a time.
    :param cluster: locates the shards; by default that of ``env.py``.
    :param progress: receives the outcome of each shard.
    :param published: returns the published topology, to detect shards that
        are moved during the run; by default the topology of the cluster,
        or of alembic.ini.
    :raises MigrationFailedError: if not every shard could be upgraded.
    """
    return _migrate(
        config,
        "upgrade",
        revision,
        options=options,
        cluster=cluster,
        progress=progress,
        published=published,
    )


def downgrade(
    config: Config,
    revision: str,
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: CommandProgress | None = None,
    published: Callable[[], Topology] | None = None,
) -> RunReport:
    """Downgrade every virtual shard, as ``alembic downgrade`` does.

    For the other parameters see :func:`upgrade`.

    :param revision: the target revision.
    :raises MigrationFailedError: if not every shard could be downgraded.
    """
    return _migrate(
        config,
        "downgrade",
        revision,
        options=options,
        cluster=cluster,
        progress=progress,
        published=published,
    )


def _migrate(config: Config, verb: str, revision: str, **arguments: Any) -> RunReport:
    if not revision:
        raise CommandError(
            "the revision is empty; give a revision, head, base or a step such as -1"
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
        **arguments,
    )


def status(
    config: Config, *, options: RunOptions | None = None, cluster: Cluster | None = None
) -> StatusReport:
    """Return the revisions of every virtual shard, without changing them.

    :param options: the shards to read.
    :param cluster: locates the shards; by default that of ``env.py``.
    """
    return in_environment(config, _status, options=options, cluster=cluster)


def resolve(
    config: Config,
    shard_id: int,
    answer: Answer,
    *,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
) -> Resolution:
    """Resolve a revision in doubt; inspect its database first.

    :param shard_id: the shard.
    :param answer: the decision, such as that the statement took effect.
    :param cluster: locates the shards; by default that of ``env.py``.
    :raises SchemaError: if the shard has no unfinished revision, another
        runner has locked it, or the server does not respond.
    """
    return in_environment(
        config,
        lambda environment, fn: _resolve(environment, shard_id, answer),
        options=options,
        cluster=cluster,
    )
