"""Shadow mode: an asynchronous API, a batch job, and side effects."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import (
    Column,
    Connection,
    create_engine,
    Engine,
    event,
    ForeignKey,
    insert,
    Integer,
    MetaData,
    select,
    Table,
    text,
)
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import scoped_session, Session, sessionmaker

from sqla_shard.exc import MigrateSetupError
from sqla_shard.migrate import (
    Declaration,
    load,
    Lookup,
    merge,
    Owned,
    Report,
    Shadow,
    suggest,
)
from sqla_shard.migrate.report import Count, Traffic
from sqla_shard.util.sqlalchemy_helpers import sorted_tables
from tests.models.shadow_apps import (
    accounts,
    BANK,
    bank,
    close_month,
    entries,
    SHOP,
    Shop,
    shop,
)
from tests.servers.command_line import invoke


def outcomes(report: Report) -> dict[str, set[str]]:
    """Return the outcomes of the statements of each function."""
    assert not report.failures, report.failures
    found: dict[str, set[str]] = {}
    for site in report.sites:
        found.setdefault(site.function, set()).add(site.outcome)
    return found


def test_an_asynchronous_api(tmp_path: Path) -> None:
    async def serve() -> Report:
        engine = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop")
        api = Shop(engine)
        await api.prepare()
        with Shadow(SHOP, shop, budget=None) as shadow:
            shadow.watch(engine)
            ada, bob = await asyncio.gather(
                api.join("ada@example.com"), api.join("bob@example.com")
            )
            first = await api.order(ada, "tea")
            second = await api.order(bob, "tea", "tea")
            await api.find("ada@example.com")
            await api.invoice(ada)
            await api.shown((first, 0))
            await api.shown((first, 0), (second, 1))
            await api.stock(first)
            await api.cancel(ada, first)
            report = shadow.report()
        await engine.dispose()
        return report

    report = asyncio.run(serve())
    assert outcomes(report) == {
        "join": {"single_shard"},
        # The stock is not in the keyspace of the order.
        "order": {"single_shard", "cross_shard_write"},
        "find": {"lookup"},
        "invoice": {"single_shard"},
        # The tuples are of one order, and of two.
        "shown": {"single_shard", "several_shards"},
        "stock": {"refused"},
        "cancel": {"single_shard"},
    }
    (stock,) = [site for site in report.sites if site.function == "stock"]
    assert stock.error == "KeyspaceMismatchError"
    assert "Reference" in stock.remedy
    assert stock.file.endswith("shadow_apps.py")
    assert report.transactions["several_owners"] == 2
    assert report.foreign_keys == {"lines.sku": "the tables are in different keyspaces"}
    best = suggest(shop, report.traffic)[0]
    assert "customers" in best.owners
    assert {*SHOP.of(Owned)} <= {*best.declaration.items}
    assert {*SHOP.of(Lookup)} <= {*best.declaration.items}


@pytest.fixture
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    bank.create_all(engine)
    with engine.begin() as connection:
        connection.execute(
            insert(accounts), [{"id": n, "balance": n} for n in range(1, 6)]
        )
    yield engine
    engine.dispose()


def test_a_batch_job(engine: Engine) -> None:
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        with engine.begin() as connection:
            close_month(connection, "2026-11")
        report = shadow.report()
    assert outcomes(report) == {
        "close_month": {"scatter", "cross_shard_write", "refused", "textual"}
    }
    assert report.transactions == {"several_owners": 1}
    errors = {site.error for site in report.sites}
    assert errors == {"NoShardKeyError", "CrossShardWriteError"}
    assert report.undeclared == ("months",)
    # Its traffic says what an online application would not.
    best = suggest(bank, report.traffic)[0]
    assert best.is_recorded
    assert best.owners == ("accounts",)
    assert best.outcomes["scatter"] > 0


def sent(engine: Engine) -> list[Any]:
    """Record the statements and parameters that reach the driver."""
    found: list[Any] = []

    @event.listens_for(engine, "before_cursor_execute")
    def record(
        connection: Any,
        cursor: Any,
        statement: Any,
        parameters: Any,
        context: Any,
        executemany: Any,
    ) -> None:
        found.append((statement, parameters))

    return found


def test_statements_are_those_without_it(engine: Engine) -> None:
    log = sent(engine)

    def close(name: str) -> list[Any]:
        log.clear()
        with engine.connect() as connection:
            close_month(connection, name)
            connection.rollback()
        return list(log)

    before = close("2026-11")
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        assert close("2026-11") == before
        assert shadow.report().total.statements == len(before)
    count = shadow.report().total
    assert close("2026-11") == before
    assert shadow.report().total == count


def test_its_errors_are_counted_and_logged(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shadow = Shadow(BANK, bank, budget=None)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(shadow._planner, "judge", fail)
    with shadow, engine.connect() as connection:
        shadow.watch(engine)
        for _ in range(3):
            assert connection.scalars(select(accounts.c.id)).all()
        connection.commit()
        report = shadow.report()
    assert report.failures == {"ZeroDivisionError: a bug": 3}
    assert report.total.statements == 0
    assert "Not planned, 3 times: ZeroDivisionError" in str(report)
    (record,) = caplog.records
    assert record.name == "sqla_shard.migrate"
    assert record.exc_info is not None


@pytest.mark.parametrize("name", ["_is_library", "_write_in_time"])
def test_no_error_of_it_reaches_the_application(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shadow = Shadow(BANK, bank, budget=None)

    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(shadow, name, fail)
    with shadow:
        shadow.watch(engine)
        select_often(engine, 2)
        report = shadow.report()
    assert report.failures == {"ZeroDivisionError: a bug": 2}
    # The statements are still counted.
    assert report.total.statements == 2


def test_owners_are_suggested_before_anything_is_declared(engine: Engine) -> None:
    with Shadow(Declaration(), bank, budget=None) as shadow:
        shadow.watch(engine)
        with engine.begin() as connection:
            close_month(connection, "2026-11")
        report = shadow.report()
    assert set(report.outcomes) == {"global", "textual"}
    (best,) = suggest(bank, report.traffic)
    assert best.is_recorded
    assert best.declaration == BANK


def test_a_column_is_used_once_in_a_statement() -> None:
    """A join that also filters by the column would count twice."""
    both = "entries.account_id", "accounts.id"
    traffic = Traffic(
        kind="select",
        tables=("entries", "accounts"),
        equal=both,
        ties=(both,),
        count=Count(statements=3),
    )
    reasons = [reason for one in suggest(bank, [traffic]) for reason in one.reasons]
    assert any("used by 3 of 3 statements" in reason for reason in reasons), reasons


def test_tables_that_the_metadata_lacks_are_named(
    engine: Engine, tmp_path: Path
) -> None:
    with Shadow(SHOP, shop, budget=None, directory=tmp_path) as shadow:
        shadow.watch(engine)
        with engine.begin() as connection:
            close_month(connection, "2026-11")
            # Alembic reads its own table, which no module has.
            versions = Table("alembic_version", MetaData(), Column("version_num"))
            connection.execute(text("CREATE TABLE alembic_version (version_num TEXT)"))
            connection.execute(select(versions))
    done = invoke("migrate", "suggest", "tests.models.shadow_apps:shop", tmp_path)
    assert "left out: statements of accounts, entries, months, which" in done.stderr
    assert "name a module that imports all models" in done.stderr


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE years (n INT)",
        "  drop table if exists years",
        "PRAGMA main.table_info('accounts')",
    ],
)
def test_ddl_and_pragma_are_no_statements_of_the_application(
    engine: Engine, statement: str
) -> None:
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        with engine.begin() as connection:
            connection.exec_driver_sql(statement)
            connection.execute(text(statement.replace("years", "decades")))
            bank.create_all(connection)  # looks for the tables
        assert shadow.report().total.statements == 0
        select_often(engine, 1)
        assert shadow.report().total.statements == 1


def test_foreign_keys_in_a_circle_are_no_warning() -> None:
    people = MetaData()
    for name, other in (("users", "teams"), ("teams", "users")):
        Table(
            name,
            people,
            Column("id", Integer, primary_key=True),
            Column(f"{other}_id", ForeignKey(f"{other}.id")),
        )
    # Warnings are errors in tests.
    assert len(sorted_tables(people)) == 2
    assert suggest(people)


def test_threads_share_a_report(engine: Engine, tmp_path: Path) -> None:
    file = create_engine(f"sqlite:///{tmp_path}/bank")
    bank.create_all(file)
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(file)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: select_often(file, 25), range(8)))
        report = shadow.report()
    file.dispose()
    assert not report.failures
    assert report.total.statements == 200
    assert report.transactions == {"read": 200}


def test_a_failed_statement_raises_the_same_error(engine: Engine) -> None:
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        with engine.connect() as connection:
            with pytest.raises(OperationalError, match="no such table"):
                connection.execute(text("SELECT * FROM nowhere"))
            connection.execute(select(accounts))
        assert shadow.report().total.statements == 1


def test_an_engine_that_cannot_connect(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path}/missing/file")
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        with pytest.raises(OperationalError, match="unable to open"):
            engine.connect()
        assert shadow.report().total.statements == 0


def select_often(engine: Engine, times: int) -> None:
    for _ in range(times):
        with engine.connect() as connection:
            connection.execute(select(accounts).where(accounts.c.id == 1))


def test_sample_is_of_transactions(engine: Engine) -> None:
    with Shadow(BANK, bank, sample=0.25, budget=None) as shadow:
        shadow.watch(engine)
        select_often(engine, 400)
        report = shadow.report()
    assert report.seen == 400
    assert 50 < report.total.statements < 150
    assert sum(report.transactions.values()) == report.total.statements
    assert f"{report.total.statements} statements" in str(report)
    assert "(of 400)" in str(report)


def test_budget_stops_planning(engine: Engine) -> None:
    # The first plan takes more than its share of the time so far.
    with Shadow(BANK, bank, budget=1e-9) as shadow:
        shadow.watch(engine)
        select_often(engine, 20)
        report = shadow.report()
    assert report.seen == 20
    assert report.total.statements == 1


def test_savepoints(engine: Engine) -> None:
    def write(connection: Any, account: int) -> None:
        connection.execute(insert(entries).values(account_id=account, amount=1))

    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        with engine.begin() as connection:
            savepoint = connection.begin_nested()
            write(connection, 1)
            savepoint.rollback()
            write(connection, 2)
            with connection.begin_nested():
                write(connection, 2)
        assert shadow.report().transactions == {"one_owner": 1}
        with engine.begin() as connection:
            with connection.begin_nested():
                write(connection, 1)
            write(connection, 2)
        assert shadow.report().transactions["several_owners"] == 1


def test_memory_is_bounded(engine: Engine) -> None:
    with Shadow(BANK, bank, budget=None, most_sites=3) as shadow:
        shadow.watch(engine)
        with engine.connect() as connection:
            for number in range(10):
                label = accounts.c.id.label(f"n{number}")
                connection.execute(select(label))
        report = shadow.report()
    assert len(report.sites) == 3
    assert report.omitted == 7
    assert report.total.statements == 10
    assert "7 statements are not among the lines" in str(report)


@pytest.mark.parametrize(
    "make",
    [
        lambda engine: engine,
        lambda engine: sessionmaker(engine),
        lambda engine: scoped_session(sessionmaker(engine)),
        lambda engine: Session(engine),
        lambda engine: Engine,
    ],
    ids=["engine", "sessionmaker", "scoped", "session", "class"],
)
def test_valid_targets_of_watch(engine: Engine, make: Any) -> None:
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(make(engine))
        select_often(engine, 1)
        assert shadow.report().total.statements == 1


def test_asynchronous_sessions_can_be_watched() -> None:
    async def use() -> int:
        engine = create_async_engine("sqlite+aiosqlite://")
        factory = async_sessionmaker(engine)
        with Shadow(BANK, bank, budget=None) as shadow:
            shadow.watch(factory)
            async with factory() as session:
                await session.execute(select(1))
            await engine.dispose()
            return shadow.report().total.statements

    assert asyncio.run(use()) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Shadow(BANK, bank, sample=2), "sample=2 must be from 0 to 1"),
        (lambda: Shadow(BANK, bank, budget=-1), "budget=-1"),
        (lambda: Shadow(BANK, bank).watch("mysql://"), "has no engine"),
        (lambda: Shadow(BANK, bank).watch(sessionmaker()), "has no engine"),
    ],
)
def test_invalid_targets_of_watch(call: Any, message: str) -> None:
    with pytest.raises(MigrateSetupError, match=message):
        call()


def test_reports_of_several_processes(engine: Engine, tmp_path: Path) -> None:
    directory = tmp_path / "reports"
    shadow = Shadow(BANK, bank, budget=None, directory=directory, every=0)
    with shadow:
        shadow.watch(engine)
        select_often(engine, 2)
        child = os.fork()
        if child == 0:
            # Counters of the parent are in its own report.
            select_often(engine, 3)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        select_often(engine, 1)
    reports = [load(path) for path in sorted(directory.iterdir())]
    assert sorted(one.total.statements for one in reports) == [3, 3]
    merged = merge(reports)
    assert merged.processes == 2
    assert merged.total.statements == merged.seen == 6
    assert len(merged.sites) == 1
    assert merged.sites[0].count.statements == 6
    assert merge([merged]) == merged


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a report"),
        ("[]", "not a report"),
        ('{"version": 1}', "not a report"),
        ("[" * 100_000, "not a report"),
        ('{"version": 99}', "version 99"),
    ],
)
def test_files_that_are_no_reports(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "shadow-x.json"
    path.write_text(content)
    with pytest.raises(MigrateSetupError, match=message):
        load(path)


def test_a_report_that_cannot_be_written(
    engine: Engine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    shadow = Shadow(BANK, bank, budget=None, directory=tmp_path / "file", every=0)
    shadow.watch(engine)
    select_often(engine, 1)
    assert len(shadow.report().failures) == 1
    assert "file" in caplog.text
    shadow.close()


def test_statements_of_the_dialect_do_not_count_as_the_application_s(
    tmp_path: Path,
) -> None:
    url = f"sqlite:///{tmp_path}/bank"
    before = create_engine(url)
    bank.create_all(before)
    before.dispose()
    engine = create_engine(url)
    initialize = engine.dialect.initialize

    def ask(connection: Connection) -> None:
        # As the dialect of MySQL does.
        initialize(connection)
        connection.exec_driver_sql("SELECT 1").scalar()

    engine.dialect.initialize = ask  # type: ignore[method-assign]
    with Shadow(BANK, bank, budget=None) as shadow:
        shadow.watch(engine)
        with engine.begin() as connection:
            connection.execute(select(accounts).where(accounts.c.id == 1))
        assert not shadow._watch.is_planning
        report = shadow.report()
    engine.dispose()
    assert "SELECT 1" not in {site.statement for site in report.sites}
    assert report.total.statements == 1
