"""Keys that could not be deleted from a cache, on SQLite."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import create_engine, inspect

from sqla_shard.outbox.tables import METADATA, OUTBOX
from sqla_shard.schema import ledger
from tests.models.operation_models import operations_on_sqlite
from tests.suites import outbox

cluster = operations_on_sqlite()


TestOutbox = outbox.Outbox


def test_the_table_that_alembic_makes_is_the_same(tmp_path: Path) -> None:
    made = []
    for name in ("alembic", "create_all"):
        engine = create_engine(f"sqlite:///{tmp_path}/{name}.sqlite")
        with engine.connect() as connection:
            if name == "alembic":
                ledger.upgrade_own_tables(connection, None)
            else:
                METADATA.create_all(connection, tables=[OUTBOX])
            found = inspect(connection)
            columns = found.get_columns(OUTBOX.name)
            made.append(
                (
                    [(c["name"], str(c["type"]), c["nullable"]) for c in columns],
                    found.get_pk_constraint(OUTBOX.name)["constrained_columns"],
                    found.get_unique_constraints(OUTBOX.name),
                )
            )
        engine.dispose()
    assert made[0] == made[1]
    assert len(made[0][0]) == len(OUTBOX.columns)
