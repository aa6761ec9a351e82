"""The shards and options of a command: ``alembic -x name=value``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches

from sqlalchemy import Engine

from sqla_shard.engine import Places
from sqla_shard.engine.rendering import Place
from sqla_shard.exc import SchemaOptionError, UnknownServerError, UnknownShardError
from sqla_shard.topology import Keyspace, Server
from sqla_shard.topology.keyspaces import Template

_RANGE = re.compile(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?")


@dataclass(frozen=True, kw_only=True)
class Shard:
    """One virtual shard of a keyspace, and its location.

    :ivar database: the name of its database, without quotes.
    """

    keyspace: str
    shard_id: int
    server: str
    database: str
    place: Place

    @property
    def schema(self) -> str:
        """The schema of the database in its connection, without quotes."""
        # The schema of an SQLite file is "main".
        if self.place.engine.url.host is None:
            return self.place.schema
        return self.database

    def __str__(self) -> str:
        return f"shard {self.shard_id} ({self.database} on {self.server})"


def shards_of(
    places: Places,
    keyspace: Keyspace,
    shards: Collection[int] | None = None,
    servers: Collection[str] | None = None,
) -> list[Shard]:
    """Return virtual shards of a keyspace, in order.

    :param shards: numbers of the shards; None for all.
    :param servers: names of the servers of the shards; None for all.
    :raises UnknownShardError: if a shard is not open.
    :raises UnknownServerError: if the keyspace has no such server.
    :raises SchemaOptionError: if none of the shards is on these servers.
    """
    known = tuple(server.name for server in keyspace.servers)
    for name in servers or ():
        if name not in known:
            raise UnknownServerError(server=name, known=known)
    for shard_id in shards or ():
        if shard_id >= keyspace.shards:
            raise UnknownShardError(
                shard_id=shard_id, keyspace=keyspace.name, opened=keyspace.shards
            )
    found = [
        _of_place(keyspace, places.place(keyspace, shard_id))
        for shard_id in (keyspace.shard_ids if shards is None else sorted(set(shards)))
        if servers is None or keyspace.server_for(shard_id).name in servers
    ]
    if not found:
        raise SchemaOptionError(
            "none of the selected virtual shards is on these servers",
            option="servers",
            value=",".join(servers or ()),
        )
    return found


def shard_on(
    places: Places, keyspace: Keyspace, server: Server, shard_id: int
) -> Shard:
    """Return a shard as if the given server had it."""
    return _of_place(keyspace, places.place_on(keyspace, server, shard_id))


def _of_place(keyspace: Keyspace, place: Place) -> Shard:
    return Shard(
        keyspace=keyspace.name,
        shard_id=place.shard_id,
        server=place.server,
        database=keyspace.database_for(place.shard_id),
        place=place,
    )


def misplaced_on(places: Places, keyspace: Keyspace, server: Server) -> list[Shard]:
    """Return shards whose databases a server has, but not the topology there.

    :raises sqlalchemy.exc.DBAPIError: if the server cannot be read.
    :raises OSError: if the directory of SQLite files cannot be read.
    """
    template = template_of(keyspace)
    somewhere = places.place_on(keyspace, server, 0)
    names = somewhere.backend.catalogue.databases(somewhere.engine)
    held = {shard_id for item in server.shards for shard_id in item}
    shards = {template.shard_of(name) for name in names}
    return [
        shard_on(places, keyspace, server, shard_id)
        for shard_id in keyspace.shard_ids
        if shard_id in shards and shard_id not in held
    ]


def template_of(keyspace: Keyspace) -> Template:
    """Return the template of the database names of a keyspace."""
    template = Template.parse(keyspace.database, sharded=keyspace.kind != "global")
    assert isinstance(template, Template)  # noqa: S101 - the topology was checked
    return template


def by_engine(shards: Iterable[Shard]) -> list[list[Shard]]:
    """Return the shards in groups that share an engine."""
    groups: dict[Engine, list[Shard]] = {}
    for shard in shards:
        groups.setdefault(shard.place.engine, []).append(shard)
    return list(groups.values())


def parse_shards(text: str) -> list[int]:
    """Return the shards of a string such as ``"0-511,600"``, ascending.

    :raises SchemaOptionError: if it is not a list of numbers and ranges.
    """
    shards: set[int] = set()
    for part in text.split(","):
        match = _RANGE.fullmatch(part)
        last = int(match[2] or match[1]) if match else -1
        first = int(match[1]) if match else 0
        if last < first or last > 65_535:
            raise SchemaOptionError(
                f"{part.strip()!r} must be a shard or a range of shards, such "
                "as 0-511,600",
                option="shards",
                value=text,
            )
        shards.update(range(first, last + 1))
    return sorted(shards)


_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a schema command, as ``-x name=value`` sets them.

    :ivar shards: only these virtual shards, such as ``0-511,600``.
    :ivar servers: only virtual shards on these physical servers, such as
        ``sharddb001,sharddb002``.
    :ivar new: numbers of the shards that were never in use: an upgrade
        creates the tables of a database without a revision, although other
        shards have one (:mod:`sqla_shard.schema.ledger`).
    :ivar jobs: number of shards of one server that are changed at a time.
    :ivar wave: number of shards that are changed after the first shard and
        before all others; by default one for each worker process.
    :ivar pause: seconds to wait between waves.
    :ivar lock_wait: seconds that a statement waits for the lock of a table.
    :ivar runner_wait: seconds to wait for a shard that another runner has
        locked.
    :ivar continue_on_error: whether to change other shards if one fails.
    :ivar replay: whether the statements of a static revision
        (:mod:`~sqla_shard.schema.replay`) are recorded on the first
        shard and sent to the others, instead of running it on each.
    :ivar compare: whether to refuse another statement of a revision's code than
        on the first shard of the run.
    :ivar reference: the shard that models are compared with; by default the
        lowest.
    :ivar report: path of a file for the report, as JSON.
    """

    shards: tuple[int, ...] | None = None
    servers: tuple[str, ...] | None = None
    new: tuple[int, ...] | None = None
    jobs: int = 4
    wave: int | None = None
    pause: float = 0.0
    lock_wait: float = 5.0
    runner_wait: float = 10.0
    continue_on_error: bool = False
    replay: bool = True
    compare: bool = True
    reference: int | None = None
    report: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("wave", 1), ("reference", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise _option_error(name, value, f"must be {least} or more")
        for name in ("pause", "lock_wait", "runner_wait"):
            value = getattr(self, name)
            if not 0 <= value < 1e6:
                raise _option_error(name, value, "must be seconds, 0 or more")

    @classmethod
    def parse(cls, given: Mapping[str, str | list[str]]) -> RunOptions:
        """Return the options of ``-x`` arguments.

        Names of the application are ignored, but a name that resembles an
        option is an error: ``-x shard=5`` would change all shards.

        :param given: the arguments, as from
            ``context.get_x_argument(as_dictionary=True)``, or with a list of
            the values of each name.
        :raises SchemaOptionError: for a misspelled name, or an invalid value.
        """
        values: dict[str, list[str]] = {}
        names = [one.name for one in fields(cls)]
        for key, value in given.items():
            name = key.replace("-", "_").strip().lower()
            if name not in names:
                near = get_close_matches(name.lower(), names, n=1, cutoff=0.75)
                if near:
                    raise _option_error(key, value, f"did you mean {near[0]}?")
                continue
            more = value if isinstance(value, list) else [value]
            values.setdefault(name, []).extend(more)
        options = {name: _parse_option(name, given) for name, given in values.items()}
        return cls(**options)  # type: ignore[arg-type]  # by name, parsed


def _parse_option(name: str, given: list[str]) -> object:
    """Return the value of an option; only lists may be repeated."""
    text = ",".join(given)
    if name not in ("shards", "servers", "new") and given[1:]:
        raise _option_error(name, text, "the option is repeated; give it once")
    if name in ("shards", "new"):
        return tuple(parse_shards(text))
    if name == "servers":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if name in ("jobs", "wave", "reference"):
        if not (text.isascii() and text.isdigit()):
            raise _option_error(name, text, "must be an integer")
        return int(text)
    if name in ("pause", "lock_wait", "runner_wait"):
        try:
            return float(text)
        except ValueError:
            raise _option_error(name, text, "must be a number") from None
    if name in ("continue_on_error", "replay", "compare"):
        if text.lower() not in _YES | _NO:
            raise _option_error(name, text, "must be true or false")
        return text.lower() in _YES
    return text


def _option_error(name: str, value: object, message: str) -> SchemaOptionError:
    return SchemaOptionError(message, option=name, value=str(value))
