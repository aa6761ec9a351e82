"""Making the databases of virtual shards that a new topology opens.

``alembic upgrade`` makes no database: one that is missing is lost, or the
topology is wrong.  Only :func:`provision` does, for shards that no
application knows yet.  It refuses before the first one is made, or it makes
all of them, brings them to the newest revision as an upgrade does, and
compares them with a virtual shard that is in use.  Then, and not before, the
topology may be published.

A run that was interrupted is run again: what it made bears a mark
(:mod:`~sqla_shard.schema.provisioning.marking`).  An empty database is taken
as one of these, so somebody else may make them, with a default character set
of their own, where the account of the topology may not.

Limits: databases are seen as far as the accounts of the topology may see
them.  Two names or addresses of one server are taken for two servers.
Tables of this package itself are not compared.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Iterator
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace
from functools import partial
from typing import Any

from alembic.config import Config
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from sqla_shard.cluster import Cluster
from sqla_shard.engines import Places
from sqla_shard.exc import Problem
from sqla_shard.exc import ProvisionError
from sqla_shard.exc import SchemaOptionError
from sqla_shard.schema import internal
from sqla_shard.schema.commands import in_environment
from sqla_shard.schema.environment import Environment
from sqla_shard.schema.options import RunOptions
from sqla_shard.schema.progress import Progress
from sqla_shard.schema.provisioning.accepting import compared
from sqla_shard.schema.provisioning.existing import check_unused
from sqla_shard.schema.provisioning.existing import in_the_way
from sqla_shard.schema.provisioning.marking import begin_mark
from sqla_shard.schema.provisioning.opening import elsewhere
from sqla_shard.schema.provisioning.opening import holders
from sqla_shard.schema.provisioning.opening import refusals
from sqla_shard.schema.reports import RunReport
from sqla_shard.schema.reports import State
from sqla_shard.schema.running.applying import Applier
from sqla_shard.schema.running.journal import Journal
from sqla_shard.schema.selecting import Shard
from sqla_shard.schema.selecting import shards_of
from sqla_shard.schema.versions import read_versions
from sqla_shard.schema.versions import Version
from sqla_shard.topology import diff
from sqla_shard.topology import Topology

__all__ = ["ProvisionReport", "provision"]

_ACCESS_DENIED = 1044


@dataclass(frozen=True, kw_only=True)
class ProvisionReport(RunReport):
    """What became of every virtual shard that a topology opens.

    Those that an earlier run has made are among them, as ``nothing to do``.

    :ivar epoch: of the topology.
    :ivar others: keyspaces in which the topology opens virtual shards too;
        each is provisioned by itself.
    """

    epoch: int
    others: tuple[str, ...] = ()

    @property
    def may_be_published(self) -> bool:
        """Whether applications may have the topology, of this keyspace."""
        return self.ok

    def to_mapping(self) -> dict[str, Any]:
        """Return what JSON can hold."""
        return {
            **super().to_mapping(),
            "epoch": self.epoch,
            "may_be_published": self.may_be_published,
            "others": list(self.others),
        }

    def _lines(self) -> Iterator[str]:
        yield from super()._lines()
        which = f"the topology of epoch {self.epoch}"
        if not self.may_be_published:
            yield (
                f"{which} must not be published; once what is told above is "
                "put right, provision again"
            )
        elif self.others:
            yield (
                f"{which} may be published if these keyspaces are "
                f"provisioned too: {', '.join(self.others)}"
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
    """Make the databases of virtual shards that a new topology opens.

    :param topology: the new one; that of ``env.py`` is the current one.
    :param initial: there is no current one: make all databases of the
        keyspace in the topology of ``env.py``.
    :param options: how to go about it; ``shards``, ``servers`` and ``new``
        have no meaning here.  ``reference`` is the shard to compare with.
    :param cluster: where the shards are now; by default ``env.py`` says it.
    :param progress: told of each shard as it is done.
    :param published: reads the current topology, as for
        :func:`~sqla_shard.schema.upgrade`.
    :returns: what became of each; the topology may be published.
    :raises ProvisionError: when something forbids it; nothing was made.
    :raises MigrationFailedError: when not every database could be made, or
        one is not as it must be; the topology must not be published.
    """

    def run(
        environment: Environment, fn: Callable[..., Any]
    ) -> ProvisionReport:
        return _Provisioning(environment, topology, initial).run(fn)

    return in_environment(
        config,
        run,
        options=options,
        cluster=cluster,
        progress=progress,
        published=published,
    )


class _Provisioning:
    """One run of :func:`provision`."""

    def __init__(
        self,
        environment: Environment,
        topology: Topology | None,
        initial: bool,
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
                    "provision is for all virtual shards that the topology "
                    "opens: with one left out it could not be published; "
                    "leave the option out",
                    option=name,
                    value=",".join(map(str, value)),
                )
        if topology is None and not self._initial:
            raise SchemaOptionError(
                "give the new topology, beside the current one of env.py; "
                "or initial=True, if that is the one to be made",
                option="topology",
                value="",
            )
        if self._initial and topology not in (None, self._current):
            raise SchemaOptionError(
                "with initial=True the databases of env.py's topology are "
                "made, and this is another; leave one of the two out",
                option="topology",
                value=repr(topology),
            )
        return topology or self._current

    def run(self, fn: Callable[..., Any]) -> ProvisionReport:
        """Check, make and compare."""
        if not self._initial:
            self._problems += refusals(self._current, self._new)
            self._check()
        shards = self._opened()
        reference = self._reference()
        self._check_reference(reference)
        versions = self._looked_at(shards)
        self._check()
        report = self._made(versions, fn)
        if report.ok:
            found = compared(
                self._places,
                shards,
                report.outcomes,
                reference,
                self._environment.version_table,
            )
            report = replace(report, outcomes=tuple(found))
        report = self._environment.newer.unchanged(report, self._new)
        self._environment.tell(report)
        return report

    def _check(self) -> None:
        if self._problems:
            raise ProvisionError(
                self._problems,
                keyspace=self._name,
                epoch=self._new.epoch,
                unread=dict.fromkeys(self._unread),
            )

    # -- before anything is made

    def _opened(self) -> list[Shard]:
        keyspace = self._new.keyspace(self._name)
        before = 0 if self._initial else self._environment.keyspace.shards
        opened = range(before, keyspace.shards)
        if not opened:
            return []
        return shards_of(self._places, keyspace, opened)

    def _reference(self) -> Shard:
        # With initial=True it is one of those that are made.
        return self._environment.reference()

    def _check_reference(self, shard: Shard) -> None:
        if self._initial:
            return
        [version] = self._environment.versions([shard])
        error = _not_newest(self._environment, version)
        if not version.is_known:
            self._unread.append(shard.server)
        if error is not None:
            self._problems.append(
                Problem(
                    str(shard),
                    f"new databases will be compared with it, and {error}",
                )
            )

    def _looked_at(self, shards: Sequence[Shard]) -> list[Version]:
        """Return where the shards are, having noted what is in the way."""
        if not shards:
            return []
        topologies = [self._current, self._new]
        found = holders(self._engines, topologies)
        self._unread += [one.label for one in found.values() if one.error]
        self._problems += elsewhere(
            shards, self._new.keyspace(self._name), found, topologies
        )
        versions = read_versions(
            self._places, shards, self._environment.version_table
        )
        there = [version.shard for version in versions if version.is_known]
        self._problems += in_the_way(
            self._engines, there, self._environment.version_table
        )
        return versions

    # -- making them

    def _has_revisions(self) -> bool:
        return bool(self._environment.script.get_heads())

    def _others(self) -> tuple[str, ...]:
        changes = diff(self._current, self._new)
        opened = {one.keyspace for one in changes.opened}
        found = {*changes.added_keyspaces, *opened}
        if self._initial:
            found = set(self._new.keyspaces)
        return tuple(sorted(found - {self._name}))

    def _made(
        self, versions: Sequence[Version], fn: Callable[..., Any]
    ) -> ProvisionReport:
        about: dict[str, Any] = {
            "epoch": self._new.epoch,
            "others": self._others(),
        }
        command, target = "provision", "head"
        if not versions:
            return ProvisionReport(
                command=command,
                target=target,
                keyspace=self._name,
                outcomes=(),
                seconds=0.0,
                **about,
            )
        missing = {v.shard.shard_id for v in versions if v.is_missing}
        report = self._environment.change(
            [replace(version, is_missing=False) for version in versions],
            fn,
            command=command,
            target=target,
            # Without a revision there is still a database to make.
            steps=None if self._has_revisions() else _one_step,
            applier=partial(
                Provisioner, epoch=self._new.epoch, missing=missing
            ),
        )
        return ProvisionReport(
            **{name: getattr(report, name) for name in _OF_REPORT}, **about
        )


_OF_REPORT = tuple(RunReport.__dataclass_fields__)


class Provisioner(Applier):
    """Makes the database of a virtual shard, and marks it, first.

    :param epoch: of the topology that opens the shards.
    :param missing: the shards that have no database yet.
    """

    def __init__(
        self, *args: Any, epoch: int, missing: Collection[int]
    ) -> None:
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
                    }
                connection.rollback()
                return {"state": State.FAILED, "error": _refused(shard, error)}
        found = super()._attempt(version, connection, journal)
        if shard.shard_id in self._missing and found["state"] is State.CURRENT:
            found["state"] = State.CHANGED
        return found

    def _migrate(
        self, version: Version, connection: Connection, journal: Journal
    ) -> None:
        # Made, or restored, by somebody else since it was looked at.
        check_unused(connection, version.shard)
        if version.internal != internal.head():
            internal.upgrade(connection, version.internal)
        begin_mark(connection, self._epoch)
        version = replace(version, internal=internal.head())
        super()._migrate(version, connection, journal)


def _one_step(heads: tuple[str, ...]) -> list[Any]:
    return [heads]


def _refused(shard: Shard, error: DBAPIError) -> str:
    text = f"{shard.database} could not be created: {error.orig}"
    if error.orig is not None and error.orig.args[:1] == (_ACCESS_DENIED,):
        text += (
            f"\nThe account that the topology names for {shard.server} needs "
            f"the right to create {shard.database} and its tables; or let "
            "somebody create the database, and leave it empty: it is taken "
            "then"
        )
    return text


def _not_newest(environment: Environment, version: Version) -> str | None:
    if version.error is not None:
        return f"its server could not be asked: {version.error}"
    if version.is_missing:
        return (
            "it is missing; is any shard in use yet? To make all databases "
            "for the first time say initial=True, or --initial"
        )
    if version.open is not None:
        return f"{version.open.step} has not ended there; run alembic upgrade"
    if not environment.is_newest(version.heads):
        newest = environment.script.get_heads()
        return (
            f"it is at {', '.join(version.heads) or 'no revision'}, not at "
            f"{', '.join(newest)}; run alembic upgrade head first"
        )
    return None
