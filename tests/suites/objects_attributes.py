"""A blob field, asked all that SQLAlchemy lets one ask of a column.

Where it makes no difference which of the two it is, the same test runs for
both: ``title`` is a field, ``label`` a column.
"""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from sqlalchemy import (
    bindparam,
    delete,
    event,
    ForeignKey,
    func,
    insert,
    inspect,
    select,
    String,
    update,
)
from sqlalchemy.exc import InvalidRequestError
from sqlalchemy.ext.hybrid import hybrid_property
from sqlalchemy.orm import (
    aliased,
    attributes,
    Bundle,
    column_property,
    DeclarativeBase,
    defer,
    joinedload,
    lazyload,
    load_only,
    make_transient,
    Mapped,
    mapped_column,
    object_session,
    raiseload,
    relationship,
    selectinload,
    subqueryload,
    synonym,
    undefer,
    validates,
)

from sqla_shard import blob_field, ObjectMixin, scatter
from sqla_shard.exc import BlobError, BlobValueError, UnsupportedStatementError
from sqla_shard.types import full_id, ShardedId
from tests.models.objects_harness import raw, set_raw, stored, Suite


class SheetBase(DeclarativeBase):
    pass


class Sheet(ObjectMixin, SheetBase, type_id=31):
    __tablename__ = "sheets"

    title: Mapped[str] = blob_field()
    note: Mapped[str | None] = blob_field(default="none yet")
    count: Mapped[int] = blob_field(default=0)
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    older: Mapped[str | None] = blob_field(default=None, aliases=("old",))
    label: Mapped[str | None] = mapped_column(String(40), default="L")

    caption = synonym("title")

    @hybrid_property
    def heading(self) -> str:
        return self.title + "!"


Sheet.loud = column_property(func.upper(Sheet.title), deferred=True)


class Checked(ObjectMixin, SheetBase, type_id=32):
    """With validators of a field and of a column."""

    __tablename__ = "checked"

    title: Mapped[str] = blob_field(default="")
    tags: Mapped[list[str]] = blob_field(default_factory=list)
    note: Mapped[str | None] = blob_field(default=None)
    label: Mapped[str | None] = mapped_column(String(40))

    @validates("title", "label")
    def _stripped(self, key: str, value: str) -> str:
        if not value.strip():
            raise ValueError(f"{key} is empty")
        return value.strip()

    @validates("note", include_removes=True)
    def _noted(self, key: str, value: Any, is_remove: bool) -> Any:
        self.__dict__.setdefault("calls", []).append((key, value, is_remove))
        return value

    @validates("tags", include_backrefs=False)
    def _sorted(self, key: str, value: list[str]) -> list[str]:
        return sorted(value)


class Shelf(ObjectMixin, SheetBase, type_id=33):
    __tablename__ = "shelves"

    name: Mapped[str] = blob_field(default="")
    books: Mapped[list[Book]] = relationship(back_populates="shelf")


class Book(ObjectMixin, SheetBase, type_id=34, colocate_with="shelf_id"):
    __tablename__ = "books"

    shelf_id: Mapped[int] = mapped_column(ShardedId(33), ForeignKey("shelves.local_id"))
    title: Mapped[str] = blob_field()
    shelf: Mapped[Shelf] = relationship(back_populates="books")


both = pytest.mark.parametrize("name", ["title", "label"])


class AttributeSuite(Suite):
    metadata = SheetBase.metadata

    @pytest.fixture
    def sheet(self, cluster, session) -> Sheet:
        key = stored(cluster, Sheet, title="t", label="l", tags=["a"], shard_id=1)
        return session.get(Sheet, key)

    # -- the class

    @both
    def test_attributes_of_the_class(self, name):
        attribute = getattr(Sheet, name)
        mapper = inspect(Sheet)
        assert isinstance(attribute, attributes.InstrumentedAttribute)
        assert attribute.key == name
        assert attribute.class_ is Sheet
        assert attribute.parent is mapper
        assert attribute.property is mapper.attrs[name]
        assert attribute.property.key == name
        assert attribute.property.parent is mapper
        assert mapper.has_property(name)
        assert mapper.get_property(name) is attribute.property
        assert mapper.all_orm_descriptors[name] is attribute
        assert attribute.info == {}
        assert str(attribute) == f"Sheet.{name}"
        assert isinstance(attribute.type, String)
        assert inspect(attribute).is_attribute

    @both
    def test_an_alias(self, session, sheet, name):
        other = aliased(Sheet)
        attribute = getattr(other, name)
        assert attribute.key == name
        assert attribute.property is inspect(Sheet).attrs[name]
        statement = select(attribute, getattr(Sheet, name)).where(
            attribute == getattr(Sheet, name),
            other.id == sheet.id,
            Sheet.id == sheet.id,
        )
        value = getattr(sheet, name)
        assert session.execute(statement).all() == [(value, value)]

    @both
    def test_names_of_results(self, session, sheet, name):
        attribute = getattr(Sheet, name)
        bundle = Bundle("b", attribute)
        found = session.execute(
            select(attribute, bundle).where(Sheet.id == sheet.id)
        ).one()
        assert getattr(found, name) == getattr(found.b, name)
        (described, _) = select(attribute, bundle).column_descriptions
        assert described["name"] == name
        assert described["entity"] is Sheet

    def test_expressions_of_a_field(self, cluster, session, sheet):
        assert (sheet.caption, sheet.heading, sheet.loud) == ("t", "t!", "T")
        sheet.caption = "u"
        assert sheet.title == "u"
        session.commit()
        assert sheet.loud == "U"
        mine = select(Sheet.id).where(Sheet.id == sheet.id)
        for condition in (
            Sheet.caption == "u",
            Sheet.heading == "u!",
            Sheet.loud == "U",
        ):
            assert session.scalar(mine.where(condition)) == sheet.id
            assert session.scalar(mine.where(~condition)) is None
        other = aliased(Sheet)
        found = session.execute(
            select(other.caption, other.heading, other.loud).where(other.id == sheet.id)
        ).one()
        assert tuple(found) == ("u", "u!", "U")
        found = session.scalars(
            select(Sheet)
            .where(Sheet.id == sheet.id)
            .options(undefer(Sheet.loud))
            .execution_options(populate_existing=True)
        ).one()
        assert found.__dict__["loud"] == "U"

    def test_parameters_with_the_name_of_a_synonym(self, session, sheet):
        here = (Sheet.id == sheet.id, Sheet.label == bindparam("caption", "l"))
        row = {"caption": "other"}
        for made in (update(Sheet).values(label="wrong"), delete(Sheet)):
            assert session.execute(made.where(*here), row).rowcount == 0
        made = insert(Sheet).values(title="synonym", label=bindparam("caption", "l"))
        session.execute(made, row)
        labels = select(Sheet.label).where(Sheet.title == "synonym")
        assert session.scalars(labels.options(scatter())).all() == ["other"]

    # -- histories

    @both
    def test_history(self, session, sheet, name):
        value = getattr(sheet, name)

        def history() -> tuple[Any, ...]:
            found = attributes.get_history(sheet, name)
            state = inspect(sheet).attrs[name]
            assert state.history == state.load_history() == found
            assert state.value == getattr(sheet, name)
            return tuple(map(list, found))

        assert history() == ([], [value], [])
        assert not session.is_modified(sheet)
        setattr(sheet, name, "x")
        assert history() == (["x"], [], [value])
        assert session.is_modified(sheet)
        setattr(sheet, name, value)
        assert history() == ([], [value], [])
        assert session.is_modified(sheet) == (name == "title")
        setattr(sheet, name, "x")
        session.flush()
        assert history() == ([], ["x"], [])

    @both
    def test_history_of_what_is_new_or_expired(self, session, sheet, name):
        session.expire(sheet)
        state = inspect(sheet).attrs[name]
        assert tuple(state.history) == ((), (), ())
        assert tuple(map(list, state.load_history())) == (
            [],
            [getattr(sheet, name)],
            [],
        )
        new = Sheet()
        state = inspect(new).attrs[name]
        assert tuple(state.history) == ((), (), ())
        assert "data" not in new.__dict__
        setattr(new, name, "x")
        assert tuple(map(list, state.history)) == (["x"], [], [])

    @pytest.mark.parametrize("hook", ["before_flush", "after_flush"])
    @both
    def test_history_within_a_flush(self, session, sheet, name, hook):
        seen = []

        def note(*args: Any) -> None:
            for one in {*session.new, *session.dirty}:
                state = inspect(one).attrs[name]
                assert state.history == attributes.get_history(one, name)
                seen.append((one, tuple(map(list, state.history))))

        event.listen(session, hook, note)
        before = getattr(sheet, name)
        setattr(sheet, name, "x")
        session.flush()
        # In another flush it contains that flush's changes.
        setattr(sheet, name, "y")
        session.flush()
        sheet.older = "o"
        session.flush()
        new = Sheet(title="n", label="n", shard_id=sheet.shard_id)
        session.add(new)
        session.flush()
        assert seen == [
            (sheet, (["x"], [], [before])),
            (sheet, (["y"], [], ["x"])),
            (sheet, ([], ["y"], [])),
            (new, (["n"], [], [])),
        ]
        for one in (sheet, new):
            history = attributes.get_history(one, name)
            assert tuple(map(list, history)) == ([], [getattr(one, name)], [])

    @pytest.mark.parametrize("hook", ["after_insert", "after_update"])
    @both
    def test_history_for_a_listener_of_the_mapper(self, session, sheet, name, hook):
        seen = []

        def note(mapper: Any, connection: Any, one: Any) -> None:
            seen.append(tuple(map(list, attributes.get_history(one, name))))

        event.listen(Sheet, hook, note)
        try:
            before = getattr(sheet, name)
            setattr(sheet, name, "x")
            session.flush()
            session.add(Sheet(title="n", label="n", shard_id=sheet.shard_id))
            session.flush()
        finally:
            event.remove(Sheet, hook, note)
        assert seen == (
            [(["x"], [], [before])] if hook == "after_update" else [(["n"], [], [])]
        )

    def test_history_within_a_flush_of_changes_of_another_writer(
        self, cluster, session, sheet
    ):
        assert sheet.tags == ["a"]
        with cluster.begin() as other:
            other.get_one(Sheet, sheet.id).note = "theirs"
        seen = []

        @event.listens_for(session, "after_flush")
        def note(session: Any, context: Any) -> None:
            for key in ("title", "note", "tags"):
                history = attributes.get_history(sheet, key)
                seen.append(tuple(map(list, history)))

        sheet.title = "mine"
        sheet.tags.append("b")
        session.flush()
        assert seen == [
            (["mine"], [], ["t"]),
            (["theirs"], [], ["none yet"]),
            ([["a", "b"]], [], [["a"]]),
        ]

    def test_history_after_a_flush_that_failed(self, session, sheet):
        def fail(session: Any, context: Any) -> None:
            raise KeyError("of the listener")

        event.listen(session, "after_flush", fail)
        sheet.title = "x"
        with pytest.raises(KeyError):
            session.flush()
        event.remove(session, "after_flush", fail)
        session.rollback()
        history = attributes.get_history(sheet, "title")
        assert tuple(map(list, history)) == ([], ["t"], [])
        sheet.note = "n"
        history = attributes.get_history(sheet, "title")
        assert tuple(map(list, history)) == ([], ["t"], [])
        sheet.title = "y"
        history = attributes.get_history(sheet, "title")
        assert tuple(map(list, history)) == (["y"], [], ["t"])

    def test_history_of_the_document_within_a_flush(self, session, sheet):
        seen = []

        @event.listens_for(session, "after_flush")
        def note(session: Any, context: Any) -> None:
            history = attributes.get_history(sheet, "data")
            seen.append((list(history.added), list(history.deleted)))

        old = sheet.data
        sheet.title = "x"
        session.flush()
        new = sheet.data = {**sheet.data, "note": "n"}
        session.flush()
        assert seen == [([old], []), ([new], [old])]

    def test_history_of_values_made_of_others(self, session, sheet):
        def history(name: str) -> tuple[Any, ...]:
            return tuple(map(list, attributes.get_history(sheet, name)))

        sheet.tags.append("b")
        assert history("tags") == ([["a", "b"]], [], [["a"]])
        assert history("title") == ([], ["t"], [])
        sheet.note = "n"
        assert history("note") == (["n"], [], ["none yet"])
        del sheet.note
        assert history("note") == ([], ["none yet"], [])
        sheet.count = 2
        del sheet.count
        assert history("count") == ([], [0], [])

    def test_a_flag(self, cluster, session, sheet, log):
        attributes.flag_modified(sheet, "tags")
        assert sheet in session.dirty
        session.commit()
        sheet.tags.append("b")
        attributes.flag_modified(sheet, "tags")
        session.commit()
        assert raw(cluster, Sheet, sheet.id)["tags"] == ["a", "b"]
        session.expire(sheet)
        with pytest.raises(InvalidRequestError, match="not present"):
            attributes.flag_modified(sheet, "tags")

    def test_a_committed_value(self, sheet):
        with pytest.raises(BlobError, match=r"Sheet\.title .* session\.refr"):
            attributes.set_committed_value(sheet, "title", "x")
        assert sheet.title == "t"

    @both
    def test_functions_of_attributes(self, sheet, name):
        attributes.set_attribute(sheet, name, "x")
        assert attributes.get_attribute(sheet, name) == "x"
        attributes.del_attribute(sheet, "note")
        assert sheet.note == "none yet"
        assert object_session(sheet) is inspect(sheet).session

    # -- reading again

    @both
    @pytest.mark.parametrize("how", ["expire", "refresh"])
    def test_one_attribute_again(self, cluster, session, sheet, name, how):
        before = getattr(sheet, name)
        sheet.count = 5
        sheet.note = "mine"
        session.commit()
        getattr(sheet, name)
        with cluster.begin() as other:
            setattr(other.get(Sheet, sheet.id), name, "theirs")
        assert getattr(sheet, name) == before
        session.rollback()
        with session.no_autoflush:
            getattr(session, how)(sheet, [name])
        assert getattr(sheet, name) == "theirs"
        assert (sheet.count, sheet.note) == (5, "mine")

    @both
    @pytest.mark.parametrize("how", ["expire", "refresh"])
    def test_the_change_is_forgotten(self, session, sheet, name, how):
        before = getattr(sheet, name)
        setattr(sheet, name, "x")
        with session.no_autoflush:
            getattr(session, how)(sheet, [name])
        assert getattr(sheet, name) == before
        assert not session.is_modified(sheet)

    @pytest.mark.parametrize("how", ["expire", "refresh"])
    def test_other_changes_are_not_forgotten(self, cluster, session, sheet, how):
        sheet.note = "mine"
        sheet.title = "x"
        with (
            session.no_autoflush,
            pytest.raises(BlobError, match=r"note .* session\.flush\(\)"),
        ):
            getattr(session, how)(sheet, ["title", "label"])
        assert (sheet.title, sheet.note) == ("x", "mine")
        session.refresh(sheet, ["title"])
        assert (sheet.title, sheet.note) == ("t", "mine")
        session.commit()
        assert raw(cluster, Sheet, sheet.id)["note"] == "mine"

    @both
    def test_a_refresh_discards_and_flushes_what_is_left(
        self, cluster, session, sheet, name
    ):
        """As in SQLAlchemy: it expires the attribute before it flushes."""
        before = getattr(sheet, name)
        setattr(sheet, name, "x")
        sheet.note = "mine"
        other = Sheet(title="new", shard_id=1)
        session.add(other)
        session.refresh(sheet, [name])
        assert (getattr(sheet, name), sheet.note) == (before, "mine")
        assert not session.new
        assert not session.dirty
        session.commit()
        assert raw(cluster, Sheet, sheet.id)["title"] == "t"

    def test_a_refresh_of_a_container(self, cluster, session, sheet):
        tags = sheet.tags
        tags.append("x")
        sheet.title = "mine"
        session.refresh(sheet, ["tags"])
        assert (sheet.title, sheet.tags) == ("mine", ["a"])
        with pytest.raises(BlobError, match="detached"):
            tags.append("y")
        session.commit()
        assert (sheet.title, sheet.tags) == ("mine", ["a"])

    def test_a_refresh_of_an_old_key(self, cluster, session, sheet):
        key = sheet.id
        session.commit()
        set_raw(cluster, Sheet, key, {"title": "t", "old": "before"})
        sheet.older = "x"
        sheet.note = "mine"
        session.refresh(sheet, ["older"])
        assert sheet.older == "before"
        session.commit()
        assert raw(cluster, Sheet, sheet.id) == {
            "title": "t",
            "old": "before",
            "note": "mine",
        }

    def test_a_refresh_that_locks(self, session, sheet, log):
        session.refresh(sheet, ["title"], with_for_update=True)
        assert "data" in sheet.__dict__
        (statement,) = log.statements
        assert "data" in statement

    # -- options

    @pytest.mark.parametrize(
        "option",
        [
            load_only(Sheet.title),
            defer(Sheet.label),
            (defer("*"), undefer(Sheet.title)),
        ],
    )
    def test_loaded_attributes(self, session, sheet, option):
        options = option if isinstance(option, tuple) else (option,)
        key = sheet.id
        session.expunge_all()
        found = session.get(Sheet, key, options=options)
        assert "data" in found.__dict__
        assert "label" not in found.__dict__
        assert (found.title, found.tags, found.label) == ("t", ["a"], "l")

    def test_deferred_attributes(self, session, sheet, log):
        key = sheet.id

        def read(option: Any) -> Sheet:
            session.expunge_all()
            log.clear()
            found = session.scalars(
                select(Sheet).where(Sheet.id == key).options(option)
            ).one()
            assert "data" not in found.__dict__
            return found

        found = read(defer(Sheet.title))
        assert found.__dict__["label"] == "l"
        assert len(log.statements) == 1
        assert (found.title, found.tags) == ("t", ["a"])
        assert len(log.statements) == 2
        found = read(defer(Sheet.title, raiseload=True))
        with pytest.raises(InvalidRequestError, match="raiseload"):
            found.title  # noqa: B018
        found = read(load_only(Sheet.label))
        assert found.title == "t"

    def test_options_of_related_objects(self, cluster, session):
        key = stored(cluster, Shelf, name="s", books=[Book(title="b")], shard_id=2)
        found = session.get(
            Shelf,
            key,
            options=[selectinload(Shelf.books).load_only(Book.title), raiseload("*")],
        )
        (book,) = found.books
        assert book.title == "b"
        assert "ts" not in book.__dict__
        other = aliased(Shelf)
        found = session.scalars(
            select(other)
            .where(other.id == key)
            .options(load_only(other.name))
            .execution_options(populate_existing=True)
        ).one()
        assert found.name == "s"

    @pytest.mark.parametrize("load", [selectinload, subqueryload, joinedload, lazyload])
    def test_criteria_of_related_objects(self, cluster, session, load):
        """SQLAlchemy keeps the statement, and has other values for it."""
        shelves, books = [], []
        for shard_id in (1, 2):
            shelf = Shelf(books=[Book(title=t) for t in "abc"], shard_id=shard_id)
            with cluster.begin() as other:
                other.add(shelf)
                other.flush()
                shelves.append(shelf.id)
                books.append([book.id for book in shelf.books])

        def titles(*criteria: Any) -> list[str]:
            found = session.scalars(
                select(Shelf)
                .where(Shelf.id.in_(shelves))
                .options(load(Shelf.books.and_(*criteria)))
                .execution_options(populate_existing=True)
            )
            return [
                "".join(book.title for book in shelf.books)
                for shelf in sorted(found.unique(), key=lambda s: s.id)
            ]

        first, second = books
        for wanted in ([first[0]], [first[1], second[2]], [*first, *second]):
            for listed in (wanted, set(wanted), tuple(wanted)):
                assert titles(Book.id.in_(listed)) == [
                    "".join(
                        title
                        for key, title in zip(here, "abc", strict=True)
                        if key in wanted
                    )
                    for here in books
                ]
        for shelf_ids in (shelves[:1], shelves, shelves[1:]):
            assert titles(Book.shelf_id.in_(shelf_ids)) == [
                "abc" if key in shelf_ids else "" for key in shelves
            ]
        for above in (first[0], first[1], second[0]):
            assert titles(full_id(Book.id) > above) == [
                "".join(
                    title for key, title in zip(here, "abc", strict=True) if key > above
                )
                for here in books
            ]
        for title in "ab":
            assert titles(Book.title.in_([title])) == [title, title]

    def test_it_is_no_relationship(self, session, sheet):
        with pytest.raises(InvalidRequestError):
            session.get(
                Sheet,
                sheet.id,
                options=[selectinload(Sheet.title)],
                populate_existing=True,
            )

    # -- listeners

    @both
    def test_listeners(self, session, sheet, name):
        seen: list[Any] = []
        attribute = getattr(Sheet, name)

        def changed(target, value, old, initiator):
            seen.append((target, value, old, initiator.key))
            return value.upper()

        def removed(target, value, initiator):
            seen.append((target, value, initiator.key))

        event.listen(attribute, "set", changed, retval=True)
        event.listen(attribute, "remove", removed)
        try:
            before = getattr(sheet, name)
            setattr(sheet, name, "x")
            assert getattr(sheet, name) == "X"
            assert seen.pop() == (sheet, "x", before, name)
            new = Sheet(**{name: "y"})
            assert getattr(new, name) == "Y"
            assert seen.pop() == (new, "y", attributes.NO_VALUE, name)
            if name == "label":
                del sheet.label
            else:
                event.listen(Sheet.note, "remove", removed)
                del sheet.note
            assert len(seen) == 1
        finally:
            event.remove(attribute, "set", changed)
            event.remove(attribute, "remove", removed)
            if event.contains(Sheet.note, "remove", removed):
                event.remove(Sheet.note, "remove", removed)

    # -- states

    def test_merge_and_pickle(self, cluster, session, sheet):
        session.expunge_all()
        copy = pickle.loads(pickle.dumps(sheet))
        copy.title = "x"
        assert tuple(map(list, inspect(copy).attrs.title.history)) == (["x"], [], ["t"])
        merged = session.merge(copy)
        assert merged.title == "x"
        assert session.is_modified(merged)
        session.commit()
        assert raw(cluster, Sheet, sheet.id)["title"] == "x"

    def test_made_transient(self, cluster, session, sheet):
        make_transient(sheet)
        sheet.id = None
        session.add(sheet)
        sheet.title = "copy"
        session.commit()
        assert raw(cluster, Sheet, sheet.id)["title"] == "copy"

    def test_unloaded(self, session, sheet):
        assert "data" not in inspect(sheet).unloaded
        session.expire(sheet)
        assert {"data", "title"} <= inspect(sheet).unloaded


class ValidatorSuite(Suite):
    metadata = SheetBase.metadata

    @both
    def test_assignments(self, name):
        new = Checked(**{name: " a "})
        assert getattr(new, name) == "a"
        with pytest.raises(ValueError, match=f"{name} is empty"):
            setattr(new, name, " ")
        assert getattr(new, name) == "a"
        with pytest.raises(ValueError, match="is empty"):
            Checked(**{name: ""})

    def test_loads_and_defaults(self, cluster, session):
        """They are called for assignments alone, as those of columns are."""
        new = Checked(label="x")
        session.add(new)
        session.flush()
        assert new.title == ""
        session.expire(new)
        assert new.title == ""
        assert "calls" not in new.__dict__

    def test_removals(self):
        new = Checked(note="a")
        del new.note
        new.note = "b"
        assert new.__dict__.pop("calls") == [
            ("note", "a", False),
            ("note", "a", True),
            ("note", "b", False),
        ]

    def test_their_results_are_checked(self):
        new = Checked(tags=["b", "a"])
        assert new.tags == ["a", "b"]
        new.tags.append("0")
        assert new.tags == ["a", "b", "0"]
        with pytest.raises(BlobValueError):
            new.tags = [1, 2]

    @pytest.mark.parametrize("name", ["title", "active"])
    def test_refused_statements(self, session, name):
        attribute = getattr(Checked, name)
        change = update(Checked).where(Checked.id == 1)
        for statement in (
            change.values({name: False}),
            change.values({attribute: False}),
            change.values(label="x").values({attribute: False}),
        ):
            with pytest.raises(
                UnsupportedStatementError, match=rf"Checked\.{name} is a field"
            ):
                session.execute(statement)
        with pytest.raises(UnsupportedStatementError, match=name):
            session.execute(update(Checked), [{"id": 1, name: False}])

    def test_active(self, cluster, session):
        new = Checked(title="t", active=False, shard_id=1)
        session.add(new)
        session.commit()
        assert raw(cluster, Checked, new.id)["active"] is False
        new.active = True
        session.commit()
        assert "active" not in raw(cluster, Checked, new.id)
        with pytest.raises(BlobValueError, match="bool"):
            new.active = None
