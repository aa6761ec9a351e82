"""Creation of the databases of virtual shards that a new topology opens.

``alembic upgrade`` creates no database: a missing database is lost, or the
topology is wrong.  :func:`provision` creates databases, for shards that no
application uses yet.  After all checks it creates the databases, upgrades them
to the newest revision and compares them with a virtual shard that is in use.
Only then may the topology be published.

Run it again after an interruption; it recognizes its databases by a mark
(:mod:`~sqla_shard.schema.ledger`).  It also uses empty databases: an
administrator can create them, with a default character set of their own, if
the account of the topology may not.

Limits: it only finds databases that are visible to the accounts of the
topology.  Two names or addresses of one server count as two servers.  Tables
of this package are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.engine import Places
from sqla_shard.engine.unreachable import cause_of
from sqla_shard.exc import Problem, ProvisionError, SchemaOptionError
from sqla_shard.schema import ledger
from sqla_shard.schema.applier import Applier
from sqla_shard.schema.commands import in_environment
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.journal import Journal
from sqla_shard.schema.ledger import begin_mark
from sqla_shard.schema.progress import Progress
from sqla_shard.schema.provisioning_checks import (
    check_unused,
    compare,
    misplaced_databases,
    server_databases,
    unsupported_changes,
    unusable,
)
from sqla_shard.schema.reports import RunReport, State
from sqla_shard.schema.selection import RunOptions, Shard, shards_of
from sqla_shard.schema.versions import read_versions, revisions_text, Version
from sqla_shard.topology import diff, Topology

_ACCESS_DENIED = 1044


@dataclass(frozen=True, kw_only=True)
class ProvisionReport(RunReport):
    """The outcomes of the virtual shards that a topology opens.

    Databases of an earlier run are reported as ``nothing to do``.

    :ivar epoch: the epoch of the topology.
    :ivar others: other keyspaces in which the topology opens virtual shards;
        each is provisioned separately.
    """

    epoch: int
    others: tuple[str, ...] = ()

    @property
    def may_be_published(self) -> bool:
        """Whether this keyspace does not prevent publishing the topology."""
        return self.ok

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            **super().as_dict(),
            "epoch": self.epoch,
            "may_be_published": self.may_be_published,
            "others": list(self.others),
        }

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        which = f"the topology of epoch {self.epoch}"
        if not self.may_be_published:
            yield (
                f"{which} must not be published; correct the errors above, "
                "then provision again"
            )
        elif self.others:
            yield (
                f"{which} may be published if these keyspaces are "
                f"provisioned too: {', '.join(self.others)} (sqla-shard "
                "schema --name SECTION provision, with the section of each "
                "in alembic.ini)"
            )
        else:
            yield f"{which} may be published"


def provision(
    config: Config,
    topology: Topology | None = None,
    *,
    initial: bool = False,
    options: RunOptions | None = None,
    cluster: Cluster | None = None,
    progress: Progress | None = None,
    published: Callable[[], Topology] | None = None,
) -> ProvisionReport:
    """Create the databases of virtual shards that a new topology opens.

    :param topology: the new topology; that of ``env.py`` is the current one.
    :param initial: create all databases of the keyspace in the topology of
        ``env.py``, if no application uses it yet.
    :param options: the options of the run, such as the number of shards at a
        time; ``shards``, ``servers`` and ``new`` must not be set.
        ``reference`` is the shard to compare with.
    :param cluster: locates the current shards; by default that of ``env.py``.
    :param progress: receives the outcome of each shard.
    :param published: returns the published topology, as for
        :func:`~sqla_shard.schema.upgrade`.
    :returns: the outcome of each shard; the topology may be published.
    :raises ProvisionError: if a check fails; nothing was created.
    :raises MigrationFailedError: if a database could not be created, or
        differs from the reference; the topology must not be published.
    """
    return in_environment(
        config,
        lambda environment, fn: _Provisioning(environment, topology, initial).run(fn),
        options=options,
        cluster=cluster,
        progress=progress,
        published=published,
    )


class _Provisioning:
    """One run of :func:`provision`."""

    def __init__(
        self, environment: Environment, topology: Topology | None, initial: bool
    ) -> None:
        self._environment = environment
        self._options = environment.options
        self._current = environment.places.topology
        self._initial = initial
        self._new = self._chosen(topology)
        self._engines = environment.places.engines
        self._places = Places(self._new, self._engines)
        self._name = environment.keyspace.name
        self._problems: list[Problem] = []
        self._unread: list[str] = []

    def _chosen(self, topology: Topology | None) -> Topology:
        for name in ("shards", "servers", "new"):
            value = getattr(self._options, name)
            if value is not None:
                raise SchemaOptionError(
                    "provision creates all databases that the topology "
                    "opens: with one missing, it could not be published; "
                    "leave the option out",
                    option=name,
                    value=",".join(map(str, value)),
                )
        if topology is None and not self._initial:
            raise SchemaOptionError(
                "give the new topology; or initial=True, to create the "
                "databases of the topology of env.py",
                option="topology",
                value="",
            )
        if self._initial and topology not in (None, self._current):
            raise SchemaOptionError(
                "with initial=True the databases of the topology of env.py "
                "are created, and this is another one; leave one of the two "
                "out",
                option="topology",
                value=repr(topology),
            )
        return topology or self._current

    def run(self, fn: Callable[..., Any]) -> ProvisionReport:
        """Check, create and compare."""
        if not self._initial:
            self._problems += unsupported_changes(self._current, self._new)
            self._check()
        shards = self._opened_shards()
        reference = self._environment.reference()
        if not self._initial:
            self._check_reference(reference)
        versions = self._check_free(shards)
        self._check()
        report = self._make(versions, fn)
        if report.ok:
            found = compare(
                self._places,
                shards,
                report.outcomes,
                reference,
                self._environment.version_table,
            )
            report = replace(report, outcomes=tuple(found))
        report = self._environment.topology_changes.with_publication_check(
            report, self._new
        )
        self._environment.write_report(report)
        return report

    def _check(self) -> None:
        if self._problems:
            raise ProvisionError(
                tuple(self._problems),
                keyspace=self._name,
                epoch=self._new.epoch,
                unreachable=tuple(dict.fromkeys(self._unread)),
            )

    def _opened_shards(self) -> list[Shard]:
        keyspace = self._new.keyspace(self._name)
        before = 0 if self._initial else self._environment.keyspace.shards
        opened = range(before, keyspace.shards)
        if not opened:
            return []
        return shards_of(self._places, keyspace, opened)

    def _check_reference(self, shard: Shard) -> None:
        [version] = self._environment.versions([shard])
        error = _not_newest(self._environment, version)
        if not version.is_known:
            self._unread.append(shard.server)
        if error is not None:
            self._problems.append(
                Problem(str(shard), f"new databases are compared with it, but {error}")
            )

    def _check_free(self, shards: Sequence[Shard]) -> list[Version]:
        """Return the versions of the shards, and record their problems."""
        if not shards:
            return []
        topologies = [self._current, self._new]
        found = server_databases(self._engines, topologies)
        self._unread += [one.label for one in found.values() if one.error]
        self._problems += misplaced_databases(
            shards, self._new.keyspace(self._name), found, topologies
        )
        versions = read_versions(self._places, shards, self._environment.version_table)
        self._problems += unusable(
            self._engines,
            [version.shard for version in versions if version.is_known],
            self._environment.version_table,
        )
        return versions

    def _others(self) -> tuple[str, ...]:
        changes = diff(self._current, self._new)
        opened = {one.keyspace for one in changes.opened}
        found = {*changes.added_keyspaces, *opened}
        if self._initial:
            found = set(self._new.keyspaces)
        return tuple(sorted(found - {self._name}))

    def _make(
        self, versions: Sequence[Version], fn: Callable[..., Any]
    ) -> ProvisionReport:
        report = RunReport(
            command="provision",
            target="head",
            keyspace=self._name,
            outcomes=(),
            seconds=0.0,
        )
        if versions:
            missing = {v.shard.shard_id for v in versions if v.is_missing}
            has_revisions = bool(self._environment.script.get_heads())
            report = self._environment.change(
                [replace(version, is_missing=False) for version in versions],
                fn,
                command=report.command,
                target=report.target,
                # Without revisions the databases are created nevertheless.
                steps=None if has_revisions else lambda heads: [heads],
                applier=partial(Provisioner, epoch=self._new.epoch, missing=missing),
            )
        return ProvisionReport(
            **vars(report), epoch=self._new.epoch, others=self._others()
        )


class Provisioner(Applier):
    """Creates the database of a virtual shard, and its mark, before revisions.

    :param epoch: the epoch of the topology that opens the shards.
    :param missing: the shards without a database.
    """

    # Each database gets a mark before its revisions.
    replays = False

    def __init__(self, *args: Any, epoch: int, missing: Collection[int]) -> None:
        super().__init__(*args)
        self._epoch = epoch
        self._missing = missing

    def _connected(self, shard: Shard) -> tuple[Connection, Journal]:
        if shard.shard_id in self._missing:
            shard.place.backend.create_file(shard.place.engine)
        return super()._connected(shard)

    def _attempt(
        self, version: Version, connection: Connection, journal: Journal
    ) -> dict[str, Any]:
        shard = version.shard
        if shard.shard_id in self._missing:
            try:
                shard.place.backend.create_database(connection, shard.schema)
                connection.commit()
            except DBAPIError as error:
                if self._is_lost(shard, error):
                    self.close()
                    return {
                        "state": State.UNREACHABLE,
                        "error": str(error.orig),
                        "cause": cause_of(error, responds=False),
                    }
                connection.rollback()
                return {"state": State.FAILED, "error": _error_text(shard, error)}
        found = super()._attempt(version, connection, journal)
        if shard.shard_id in self._missing and found["state"] is State.CURRENT:
            found["state"] = State.CHANGED
        return found

    def _migrate(
        self, version: Version, connection: Connection, journal: Journal
    ) -> None:
        # The database may have been created, or restored, since the check.
        check_unused(connection, version.shard)
        if version.internal != ledger.own_head():
            ledger.upgrade_own_tables(connection, version.internal)
        begin_mark(connection, self._epoch)
        version = replace(version, internal=ledger.own_head())
        super()._migrate(version, connection, journal)


def _error_text(shard: Shard, error: DBAPIError) -> str:
    text = f"{shard.database} could not be created: {error.orig}"
    if error.orig is not None and error.orig.args[:1] == (_ACCESS_DENIED,):
        text += (
            f"\nGRANT the account of {shard.server} in the topology the "
            f"privilege to create {shard.database} and its tables; or let an "
            "administrator create the database, empty: provision uses it"
        )
    return text


def _not_newest(environment: Environment, version: Version) -> str | None:
    if version.error is not None:
        return f"its server could not be read: {version.error}"
    if version.is_missing:
        return (
            "it is missing; if no shard is in use yet, create all databases "
            "with initial=True, or --initial"
        )
    if version.open is not None:
        return f"its {version.open.step} is unfinished; run alembic upgrade head"
    if not environment.is_newest(version.heads):
        newest = environment.script.get_heads()
        return (
            f"it is at {revisions_text(version.heads)}, not at "
            f"{', '.join(newest)}; run alembic upgrade head first"
        )
    return None
