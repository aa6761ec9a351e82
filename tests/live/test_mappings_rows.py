"""The rows that a server reads for one change of a long list."""

from __future__ import annotations

from collections import Counter

import pytest
from sqlalchemy import text

from sqla_shard import pack
from tests.models.mapping_models import BOARD, BoardHasPins, lists_on_servers, PIN, pins

pytestmark = pytest.mark.live

cluster = lists_on_servers("rows")

ROWS = 200_000
SHARD = 5
STEP = 10**25

_DIGITS = " UNION ALL ".join(f"SELECT {i} AS d" for i in range(10))
_FILL = f"""
INSERT INTO board_has_pins (board_id, pin_id, sequence)
WITH digits AS ({_DIGITS}),
numbers AS (
    SELECT a.d + 10 * b.d + 100 * c.d + 1000 * d.d + 10000 * e.d
        + 100000 * f.d AS n
    FROM digits a, digits b, digits c, digits d, digits e, digits f
)
SELECT :board + n DIV :length, :pin + n,
    CAST(n AS DECIMAL(38)) * CAST(:step AS DECIMAL(38))
FROM numbers WHERE n < :rows
"""
_BOARDS = """
INSERT IGNORE INTO boards (local_id, data)
SELECT DISTINCT board_id & ((1 << 36) - 1), '{"title": "x"}'
FROM board_has_pins
"""


class Reads:
    """Counts the rows that the server reads on the session's connection."""

    def __init__(self, session):
        self.session = session
        self.before = self.status()

    def status(self):
        rows = self.session.execute(
            text("SHOW SESSION STATUS LIKE 'Handler_read%'"),
            bind_arguments={"shard_id": SHARD},
        )
        return Counter({name: int(value) for name, value in rows})

    def take(self):
        after = self.status()
        found = (after - self.before).total()
        self.before = self.status()
        return found


@pytest.fixture(
    scope="module",
    params=[ROWS, 100],
    ids=["one list of 200,000", "2,000 lists of 100"],
)
def filled(request, cluster):
    """Return the length of the lists, the first one and its pins."""
    length = request.param
    first = pack(SHARD, BOARD, 1)
    given = {
        "board": first,
        "pin": pack(7, PIN, 10**6),
        "length": length,
        "step": str(STEP),
        "rows": ROWS,
    }
    for statement, values in (
        ("DELETE FROM board_has_pins", {}),
        (_FILL, given),
        (_BOARDS, {}),
        ("ANALYZE TABLE board_has_pins", {}),
    ):
        with cluster.begin() as session:
            session.execute(text(statement), values, bind_arguments={"shard_id": SHARD})
    board = first if length == ROWS else first + 1000
    start = 0 if length == ROWS else 1000 * length
    return length, board, [given["pin"] + start + i for i in range(length)]


def calls(length, board, some):
    """Yield names of calls, the calls, and the number of rows they return."""
    middle, quarter = some[length // 2], some[length // 4]
    new, *more = pins(20)
    move = BoardHasPins.move
    yield "position", lambda s: BoardHasPins.position(s, board, middle), 1
    yield "contains", lambda s: BoardHasPins.contains(s, board, some[:20]), 20
    for name, row, named in (
        ("move before", middle, {"before": quarter}),
        ("move after", middle, {"after": quarter}),
        ("move between", middle, {"before": quarter, "after": some[length // 4 - 1]}),
        ("move to the top", middle, {"after": some[-1]}),
        ("move to the end", middle, {"before": some[0]}),
        ("move of the last row", some[0], {"before": quarter}),
        ("move of the first row", some[-1], {"before": quarter}),
        ("move down by one", some[10], {"before": some[9]}),
    ):
        yield name, lambda s, r=row, n=named: move(s, board, r, **n), 4
    yield "append", lambda s: BoardHasPins.append(s, board, new), 2
    yield "append again", lambda s: BoardHasPins.append(s, board, middle), 2
    yield ("append many", lambda s: BoardHasPins.append_many(s, board, more), 20)
    yield "remove", lambda s: BoardHasPins.remove(s, board, middle), 2
    yield (
        "respace around",
        lambda s: BoardHasPins.respace(s, board, around=quarter),
        16,
    )
    for newest in (True, False):
        yield (
            f"page, newest_first={newest}",
            lambda s, n=newest: BoardHasPins.page(s, board, 50, newest_first=n),
            50,
        )
    yield (
        "pages",
        lambda s: BoardHasPins.pages(s, [board + i for i in range(5)], 10),
        5 * 11 * 3,
    )


def test_every_call_reads_few_rows(cluster, filled, say):
    length, board, some = filled
    most = {}
    for name, call, rows in calls(length, board, some):
        with cluster.session() as session:
            reads = Reads(session)
            call(session)
            most[name] = found = reads.take()
            session.rollback()
        # Of a short list the server may read all instead of many keys.
        bound = max(2 * rows + 20, min(length, 10 * rows) + 10)
        assert found <= bound, f"{name}: {found} rows"
    say(f"rows read, lists of {length}: {most}")


@pytest.mark.parametrize("newest", [True, False])
def test_later_pages_too(cluster, filled, newest):
    length, board, _ = filled
    bookmark = None
    with cluster.session() as session:
        reads = Reads(session)
        for _ in range(min(20, length // 10)):
            page = BoardHasPins.page(session, board, 10, bookmark, newest_first=newest)
            assert len(page) == 10
            assert reads.take() <= 2 * 11 + 20
            bookmark = page.next


def test_a_bookmark_from_the_middle(cluster, filled):
    length, board, some = filled
    # As after a hundred thousand rows of pages.
    with cluster.session() as session:
        mid = BoardHasPins.position(session, board, some[length // 2])
        page = BoardHasPins.page(session, board, length // 2)
        session.expunge_all()
        reads = Reads(session)
        page = BoardHasPins.page(session, board, 10, page.next)
        assert page.items[0].sequence < mid + STEP
        assert reads.take() <= 2 * 11 + 20


def test_a_move_among_equal_positions(cluster, filled):
    # Rows that were added by other means in one millisecond.
    _, board, some = filled
    equal = some[:90]
    with cluster.session() as session:
        session.execute(
            text(
                "UPDATE board_has_pins SET sequence = 5 "
                "WHERE board_id = :board AND pin_id <= :last"
            ),
            {"board": board, "last": equal[-1]},
            bind_arguments={"shard_id": SHARD},
        )
        reads = Reads(session)
        BoardHasPins.move(session, board, equal[0], before=equal[40], after=equal[39])
        # These, and those of the re-spacing.
        assert reads.take() <= 10 * len(equal)
        session.rollback()
