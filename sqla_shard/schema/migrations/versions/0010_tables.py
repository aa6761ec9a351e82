"""The tables of this package, as :mod:`sqla_shard.outbox.tables` defines them.

Contains the revisions 0001 to 0009 of versions before the first release.  Once
it is released, another definition of a table needs another revision, and the
former definition has to move to here.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy.schema import CreateTable

from sqla_shard.outbox.tables import METADATA

revision = "0010"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables, those that a killed runner has not created."""
    for table in METADATA.tables.values():
        op.execute(CreateTable(table, if_not_exists=True))
