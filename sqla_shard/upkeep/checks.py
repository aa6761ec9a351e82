"""Checks: kinds of findings, their report, the interface, what rows refer to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sqlalchemy import inspect, select
from sqlalchemy.exc import OperationalError

from sqla_shard.cluster.cluster import Cluster
from sqla_shard.dialects import Failure
from sqla_shard.engine import Places
from sqla_shard.engine.unreachable import unreachable_values, UnreachableServer
from sqla_shard.exc import InvalidIdError, UnknownShardError
from sqla_shard.planning import spec_of
from sqla_shard.session import INCLUDE_INACTIVE, ShardSession
from sqla_shard.session.get import getter_of
from sqla_shard.topology import Keyspace
from sqla_shard.util.json_values import JsonObject


@dataclass(frozen=True, kw_only=True)
class FindingKind:
    """A kind of finding.

    :ivar name: name of the kind, such as ``dangling``.
    :ivar meaning: a description in a few words.
    :ivar harmless: whether the application works despite such findings.
    :ivar settled: whether the first check is enough, because no transaction
        in progress causes such a finding.
    """

    name: str
    meaning: str
    harmless: bool = False
    settled: bool = False


@dataclass(frozen=True, kw_only=True)
class Finding(JsonObject):
    """One inconsistent row or object.

    :ivar kind: the kind, such as ``dangling``.
    :ivar subject: name of the class.
    :ivar keyspace: keyspace of the row.
    :ivar shard_id: shard of the row.
    :ivar row: values that identify the row, by column.
    :ivar detail: details, or the empty string.
    :ivar repaired: whether it was repaired.
    """

    kind: str
    subject: str
    keyspace: str
    shard_id: int
    row: Mapping[str, Any]
    detail: str = ""
    repaired: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return JSON values, with ids as strings, since they exceed 2^53."""
        row = {
            name: str(value) if type(value) is int else value
            for name, value in self.row.items()
        }
        return {**super().as_dict(), "row": row}

    def __str__(self) -> str:
        row = ", ".join(f"{name} {value!r}" for name, value in self.row.items())
        detail = f": {self.detail}" if self.detail else ""
        done = " (repaired)" if self.repaired else ""
        return f"{row} on shard {self.shard_id} of {self.keyspace}{detail}{done}"


@dataclass(frozen=True, kw_only=True)
class RepairOutcome:
    """The outcome of a repair.

    :ivar repaired: whether a row was repaired.
    :ivar left: the finding that remains, or None.
    """

    repaired: bool = False
    left: Finding | None = field(default=None)

    @classmethod
    def succeeded(cls) -> RepairOutcome:
        """Return the outcome of a successful repair."""
        return cls(repaired=True)

    @classmethod
    def not_needed(cls) -> RepairOutcome:
        """Return the outcome if no repair was needed."""
        return cls()

    @classmethod
    def needs_decision(cls, finding: Finding) -> RepairOutcome:
        """Return the outcome if a person has to decide."""
        return cls(left=finding)


#: Number of findings of one class and kind that a report lists.
SHOWN = 20


@dataclass(kw_only=True)
class Tally(JsonObject):
    """The findings of one class.

    :ivar looked: number of rows or objects checked, by unit.
    :ivar found: number of findings by kind, including repaired ones.
    :ivar repaired: number of repaired findings by kind.
    :ivar findings: the first findings of each kind.
    """

    looked: Counter[str] = field(default_factory=Counter)
    found: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def count(self, finding: Finding) -> None:
        """Add a finding."""
        self.found[finding.kind] += 1
        self.repaired[finding.kind] += finding.repaired
        if self.found[finding.kind] <= SHOWN:
            self.findings.append(finding)

    def left(self, kind: str) -> int:
        """Return the number of remaining findings of a kind."""
        return self.found[kind] - self.repaired[kind]

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {**super().as_dict(), "repaired": dict(+self.repaired)}


@dataclass(frozen=True, kw_only=True)
class VerifyReport:
    """The findings and repairs of a run.

    :ivar tallies: findings by name of the class.
    :ivar kinds: all kinds of findings, by name.
    :ivar repair: the kinds to repair; empty for a dry run.
    :ivar skipped: the kinds that could not be checked and the reason, by
        class.
    :ivar seconds: duration in seconds, without interruptions.
    :ivar unreachable: the servers of shards that could not be read completely:
        they did not respond, or lack the shard, or an object of its rows.
    """

    tallies: Mapping[str, Tally]
    kinds: Mapping[str, FindingKind]
    repair: Collection[str]
    skipped: Mapping[str, str]
    seconds: float
    unreachable: tuple[UnreachableServer, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether all shards were read, and no harmful finding remains."""
        return not self.unreachable and not any(
            tally.left(kind.name)
            for tally in self.tallies.values()
            for kind in self.kinds.values()
            if not kind.harmless
        )

    @property
    def findings(self) -> list[Finding]:
        """The listed findings of all classes and kinds."""
        return [one for tally in self.tallies.values() for one in tally.findings]

    def found(self, kind: str) -> int:
        """Return the number of findings of a kind, in all classes."""
        return sum(tally.found[kind] for tally in self.tallies.values())

    def repaired(self, kind: str) -> int:
        """Return the number of repaired findings of a kind."""
        return sum(tally.repaired[kind] for tally in self.tallies.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            "ok": self.ok,
            "repair": sorted(self.repair),
            "seconds": round(self.seconds, 3),
            "classes": {name: tally.as_dict() for name, tally in self.tallies.items()},
            "skipped": dict(self.skipped),
            "unreachable": unreachable_values(self.unreachable),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> list[str]:
        lines = []
        for name, tally in self.tallies.items():
            looked = " and ".join(
                f"{count} {unit}" for unit, count in tally.looked.items()
            )
            lines.append(f"{name}: {looked or 'nothing'} checked")
            for kind in self.kinds.values():
                if tally.found[kind.name]:
                    lines += self._kind_lines(tally, kind)
            if tally.looked and not +tally.found:
                lines.append("  no findings")
            if name in self.skipped:
                lines.append(f"  {self.skipped[name]}")
        lines += map(str, self.unreachable)
        done = "" if self.repair else "; nothing was changed"
        lines.append(f"{self.seconds:.1f} s{done}")
        return lines

    def _kind_lines(self, tally: Tally, kind: FindingKind) -> list[str]:
        found, repaired = tally.found[kind.name], tally.repaired[kind.name]
        done = f", {repaired} repaired" if kind.name in self.repair else ""
        lines = [f"  {found} {kind.name}{done}: {kind.meaning}"]
        shown = [one for one in tally.findings if one.kind == kind.name]
        lines += [f"    {one}" for one in shown]
        if found > len(shown):
            lines.append(f"    and {found - len(shown)} more")
        return lines


class CheckedPage(NamedTuple):
    """A page of rows of a shard that was checked in one transaction.

    :ivar rows: number of rows.
    :ivar after: position of the last one, as JSON values.
    :ivar findings: the findings, at most one for each row.
    :ivar counts: other numbers, by unit.
    """

    rows: int
    after: Any
    findings: Sequence[Finding] = ()
    counts: Mapping[str, int] = {}


class Check:
    """A check of the rows of one table on every shard.

    :param cls: the class to verify.
    :ivar subject: name of the class, under which findings are counted.
    :ivar unit: unit of its counts: rows, objects or claims.
    :ivar kinds: the kinds of its findings, by name.
    """

    unit = "rows"
    kinds: dict[str, FindingKind]

    def __init__(self, cls: Any) -> None:
        self.subject: str = cls.__name__
        self._cls = cls

    def keyspace(self, places: Places) -> Keyspace:
        """Return the keyspace whose shards have the table."""
        raise NotImplementedError

    def read(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> CheckedPage:
        """Check the next rows of a shard; the parameters are those of page()."""
        rows = self.page(session, shard_id, after, limit)
        last = self.position(rows[-1]) if rows else after
        return CheckedPage(len(rows), last, self.judge(session, shard_id, rows))

    def page(
        self, session: ShardSession, shard_id: int, after: Any, limit: int
    ) -> Sequence[Any]:
        """Return the next rows of a shard, by primary key.

        :param after: :meth:`position` of the last row, or None.
        """
        raise NotImplementedError

    def position(self, row: Any) -> Any:
        """Return the position of a row in its shard, as JSON values."""
        raise NotImplementedError

    def again(
        self, session: ShardSession, shard_id: int, findings: Sequence[Finding]
    ) -> Sequence[Any]:
        """Read the rows of findings again."""
        raise NotImplementedError

    def judge(
        self, session: ShardSession, shard_id: int, rows: Sequence[Any]
    ) -> list[Finding]:
        """Return the findings, at most one for each row."""
        raise NotImplementedError

    def repair(self, cluster: Cluster, finding: Finding) -> RepairOutcome:
        """Lock a row, check it again and repair it.

        A repair is idempotent, even after an interruption.
        """
        raise NotImplementedError

    def _read(
        self, session: ShardSession, shard_id: int, statement: Any
    ) -> Sequence[Any]:
        """Return the rows of a statement on one shard."""
        place = session.places.place(self.keyspace(session.places), shard_id)
        return session.execute(statement, bind_arguments={"place": place}).all()

    def _finding(
        self,
        session: ShardSession,
        kind: FindingKind,
        shard_id: int,
        row: dict[str, Any],
        detail: str = "",
    ) -> Finding:
        return Finding(
            kind=kind.name,
            subject=self.subject,
            keyspace=self.keyspace(session.places).name,
            shard_id=shard_id,
            row=row,
            detail=detail,
        )


def classes_of(mixin: type[Any], classes: Iterable[Any] | None) -> list[type[Any]]:
    """Return the mapped classes of a mixin, each once.

    :param classes: the classes; None for all classes of this process.
    :raises ValueError: for another class, or two of the same name.
    """
    mapped: list[Any] = list(
        dict.fromkeys(mapped_classes(mixin) if classes is None else classes)
    )
    names: set[str] = set()
    for cls in mapped:
        if not (isinstance(cls, type) and _is_mapped(mixin, cls)):
            raise ValueError(
                f"classes: {cls!r} is not a mapped class with {mixin.__name__}"
            )
        if cls.__name__ in names:
            raise ValueError(
                f"classes: two classes are named {cls.__name__}; verify them "
                "in separate runs"
            )
        names.add(cls.__name__)
    return mapped


def _is_mapped(mixin: type[Any], cls: type[Any]) -> bool:
    return issubclass(cls, mixin) and (inspect(cls, raiseerr=False) is not None)


def mapped_classes(mixin: type[Any]) -> Iterator[type[Any]]:
    """Yield the mapped classes of a mixin in this process."""
    waiting = list(mixin.__subclasses__())
    while waiting:
        cls = waiting.pop(0)
        waiting += cls.__subclasses__()
        if _is_mapped(mixin, cls):
            yield cls


_ALL = {INCLUDE_INACTIVE: True}


class Objects:
    """The objects of one class, including inactive ones.

    :param entity: the class.
    :param field: the attribute with the lookup key, or None.
    """

    def __init__(self, entity: Any, field: str | None = None) -> None:
        self.entity = entity
        self.field = field
        mapper: Any = inspect(self.entity)
        column = mapper.primary_key[0]
        self._spec = spec_of(mapper.local_table)
        self._name = mapper.get_property_by_column(column).key
        self._id = getattr(self.entity, self._name)

    def keyspace(self, places: Any) -> Keyspace:
        """Return the keyspace of the objects."""
        spec = self._spec
        keyspace: Keyspace = places.keyspace(spec.keyspace, spec.kind, spec.layout)
        return keyspace

    def refusal(self, session: ShardSession, target_id: int) -> str | None:
        """Return the reason why an id is not one of the class, or None."""
        try:
            getter_of(self.entity).place(session.places, (target_id,))
        except (InvalidIdError, UnknownShardError) as error:
            return str(error)
        return None

    def existing(self, session: ShardSession, ids: Iterable[int]) -> dict[int, Any]:
        """Return the existing objects, by id.

        The values are None if the class has no field with a key.
        """
        wanted = list(dict.fromkeys(ids))
        if not wanted:
            return {}
        if self.field is None:
            rows = session.scalars(
                select(self._id).where(self._id.in_(wanted)), execution_options=_ALL
            )
            return dict.fromkeys(rows)
        objects = session.get_many(self.entity, wanted, execution_options=_ALL)
        return {
            object_id: one
            for object_id, one in zip(wanted, objects, strict=True)
            if one is not None
        }

    def locked(self, session: ShardSession, target_id: int) -> Any:
        """Lock an object and return it, or None if it does not exist."""
        return session.get(
            self.entity, target_id, with_for_update=True, execution_options=_ALL
        )

    def is_gone(self, session: ShardSession, target_id: int) -> bool:
        """Return whether an object does not exist and is not being inserted.

        A row that was inserted but not committed is invisible to other reads;
        a locking read finds it locked.  NOWAIT is used, since the caller
        holds locks itself.
        """
        locked = select(self._id).where(self._id == target_id)
        try:
            row = session.scalar(
                locked.with_for_update(nowait=True), execution_options=_ALL
            )
        except OperationalError as error:
            original: Any = error.orig
            for backend in session.places.engines.backends():
                if backend.classify(original) is Failure.BUSY:
                    return False
            raise
        return row is None

    def page(
        self, session: ShardSession, shard_id: int, after: int | None, limit: int
    ) -> Sequence[Any]:
        """Return the next objects of a shard, by id."""
        statement = select(self.entity).order_by(self._id).limit(limit)
        if after is not None:
            statement = statement.where(self._id > after)
        place = session.places.place(self.keyspace(session.places), shard_id)
        found: Sequence[Any] = session.scalars(
            statement, bind_arguments={"place": place}, execution_options=_ALL
        ).all()
        return found

    def id_of(self, one: Any) -> int:
        """Return the id of an object."""
        object_id: int = getattr(one, self._name)
        return object_id

    def is_active(self, one: Any) -> bool:
        """Return whether an object must have its keys.

        An inactive object may have released them.
        """
        return bool(getattr(one, "active", True))

    def keys_of(self, one: Any) -> tuple[object, ...]:
        """Return the keys in the field of an object."""
        value = getattr(one, str(self.field))
        if value is None or value == "":
            return ()
        if isinstance(value, (list, tuple, set, frozenset)):
            return tuple(value)
        return (value,)
