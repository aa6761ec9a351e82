"""How a command goes about many shards: ``alembic -x name=value``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field
from dataclasses import fields
from difflib import get_close_matches

from sqla_shard.exc import SchemaOptionError
from sqla_shard.schema.selecting import parse_shards

__all__ = ["RunOptions"]

_YES = frozenset({"1", "true", "yes", "on"})
_NO = frozenset({"0", "false", "no", "off"})


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What ``-x name=value`` of alembic can say, and our own commands.

    :ivar shards: only these virtual shards, such as ``0-511,600``.
    :ivar servers: only those on these physical servers, such as
        ``sharddb001,sharddb002``.
    :ivar new: these virtual shards were never in use: a database without a
        revision gets its first one though other shards have theirs
        (:mod:`sqla_shard.schema.emptied`).
    :ivar jobs: how many shards of one server are worked on at a time.
    :ivar wave: how many shards are changed, after the first one, before all
        others; None for one for each worker.
    :ivar pause: seconds to wait between waves.
    :ivar lock_wait: seconds that a statement waits for a table which
        somebody else uses.
    :ivar runner_wait: seconds to wait for a shard that another runner has.
    :ivar continue_on_error: go on with other shards when one fails.
    :ivar replay: send the statements of a revision that is proven to be
        static (:mod:`~sqla_shard.schema.running.static`) to other shards as
        they were sent to the first, instead of running it on each.
    :ivar reference: the shard that models are compared with; the lowest by
        default.
    :ivar report: a file to write the report to, as JSON.
    """

    shards: tuple[int, ...] | None = field(default=None)
    servers: tuple[str, ...] | None = field(default=None)
    new: tuple[int, ...] | None = field(default=None)
    jobs: int = 4
    wave: int | None = None
    pause: float = 0.0
    lock_wait: float = 5.0
    runner_wait: float = 10.0
    continue_on_error: bool = False
    replay: bool = True
    reference: int | None = None
    report: str | None = None

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("wave", 1), ("reference", 0)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise _wrong(name, value, f"it must be {least} or more")
        for name in ("pause", "lock_wait", "runner_wait"):
            value = getattr(self, name)
            if not 0 <= value < 1e6:
                raise _wrong(name, value, "it must be seconds, 0 or more")

    @classmethod
    def parse(cls, given: Mapping[str, str | list[str]]) -> RunOptions:
        """Return the options that ``-x`` has given.

        A name of somebody else is left alone, but not one that is nearly
        one of ours: ``-x shard=5`` would change all shards.

        :param given: as ``context.get_x_argument(as_dictionary=True)``, or
            with a list of the values of each name.
        :raises SchemaOptionError: for a value that cannot be used.
        """
        values: dict[str, list[str]] = {}
        names = [one.name for one in fields(cls)]
        for key, value in given.items():
            name = key.replace("-", "_").strip().lower()
            if name not in names:
                near = get_close_matches(name.lower(), names, n=1, cutoff=0.75)
                if near:
                    raise _wrong(key, value, f"did you mean {near[0]}?")
                continue
            more = value if isinstance(value, list) else [value]
            values.setdefault(name, []).extend(more)
        found = {name: _parsed(name, given) for name, given in values.items()}
        return cls(**found)  # type: ignore[arg-type]  # by name, parsed


def _parsed(name: str, given: list[str]) -> object:
    """Return the value of an option; only lists may be given in parts."""
    text = ",".join(given)
    if name not in ("shards", "servers", "new") and given[1:]:
        raise _wrong(name, text, "it was given twice; say it once")
    if name in ("shards", "new"):
        return tuple(parse_shards(text))
    if name == "servers":
        return tuple(part.strip() for part in text.split(",") if part.strip())
    if name in ("jobs", "wave", "reference"):
        if not text.isascii() or not text.isdigit():
            raise _wrong(name, text, "it is not a whole number")
        return int(text)
    if name in ("pause", "lock_wait", "runner_wait"):
        try:
            return float(text)
        except ValueError:
            raise _wrong(name, text, "it is not a number") from None
    if name in ("continue_on_error", "replay"):
        if text.lower() not in _YES | _NO:
            raise _wrong(name, text, "write true or false")
        return text.lower() in _YES
    return text


def _wrong(name: str, value: object, message: str) -> SchemaOptionError:
    return SchemaOptionError(message, option=name, value=str(value))
