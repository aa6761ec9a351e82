"""What :func:`.verify_references` has found, as data and as text."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Mapping
from dataclasses import asdict
from dataclasses import dataclass
from typing import Any

from sqla_shard.engines.troubles import lines

__all__ = ["Deviation", "ReferencesReport", "Unread"]

#: Shards of a table, and keys of a shard, that str() shows.
_SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Deviation:
    """A shard whose rows were not those of the lowest shard.

    Rows are told by their keys, as tuples.

    :ivar reference: the reference class.
    :ivar shard_id: number of the shard.
    :ivar server: where it is.
    :ivar missing: rows that it had not.
    :ivar extra: rows that only it had.
    :ivar different: rows with other values.
    :ivar repaired: whether it has the right rows now.
    """

    reference: str
    shard_id: int
    server: str
    missing: tuple[tuple[Any, ...], ...]
    extra: tuple[tuple[Any, ...], ...]
    different: tuple[tuple[Any, ...], ...]
    repaired: bool

    def __str__(self) -> str:
        parts = [
            f"{name} {_listed(keys)}"
            for name, keys in (
                ("missing", self.missing),
                ("extra", self.extra),
                ("different", self.different),
            )
            if keys
        ]
        end = " (repaired)" if self.repaired else ""
        return (
            f"shard {self.shard_id} on {self.server}: {'; '.join(parts)}{end}"
        )


@dataclass(frozen=True, kw_only=True)
class Unread:
    """A shard that was not compared, or not repaired.

    :ivar reference: the reference class.
    :ivar shard_id: number of the shard.
    :ivar server: where it is.
    :ivar reason: what is wrong.
    """

    reference: str
    shard_id: int
    server: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class ReferencesReport:
    """What became of a comparison.

    :ivar rows: how many rows each reference class has, by its name.
    :ivar shards: how many shards each has.
    :ivar deviations: the shards that were different.
    :ivar unread: the shards that nothing is known of.
    """

    rows: Mapping[str, int]
    shards: Mapping[str, int]
    deviations: tuple[Deviation, ...]
    unread: tuple[Unread, ...]

    @property
    def ok(self) -> bool:
        """Whether all shards are known to be the same now."""
        return not self.unread and all(d.repaired for d in self.deviations)

    def as_dict(self) -> dict[str, Any]:
        """Return what JSON can hold; keys that it has not are texts."""
        return {
            "ok": self.ok,
            "references": {
                name: {"rows": count, "shards": self.shards[name]}
                for name, count in self.rows.items()
            },
            "deviations": [_document(asdict(d)) for d in self.deviations],
            "unread": [asdict(one) for one in self.unread],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for name, count in self.rows.items():
            deviations = [d for d in self.deviations if d.reference == name]
            unread = [u for u in self.unread if u.reference == name]
            yield (
                f"{name}: {count} row(s) on {self.shards[name]} shard(s), "
                f"{len(deviations)} different, {len(unread)} not compared"
            )
            for one in deviations[:_SHOWN]:
                yield f"  {one}"
            if deviations[_SHOWN:]:
                yield f"  and {len(deviations) - _SHOWN} more"
            for line in lines((u.server, u.reason, 1) for u in unread):
                yield f"  {line}"


def _listed(keys: tuple[tuple[Any, ...], ...]) -> str:
    named = ", ".join("/".join(map(str, key)) for key in keys[:_SHOWN])
    more = len(keys) - _SHOWN
    return f"{named} and {more} more" if more > 0 else named


def _document(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_document(item) for item in value]
    return value if isinstance(value, (bool, int, str)) else str(value)
