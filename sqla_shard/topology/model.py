"""The topology: one version of which server holds which virtual shard.

A :class:`Topology` is immutable; processes replace it by one with a higher
epoch::

    topology = Topology.from_mapping({
        "epoch": 7,
        "keyspaces": {
            "objects": {
                "kind": "objects",
                "shards": 4096,
                "database": "db{shard:05d}",
                "servers": [
                    {
                        "name": "sharddb001",
                        "primary": "mysql://app:${MYSQL_PASSWORD}@mysql001a",
                        "standby": "mysql://app:${MYSQL_PASSWORD}@mysql001b",
                        "shards": [0, 4095],
                    },
                ],
            },
        },
    })
    topology.keyspace("objects").server_for(3429).name    # 'sharddb001'

Every topology has passed all checks, even if it was created from its parts or
with :func:`dataclasses.replace`.  Nothing here connects to servers: it is
unknown whether they exist and have the data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Any, TypeVar

from sqla_shard.exc import Problem, TopologyError, UnknownKeyspaceError
from sqla_shard.ids import IdLayout, ObjectId
from sqla_shard.topology.keyspaces import (
    bounds,
    collisions,
    faults,
    gaps,
    Keyspace,
    Kind,
    Server,
    ShardRange,
    Template,
    Tenant,
)
from sqla_shard.topology.parse import (
    brief,
    DEFAULT_URL,
    Draft,
    expand,
    in_document_order,
    is_short,
    parse,
    ServerDraft,
)
from sqla_shard.topology.urls import Address, address_of, DEFAULT_PLACEHOLDERS, Policy
from sqla_shard.util.masking import redact

# -- Checks that the values of a topology document agree with each other.
#
# Each check takes drafts and yields problems; it skips values with problems
# of their own.


def validate(drafts: Iterable[Draft], problems: list[Problem]) -> None:
    """Record the problems between values of keyspaces.

    :param drafts: every keyspace of the topology.
    :param problems: list to which problems are appended.
    """
    drafts = list(drafts)
    templates = {}
    for draft in drafts:
        template = _template(draft, problems)
        if template is not None:
            templates[draft.name] = template
        if draft.servers is None:
            continue
        problems += _names(draft.servers)
        problems += _addresses(draft.servers)
        if draft.kind == "global":
            problems += _single(draft, draft.servers)
        else:
            problems += _past_the_end(draft, draft.servers)
            problems += _overlaps(draft.servers)
            problems += _gaps(draft, draft.servers)
        if draft.kind == "objects":
            problems += _weights(draft, draft.servers)
            problems += _unnamed(draft)
    problems += _collisions(drafts, templates)


def _template(draft: Draft, problems: list[Problem]) -> Template | None:
    if draft.database is None or draft.kind is None:
        return None
    place = f"{draft.place}.database"
    template = Template.parse(draft.database, sharded=draft.kind != "global")
    if isinstance(template, str):
        problems.append(Problem(place, template))
        return None
    wrong = [*faults(draft.database, template, (draft.shards or 1) - 1)]
    problems += (Problem(place, fault) for fault in wrong)
    return None if wrong else template


def _names(servers: list[ServerDraft]) -> Iterator[Problem]:
    seen: dict[str, ServerDraft] = {}
    for server in servers:
        if server.name is None:
            continue
        if server.name in seen:
            yield Problem(
                f"{server.place}.name",
                f"{server.label} is already the name of "
                f"{seen[server.name].place}; give each server its own name",
            )
        seen.setdefault(server.name, server)


def _addresses(servers: list[ServerDraft]) -> Iterator[Problem]:
    first: tuple[str, str, ServerDraft] | None = None
    primaries: dict[Address, ServerDraft] = {}
    for server in servers:
        for role, url in (("primary", server.primary), ("standby", server.standby)):
            if url is None or url.address is None:
                continue
            family = url.address.family
            if first is None:
                first = (family, role, server)
            elif family != first[0]:
                yield Problem(
                    f"{server.place}.{role}",
                    f"is on {family}, but the {first[1]} of {first[2].label} is on "
                    f"{first[0]}; use one kind of server for all of a keyspace",
                )
        if server.primary is None or server.primary.address is None:
            continue
        primary = server.primary.address
        if server.standby and server.standby.address == primary:
            yield Problem(
                f"{server.place}.standby",
                f"{primary} is the primary itself; name another server, or "
                "omit the standby",
            )
        if primary in primaries:
            # Two pools would double the connections of the machine, and a
            # session would open two transactions on it.
            yield Problem(
                f"{server.place}.primary",
                f"{primary} is already the primary of {primaries[primary].label}; "
                "write one server with a list of ranges",
            )
        primaries.setdefault(primary, server)


def _single(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if len(servers) != 1:
        yield Problem(
            f"{draft.place}.servers",
            f"has {len(servers)} servers, but a global keyspace is one "
            "database; write one server, and a keyspace for each other one",
        )


def _past_the_end(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if draft.shards is None:
        return
    for server in servers:
        for place, item in server.ranges:
            if item.last >= draft.shards:
                rest = ShardRange(max(item.first, draft.shards), item.last)
                yield Problem(
                    place,
                    f"[{item.first}, {item.last}] exceeds the last open "
                    f"shard, {draft.shards - 1}: end it there, or open "
                    f"{rest} with {draft.place}.shards = {item.last + 1}",
                )


def _overlaps(servers: list[ServerDraft]) -> Iterator[Problem]:
    # A range: its server, its index in that server's list, and its path in the
    # document.
    held = sorted(
        (
            (item, (index, number), place)
            for index, server in enumerate(servers)
            for number, (place, item) in enumerate(server.ranges)
        ),
        key=lambda entry: bounds(entry[0]),
    )
    reach = held[:1]
    for entry in held[1:]:
        item, other = entry[0], reach[0][0]
        if item.first <= other.last:
            both = ShardRange(item.first, min(item.last, other.last))
            earlier, later = sorted((reach[0], entry), key=lambda one: one[1])
            one, two = (servers[found[1][0]] for found in (earlier, later))
            where = (
                f"twice on {one.label}"
                if one is two
                else f"on {one.label} and on {two.label}"
            )
            yield Problem(
                later[2],
                f"{both} {_is(both)} {where}; assign each shard to the one "
                "server that has its data",
            )
        if item.last > other.last:
            reach = [entry]


def _gaps(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if draft.shards is None or not all(one.is_complete for one in servers):
        # A range that could not be parsed would be reported as a gap.
        return
    ranges = [item for server in servers for _, item in server.ranges]
    for gap in gaps(ranges, draft.shards):
        yield Problem(
            f"{draft.place}.servers",
            f"{gap} of the {draft.shards} open {_is(gap)} on no server; add "
            f"[{gap.first}, {gap.last}] to the server that has the data",
        )


def _is(item: ShardRange) -> str:
    return "is" if len(item) == 1 else "are"


def _weights(draft: Draft, servers: list[ServerDraft]) -> Iterator[Problem]:
    if all(server.weight == 0 for server in servers):
        yield Problem(
            f"{draft.place}.servers",
            "all weights are 0, so no server would get new objects; give at "
            "least one server a weight above 0",
        )


def _unnamed(draft: Draft) -> Iterator[Problem]:
    """Yield open shards that the ids of the keyspace cannot name."""
    if draft.id_layout is None or draft.shards is None:
        return
    most = draft.id_layout.max_shard_id + 1
    if draft.shards > most:
        yield Problem(
            f"{draft.place}.shards",
            f"{draft.shards} is out of range: {draft.id_layout} name {most} shards",
        )


def _collisions(
    drafts: list[Draft], templates: dict[str, Template]
) -> Iterator[Problem]:
    tenants: dict[Address, dict[str, Tenant]] = {}
    for draft in drafts:
        if draft.name not in templates:
            continue
        for server in draft.servers or ():
            ranges = [item for _, item in server.ranges]
            if draft.kind == "global":
                ranges = [ShardRange(0, 0)]
            for address in server.addresses:
                tenant = tenants.setdefault(address, {}).setdefault(
                    draft.name, Tenant(draft.name, templates[draft.name], [])
                )
                tenant.ranges.extend(ranges)
    # For each keyspace: the first keyspace with a common name, and the
    # address.
    holders: dict[str, tuple[str, str, Address]] = {}
    for address, held in tenants.items():
        for later, earlier, name in collisions(held.values()):
            holders.setdefault(later.keyspace, (earlier.keyspace, name, address))
    for draft in drafts:
        if draft.name in holders:
            other, name, address = holders[draft.name]
            yield Problem(
                f"{draft.place}.database",
                f"{draft.database!r} names {name!r} on {address}, and so does keyspace "
                f"{other!r}; give the two keyspaces different database names",
            )


_T = TypeVar("_T")


class Checked(dict[str, Keyspace]):
    """Keyspaces that have passed all checks, and their epoch.

    Only :func:`load` creates it.

    :ivar epoch: epoch of the document.
    :ivar resets: resets of the document.
    """

    def __init__(self, epoch: int, resets: int, keyspaces: Iterable[Keyspace]) -> None:
        super().__init__((one.name, one) for one in keyspaces)
        self.epoch = epoch
        self.resets = resets


def load(document: object, *, source: str, policy: Policy, url: str) -> Checked:
    """Return the keyspaces by name, and the epoch.

    :param document: the full or the short form.
    :param source: origin of the document, for errors.
    :param policy: the placeholders that the document may use.
    :param url: template for the bare hosts of the short form.
    :raises TopologyError: if the document is not valid; lists all problems, in
        the order of the document.
    """
    problems: list[Problem] = []
    if not isinstance(document, Mapping):
        message = (
            f"{brief(document)} is not a table; a topology is one with the "
            "keys epoch and keyspaces"
        )
        raise TopologyError([Problem("document", message)], source=source)
    full, places = document, None
    if is_short(document):
        full, places = expand(document, url=url, problems=problems)
    known = len(problems)
    epoch, resets, drafts = parse(full, policy=policy, problems=problems)
    validate(drafts, problems)
    if places is not None:
        problems[known:] = map(places.restore, problems[known:])
    if problems:
        raise TopologyError(in_document_order(document, problems), source=source)
    return Checked(_given(epoch), _given(resets), map(_checked_keyspace, drafts))


def _checked_keyspace(draft: Draft) -> Keyspace:
    is_global = draft.kind == "global"
    return Keyspace(
        name=draft.name,
        kind=_given(draft.kind),
        shards=_given(draft.shards),
        database=_given(draft.database),
        servers=tuple(
            _checked_server(server, is_global=is_global)
            for server in _given(draft.servers)
        ),
        id_layout=_given(draft.id_layout),
    )


def _checked_server(draft: ServerDraft, *, is_global: bool) -> Server:
    return Server(
        name=_given(draft.name),
        primary=_given(draft.primary).text,
        standby=None if draft.standby is None else draft.standby.text,
        shards=(ShardRange(0, 0),)
        if is_global
        else tuple([item for _, item in draft.ranges]),
        weight=_given(draft.weight),
        generation=draft.generation,
    )


def _given(value: _T | None) -> _T:
    if value is None:
        raise AssertionError("a draft without a value and without a problem")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A version of the topology; compared by value, hashable, picklable.

    :param epoch: number of the version; a higher one is newer.
    :param keyspaces: the keyspaces by name; copied, read-only afterwards.
    :param resets: number of times that the numbering of epochs was restarted;
        a topology with more resets is newer, whatever its epoch.
    :raises TopologyError: if it is not valid; lists all problems.  Only the
        form and the place of placeholders are checked; :meth:`from_mapping`
        checks their names and values.
    """

    epoch: int
    keyspaces: Mapping[str, Keyspace]
    resets: int = 0

    def __post_init__(self) -> None:
        given = self.keyspaces
        keyspaces = MappingProxyType(dict(given))
        object.__setattr__(self, "keyspaces", keyspaces)
        if isinstance(given, Checked) and (given.resets, given.epoch) == (self.version):
            # load() has already checked the document.
            return
        load(self.to_mapping(), source="Topology", policy=Policy(), url=DEFAULT_URL)
        self._check_parts()

    def __hash__(self) -> int:
        return hash((self.version, frozenset(self.keyspaces.items())))

    def __reduce__(self) -> tuple[Any, ...]:
        # A read-only view of a dict cannot be pickled.
        keyspaces = dict(self.keyspaces)
        make = partial(
            type(self), epoch=self.epoch, keyspaces=keyspaces, resets=self.resets
        )
        return make, ()

    @property
    def version(self) -> tuple[int, int]:
        """Resets and epoch; a topology with a higher pair is newer."""
        return self.resets, self.epoch

    def __repr__(self) -> str:
        # Short: messages with a hundred servers would be unreadable.
        parts = "; ".join(
            f"{one.name}: kind {one.kind}, shards {one.shards}, "
            f"servers {len(one.servers)}"
            for one in self.keyspaces.values()
        )
        return f"<Topology epoch {self.epoch} ({parts})>"

    @classmethod
    def from_mapping(
        cls,
        document: Mapping[str, Any],
        *,
        source: str = "mapping",
        placeholders: Collection[str] = DEFAULT_PLACEHOLDERS,
        environ: Mapping[str, str] | None = None,
        url: str = DEFAULT_URL,
    ) -> Topology:
        """Return the topology of a document.

        :param document: content of a TOML or JSON file; the full form, or
            the short form ``{"sharddb001": {"range": [0, 511], "master":
            "MySQL001A", "slave": "MySQL001B"}, ...}``.
        :param source: origin of the document, for errors.
        :param placeholders: allowed names in ``${NAME}``, in the user and
            the password of a URL.
        :param environ: mapping with a value for each used placeholder; None
            uses ``os.environ``.
        :param url: template for URLs of bare hosts in the short form, with
            ``{host}``.
        :raises TopologyError: if the document is not valid; lists all
            problems.
        """
        policy = Policy.of(placeholders, environ)
        checked = load(document, source=source, policy=policy, url=url)
        return cls(epoch=checked.epoch, keyspaces=checked, resets=checked.resets)

    def to_mapping(self) -> dict[str, Any]:
        """Return the document of this topology, in the full form.

        It can be stored as JSON and TOML; :meth:`from_mapping` returns an
        equal topology.  Placeholders are unexpanded, but passwords that were
        written into a URL are in clear text.
        """
        return {
            "epoch": self.epoch,
            **({"resets": self.resets} if self.resets else {}),
            "keyspaces": {
                name: _keyspace_mapping(keyspace)
                for name, keyspace in self.keyspaces.items()
            },
        }

    def redacted(self) -> Topology:
        """Return this topology with ``***`` for all passwords in URLs.

        Placeholders are not masked.  The result can be shown, but not
        connected to.
        """
        return replace(
            self,
            keyspaces={
                name: replace(
                    keyspace, servers=tuple(one.redacted() for one in keyspace.servers)
                )
                for name, keyspace in self.keyspaces.items()
            },
        )

    def keyspace(self, name: str) -> Keyspace:
        """Return a keyspace.

        :param name: name of the keyspace.
        :raises UnknownKeyspaceError: if it does not exist.
        """
        try:
            return self.keyspaces[name]
        except KeyError:
            known = tuple(self.keyspaces)
        raise UnknownKeyspaceError(
            f"there is no keyspace {name!r} in the topology of epoch "
            f"{self.epoch}; it has {', '.join(map(repr, known))}",
            keyspace=name,
            known=known,
        )

    def sole(self, kind: Kind) -> Keyspace:
        """Return the only keyspace of a kind.

        :param kind: see :data:`~sqla_shard.topology.Kind`.
        :raises UnknownKeyspaceError: if there is not exactly one.
        """
        keyspaces = [one for one in self.keyspaces.values() if one.kind == kind]
        if len(keyspaces) == 1:
            return keyspaces[0]
        known = tuple(one.name for one in keyspaces or self.keyspaces.values())
        names = ", ".join(map(repr, known))
        if keyspaces:
            message = (
                f"the topology has {len(keyspaces)} keyspaces of kind {kind!r} "
                f"({names}), so the keyspace is ambiguous; name it "
                f'with the class keyword keyspace="{known[0]}"'
            )
        else:
            message = (
                f"the topology has no keyspace of kind {kind!r}, only "
                f"{names}; add one, or name another with the class keyword "
                'keyspace="..."'
            )
        raise UnknownKeyspaceError(message, keyspace=None, known=known)

    def id_layout(self, keyspace: str | None = None) -> IdLayout:
        """Return the layout of the ids of a keyspace.

        :param keyspace: name of the keyspace; None if all keyspaces of kind
            ``"objects"`` have the same layout.
        :raises UnknownKeyspaceError: if the keyspace does not exist or has no
            ids, or if it is not named and there are several layouts: the
            number alone does not determine its parts.
        """
        if keyspace is not None:
            return _with_objects(self, self.keyspace(keyspace)).id_layout
        known = [s for s in self.keyspaces.values() if s.kind == "objects"]
        layouts = {space.id_layout for space in known}
        if len(layouts) == 1:
            return layouts.pop()
        if not layouts:
            return self.sole("objects").id_layout
        names = tuple(space.name for space in known)
        raise UnknownKeyspaceError(
            f"the ids of the keyspaces {', '.join(map(repr, names))} have different "
            "layouts, so an id alone is ambiguous; name its keyspace",
            keyspace=None,
            known=names,
        )

    def _check_parts(self) -> None:
        """Check attributes that the document does not contain."""
        problems = []
        for name, keyspace in self.keyspaces.items():
            if keyspace.name != name:
                problems.append(
                    Problem(
                        f"keyspaces.{name}",
                        f"contains the keyspace {keyspace.name!r}; use one "
                        "name for both",
                    )
                )
            if keyspace.kind == "global" and (
                keyspace.shards != 1
                or keyspace.servers[0].shards != (ShardRange(0, 0),)
            ):
                problems.append(
                    Problem(
                        f"keyspaces.{name}.shards",
                        "a global keyspace has the one shard 0; build it "
                        "with shards=1, its server with ShardRange(0, 0)",
                    )
                )
        if problems:
            raise TopologyError(problems, source="Topology")


def _keyspace_mapping(keyspace: Keyspace) -> dict[str, Any]:
    is_global = keyspace.kind == "global"
    document: dict[str, Any] = {"kind": keyspace.kind}
    if not is_global:
        document["shards"] = keyspace.shards
    document["database"] = keyspace.database
    if not keyspace.id_layout.is_default:
        document["id_layout"] = keyspace.id_layout.to_mapping()
    document["servers"] = [
        _server_mapping(server, is_global=is_global) for server in keyspace.servers
    ]
    return document


def _server_mapping(server: Server, *, is_global: bool) -> dict[str, Any]:
    document: dict[str, Any] = {"name": server.name, "primary": server.primary}
    if server.standby is not None:
        document["standby"] = server.standby
    if not is_global:
        pairs = [[item.first, item.last] for item in server.shards]
        document["shards"] = pairs[0] if len(pairs) == 1 else pairs
    if server.weight != 1.0:
        document["weight"] = server.weight
    if server.generation is not None:
        document["generation"] = server.generation
    return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """A virtual shard, and the server that holds it.

    :ivar keyspace: the keyspace.
    :ivar shard_id: the shard; 0 for a global keyspace.
    :ivar database: name of its database.
    :ivar server: the physical server.
    :ivar object_id: id of the object; None for a shard.
    """

    keyspace: Keyspace
    shard_id: int
    database: str
    server: Server
    object_id: ObjectId | None = None

    def __str__(self) -> str:
        return (
            f"shard {self.shard_id} of {self.keyspace.name}: database {self.database} "
            f"on {self.server.name}, {redact(self.server.primary)}"
        )

    def as_dict(self) -> dict[str, str | int | None]:
        """Return JSON values: the id is a string, passwords are masked."""
        values: dict[str, str | int | None] = {}
        if self.object_id is not None:
            values["id"] = str(int(self.object_id))
        server = self.server.redacted()
        return {
            **values,
            "keyspace": self.keyspace.name,
            "shard": self.shard_id,
            "server": server.name,
            "database": self.database,
            "primary": server.primary,
            "standby": server.standby,
        }


def find_object(
    topology: Topology, object_id: int, keyspace: str | None = None
) -> Location:
    """Return the location of an object, which may not exist.

    :param object_id: the id.
    :param keyspace: name of its keyspace; by default the only one of kind
        ``"objects"``.
    :raises InvalidIdError: if ``object_id`` is not an id.
    :raises UnknownShardError: if its shard is not open.
    :raises UnknownKeyspaceError: if the keyspace does not exist, is ambiguous,
        or is of another kind.
    """
    space = _with_objects(topology, _keyspace_of(topology, keyspace))
    parts = space.id_layout.unpack(object_id)
    return _location(space, parts.shard_id, parts)


def _with_objects(topology: Topology, space: Keyspace) -> Keyspace:
    """Return a keyspace; refuse one without object ids."""
    if space.kind == "objects":
        return space
    raise UnknownKeyspaceError(
        f"keyspace {space.name!r} is of kind {space.kind!r}, and object "
        "ids name shards of kind 'objects' only; name a keyspace of that "
        "kind, or use a shard number instead of an id",
        keyspace=space.name,
        known=tuple(
            one.name for one in topology.keyspaces.values() if one.kind == "objects"
        ),
    )


def find_shard(
    topology: Topology, shard_id: int, keyspace: str | None = None
) -> Location:
    """Return the location of a virtual shard.

    :param shard_id: the shard; 0 for a global keyspace.
    :param keyspace: name of the keyspace; by default the only one of kind
        ``"objects"``.
    :raises UnknownShardError: if it is not open.
    :raises UnknownKeyspaceError: if the keyspace does not exist, or is
        ambiguous.
    """
    return _location(_keyspace_of(topology, keyspace), shard_id, None)


def _location(
    keyspace: Keyspace, shard_id: int, object_id: ObjectId | None
) -> Location:
    return Location(
        keyspace=keyspace,
        shard_id=shard_id,
        database=keyspace.database_for(shard_id),
        server=keyspace.server_for(shard_id),
        object_id=object_id,
    )


def _keyspace_of(topology: Topology, name: str | None) -> Keyspace:
    return topology.sole("objects") if name is None else topology.keyspace(name)


def describe(topology: Topology) -> str:
    """Return a string with a line for each keyspace and server.

    :param topology: the topology; passwords are shown as ``***``.
    :returns: lines without a newline at the end.
    """
    resets = f", resets {topology.resets}" if topology.resets else ""
    lines = [f"epoch {topology.epoch}{resets}"]
    for keyspace in topology.keyspaces.values():
        if keyspace.kind == "global":
            shards = f"database {keyspace.database}"
        else:
            shards = f"{keyspace.shards} shards, databases {keyspace.database}"
        if not keyspace.id_layout.is_default:
            shards += f", {keyspace.id_layout}"
        lines.append(f"{keyspace.name}: kind {keyspace.kind}, {shards}")
        lines += (f"  {_line(one, keyspace)}" for one in keyspace.servers)
    return "\n".join(lines)


def _line(server: Server, keyspace: Keyspace) -> str:
    server = server.redacted()
    parts = [server.primary]
    if server.standby is not None:
        parts.append(f"standby {server.standby}")
    if keyspace.kind != "global":
        parts += map(str, server.shards)
    if server.weight != 1.0:
        parts.append(f"weight {server.weight:g}")
    if server.generation is not None:
        parts.append(f"generation {server.generation}")
    return f"{server.name}: {', '.join(parts)}"


def server_names(topology: Topology) -> dict[tuple[str, str], str]:
    """Return one name for each server, for reports and metrics.

    A server of several keyspaces has the name that it has in the first one.
    If keyspaces have different servers of that name, it is ``keyspace/name``.

    :returns: the names, by the name of a keyspace and that of the server in
        the keyspace.
    """
    firsts: dict[str, tuple[str, str]] = {}
    addresses: dict[tuple[str, str], str] = {}
    of_name: dict[str, set[str]] = {}
    for keyspace in topology.keyspaces.values():
        for server in keyspace.servers:
            address = str(address_of(server.primary))
            addresses[keyspace.name, server.name] = address
            firsts.setdefault(address, (keyspace.name, server.name))
            of_name.setdefault(server.name, set()).add(address)
    names = {}
    for key, address in addresses.items():
        space, name = firsts[address]
        is_unique = len(of_name[name]) == 1
        names[key] = name if is_unique else f"{space}/{name}"
    return names
