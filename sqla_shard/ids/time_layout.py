"""Ids that begin with the time of their creation, as at Instagram."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta, UTC
from typing import Any, ClassVar

from sqla_shard.ids.layout import IdLayout, layout_error, ObjectId, part_of, parts_of

#: Bits of a signed BIGINT that an id may use.
_ID_BITS = 63
#: Lowest and highest number of bits of each part.
_WIDTHS = {"shard_bits": (1, 16), "sequence_bits": (4, 16)}
#: Fewest and most bits of the time: 2**39 ms are 17 years; 2**47 ms after the
#: last epoch is a date that Python has.
_LEAST_TIME_BITS = 39
_MOST_TIME_BITS = 47
#: The highest time that can be an epoch: the year 2100.
_LAST_EPOCH = 4_102_444_800_000
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeLayout(IdLayout):
    """Ids of a time, a shard and a sequence number, which sort by time.

    From the highest bit: reserved bits, which are zero, then the milliseconds
    since the epoch, the shard and the sequence number.  With the default
    widths the time has 40 bits, which last for 34.8 years.

    An id does not contain the type of its object, so that an id of another
    class is not detected.  Tables store whole ids, and the ids of new rows are
    issued before the INSERT.

    The time and the sequence number together are the *local id*: a number
    that increases on each shard.

    :param epoch_ms: the time of the id 0, in milliseconds since 1970.
        Instagram's is 1314220021721.
    :param shard_bits: 1 to 16.
    :param sequence_bits: 4 to 16; ids of one millisecond on a shard.
    :raises IdLayoutError: if a number is out of range, or fewer than 39 bits
        remain for the time.
    :ivar time_bits: the bits of the time: those that remain of 63, up to 47.

    >>> layout = TimeLayout(epoch_ms=1314220021721)
    >>> new = layout.pack_time(1387263000000, 1341, 1)
    >>> layout.describe(layout.unpack(new))
    'shard 1341, 2013-12-17T06:50:00.000Z, sequence number 1'
    """

    is_whole: ClassVar[bool] = True

    epoch_ms: int
    shard_bits: int = 13
    sequence_bits: int = 10
    type_bits: int = field(init=False, default=0, repr=False, compare=False)
    local_bits: int = field(init=False, repr=False, compare=False)
    time_bits: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, (lowest, highest) in {
            **_WIDTHS,
            "epoch_ms": (0, _LAST_EPOCH),
        }.items():
            value = getattr(self, name)
            if type(value) is not int or not lowest <= value <= highest:
                raise layout_error(
                    f"{name}={{}} must be an integer from {lowest} to {highest}", value
                )
        time_bits = min(
            _ID_BITS - self.shard_bits - self.sequence_bits, _MOST_TIME_BITS
        )
        if time_bits < _LEAST_TIME_BITS:
            raise layout_error(
                f"{{}} bits remain for the time, and {_LEAST_TIME_BITS} are "
                "needed for 17 years; make a part narrower",
                time_bits,
            )
        found = {
            "type_bits": 0,
            "local_bits": time_bits + self.sequence_bits,
            "time_bits": time_bits,
            "type_shift": self.sequence_bits,
            "shard_shift": self.sequence_bits,
            "max_shard_id": (1 << self.shard_bits) - 1,
            "max_type_id": 0,
            "names_type": False,
            "max_local_id": (1 << time_bits + self.sequence_bits) - 1,
            "max_id": (1 << time_bits + self.shard_bits + self.sequence_bits) - 1,
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_parts", parts_of(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return _layout, (self.epoch_ms, self.shard_bits, self.sequence_bits)

    def __str__(self) -> str:
        return (
            f"ids of {self.time_bits} time, {self.shard_bits} shard and "
            f"{self.sequence_bits} sequence bits since {self.epoch_ms}"
        )

    def to_mapping(self) -> dict[str, int]:
        """Return the parameters, as a topology document has them."""
        return {
            "epoch_ms": self.epoch_ms,
            "shard_bits": self.shard_bits,
            "sequence_bits": self.sequence_bits,
        }

    def describe(self, parts: ObjectId) -> str:
        """Return the parts of an id as text, with the time in UTC."""
        time, sequence = divmod(parts.local_id, 1 << self.sequence_bits)
        moment = _UNIX_EPOCH + timedelta(milliseconds=self.epoch_ms + time)
        text = moment.isoformat(timespec="milliseconds")
        return (
            f"shard {parts.shard_id}, {text.replace('+00:00', 'Z')}, "
            f"sequence number {sequence}"
        )

    def pack(self, shard_id: int, type_id: int, local_id: int) -> int:
        """Return the id of the parts that :meth:`unpack` returns.

        :param type_id: 0, because an id does not contain it.
        :raises InvalidIdError: if a part is not an int or out of range.
        """
        shard_id = part_of("shard_id", shard_id, self.max_shard_id)
        part_of("type_id", type_id, self.max_type_id)
        local_id = part_of("local_id", local_id, self.max_local_id)
        time, sequence = divmod(local_id, 1 << self.sequence_bits)
        return (
            time << self.sequence_bits + self.shard_bits
            | shard_id << self.sequence_bits
            | sequence
        )

    def pack_time(self, time_ms: int, shard_id: int, sequence: int) -> int:
        """Return the id of a time.

        The lowest id of a time is a bound for ids:
        ``Photo.id >= layout.pack_time(since, 0, 0)``.

        :param time_ms: milliseconds since 1970.
        :raises InvalidIdError: if a part is not an int or out of range.
        """
        last = self.epoch_ms + (1 << self.time_bits) - 1
        time = part_of("time_ms", time_ms, last) - self.epoch_ms
        part_of("time_ms - epoch_ms", time, last)
        sequence = part_of("sequence", sequence, (1 << self.sequence_bits) - 1)
        return self.pack(shard_id, 0, time << self.sequence_bits | sequence)

    def unpack(self, object_id: int) -> ObjectId:
        """Return the parts of an id; the type id is 0.

        :raises InvalidIdError: if it is not an id of the layout.
        """
        object_id = self.check(object_id)
        low = object_id & (1 << self.sequence_bits) - 1
        time = object_id >> self.sequence_bits + self.shard_bits
        return self._parts(
            object_id >> self.shard_shift & self.max_shard_id,
            0,
            time << self.sequence_bits | low,
        )

    def shard_of(
        self, object_id: Any, type_id: int | None = None, name: str = ""
    ) -> int:
        """Return the shard of an id.

        :param type_id: is not used: an id does not contain its type.
        :raises InvalidIdError: if ``object_id`` is not an id of the layout.
        """
        return self.check(object_id) >> self.shard_shift & self.max_shard_id


def _layout(epoch_ms: int, shard_bits: int, sequence_bits: int) -> TimeLayout:
    """Return the layout that was pickled."""
    return TimeLayout(
        epoch_ms=epoch_ms, shard_bits=shard_bits, sequence_bits=sequence_bits
    )
