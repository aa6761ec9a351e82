"""Plain models in a global keyspace: ordinary SQLAlchemy, same session."""

from __future__ import annotations

from datetime import datetime, UTC

import pytest
from sqlalchemy import delete, func, insert, select, text, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import aliased, joinedload, selectinload, subqueryload
from sqlalchemy.orm.exc import StaleDataError

from sqla_shard.exc import (
    CrossShardWriteError,
    KeyspaceMismatchError,
    UnknownKeyspaceError,
)
from sqla_shard.outbox.tables import OF_TRANSACTIONS
from tests.models.objects_harness import on_servers, Suite
from tests.models.plain_classes import (
    Account,
    Anywhere,
    Author,
    author_tags,
    Book,
    Country,
    Employee,
    Engineer,
    Intern,
    Island,
    Item,
    Language,
    Lonely,
    NoPlainBase,
    Page,
    PlainBase,
    ReferenceBase,
    Seen,
    Stone,
    Tag,
)


class PlainSuite(Suite):
    metadata = PlainBase.metadata

    def test_relationships_and_cascades(self, cluster, session, log):
        author = Author(
            name="cascade",
            books=[
                Book(number=1, title="one", pages=[Page(), Page()]),
                Book(number=2, title="two"),
            ],
        )
        session.add(author)
        session.commit()
        assert [book.title for book in author.books] == ["one", "two"]
        author.books.pop(0)
        session.commit()
        count = select(func.count()).select_from(Page)
        assert session.scalar(count.where(Page.author_id == author.id)) == 0
        session.delete(author)
        session.commit()
        assert session.scalar(select(func.count()).select_from(Book)) == 0
        assert len(log.connections) == 1

    @pytest.mark.parametrize("load", [None, joinedload, selectinload, subqueryload])
    def test_eager_loads(self, session, load):
        session.add_all(
            Author(
                name=f"eager {load} {n}",
                books=[Book(number=k, title=f"{n}.{k}") for k in range(3)],
            )
            for n in range(3)
        )
        session.commit()
        options = [] if load is None else [load(Author.books), load(Author.tags)]
        found = session.scalars(
            select(Author)
            .where(Author.name.startswith(f"eager {load} "))
            .order_by(Author.name)
            .limit(2)
            .options(*options)
        ).unique()
        assert [[book.title for book in a.books] for a in found] == [
            ["0.0", "0.1", "0.2"],
            ["1.0", "1.1", "1.2"],
        ]

    def test_composite_key(self, session):
        author = Author(name="composite", books=[Book(number=7, title="x")])
        session.add(author)
        session.commit()
        key = (author.id, 7)
        book = session.get(Book, key)
        assert book is session.get(Book, {"author_id": key[0], "number": 7})
        assert session.get(Book, (author.id, 8)) is None
        book.title = "y"
        session.commit()
        session.expunge_all()
        merged = session.merge(Book(author_id=key[0], number=7, title="z"))
        session.commit()
        assert session.get(Book, key) is merged
        assert merged.title == "z"

    def test_many_to_many(self, cluster, session):
        one, two = Author(name="m1"), Author(name="m2")
        tag = Tag("shared")
        one.tags = [tag, Tag("own")]
        two.tags.append(tag)
        session.add_all([one, two])
        session.commit()
        assert list(one.tag_names) == ["shared", "own"]
        assert sorted(a.name for a in tag.authors) == ["m1", "m2"]
        one.tags.remove(tag)
        session.commit()
        assert [a.name for a in tag.authors] == ["m2"]
        found = session.scalars(
            select(Author.name)
            .join(Author.tags)
            .where(Tag.name == "shared", Author.name.startswith("m"))
        ).all()
        assert found == ["m2"]
        rows = session.execute(
            select(author_tags).where(author_tags.c.author_id == one.id)
        ).all()
        assert len(rows) == 1

    def test_inheritance(self, session):
        boss = Engineer(
            name="boss",
            language="sql",
            staff=[Intern(name="i", school="s"), Employee(name="e")],
        )
        session.add(boss)
        session.commit()
        session.expunge_all()
        found = session.scalars(
            select(Employee).order_by(Employee.id.desc()).limit(3)
        ).all()
        assert {type(e).__name__ for e in found} == {"Engineer", "Intern", "Employee"}
        boss = session.scalars(
            select(Engineer).where(Engineer.language == "sql")
        ).first()
        assert sorted(e.name for e in boss.staff) == ["e", "i"]
        boss.language = "python"
        boss.name = "chief"
        session.commit()
        assert session.get(Employee, boss.id) is boss

    def test_unique_violation(self, session):
        session.add(Author(name="unique"))
        session.commit()
        session.add(Author(name="unique"))
        with pytest.raises(IntegrityError):
            session.commit()
        session.rollback()
        with pytest.raises(IntegrityError), session.begin_nested():
            session.execute(insert(Author), [{"name": "unique"}])
        session.add(Author(name="unique 2"))
        session.commit()

    def test_version_counter(self, cluster, session):
        """SQLAlchemy's own check against lost updates."""
        author = Author(name="version")
        session.add(author)
        session.commit()
        assert author.version == 1
        with cluster.begin() as other:
            other.get(Author, author.id).name = "version other"
        author.name = "version mine"
        with pytest.raises(StaleDataError):
            session.commit()

    def test_statements(self, cluster, session):
        ids = session.scalars(
            insert(Author).returning(Author.id),
            [{"name": f"bulk {n}"} for n in range(5)],
        ).all()
        assert len(set(ids)) == 5
        changed = session.execute(
            update(Author)
            .where(Author.id.in_(ids[:2]))
            .values(name=func.concat(Author.name, "!"))
            if on_servers(cluster)
            else update(Author)
            .where(Author.id.in_(ids[:2]))
            .values(name=Author.name + "!")
        )
        assert changed.rowcount == 2
        session.execute(
            update(Author), [{"id": ids[2], "name": "bulk by key", "version": 1}]
        )
        session.execute(delete(Author).where(Author.id == ids[3]))
        one, two = aliased(Author), aliased(Author)
        rows = session.execute(
            select(one.name, two.name)
            .join(two, two.id == one.id)
            .where(one.id.in_(ids))
            .order_by(one.id)
            .offset(1)
            .limit(2)
        ).all()
        assert rows == [("bulk 1!",) * 2, ("bulk by key",) * 2]
        assert (
            session.scalar(select(func.count()).where(Author.shout.like("bulk%!!")))
            == 2
        )
        found = session.query(Author).filter_by(name="bulk 4").one()
        assert session.get(Author, found.id) is found

    def test_textual_sql(self, session):
        session.add(Author(name="textual"))
        session.flush()
        found = session.execute(
            text("SELECT name, id FROM authors WHERE name = :name"), {"name": "textual"}
        ).one()
        assert found.name == "textual"
        author = session.scalars(
            select(Author).from_statement(
                text("SELECT * FROM authors WHERE id = :id").bindparams(id=found.id)
            )
        ).one()
        assert author.name == "textual"
        session.execute(
            text("UPDATE authors SET name = 'textual 2' WHERE id = :id"),
            {"id": found.id},
        )
        session.refresh(author)
        assert author.name == "textual 2"
        connection = session.connection(bind_arguments={"mapper": Author})
        assert (
            connection.scalar(select(func.count()).where(Author.name == "textual 2"))
            == 1
        )

    def test_savepoints_and_rollback(self, session):
        author = Author(name="saved")
        session.add(author)
        session.flush()
        savepoint = session.begin_nested()
        author.name = "lost"
        session.flush()
        savepoint.rollback()
        assert author.name == "saved"
        session.rollback()
        statement = select(Author).where(Author.name == "saved")
        assert session.scalars(statement).all() == []

    def test_with_objects_in_one_session(self, cluster, session):
        author, item = Author(name="mixed"), Item(title="t")
        session.add_all([author, item])
        with pytest.raises(CrossShardWriteError):
            session.commit()
        session.rollback()
        with cluster.begin(cross_shard="unordered") as both:
            item = Item(title="t")
            both.add_all([Author(name="mixed"), item])
            both.flush()
            new = item.id
        author = session.scalars(select(Author).where(Author.name == "mixed")).one()
        assert session.get(Item, new).title == "t"
        assert author.version == 1
        with pytest.raises(KeyspaceMismatchError):
            session.execute(select(Author, Item).where(Item.id == new))

    def test_no_condition_of_soft_delete(self, session, log):
        session.scalars(select(Author)).all()
        assert "active" not in log.statements[-1]

    def test_utc_timestamp(self, session):
        moment = datetime(2024, 5, 6, 7, 8, 9, 123456, UTC)
        row = Seen(at=moment)
        session.add_all([row, Seen()])
        session.commit()
        assert row.at == moment
        assert row.at.tzinfo is UTC
        assert row.twice == 6


class TwoGlobalsSuite(Suite):
    metadata = ReferenceBase.metadata
    main = ("main", "reference")

    def test_each_in_its_own(self, cluster):
        with cluster.begin() as session:
            session.add(
                Country(code="fr", name="France", languages=[Language(code="fr")])
            )
            session.add(Island(code="is", name="Iceland", coast=4970))
        with cluster.begin() as session:
            account = Account()
            session.add(account)
        with cluster.session() as session:
            island = session.get(Country, "is")
            assert (type(island), island.coast) == (Island, 4970)
            assert session.get(Country, "fr").languages[0].code == "fr"
            assert session.scalars(select(Account)).one() is not None
            with pytest.raises(KeyspaceMismatchError):
                session.execute(select(Account, Country))
            session.add_all([Account(), Country(code="de", name="x")])
            with pytest.raises(CrossShardWriteError):
                session.flush()
        with cluster.begin() as session:
            session.add(Stone(name="s"))

    def test_tables_are_where_they_belong(self, cluster):
        wanted = {
            "reference": {"countries", "islands", "languages", "country_languages"},
            "main": {"accounts"},
            "objects": {"stones"},
        }
        for keyspace, tables in wanted.items():
            found = set()
            with cluster.session() as session:
                space = session.places.keyspace(keyspace, "global")
                place = session.places.place(space, 0)
                connection = session.root_connection(place)
                found = place.backend.tables(connection, [place.schema])[place.schema]
            assert found == tables | {one.name for one in OF_TRANSACTIONS}

    def test_text_needs_a_keyspace(self, cluster):
        with cluster.session() as session:
            found = session.execute(
                text("SELECT count(*) FROM countries"),
                bind_arguments={"keyspace": "reference"},
            )
            assert found.scalar() is not None

    def test_model_that_names_none(self, cluster):
        with pytest.raises(UnknownKeyspaceError) as caught, cluster.begin() as session:
            session.add(Anywhere())
        assert set(caught.value.known) >= {"main", "reference"}
        with pytest.raises(UnknownKeyspaceError), cluster.session() as session:
            session.scalars(select(Anywhere)).all()


class NoGlobalSuite(Suite):
    metadata = NoPlainBase.metadata
    main = ()

    def test_objects(self, cluster):
        with cluster.begin() as session:
            session.add(Lonely(name="x"))

    def test_plain_models(self, cluster):
        for work in (
            lambda session: session.add(Anywhere()),
            lambda session: session.scalars(select(Anywhere)).all(),
            lambda session: session.get(Anywhere, 1),
            lambda session: session.execute(insert(Anywhere), [{"id": 1}]),
        ):
            with (
                pytest.raises(UnknownKeyspaceError, match="global"),
                cluster.begin() as session,
            ):
                work(session)
