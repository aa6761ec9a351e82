"""Ranges of virtual shards, servers and keyspaces.

The cost of every function grows with the number of ranges, not of shards:
65,536 shards on 128 servers are 128 ranges.

Servers and keyspaces are frozen and compared by their attributes.
:class:`~sqla_shard.topology.Topology` checks that they agree: each shard is on
one server, and no two databases have the same name.

The names of databases are a template, with one field for the number of the
shard: ``"db{shard:05d}"`` names ``db00000``, ``db00001`` and so on.  With a
single field, two shards of a keyspace cannot have the same name.  Two keyspaces
can; :func:`collisions` finds them without enumerating their names.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from string import digits, Formatter
from typing import Any, Literal, TypeAlias

from sqla_shard.exc import Problem, TopologyError, UnknownShardError
from sqla_shard.ids import DEFAULT_LAYOUT, IdLayout
from sqla_shard.util.masking import masked, redact

MAX_SHARDS = 65_536

"""Maximum number of virtual shards; ids have at most 16 bits of the shard."""

bounds: attrgetter[tuple[Any, Any]] = attrgetter("first", "last")

"""Sort key of ranges; much faster than comparing the ranges."""


@dataclass(frozen=True, slots=True, order=True)
class ShardRange:
    """Virtual shards ``first`` to ``last``, both included.

    Ranges sort by their first shard.  ``len``, ``in`` and iteration work
    on the shard ids.

    :param first: the lowest shard id, 0 or more.
    :param last: the highest shard id, ``first`` or more.
    :raises TopologyError: if the range is negative or reversed.
    """

    first: int
    last: int

    def __post_init__(self) -> None:
        if not 0 <= self.first <= self.last:
            raise TopologyError(
                [
                    Problem(
                        "shards",
                        f"[{self.first}, {self.last}] is not a valid range; "
                        "write [first, last], both included, from 0 upwards",
                    )
                ],
                source="ShardRange",
            )

    def __contains__(self, shard_id: object) -> bool:
        return isinstance(shard_id, int) and self.first <= shard_id <= self.last

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.last + 1))

    def __len__(self) -> int:
        return self.last - self.first + 1

    @property
    def numbers(self) -> str:
        """The shard ids, such as ``"2-3"``, or ``"2"`` for a single one."""
        if self.first == self.last:
            return str(self.first)
        return f"{self.first}-{self.last}"

    def __str__(self) -> str:
        return f"shard{'s' * (len(self) > 1)} {self.numbers}"


def as_ranges(shard_ids: Iterable[int], most: int = 12) -> str:
    """Return a string such as ``"0-511, 600"``, as ``--shards`` takes it.

    :param most: maximum number of ranges to show.
    """
    ranges = joined(ShardRange(one, one) for one in shard_ids)
    more = sum(map(len, ranges[most:]))
    shown = ", ".join(one.numbers for one in ranges[:most])
    return shown + (f" and {more} more" if more else "")


def joined(ranges: Iterable[ShardRange]) -> tuple[ShardRange, ...]:
    """Return the ranges sorted, with adjacent ranges joined.

    Overlapping ranges are not joined, since they are reported as a mistake.

    :param ranges: ranges in any order.
    """
    result: list[ShardRange] = []
    for item in sorted(ranges, key=bounds):
        if result and item.first == result[-1].last + 1:
            item = ShardRange(result.pop().first, item.last)
        result.append(item)
    return tuple(result)


def common(
    one: Iterable[ShardRange], other: Iterable[ShardRange]
) -> Iterator[ShardRange]:
    """Yield the shards that are in both, as ranges, ascending.

    :param one: ranges in any order; if they overlap, the result does.
    :param other: a second set of ranges, in any order.
    """
    ours, theirs = (sorted(ranges, key=bounds) for ranges in (one, other))
    begin = 0
    for item in ours:
        while begin < len(theirs) and theirs[begin].last < item.first:
            begin += 1
        at = begin
        while at < len(theirs) and theirs[at].first <= item.last:
            first = max(item.first, theirs[at].first)
            last = min(item.last, theirs[at].last)
            if first <= last:
                yield ShardRange(first, last)
            at += 1


def gaps(ranges: Iterable[ShardRange], count: int) -> Iterator[ShardRange]:
    """Yield the ranges of 0 to ``count - 1`` that are not covered.

    :param ranges: ranges in any order; they may overlap and exceed ``count``.
    :param count: number of open shards.
    """
    expected = 0
    for item in sorted(ranges, key=bounds):
        if item.first >= count:
            break
        if item.first > expected:
            yield ShardRange(expected, item.first - 1)
        expected = max(expected, item.last + 1)
    if expected < count:
        yield ShardRange(expected, count - 1)


Kind: TypeAlias = Literal["objects", "mod", "global"]

"""``"objects"``: the shard is part of the id; ``"mod"``: hash of a key with
a fixed modulus; ``"global"``: one database, not sharded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A physical server, or a pair of them, and the shards on it.

    :param name: unique within its keyspace, such as ``"sharddb001"``.
    :param primary: URL for all reads and writes, with unexpanded
        placeholders.  The ``repr`` masks passwords.
    :param standby: URL of the replica that can be promoted, or None.
    :param shards: ranges of shards; sorted, and adjacent ranges joined, so
        that equal placements compare equal.
    :param weight: share of new root objects among the servers of an
        ``"objects"`` keyspace; 0 for none.  Ignored for other kinds.
    :param generation: part of cache keys; rows that were cached under
        another generation are not used.  Must be raised whenever the primary
        becomes another machine.  None if not used.
    """

    name: str
    primary: str
    standby: str | None = None
    shards: tuple[ShardRange, ...]
    weight: float = 1.0
    generation: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shards", joined(self.shards))

    def redacted(self) -> Server:
        """Return the server with ``***`` for passwords in its URLs."""
        return replace(
            self,
            primary=redact(self.primary),
            standby=None if self.standby is None else redact(self.standby),
        )

    def __repr__(self) -> str:
        shown = self.redacted()
        return (
            f"Server(name={self.name!r}, primary={shown.primary!r}, "
            f"standby={shown.standby!r}, shards={self.shards!r}, "
            f"weight={self.weight!r}, generation={self.generation!r})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """A set of virtual shards and the servers that hold them.

    :param name: name of the keyspace in the topology.
    :param kind: how keys are routed to shards, see :data:`Kind`.
    :param shards: number of open shards, which are numbered from 0; 1 for a
        global keyspace.
    :param database: template of the database names with one field
        ``{shard}``, such as ``"db{shard:05d}"``; the database name of a
        global keyspace.
    :param servers: servers in the order of the document.
    :param id_layout: layout of the ids of an ``"objects"`` keyspace.
        Ignored for other kinds.
    """

    name: str
    kind: Kind
    shards: int
    database: str
    servers: tuple[Server, ...]
    id_layout: IdLayout = DEFAULT_LAYOUT
    _table: tuple[list[int], list[Server]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def __reduce__(self) -> tuple[Any, ...]:
        # The table is not part of the state.
        rebuild = partial(
            type(self),
            name=self.name,
            kind=self.kind,
            shards=self.shards,
            database=self.database,
            servers=self.servers,
            id_layout=self.id_layout,
        )
        return rebuild, ()

    @property
    def identity(self) -> str:
        """A string that is the same in all topologies of a cluster."""
        return f"{self.kind} {self.name} {self.database}"

    @property
    def shard_ids(self) -> range:
        """The ids of the open shards, ascending."""
        return range(self.shards)

    def server_for(self, shard_id: int) -> Server:
        """Return the server that holds a virtual shard.

        :param shard_id: the shard.
        :raises UnknownShardError: if the shard is not open.
        :raises TopologyError: if this keyspace is not part of a topology, and
            its servers do not have each shard exactly once.
        """
        if 0 <= shard_id < self.shards:
            starts, servers = self._table or self._tabulate()
            return servers[bisect_right(starts, shard_id) - 1]
        raise self._not_open(shard_id)

    def database_for(self, shard_id: int) -> str:
        """Return the name of a virtual shard's database.

        :param shard_id: the shard; 0 for a global keyspace.
        :raises UnknownShardError: if it is not open.
        """
        if not 0 <= shard_id < self.shards:
            raise self._not_open(shard_id)
        if self.kind == "global":
            return self.database
        return self.database.format(shard=shard_id)

    def placements(self) -> list[tuple[ShardRange, Server]]:
        """Return each range with its server, in the order of the shards."""
        pairs = [(item, server) for server in self.servers for item in server.shards]
        return sorted(pairs, key=lambda pair: bounds(pair[0]))

    def _not_open(self, shard_id: int) -> UnknownShardError:
        return UnknownShardError(
            shard_id=shard_id, keyspace=self.name, opened=self.shards
        )

    def _tabulate(self) -> tuple[list[int], list[Server]]:
        placements = self.placements()
        ranges = [item for item, _ in placements]
        left_out = next(gaps(ranges, self.shards), None)
        if left_out is not None or self.shards != sum(map(len, ranges)):
            # The table contains only the first shards of ranges: it would
            # assign the shards of a gap to the server before the gap.
            raise TopologyError(
                [
                    Problem(
                        "servers",
                        f"they do not hold each of the {self.shards} shards "
                        "exactly once; build a Topology to see which",
                    )
                ],
                source=f"keyspace {self.name!r}",
            )
        table = ([item.first for item in ranges], [server for _, server in placements])
        # Concurrent threads store equal tables.
        object.__setattr__(self, "_table", table)
        return table


_SPEC = re.compile(r"(?:[0-9]{0,3}d)?")

_RUN = re.compile("[0-9]+")

_NAME = re.compile(r"[A-Za-z0-9_]{1,64}")

_SYSTEM = frozenset(["information_schema", "mysql", "performance_schema"])

_SYSTEM |= {"sys"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A database name in its three parts.

    :param prefix: text before the number.
    :param spec: format of the number; None if there is no number.
    :param suffix: text after the number.
    """

    prefix: str
    spec: str | None
    suffix: str

    @classmethod
    def parse(cls, text: str, *, sharded: bool) -> Template | str:
        """Return the template, or a message if it is not valid.

        :param text: a template such as ``"db{shard:05d}"``.
        :param sharded: whether the template must have a field; otherwise it
            must not have one.
        """
        if not sharded:
            return cls(prefix=text, spec=None, suffix="")
        reason = ""
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            parts = []
            reason = f" ({error})"
        # The field name of "{}" is empty; that of literal text is None.
        fields = [index for index, part in enumerate(parts) if part[1] is not None]
        if len(fields) != 1 or not parts[fields[0]][1]:
            return (
                f"{masked(text)} needs exactly one field {{shard}}, such as "
                "'db{shard:05d}': each virtual shard has its own database"
                f"{reason}"
            )
        index = fields[0]
        _, name, spec, conversion = parts[index]
        if name != "shard" or conversion or not _SPEC.fullmatch(spec or ""):
            # This includes attributes, conversions and nested fields.
            return (
                f"{masked(text)} has a field other than {{shard}} or {{shard:05d}}; "
                "write 'shard', and a width of at most three digits and 'd'"
            )
        return cls(
            prefix="".join(part[0] for part in parts[: index + 1]),
            spec=spec or "",
            suffix="".join(part[0] for part in parts[index + 1 :]),
        )

    def name(self, shard_id: int) -> str:
        """Return the database name of a shard."""
        if self.spec is None:
            return self.prefix
        return f"{self.prefix}{shard_id:{self.spec}}{self.suffix}"

    def shard_of(self, name: str) -> int | None:
        """Return the shard of a database, ignoring case, or None."""
        if self.spec is None:
            return 0 if name.lower() == self.prefix.lower() else None
        end = len(name) - len(self.suffix)
        number = name[len(self.prefix) : max(end, 0)]
        if not (number.isascii() and number.isdigit()):
            return None
        shard_id = int(number)
        same = self.name(shard_id).lower() == name.lower()
        return shard_id if same else None

    def may_meet(self, other: Template) -> bool:
        """Return whether two templates can have a common name."""
        # Suffixes are reversed, so that both are compared towards the number.
        pairs = [
            (self.prefix.lower(), other.prefix.lower()),
            (self.suffix.lower()[::-1], other.suffix.lower()[::-1]),
        ]
        numbered = self.spec is not None and other.spec is not None
        for pair in pairs:
            short, long = sorted(pair, key=len)
            if not long.startswith(short):
                return False
            # The rest of the longer part must match the number of the other
            # template.
            rest = long[len(short) :]
            if numbered and rest and rest[0] not in digits:
                return False
        return True

    def differs_in_number(self, other: Template) -> bool:
        """Return whether names of two templates differ only by the number."""
        return (
            self.spec is not None
            and other.spec is not None
            and self.prefix.lower() == other.prefix.lower()
            and self.suffix.lower() == other.suffix.lower()
        )


def faults(text: str, template: Template, last: int) -> Iterator[str]:
    """Yield messages about invalid names.

    :param text: the template in the document.
    :param template: the parsed template.
    :param last: the highest shard id, whose name is the longest.
    """
    # The first name may be padded with spaces, the last may be too long.
    for shard_id in (0, last):
        name = template.name(shard_id)
        if not _NAME.fullmatch(name):
            yield (
                f"{masked(text)} gives the name {masked(name)}; use 1 to 64 letters, "
                "digits and '_', and pad numbers with 0 as in {shard:05d}"
            )
            return
    if template.spec is None and text.lower() in _SYSTEM:
        yield f"{text!r} is a system database; use another name"


@dataclass(frozen=True, slots=True)
class Tenant:
    """A keyspace on a server.

    :ivar ranges: shards of the keyspace on the server.
    """

    keyspace: str
    template: Template
    ranges: list[ShardRange]


def collisions(tenants: Iterable[Tenant]) -> Iterator[tuple[Tenant, Tenant, str]]:
    """Yield keyspaces of a server with a common database name.

    Only keyspaces that may have a common name are compared, so that the time
    is linear in the number of keyspaces.

    :param tenants: all keyspaces of one server.
    :returns: the later keyspace, the first earlier one, and the common name.
    """
    singles: dict[str, Tenant] = {}
    shapes: dict[Hashable, list[Tenant]] = {}
    numbered: dict[Hashable, list[Tenant]] = {}
    for tenant in tenants:
        template = tenant.template
        candidates = {}
        if template.spec is None:
            same = singles.setdefault(template.prefix.lower(), tenant)
            if same is not tenant:
                candidates[same.keyspace] = same
        for shape, other_shape in _shapes(template):
            met = numbered if template.spec is None else shapes
            for other in met.get(other_shape, ()):
                candidates[other.keyspace] = other
            shapes.setdefault(shape, []).append(tenant)
            if template.spec is not None:
                numbered.setdefault(shape, []).append(tenant)
        for other in candidates.values():
            name = shared_name(
                (template, tenant.ranges), (other.template, other.ranges)
            )
            if name is not None:
                yield tenant, other, name
                break


def _shapes(template: Template) -> Iterator[tuple[Hashable, Hashable]]:
    """Yield pairs of keys by which templates are grouped.

    If two templates have a common name, a first key of one equals a second
    key of the other.  A name consists of letters and runs of digits.  One of
    the runs contains the number of the shard.  All other runs are equal in
    both names, except that with the number of the other one.
    """
    prefix, suffix = template.prefix.lower(), template.suffix.lower()
    if template.spec is None:
        letters, runs = _split(prefix)
        for at in range(len(runs)):
            shape = (letters, at, *_without(runs, at))
            yield shape, shape
        return
    # Digits next to the number belong to its run.
    letters, runs = _split(f"{prefix}0{suffix}")
    own = len(_split(f"{prefix}0")[1]) - 1
    shape = (letters, own, *_without(runs, own))
    yield shape, shape
    for at in range(len(runs)):
        if at != own:
            rest = tuple(_without(runs, own, at))
            yield (letters, own, at, rest), (letters, at, own, rest)


def _split(name: str) -> tuple[str, list[str]]:
    return _RUN.sub("0", name), _RUN.findall(name)


def _without(runs: list[str], *places: int) -> Iterator[str]:
    return (run for at, run in enumerate(runs) if at not in places)


def shared_name(
    one: tuple[Template, Sequence[ShardRange]],
    other: tuple[Template, Sequence[ShardRange]],
) -> str | None:
    """Return a common database name, or None.

    Case is ignored: with ``lower_case_table_names``, and in case-insensitive
    file systems, ``DB1`` is ``db1``.

    :param one: a template and its shards.
    :param other: a second template and its shards.
    """
    if not one[0].may_meet(other[0]):
        return None
    if one[0].differs_in_number(other[0]):
        # A common name belongs to the same shard: 07 and 7 are different
        # names.
        for item in common(one[1], other[1]):
            for shard_id in item:
                name = one[0].name(shard_id)
                if other[0].name(shard_id).lower() == name.lower():
                    return name
        return None
    if sum(map(len, one[1])) > sum(map(len, other[1])):
        one, other = other, one
    for item in one[1]:
        for shard_id in item:
            name = one[0].name(shard_id)
            match = other[0].shard_of(name)
            if match is not None and any(match in held for held in other[1]):
                return name
    return None
