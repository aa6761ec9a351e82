"""A blob that does not fit is refused before it is sent."""

from __future__ import annotations

import pytest
from sqlalchemy import insert, select

from sqla_shard.exc import BlobTooLargeError
from tests.models.objects import Small
from tests.models.objects_harness import raw, stored, Suite


class TooLargeSuite(Suite):
    def test_insert(self, cluster, log):
        with pytest.raises(BlobTooLargeError) as caught, cluster.begin() as session:
            session.add(Small(text="x" * 200))
        assert (caught.value.size, caught.value.limit) == (211, 200)
        assert not [s for s in log.statements if "small" in s]

    def test_update(self, cluster, session, log):
        small = stored(cluster, Small, text="x" * 189)
        found = session.get(Small, small)
        log.clear()
        found.text += "x"
        with pytest.raises(BlobTooLargeError):
            session.flush()
        assert not log.statements
        session.rollback()
        found.text = "x" * 188 + "\n"  # two characters of JSON
        with pytest.raises(BlobTooLargeError):
            session.flush()
        session.rollback()
        found.text = "😀" * 47 + "x"
        session.commit()
        assert len(raw(cluster, Small, small)["text"]) == 48
        found.text = "😀" * 48
        with pytest.raises(BlobTooLargeError) as caught:
            session.commit()
        assert caught.value.size == 203
        session.rollback()
        assert found.text == "😀" * 47 + "x"

    def test_exactly_fits(self, cluster, session):
        small = stored(cluster, Small, text="x" * 189)
        assert len(session.get(Small, small).text) == 189

    def test_bulk_insert(self, cluster, log):
        rows = [{"text": "x" * n} for n in (1, 500)]
        with pytest.raises(BlobTooLargeError), cluster.begin() as session:
            session.execute(insert(Small), rows)
        assert not [s for s in log.statements if "small" in s]

    def test_after_a_merge_of_changes(self, cluster, session):
        """Two changes that fit alone and not together."""
        small = stored(cluster, Small)
        found = session.get(Small, small)
        with cluster.begin() as other:
            other.get(Small, small).text = "x" * 150
        found.data["more"] = "y" * 100
        with pytest.raises(BlobTooLargeError):
            session.commit()
        session.rollback()
        assert raw(cluster, Small, small) == {"text": "x" * 150}
        assert session.scalars(select(Small.text).where(Small.id == small)).one() == (
            "x" * 150
        )
