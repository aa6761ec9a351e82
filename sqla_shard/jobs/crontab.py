"""Times at which periodic tasks are due, in UTC."""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from sqla_shard.exc import JobOptionError

_FIELDS = {
    "minute": (0, 59),
    "hour": (0, 23),
    "day": (1, 31),
    "month": (1, 12),
    "weekday": (0, 7),
}
_PART = re.compile(r"(\*|(\d+)(?:-(\d+))?)(?:/(\d+))?")
_DAY = timedelta(days=1)
#: Days until the next 29 February, at most.
_MOST_DAYS = 366 * 8
_EPOCH = datetime(1970, 1, 1)


class Crontab:
    """Times as in the file of cron, in UTC: ``Crontab("30 4 * * 1-5")``.

    The fields are minute, hour, day of the month, month and day of the week,
    where 0 and 7 are Sunday: each is ``*``, a number, a range or a list of
    these, with a step as in ``*/15``.  If both days are restricted, one of
    them must match.

    :param text: the five fields.
    :raises JobOptionError: if they are not valid, or no day matches.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        given: object = text
        parts = given.split() if isinstance(given, str) else []
        if len(parts) != len(_FIELDS):
            raise self._error("needs five fields")
        self._fields = {
            name: self._parsed(name, part)
            for name, part in zip(_FIELDS, parts, strict=True)
        }
        self._both = parts[2].startswith("*") or parts[4].startswith("*")
        self.next_after(_EPOCH)

    def __repr__(self) -> str:
        return f"Crontab({self.text!r})"

    def next_after(self, moment: datetime) -> datetime:
        """Return the first time after another.

        :param moment: in UTC, without a time zone.
        :raises JobOptionError: if there is none.
        """
        day = moment.date()
        for _ in range(_MOST_DAYS):
            if self._matches(day):
                for hour in sorted(self._fields["hour"]):
                    for minute in sorted(self._fields["minute"]):
                        found = datetime.combine(day, time(hour, minute))
                        if found > moment:
                            return found
            day += _DAY
        raise self._error("matches no day")

    def _matches(self, day: date) -> bool:
        if day.month not in self._fields["month"]:
            return False
        by_day = day.day in self._fields["day"]
        weekdays = self._fields["weekday"]
        weekday = day.isoweekday()
        by_weekday = weekday in weekdays or weekday % 7 in weekdays
        if self._both:
            return by_day and by_weekday
        return by_day or by_weekday

    def _parsed(self, name: str, text: str) -> frozenset[int]:
        """Return the numbers of a field."""
        least, most = _FIELDS[name]
        found: set[int] = set()
        for part in text.split(","):
            match = _PART.fullmatch(part)
            if match is None:
                raise self._error(f"{name} {part!r} is not valid")
            whole, first, last, step = match.groups()
            low, high = least, most
            if whole != "*":
                low = int(first)
                high = int(last) if last else (most if step else low)
            if not least <= low <= high <= most or step == "0":
                raise self._error(f"{name} {part!r} is not valid")
            found.update(range(low, high + 1, int(step or 1)))
        return frozenset(found)

    def _error(self, message: str) -> JobOptionError:
        return JobOptionError(
            f'{message}; for example Crontab("*/15 8-18 * * 1-5")',
            option="every",
            value=self.text,
        )


#: A period, or times.
Every = timedelta | Crontab


def check_every(every: object) -> None:
    """Check when a task is due.

    :raises JobOptionError: if it is not valid.
    """
    if isinstance(every, Crontab):
        return
    if not isinstance(every, timedelta) or every < timedelta(seconds=1):
        raise JobOptionError(
            "must be a timedelta of a second or more, or a Crontab",
            option="every",
            value=every,
        )


def next_due(every: Every, now: datetime) -> datetime:
    """Return when a task is due after a time, both in UTC.

    The times of a period are multiples of it since 1970: the same in all
    processes.
    """
    if isinstance(every, Crontab):
        return every.next_after(now)
    return now + every - (now - _EPOCH) % every
