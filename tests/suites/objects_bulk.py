"""Many rows in one statement, and ordinary columns that hold blobs."""

from __future__ import annotations

import pickle
from datetime import datetime, UTC
from decimal import Decimal

import pytest
from sqlalchemy import func, insert, select, text, update
from sqlalchemy.orm import make_transient

from sqla_shard.exc import (
    BlobError,
    BlobTooLargeError,
    BlobValueError,
    ColocationError,
    CrossShardWriteError,
    UnsupportedStatementError,
)
from tests.models.layouts import unpack
from tests.models.objects import Board, Color, Draft, Part, Pin, Size, Thing
from tests.models.objects_harness import raw, stored, Suite, thing, updates
from tests.models.returning import inserted

UTC = UTC
T0 = datetime(2024, 1, 1, tzinfo=UTC)


class BulkInsertSuite(Suite):
    def test_fields_by_name(self, cluster, session, log):
        rows = [
            {
                "text": f"t{n}",
                "count": 2**63 + n,
                "color": Color.BLUE,
                "price": Decimal("1.50"),
                "at": T0,
                "size": Size(n),
                "tags": ["a"],
                "kind": "k",
                "rank": n,
            }
            for n in range(5)
        ]
        found = inserted(session, insert(Thing), rows)
        assert [t.text for t in found] == [f"t{n}" for n in range(5)]
        assert len({t.shard_id for t in found}) == 1
        assert [t.rank for t in found] == [*range(5)]
        third = found[3]
        assert (third.count, third.color) == (2**63 + 3, Color.BLUE)
        assert (third.size, third.at) == (Size(3), T0)
        third.tags.append("b")
        session.commit()
        assert raw(cluster, Thing, third.id)["tags"] == ["a", "b"]
        inserts = [s for s in log.statements if s.startswith("INSERT")]
        assert len(inserts) == 1

    def test_defaults(self, cluster, session):
        new = session.scalars(insert(Thing).returning(Thing.id), [{"text": "x"}]).one()
        session.commit()
        assert raw(cluster, Thing, new) == raw(cluster, Thing, thing(cluster, text="x"))

    @pytest.mark.parametrize(
        "statement",
        [
            insert(Thing).values(text="x", kind="k"),
            insert(Thing).values({Thing.text: "x", Thing.kind: "k"}),
            insert(Thing).values({"text": "x"}).values(kind="k"),
            insert(Thing).values(data={"text": "x"}, kind="k"),
            insert(Thing).values(text="x", kind=func.lower("K")),
            insert(Thing).values([{"text": "x", "kind": "k"}]),
        ],
    )
    def test_values(self, cluster, session, statement):
        there = {"shard_id": 2}
        (new,) = inserted(session, statement, bind_arguments=there)
        assert (new.text, new.kind, new.tags) == ("x", "k", [])
        assert new.shard_id == 2
        session.commit()
        assert raw(cluster, Thing, new.id) == raw(
            cluster, Thing, thing(cluster, text="x")
        )
        other = session.execute(statement, bind_arguments=there)
        if not statement._multi_values:
            (key,) = other.inserted_primary_key
            assert session.get(Thing, key).text == "x"

    def test_values_of_nothing(self, cluster, session):
        for statement in (insert(Thing), insert(Thing).values()):
            (key,) = session.execute(statement).inserted_primary_key
            session.commit()
            assert raw(cluster, Thing, key) == raw(cluster, Thing, thing(cluster))

    def test_values_and_rows(self, session):
        statement = insert(Thing).values(note="n", kind="k")
        rows = [{"text": "a"}, {"text": "b"}]
        found = inserted(session, statement, rows)
        shown = [(new.text, new.note, new.kind) for new in found]
        assert shown == [("a", "n", "k"), ("b", "n", "k")]
        row = {"text": "c", "tags": ["t"]}
        (found,) = inserted(session, statement, row)
        assert (found.text, found.note, found.tags) == ("c", "n", ["t"])

    def test_values_of_children(self, cluster, session):
        board = stored(cluster, Board, title="b", shard_id=3)
        statement = insert(Pin).values(board_id=board, link="l")
        (new,) = inserted(session, statement)
        assert (new.shard_id, new.board_id, new.link) == (3, board, "l")
        with pytest.raises(BlobValueError, match=r"Pin\.link.*no value"):
            session.execute(insert(Pin).values(board_id=board))
        with pytest.raises(BlobValueError, match=r"Pin\.link.*not a str"):
            session.execute(insert(Pin).values(board_id=board, link=func.lower("L")))
        with pytest.raises(ColocationError):
            session.execute(statement, bind_arguments={"shard_id": 1})
        with pytest.raises(UnsupportedStatementError, match="not an attr"):
            session.execute(insert(Thing), {"txt": "mistyped"})

    def test_values_from_a_select(self, session):
        old = select(Thing.kind, Thing.data).where(Thing.id.in_([]))
        there = {"shard_id": 1}
        with pytest.raises(UnsupportedStatementError, match='not select "data"'):
            session.execute(
                insert(Thing).from_select(["kind"], old.with_only_columns(Thing.kind)),
                bind_arguments=there,
            )
        session.execute(
            insert(Thing).from_select(["kind", "data"], old), bind_arguments=there
        )

    def test_inactive_rows(self, cluster, session):
        rows = [{"text": "a", "active": False}, {"text": "b", "active": True}]
        found = inserted(session, insert(Thing), rows)
        assert [new.active for new in found] == [False, True]
        statement = insert(Thing).values(text="c", active=False)
        (new,) = inserted(session, statement)
        session.commit()
        assert raw(cluster, Thing, new.id)["active"] is False
        assert "active" not in raw(cluster, Thing, found[1].id)
        with pytest.raises(BlobValueError, match="bool"):
            session.execute(insert(Thing), [{"active": 0}])

    def test_rows_do_not_share_containers(self, cluster, session):
        shared = ["a"]
        data = {"free": {"x": []}}
        found = inserted(
            session, insert(Thing), [{"tags": shared, "data": data} for _ in range(2)]
        )
        found[0].tags.append("b")
        found[0].free["x"].append(1)
        session.commit()
        assert (found[1].tags, found[1].free) == (["a"], {"x": []})
        assert (shared, data) == (["a"], {"free": {"x": []}})

    def test_row_from_the_blob_of_an_object(self, cluster, session):
        one = session.get(Thing, thing(cluster, tags=["a"], text="one"))
        new = session.scalars(
            insert(Thing).returning(Thing.id),
            [{"data": one.data, "text": "two"}],
            bind_arguments={"shard_id": one.shard_id},
        ).one()
        assert one.text == "one"
        assert not session.dirty
        session.commit()
        document = raw(cluster, Thing, new)
        assert (document["text"], document["tags"]) == ("two", ["a"])

    def test_required_and_impossible_values(self, session, log):
        for cls, row, field in (
            (Board, {}, "Board.title"),
            (Thing, {"text": 5}, "Thing.text"),
            (Thing, {"tags": [5]}, "Thing.tags[0]"),
            (Thing, {"data": [1]}, "data"),
        ):
            log.clear()
            with pytest.raises(BlobValueError) as caught:
                session.execute(insert(cls), [row])
            assert caught.value.field == field
            assert not log.statements

    def test_unknown_key(self, cluster, session):
        with pytest.raises(UnsupportedStatementError, match="'txet' is no"):
            session.execute(insert(Thing), [{"txet": "x"}])
        with pytest.raises(UnsupportedStatementError, match="'knid' is no"):
            session.execute(update(Thing), [{"id": thing(cluster), "knid": "x"}])

    def test_children(self, cluster, session):
        boards = [stored(cluster, Board, title="t", shard_id=n) for n in (1, 2)]
        found = inserted(
            session,
            insert(Pin),
            [{"board_id": boards[0], "link": str(n)} for n in range(3)],
        )
        assert {pin.shard_id for pin in found} == {1}
        session.commit()
        with pytest.raises(BlobValueError, match=r"Pin\.board_id"):
            session.execute(insert(Pin), [{"link": "x"}])
        for wrong in (None, found[0].id, "x"):
            row = {"link": "x", "board_id": wrong}
            with pytest.raises(ColocationError, match=r"Pin\.board_id"):
                session.execute(insert(Pin), [row])
        rows = [{"board_id": board, "link": "x"} for board in boards]
        with pytest.raises(CrossShardWriteError):
            session.execute(insert(Pin), rows)
        session.rollback()
        with cluster.begin(cross_shard="unordered") as both:
            found = both.scalars(insert(Pin).returning(Pin.id), rows).all()
        assert {unpack(i).shard_id for i in found} == {1, 2}

    def test_children_by_a_column(self, cluster, session):
        owner = thing(cluster)
        found = inserted(
            session, insert(Part), [{"thing_id": owner, "name": name} for name in "ab"]
        )
        assert [part.thing_id for part in found] == [owner, owner]
        assert [part.name for part in session.get(Thing, owner).parts] == ["a", "b"]

    def test_with_an_id(self, cluster, session):
        new = thing(cluster)
        parts = unpack(new)
        wanted = new + 1000
        session.execute(insert(Thing), [{"id": wanted, "text": "x"}])
        session.commit()
        assert session.get(Thing, wanted).text == "x"
        assert session.get(Thing, wanted).shard_id == parts.shard_id

    def test_values_of_the_statement(self, cluster, session):
        (new,) = inserted(session, insert(Thing).values(data={"text": "x"}, kind="k"))
        assert (new.text, new.kind, new.count) == ("x", "k", 0)

    def test_no_rows_after_a_rollback(self, cluster, session):
        found = session.scalars(
            insert(Thing).returning(Thing.id), [{"text": "x"}] * 3
        ).all()
        session.rollback()
        assert session.get_many(Thing, found) == [None] * 3


class BlobColumnSuite(Suite):
    """:class:`JSONBlob` as a column of a plain model."""

    def test_round_trip(self, cluster, session):
        body = {"a": [1, 2.5, None, {"é": 2**70}], "": "x\0y"}
        draft = Draft(title="t", body=body)
        session.add_all([draft, Draft(title="empty")])
        session.commit()
        assert draft.body == body
        assert (
            session.scalars(select(Draft.body).where(Draft.title == "empty")).first()
            is None
        )

    def test_changes_in_place(self, session, log):
        draft = Draft(title="t", body={"a": [{"b": []}]})
        session.add(draft)
        session.commit()
        draft.body["a"][0]["b"].append(1)
        assert draft in session.dirty
        log.clear()
        session.commit()
        assert len(updates(log)) == 1
        assert draft.body == {"a": [{"b": [1]}]}
        draft.body = {"c": []}
        draft.body["c"].append(2)
        session.commit()
        assert draft.body == {"c": [2]}
        held = draft.body["c"]
        session.refresh(draft)
        with pytest.raises(BlobError, match="was refreshed"):
            held.append(3)
        draft.body = None
        session.commit()
        assert draft.body is None

    def test_refused(self, session, log):
        draft = Draft(title="t", body={})
        session.add(draft)
        session.commit()
        for value in ([1], "x", {1: 2}, {"a": T0}):
            with pytest.raises(BlobValueError):
                draft.body = value
        with pytest.raises(BlobValueError, match=r'data\["a"\]'):
            draft.body["a"] = {1}
        draft.small = {"a": "x" * 92}
        session.commit()
        draft.small["a"] += "x"
        log.clear()
        with pytest.raises(BlobTooLargeError) as caught:
            session.commit()
        assert caught.value.limit == 100
        assert not log.statements

    def test_pickle_merge_and_transient(self, session):
        draft = Draft(title="t", body={"a": [1]})
        session.add(draft)
        session.commit()
        assert draft.body == {"a": [1]}
        session.expunge(draft)
        given = pickle.loads(pickle.dumps(draft))
        given.body["a"].append(2)
        merged = session.merge(given)
        merged.body["a"].append(3)
        session.commit()
        assert merged.body == {"a": [1, 2, 3]}
        assert given.body == {"a": [1, 2]}
        session.expunge(merged)
        make_transient(merged)
        merged.id = None
        session.add(merged)
        merged.body["a"].append(4)
        session.commit()
        assert merged.body == {"a": [1, 2, 3, 4]}

    def test_in_statements(self, session):
        session.execute(
            insert(Draft), [{"title": "s", "body": {"n": n}} for n in (1, 2)]
        )
        found = session.scalars(
            select(Draft.body).where(Draft.title == "s").order_by(Draft.id)
        ).all()
        assert found == [{"n": 1}, {"n": 2}]
        found = session.scalars(select(Draft).where(Draft.body == {"n": 2})).all()
        assert [draft.body for draft in found] == [{"n": 2}]

    def test_text_that_is_no_blob(self, session):
        session.execute(text("INSERT INTO drafts (title, body) VALUES ('bad', '[1]')"))
        with pytest.raises(BlobValueError, match="not an object"):
            session.scalars(select(Draft).where(Draft.title == "bad")).all()
