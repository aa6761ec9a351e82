"""Marks and fences in a database of a server."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from sqlalchemy import Column, create_engine, Integer, MetaData, Table, text

from sqla_shard.migrate.copies import claim_page
from sqla_shard.migrate.stages import Progress
from tests.models.moving_tables import Counters
from tests.suites import moving_rows
from tests.suites.moving_rows import posts  # noqa: F401  # a fixture

pytestmark = pytest.mark.live

#: The keys of an association table.
FOLLOWS = Table(
    "follows",
    MetaData(),
    Column("follower_id", Integer, primary_key=True),
    Column("user_id", Integer, primary_key=True),
)


@contextmanager
def database(fleet, name):
    server = fleet.servers[0]
    server.root_execute(f"DROP DATABASE IF EXISTS {name}")
    server.root_execute(f"CREATE DATABASE {name}")
    url = server.url.replace("mysql://", "mysql+pymysql://", 1)
    engine = create_engine(f"{url}/{name}")
    yield engine
    engine.dispose()
    server.root_execute(f"DROP DATABASE {name}")


@pytest.fixture(scope="module")
def engine(fleet):
    with database(fleet, "db_moving") as found:
        yield found


def reads(connection):
    """Return the number of rows and index entries that were read."""
    found = connection.execute(text("SHOW SESSION STATUS LIKE 'Handler_read%'"))
    return sum(int(count) for _, count in found)


class TestMarking(moving_rows.Marking):
    def test_a_page_reads_no_other_marks(self, engine, posts):  # noqa: F811
        keys = [(number,) for number in range(1, 2001)]
        with engine.begin() as connection:
            ids = {key: 10**15 + key[0] for key in keys}
            posts.claim(connection, keys, number=1, ids=ids)
            connection.execute(text(f"ANALYZE TABLE {posts.table.name}")).all()
            # Twenty pages; each may read rows that were copied before it.
            before, after, found = reads(connection), 0, []
            while page := posts.marked(connection, after=after, limit=100, waits=True):
                found += page.values()
                after = max(page)
                posts.set_copied(connection, dict.fromkeys(page.values(), 1))
            assert found == keys
            assert reads(connection) - before < 5 * len(keys)
            before = reads(connection)
            assert posts.count_waiting(connection) == 0
            assert reads(connection) - before < 50

    def test_a_page_without_ids_reads_no_other_marks(self, engine):
        follows = moving_rows.created(engine, FOLLOWS)
        keys = [(one, other) for one in range(40) for other in range(50)]
        with engine.begin() as connection:
            follows.claim(connection, keys, number=1)
        with engine.begin() as connection:
            name = follows.table.name
            connection.execute(text(f"ANALYZE TABLE {name}")).all()
            before, after, found = reads(connection), None, []
            while page := follows.waiting_without_id(
                connection, after=after, limit=100
            ):
                found += page
                after = page[-1]
            assert found == keys
            assert reads(connection) - before < 2 * len(keys)

    def test_claims_of_deleted_rows_read_no_other_marks(self, engine):
        # A pool of one connection, whose reads are counted.
        alone = create_engine(engine.url, pool_size=1)
        source = Counters(alone)
        keys = [(number,) for number in range(1, 2001)]
        now = Progress(number=2, stage="copying", round=2)
        with alone.begin() as connection:
            source.marks.claim(connection, keys, number=1)
            source.fence.write(connection, now)
        with alone.connect() as connection:
            before = reads(connection)
        page, after = claim_page(source, source.fence, now, limit=100)
        found = page
        while page:
            page, after = claim_page(source, source.fence, now, after=after, limit=100)
            found = found + page
        with alone.connect() as connection:
            count = reads(connection) - before
        alone.dispose()
        assert found == keys
        assert count < 6 * len(keys)


TestFencing = moving_rows.Fencing


class TestMoving(moving_rows.Moving):
    @pytest.fixture
    def sides(self, engine, fleet):
        with database(fleet, "db_moved") as shards:
            yield {"legacy": engine, "shards": shards}
