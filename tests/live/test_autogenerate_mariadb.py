"""Revisions are generated, run and compared on MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from examples.pinboard import models as pinboard
from sqla_shard.dialects import backend_for
from sqla_shard.testing import MariaDBFleet
from tests.shared import many_models
from tests.shared import reference_tables
from tests.shared import revision_models
from tests.shared.autogenerating import BOTH
from tests.shared.autogenerating import CHANGES
from tests.shared.autogenerating import created
from tests.shared.autogenerating import Creating
from tests.shared.autogenerating import Finding
from tests.shared.autogenerating import Generating
from tests.shared.autogenerating import SERVER_CHANGES
from tests.shared.revisions import Revisions
from tests.shared.revisions import shown

pytestmark = pytest.mark.live


@pytest.fixture
def database(mariadb_fleet: MariaDBFleet) -> Iterator[Any]:
    document = mariadb_fleet.topology_mapping()
    (server, *_) = document["keyspaces"]["objects"]["servers"]
    url = make_url(server["primary"]).set(drivername="mysql+pymysql")
    # Without TLS, which would read all certificates for each connection.
    url = url.update_query_dict({"ssl_disabled": "true"})
    backend = backend_for("mysql", driver="mysql+pymysql")
    engine = create_engine(url, poolclass=NullPool)
    names = []
    numbers = count()

    def make() -> Any:
        name = f"db_autogenerate{next(numbers)}"
        names.append(name)
        with engine.begin() as connection:
            connection.execute(text(f"DROP DATABASE IF EXISTS {name}"))
            backend.create_database(connection, name)
        return create_engine(url.set(database=name), poolclass=NullPool)

    yield make
    with engine.begin() as connection:
        for name in names:
            connection.execute(text(f"DROP DATABASE {name}"))


class TestGenerating(Generating):
    portable = False


class TestCreatingPortably(Creating):
    pass


#: The type and the default of ts are the longest that there is.
USERS = """\
    op.create_table('users',
    sa.Column('local_id', sa.BigInteger(), autoincrement=True, nullable=False),
    sa.Column('data', mysql.MEDIUMTEXT(charset='utf8mb4', \
collation='utf8mb4_nopad_bin'), nullable=False),
    sa.Column('ts', mysql.TIMESTAMP(fsp=6), server_default=\
sa.text('CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)'), \
nullable=False),
    sa.PrimaryKeyConstraint('local_id')
"""


def test_other_shards_of_the_server_are_not_seen(
    database: Any, tmp_path: Path
) -> None:
    metadata = pinboard.Base.metadata
    engine, other = database(), database()
    for one in (engine, other):
        metadata.create_all(one)
    with other.begin() as connection:
        connection.execute(text("CREATE TABLE stray (n INTEGER)"))
    revisions = Revisions(
        tmp_path / "revisions", engine, BOTH, include_schemas=True
    )
    revisions.check(metadata)


def test_a_plain_revision_is_short(database: Any, tmp_path: Path) -> None:
    revisions = Revisions(tmp_path / "revisions", database(), BOTH)
    revision = revisions.generate(pinboard.Base.metadata)
    begin = revision.index("    op.create_table('users'")
    assert revision[begin : revision.index("    )\n", begin)] == USERS


@pytest.mark.parametrize("models", [pinboard, revision_models])
def test_a_revision_runs_on_the_other_kind_of_server(
    database: Any, tmp_path: Path, models: Any
) -> None:
    metadata = models.Base.metadata
    for first in ("mysql", "sqlite"):
        lite = [
            create_engine(
                f"sqlite:///{tmp_path}/{first}{n}", poolclass=NullPool
            )
            for n in range(2)
        ]
        servers = {"mysql": database(), "sqlite": lite[0]}
        expected = {
            "mysql": created(database(), metadata),
            "sqlite": created(lite[1], metadata),
        }
        revisions = Revisions(
            tmp_path / first, servers.pop(first), BOTH, portable=True
        )
        revisions.generate(metadata)
        ((other, engine),) = servers.items()
        revisions.engine = engine
        revisions.upgrade()
        revisions.check(metadata)
        assert shown(engine) == expected[other]


class TestFinding(Finding):
    changes = CHANGES + SERVER_CHANGES


class TestReferences(reference_tables.Generating):
    pass


class TestLinkTables(reference_tables.Generating):
    metadata = many_models.Base.metadata
