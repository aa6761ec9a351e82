"""Fields that had other names once."""

from __future__ import annotations

from datetime import datetime, UTC

import pytest

from sqla_shard.exc import ColocationError
from tests.models.objects import Board, Renamed
from tests.models.objects_harness import raw, set_raw, stored, Suite

UTC = UTC


class AliasSuite(Suite):
    def old(self, cluster, **fields) -> int:
        board = stored(cluster, Board, title="t")
        renamed = stored(cluster, Renamed, home_id=board)
        set_raw(cluster, Renamed, renamed, {"board": board, **fields})
        return renamed

    def test_read(self, cluster, session):
        old = self.old(
            cluster,
            **{
                "it's 100% \\ `old`?": "a",
                "größe 😀": 5,
                "labels": ["x"],
                "moments": ["2024-05-06T07:08:09.000000+00:00"],
            },
        )
        found = session.get(Renamed, old)
        assert (found.title, found.size, found.tags) == ("a", 5, ["x"])
        assert found.times == [datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)]
        assert not session.dirty

    def test_the_present_name_wins(self, cluster, session):
        old = self.old(cluster, title="new", **{"%s :x {0}": "old"})
        old_null = self.old(cluster, size=None, **{"größe 😀": 5})
        assert session.get(Renamed, old).title == "new"
        assert session.get(Renamed, old_null).size is None

    def test_the_first_alias_wins(self, cluster, session):
        old = self.old(cluster, **{"%s :x {0}": "2", "it's 100% \\ `old`?": "1"})
        assert session.get(Renamed, old).title == "1"

    def test_write_moves_to_the_present_name(self, cluster, session):
        old = self.old(cluster, **{"%s :x {0}": "a", "größe 😀": 5})
        found = session.get(Renamed, old)
        found.title = "b"
        session.commit()
        document = raw(cluster, Renamed, old)
        assert document["title"] == "b"
        assert "%s :x {0}" not in document
        assert document["größe 😀"] == 5

    def test_delete_removes_all_names(self, cluster, session):
        old = self.old(cluster, title="a", **{"%s :x {0}": "b"})
        found = session.get(Renamed, old)
        del found.title
        session.commit()
        assert found.title == "untitled"
        assert set(raw(cluster, Renamed, old)) == {"board"}

    @pytest.mark.parametrize(
        ("field", "alias", "first", "more"),
        [
            ("tags", "labels", ["a"], "b"),
            (
                "times",
                "moments",
                [datetime(2024, 1, 1, tzinfo=UTC)],
                datetime(2025, 1, 1, tzinfo=UTC),
            ),
        ],
    )
    def test_change_in_place(self, cluster, session, field, alias, first, more):
        old = self.old(
            cluster,
            **{alias: [v if isinstance(v, str) else v.isoformat() for v in first]},
        )
        found = session.get(Renamed, old)
        getattr(found, field).append(more)
        getattr(found, field).append(more)
        session.commit()
        assert getattr(found, field) == [*first, more, more]
        assert len({field, alias} & set(raw(cluster, Renamed, old))) == 1

    def test_colocation(self, cluster, session):
        """An object with its parent under an old name can be written."""
        old = self.old(cluster)
        found = session.get(Renamed, old)
        assert found.home_id >> 46 == found.shard_id
        found.title = "x"
        session.commit()
        found.home_id = found.home_id
        session.commit()
        assert "board" not in raw(cluster, Renamed, old)
        elsewhere = stored(cluster, Board, title="t", shard_id=(found.shard_id + 1) % 4)
        found.home_id = elsewhere
        with pytest.raises(ColocationError, match="cannot move"):
            session.flush()
