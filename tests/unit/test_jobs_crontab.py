"""Due times of periodic tasks."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from sqla_shard.exc import JobOptionError
from sqla_shard.jobs import Crontab
from sqla_shard.jobs.tasks import check_every, next_due

NOW = datetime(2026, 2, 27, 23, 59, 30)  # a Friday


@pytest.mark.parametrize(
    ("text", "due"),
    [
        ("* * * * *", datetime(2026, 2, 28)),
        ("*/15 * * * *", datetime(2026, 2, 28)),
        ("5,35 8-10/2 * * *", datetime(2026, 2, 28, 8, 5)),
        ("30 4 * * 1-5", datetime(2026, 3, 2, 4, 30)),
        ("0 0 * * 0", datetime(2026, 3, 1)),
        ("0 0 * * 7", datetime(2026, 3, 1)),
        ("0 0 29 2 *", datetime(2028, 2, 29)),
        ("0 0 13 * 5", datetime(2026, 3, 6)),
        ("59 23 31 12 *", datetime(2026, 12, 31, 23, 59)),
        ("3/20 0 1 */6 *", datetime(2026, 7, 1, 0, 3)),
    ],
)
def test_the_next_time(text: str, due: datetime) -> None:
    assert next_due(Crontab(text), NOW) == due
    assert next_due(Crontab(text), due - timedelta(microseconds=1)) == due
    assert next_due(Crontab(text), due) > due


@pytest.mark.parametrize(
    "text",
    [
        *("", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *"),
        *("* * * 13 *", "* * * * 8", "5-1 * * * *", "*/0 * * * *"),
        *("a * * * *", "1,, * * * *", "-1 * * * *", "0 0 30 2 *", None),
    ],
)
def test_times_that_are_not_valid(text: str) -> None:
    with pytest.raises(JobOptionError):
        Crontab(text)


def test_periods_are_multiples_since_1970() -> None:
    assert next_due(timedelta(hours=1), NOW) == datetime(2026, 2, 28)
    assert next_due(timedelta(seconds=40), NOW).second % 40 in (0, 20)
    whole = datetime(2026, 2, 28)
    assert next_due(timedelta(hours=1), whole) == datetime(2026, 2, 28, 1)


@pytest.mark.parametrize("wrong", [timedelta(0), 5, "* * * * *", True])
def test_invalid_periods(wrong: object) -> None:
    with pytest.raises(JobOptionError):
        check_every(wrong)
