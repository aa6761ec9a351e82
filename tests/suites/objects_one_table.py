"""Object classes that share a table, compared with plain SQLAlchemy.

Each script runs twice: with object classes on shards, and with ordinary
classes of the same form, whose blob fields are columns, in one database.
It returns the same.
"""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar

import pytest
from sqlalchemy import (
    create_engine,
    delete,
    Engine,
    event,
    ForeignKey,
    func,
    insert,
    JSON,
    select,
    String,
    update,
)
from sqlalchemy.ext.mutable import MutableList
from sqlalchemy.orm import (
    aliased,
    DeclarativeBase,
    defer,
    joinedload,
    load_only,
    Mapped,
    mapped_column,
    relationship,
    selectin_polymorphic,
    selectinload,
    Session,
    validates,
    with_polymorphic,
)
from sqlalchemy.orm.exc import StaleDataError

from sqla_shard import blob_field, MappingMixin, ObjectMixin, scatter, ShardedId
from sqla_shard.exc import UnsupportedStatementError, WrongTypeError
from sqla_shard.models.deletion import delete_object
from tests.models.objects_harness import raw, Suite

NAMES = ("item", "book", "novel", "film")


class OneTableBase(DeclarativeBase):
    pass


class PlainBase(DeclarativeBase):
    pass


class Validated:
    @validates("pages")
    def _check(self, key: str, value: Any) -> Any:
        if value is not None and value < 0:
            raise ValueError(value)
        return value


class Owner(ObjectMixin, OneTableBase, type_id=95):
    __tablename__ = "ot_owners"

    name: Mapped[str] = blob_field()
    items: Mapped[list[Item]] = relationship(back_populates="owner", order_by="Item.id")
    books: Mapped[list[Book]] = relationship(viewonly=True, order_by="Book.id")


class Item(ObjectMixin, OneTableBase, type_id=96, colocate_with="owner_id"):
    __tablename__ = "ot_items"

    kind: Mapped[str] = mapped_column(String(10))
    version: Mapped[int] = mapped_column()
    owner_id: Mapped[int] = mapped_column(
        ShardedId(95), ForeignKey("ot_owners.local_id")
    )
    owner: Mapped[Owner] = relationship(back_populates="items")
    name: Mapped[str] = blob_field()
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    stars: Mapped[int] = mapped_column(default=0)
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "polymorphic_on": "kind",
        "polymorphic_identity": "item",
        "version_id_col": version,
    }


class Printed(Item, Validated):
    __abstract__ = True

    pages: Mapped[int | None] = blob_field(default=None)


class Book(Printed):
    isbn: Mapped[str | None] = mapped_column(String(20))
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "book"}


class Novel(Book):
    hero: Mapped[str | None] = blob_field(default=None)
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "novel"}


class Film(Item):
    minutes: Mapped[int | None] = mapped_column()
    cut: Mapped[str | None] = blob_field(default=None)
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "film"}


class OwnerReads(
    MappingMixin, OneTableBase, source=Owner, target=Book, target_column="book_id"
):
    __tablename__ = "ot_owner_reads"


class BookFilms(
    MappingMixin,
    OneTableBase,
    source=Book,
    target=Film,
    source_column="book_id",
    target_column="film_id",
):
    __tablename__ = "ot_book_films"


class PlainOwner(PlainBase):
    __tablename__ = "owners"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    items: Mapped[list[PlainItem]] = relationship(
        back_populates="owner", order_by="PlainItem.id"
    )
    books: Mapped[list[PlainBook]] = relationship(
        viewonly=True, order_by="PlainBook.id"
    )


class PlainItem(PlainBase):
    __tablename__ = "items"

    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str]
    version: Mapped[int] = mapped_column()
    owner_id: Mapped[int] = mapped_column(ForeignKey("owners.id"))
    owner: Mapped[PlainOwner] = relationship(back_populates="items")
    name: Mapped[str]
    tags: Mapped[list[str]] = mapped_column(MutableList.as_mutable(JSON), default=list)
    stars: Mapped[int] = mapped_column(default=0)
    __mapper_args__: ClassVar[dict[str, Any]] = {
        "polymorphic_on": "kind",
        "polymorphic_identity": "item",
        "version_id_col": version,
    }


class PlainPrinted(PlainItem, Validated):
    __abstract__ = True

    pages: Mapped[int | None]


class PlainBook(PlainPrinted):
    isbn: Mapped[str | None]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "book"}


class PlainNovel(PlainBook):
    hero: Mapped[str | None]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "novel"}


class PlainFilm(PlainItem):
    minutes: Mapped[int | None]
    cut: Mapped[str | None]
    __mapper_args__: ClassVar[dict[str, Any]] = {"polymorphic_identity": "film"}


class World:
    """The classes of one side, with an owner of one object of each."""

    def __init__(self, prefix: str, new: Callable[..., Session]) -> None:
        self.new = new
        self.Owner, self.Item, self.Book, self.Novel, self.Film = (
            globals()[prefix + name]
            for name in ("Owner", "Item", "Book", "Novel", "Film")
        )
        self.classes = (self.Item, self.Book, self.Novel, self.Film)
        with self.new() as session:
            owner = self.Owner(name="ada")
            made = [
                self.Item(name="item", owner=owner, tags=["i"]),
                self.Book(name="book", owner=owner, pages=3, isbn="x"),
                self.Novel(name="novel", owner=owner, pages=9, isbn="y", hero="eve"),
                self.Film(name="film", owner=owner, minutes=90, stars=2),
            ]
            session.add(owner)
            session.flush()
            self.owner = owner.id
            self.ids = {one.name: one.id for one in made}
            session.commit()

    def get(self, session: Session, name: str, cls: Any = None) -> Any:
        return session.get(cls or self.Item, self.ids[name])


def shown(found: Any) -> Any:
    """Return what can be compared between the sides."""
    if isinstance(found, (list, tuple)):
        return [shown(one) for one in found]
    if not isinstance(found, (Item, PlainItem)):
        return found
    names = ["kind", "name", "stars", "pages", "isbn", "hero", "minutes"]
    values = [getattr(found, n, "none") for n in [*names, "cut", "version"]]
    cls = type(found).__name__.removeprefix("Plain")
    return [cls, *values, [*found.tags]]


class OneTableSuite(Suite):
    metadata = OneTableBase.metadata

    @pytest.fixture(scope="class")
    @classmethod
    def engine(cls, tmp_path_factory: Any) -> Iterator[Engine]:
        path = tmp_path_factory.mktemp("one_table") / "plain.sqlite"
        engine = create_engine(f"sqlite:///{path}")
        PlainBase.metadata.create_all(engine)
        yield engine
        engine.dispose()

    @pytest.fixture
    def same(self, cluster, engine) -> Callable[..., None]:
        """Return a function that runs a script on both sides."""

        def run(script: Callable[[World], Any]) -> None:
            ours = World("", lambda: cluster.session(shard_id=1))
            plain = World("Plain", lambda: Session(engine))
            expected = shown(script(plain))
            assert shown(script(ours)) == expected
            assert expected  # a script shows something

        return run

    @pytest.fixture
    def ours(self, cluster) -> World:
        return World("", lambda: cluster.session(shard_id=1))

    def test_get(self, same):
        def script(world: World) -> Any:
            found = []
            for cls in world.classes:
                for name in NAMES:
                    with world.new() as session:
                        found.append(shown(world.get(session, name, cls)))
            with world.new() as session:  # already in the session
                held = [world.get(session, name) for name in NAMES]
                for cls in world.classes:
                    for name in NAMES:
                        found.append(world.get(session, name, cls) in held)
            return found

        same(script)

    def test_select(self, same):
        def script(world: World) -> Any:
            found = []
            with world.new() as session:
                for cls in world.classes:
                    here = select(cls).where(cls.owner_id == world.owner)
                    ordered = here.order_by(cls.name.desc())
                    found.append(shown(session.scalars(ordered).all()))
                    few = here.where(cls.name > "c", cls.stars < 2)
                    few = few.order_by(cls.id)
                    found.append(shown(session.scalars(few).all()))
                    ids = select(cls.name).where(cls.id.in_(world.ids.values()))
                    found.append(sorted(session.scalars(ids)))
                    counted = select(func.count(cls.id), func.max(cls.name))
                    counted = counted.where(cls.owner_id == world.owner)
                    found.append(tuple(session.execute(counted).one()))
                Book = world.Book
                pages = select(Book.name, Book.pages, Book.isbn)
                pages = pages.where(
                    Book.owner_id == world.owner, Book.pages > 1
                ).order_by(Book.pages.desc())
                found.append([tuple(r) for r in session.execute(pages)])
                either = select(world.Item).where(
                    world.Item.owner_id == world.owner,
                    (Book.pages == 9) | (world.Film.minutes == 90),
                )
                either = either.order_by(world.Item.id)
                found.append(shown(session.scalars(either).all()))
                kinds = select(world.Item.kind, func.count())
                kinds = kinds.where(world.Item.owner_id == world.owner)
                kinds = kinds.group_by(world.Item.kind)
                found.append(sorted(map(tuple, session.execute(kinds))))
                other = aliased(Book)
                stmt = select(other).where(other.owner_id == world.owner)
                stmt = stmt.order_by(other.id)
                found.append(shown(session.scalars(stmt).all()))
            return found

        same(script)

    def test_everywhere(self, cluster, ours):
        """scatter() reads each class, and no other."""
        mine = set(ours.ids.values())
        with cluster.session() as session:
            for cls, names in (
                (Item, NAMES),
                (Book, ("book", "novel")),
                (Novel, ("novel",)),
                (Film, ("film",)),
            ):
                stmt = select(cls).options(scatter())
                found = [x for x in session.scalars(stmt) if x.id in mine]
                assert sorted(x.name for x in found) == sorted(names)
                assert all(isinstance(x, cls) for x in found)
                wanted = [ours.ids[name] for name in NAMES]
                session.expunge_all()
                many = session.get_many(cls, wanted)
                assert [x and x.name for x in many] == [
                    name if name in names else None for name in NAMES
                ]
                assert session.get_many(cls, wanted) == many

    def test_merged_answers(self, cluster, engine):
        """Of objects on all shards, compared with one database."""

        def answers(world: Any, owners: list[int], option: Any) -> Any:
            found = []
            with world.new() as session:
                for cls in world.classes:
                    mine = cls.owner_id.in_(owners)
                    for stmt in (
                        select(cls).order_by(cls.name, cls.stars).limit(7),
                        select(cls).order_by(cls.stars.desc(), cls.name),
                        select(cls.kind, func.count(), func.sum(cls.stars))
                        .group_by(cls.kind)
                        .order_by(cls.kind),
                        select(cls.name).distinct().order_by(cls.name),
                        select(func.count(cls.id), func.min(cls.name)),
                    ):
                        rows = session.execute(stmt.where(mine).options(*option))
                        found.append([shown(tuple(row)) for row in rows])
                Book = world.Book
                pages = select(Book.pages, Book.isbn).order_by(Book.pages)
                pages = pages.where(Book.owner_id.in_(owners))
                rows = session.execute(pages.options(*option))
                found.append([tuple(row) for row in rows])
            return found

        worlds = [
            (World("", partial(cluster.session, shard_id=shard)), i)
            for i, shard in enumerate((0, 1, 3))
        ]
        plain = [(World("Plain", lambda: Session(engine)), i) for i in range(3)]
        for world, i in (*worlds, *plain):
            with world.new() as session:
                for number, name in enumerate(NAMES):
                    one = world.get(session, name)
                    one.name += str(i % 2)
                    one.stars = 10 * i + number
                    if name in ("book", "novel"):
                        one.pages = 100 * i + number
                session.commit()
        expected = answers(plain[0][0], [w.owner for w, _ in plain], [])
        everywhere = World("", cluster.session)
        assert expected == answers(
            everywhere, [w.owner for w, _ in worlds], [scatter()]
        )

    def test_eager_and_lazy_loads(self, same):
        def script(world: World) -> Any:
            found = []
            Owner, Item, Book = world.Owner, world.Item, world.Book
            one = select(Owner).where(Owner.id == world.owner)
            for options in (
                [],
                [selectinload(Owner.items), selectinload(Owner.books)],
                [joinedload(Owner.items)],
                [joinedload(Owner.books)],
                [selectinload(Owner.items).selectin_polymorphic([Book, world.Film])],
                [selectinload(Owner.items.of_type(Book))],
            ):
                with world.new() as session:
                    owner = session.scalars(one.options(*options)).unique()
                    owner = owner.one()
                    found += [shown(owner.items), shown(owner.books)]
            here = select(Item).where(Item.owner_id == world.owner)
            here = here.order_by(Item.id)
            for options in (
                [selectin_polymorphic(Item, [Book, world.Film])],
                [joinedload(Item.owner)],
                [defer(Item.stars)],
                [load_only(Item.name)],
            ):
                with world.new() as session:
                    rows = session.scalars(here.options(*options)).unique()
                    rows = rows.all()
                    found.append(shown(rows))
                    found.append({x.owner.name for x in rows})
            with world.new() as session:
                every = with_polymorphic(Item, [Book, world.Film])
                stmt = select(every).where(every.owner_id == world.owner)
                stmt = stmt.order_by(every.id)
                found.append(shown(session.scalars(stmt).all()))
                stmt = (
                    select(Owner.id, Book)
                    .join(Owner.items.of_type(Book))
                    .where(Owner.id == world.owner)
                    .order_by(Book.id)
                )
                found.append([shown(row[1]) for row in session.execute(stmt)])
            return found

        same(script)

    def test_expired_objects(self, same):
        """A read of one by a class above its own reads all of its columns."""

        def script(world: World) -> Any:
            found = []
            reads = []
            with world.new() as session:
                event.listen(session, "do_orm_execute", reads.append)
                held = [world.get(session, name) for name in NAMES]
                for name in NAMES:
                    for cls in (world.Item, world.Novel):
                        shown(held)
                        session.expire_all()
                        reads.clear()
                        one = world.get(session, name, cls)
                        found.append([shown(one), len(reads)])
            return found

        same(script)

    def test_several_expired_objects(self, ours):
        ids = [*ours.ids.values(), *World("", ours.new).ids.values()]
        reads = []
        with ours.new() as session:
            held = [session.get(Item, one) for one in ids]
            session.expire_all()
            event.listen(session, "do_orm_execute", reads.append)
            assert session.get_many(Item, ids) == held
            shown(held)
            assert len(reads) == len(NAMES)  # one of each class

    def test_changes(self, same):
        def script(world: World) -> Any:
            found = []
            with world.new() as session:
                book = world.get(session, "book")
                book.pages, book.isbn = 4, "z"
                novel = world.get(session, "novel")
                novel.hero = "bob"
                film = world.get(session, "film")
                film.minutes += 1
                film.tags.append("new")
                item = world.get(session, "item")
                item.name = "changed"
                with pytest.raises(ValueError, match="-1"):
                    book.pages = -1
                session.flush()
                found.append(shown([book, novel, film, item]))
                session.commit()
                found.append(shown([book, novel, film, item]))
                film.cut = "short"
                session.expire(film, ["cut"])
                session.refresh(book, ["isbn"])
                found.append(shown([film, book]))
            with world.new() as session:
                found.append([shown(world.get(session, n)) for n in NAMES])
                session.delete(world.get(session, "novel"))
                session.commit()
                found.append([shown(world.get(session, n)) for n in NAMES])
            return found

        same(script)

    def test_stale_writes(self, same):
        def script(world: World) -> Any:
            found = []
            for mine, theirs in (
                ("pages", "isbn"),
                ("isbn", "pages"),
                ("pages", "name"),
                ("name", "stars"),
            ):
                with world.new() as session, world.new() as second:
                    book = world.get(session, "novel")
                    for one, name in (
                        (world.get(second, "novel"), theirs),
                        (book, mine),
                    ):
                        value = getattr(one, name)
                        more = "x" if isinstance(value, str) else 1
                        setattr(one, name, value + more)
                    second.commit()
                    with pytest.raises(StaleDataError):
                        session.commit()
                    session.rollback()
                    found.append(shown(book))
            return found

        same(script)

    def test_bulk(self, same):
        def script(world: World) -> Any:
            found = []
            Book, Novel, Item = world.Book, world.Novel, world.Item
            with world.new() as session:
                rows = [
                    {"name": "n1", "owner_id": world.owner, "pages": 1},
                    {"name": "n2", "owner_id": world.owner, "pages": 2},
                ]
                rows = [{**row, "version": 1, "tags": []} for row in rows]
                session.execute(insert(Novel), rows)
                session.execute(
                    # As a statement of Core, which knows no classes.
                    insert(Book).values({**rows[0], "name": "b1", "kind": "book"})
                )
                session.execute(
                    insert(Item),
                    [{"name": "i1", "owner_id": world.owner, "version": 1, "tags": []}],
                )
                session.commit()
                here = select(Item).where(Item.owner_id == world.owner)
                here = here.order_by(Item.id)
                found.append(shown(session.scalars(here).all()))
                changed = session.execute(
                    update(Book)
                    .where(Book.owner_id == world.owner)
                    .values(isbn="all", stars=Book.stars + 1)
                )
                found.append(changed.rowcount)
                found.append(shown(session.scalars(here).all()))
                gone = delete(Novel).where(Novel.owner_id == world.owner)
                found.append(session.execute(gone).rowcount)
                session.commit()
                found.append(shown(session.scalars(here).all()))
            return found

        same(script)

    def test_copies(self, same):
        def script(world: World) -> Any:
            found = []
            with world.new() as session:
                novel = world.get(session, "novel")
                found.append(shown(novel))
            again = pickle.loads(pickle.dumps(novel))
            again.hero, again.isbn = "merged", "m"
            with world.new() as session:
                found.append(shown(session.merge(again)))
                session.commit()
                found.append(shown(world.get(session, "novel")))
            return found

        same(script)

    def test_hidden(self, cluster, ours):
        with cluster.begin() as session:
            ours.get(session, "novel").deactivate()
        everything = {"include_inactive": True}
        with cluster.session() as session:
            here = select(Book).where(Book.owner_id == ours.owner)
            assert [x.name for x in session.scalars(here)] == ["book"]
            assert ours.get(session, "novel", Book) is None
            found = session.scalars(
                here.order_by(Book.id), execution_options=everything
            ).all()
            assert [x.name for x in found] == ["book", "novel"]
            owner = session.get(Owner, ours.owner)
            assert len(owner.items) == 3
            assert [x.name for x in owner.books] == ["book"]
            found[1].restore()
            session.commit()
            assert ours.get(session, "novel", Novel).active

    def test_values_of_the_row(self, cluster, ours):
        """Fields of a class are in the documents of its objects alone."""
        assert raw(cluster, Item, ours.ids["novel"]) == {
            "name": "novel",
            "tags": [],
            "pages": 9,
            "hero": "eve",
        }
        assert raw(cluster, Item, ours.ids["film"]) == {
            "name": "film",
            "tags": [],
            "cut": None,
        }

    def test_lists(self, cluster, ours):
        ids = ours.ids
        with cluster.begin() as session:
            for name in ("book", "novel", "film"):
                OwnerReads.append(session, ours.owner, ids[name])
            BookFilms.append(session, ids["novel"], ids["film"])
            with pytest.raises(WrongTypeError):
                BookFilms.append(session, ours.owner, ids["film"])
        with cluster.session() as session:
            page = OwnerReads.page(session, ours.owner, targets=True)
            # Of the type, and no book.
            names = [row.target and row.target.name for row in page]
            assert names == [None, "novel", "book"]
        with cluster.session() as session:
            (row,) = BookFilms.page(session, ids["novel"])
            assert (row.source.name, row.target.name) == ("novel", "film")

    def test_deleting_what_belongs_to_it(self, cluster, ours):
        ids = ours.ids
        with cluster.begin() as session:
            BookFilms.append(session, ids["novel"], ids["film"])
        with pytest.raises(UnsupportedStatementError, match="give Item instead"):
            delete_object(cluster, Book, ids["novel"])
        delete_object(cluster, Item, ids["novel"])
        with cluster.session() as session:
            assert not BookFilms.page(session, ids["novel"]).items
            assert ours.get(session, "novel") is None
        delete_object(cluster, Owner, ours.owner)
        with cluster.session() as session:
            assert session.get_many(Item, [*ids.values()]) == [None] * 4

    def test_in_an_event_loop(self, cluster, ours):
        async def work() -> None:
            async with cluster.async_begin() as session:
                stmt = select(Item).where(Item.owner_id == ours.owner)
                found = await session.scalars(
                    stmt.options(selectin_polymorphic(Item, [Book, Film]))
                )
                by_name = {one.name: one for one in found}
                assert by_name["novel"].isbn == "y"
                assert by_name["film"].minutes == 90
                by_name["novel"].hero = "async"
            async with cluster.async_session() as session:
                novel = await session.get(Novel, ours.ids["novel"])
                assert novel.hero == "async"
                assert await session.get(Film, novel.id) is None

        asyncio.run(work())
