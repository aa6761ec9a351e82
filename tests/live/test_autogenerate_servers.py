"""Revisions are generated, run and compared on servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from examples.pinboard import models as pinboard
from tests.models import many_models, revision_models
from tests.models.databases import databases_on_servers
from tests.models.revisions import Revisions, shown
from tests.suites import reference_tables
from tests.suites.autogenerating import (
    BOTH,
    CHANGES,
    created,
    Creating,
    Finding,
    Generating,
    SAME,
    SERVER_CHANGES,
    SERVER_SAME,
)

pytestmark = pytest.mark.live


database = databases_on_servers("db_autogenerate")


class TestGenerating(Generating):
    portable = False


class TestCreatingPortably(Creating):
    pass


#: The type and the default of ts are the longest that there is.
USERS = """\
    op.create_table('users',
    sa.Column('local_id', sa.BigInteger(), autoincrement=True, nullable=False),
    sa.Column('data', mysql.MEDIUMTEXT(charset='utf8mb4', \
collation='{collation}'), nullable=False),
    sa.Column('ts', mysql.TIMESTAMP(fsp=6), server_default=\
sa.text('CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)'), \
nullable=False),
    sa.PrimaryKeyConstraint('local_id')
"""


def test_other_shards_of_the_server_are_not_seen(database: Any, tmp_path: Path) -> None:
    metadata = pinboard.Base.metadata
    engine, other = database(), database()
    for one in (engine, other):
        metadata.create_all(one)
    with other.begin() as connection:
        connection.execute(text("CREATE TABLE stray (n INTEGER)"))
    revisions = Revisions(tmp_path / "revisions", engine, BOTH, include_schemas=True)
    revisions.check(metadata)


def test_a_plain_revision_is_short(database: Any, tmp_path: Path) -> None:
    revisions = Revisions(tmp_path / "revisions", database(), BOTH)
    revision = revisions.generate(pinboard.Base.metadata)
    begin = revision.index("    op.create_table('users'")
    shown = revision[begin : revision.index("    )\n", begin)]
    is_mariadb = revisions.engine.dialect.is_mariadb
    collation = "utf8mb4_nopad_bin" if is_mariadb else "utf8mb4_bin"
    assert shown == USERS.format(collation=collation)


@pytest.mark.parametrize("models", [pinboard, revision_models])
def test_a_revision_runs_on_the_other_kind_of_server(
    database: Any, tmp_path: Path, models: Any
) -> None:
    metadata = models.Base.metadata
    for first in ("mysql", "sqlite"):
        lite = [
            create_engine(f"sqlite:///{tmp_path}/{first}{n}", poolclass=NullPool)
            for n in range(2)
        ]
        servers = {"mysql": database(), "sqlite": lite[0]}
        expected = {
            "mysql": created(database(), metadata),
            "sqlite": created(lite[1], metadata),
        }
        revisions = Revisions(tmp_path / first, servers.pop(first), BOTH, portable=True)
        revisions.generate(metadata)
        ((other, engine),) = servers.items()
        revisions.engine = engine
        revisions.upgrade()
        revisions.check(metadata)
        assert shown(engine) == expected[other]


class TestFinding(Finding):
    changes = CHANGES + SERVER_CHANGES
    same = SAME + SERVER_SAME


class TestReferences(reference_tables.Generating):
    pass


class TestLinkTables(reference_tables.Generating):
    metadata = many_models.Base.metadata
