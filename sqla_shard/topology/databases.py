"""Database names: one for each virtual shard, written as a template.

A template has one field for the number of the shard: ``"db{shard:05d}"``
names ``db00000``, ``db00001`` and so on.  With a single field, two shards of a
keyspace cannot have the same name.  Two keyspaces can; :func:`collisions`
finds them without enumerating their names.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from string import digits, Formatter

from sqla_shard.topology.keyspaces import common, ShardRange
from sqla_shard.util.masking import masked

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
        needs = (
            f"{masked(text)} needs exactly one field {{shard}}, such as "
            "'db{shard:05d}': each virtual shard has its own database"
        )
        try:
            parts = list(Formatter().parse(text))
        except ValueError as error:
            return f"{needs} ({error})"
        fields = [index for index, part in enumerate(parts) if part[1]]
        # The field name of "{}" is empty; that of literal text is None.
        if len(fields) != 1 or any(part[1] == "" for part in parts):
            return needs
        index = fields[0]
        _, name, spec, conversion = parts[index]
        if name != "shard" or conversion or not _SPEC.fullmatch(spec or ""):
            # This includes attributes, conversions and nested fields.
            return (
                f"{masked(text)} has a field other than {{shard}} or "
                "{shard:05d}; write 'shard', and a width of at most three "
                "digits and 'd'"
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
                f"{masked(text)} gives the name {masked(name)}; use 1 to 64 "
                "letters, digits and '_', and pad numbers with 0 as in "
                "{shard:05d}"
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
