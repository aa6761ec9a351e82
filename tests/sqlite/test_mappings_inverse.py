"""Mappings that keep their reverse, on SQLite; and classes that cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from sqla_shard import Cluster, exc, MappingMixin, ObjectMixin
from tests.models.backends import Clusters
from tests.suites import mapping_inverse

cluster = Clusters(mapping_inverse.Base.metadata, mapping_inverse.SHARDS).on_sqlite()
_bases: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Classes that cannot be configured would fail the tests of others."""
    yield
    while _bases:
        _bases.pop().registry.dispose()


def ends() -> tuple[Any, Any, Any]:
    class Base(DeclarativeBase):
        pass

    _bases.append(Base)

    class User(ObjectMixin, Base, type_id=1):
        __tablename__ = "users"

    class Club(ObjectMixin, Base, type_id=2):
        __tablename__ = "clubs"

    return Base, User, Club


def test_the_inverse_is_a_class() -> None:
    base, user, club = ends()

    class ClubHasUsers(MappingMixin, base, source=club, target=user):
        pass

    class UserInClubs(
        MappingMixin, base, source=user, target=club, inverse=ClubHasUsers
    ):
        pass

    assert UserInClubs.__sqla_shard_mapping__.inverse_class is ClubHasUsers
    assert ClubHasUsers.__sqla_shard_mapping__.inverse_of is UserInClubs


def test_a_reverse_that_leads_elsewhere() -> None:
    base, user, club = ends()

    class ClubHasUsers(
        MappingMixin, base, source=club, target=user, inverse="UserInClubs"
    ):
        pass

    with pytest.raises(exc.ClassDefinitionError, match="does not reverse"):

        class UserInClubs(
            MappingMixin, base, source=user, target=user, target_column="other_id"
        ):
            pass

    # The one that was refused has left nothing.
    assert "user_in_clubs" not in base.metadata.tables

    class Mended(MappingMixin, base, source=user, target=club):
        __tablename__ = "user_in_clubs"


def test_two_that_keep_one() -> None:
    base, user, club = ends()

    class ClubHasUsers(MappingMixin, base, source=club, target=user):
        pass

    class UserInClubs(
        MappingMixin, base, source=user, target=club, inverse=ClubHasUsers
    ):
        pass

    with pytest.raises(exc.ClassDefinitionError, match="belongs to one mapping"):

        class UserLikesClubs(
            MappingMixin, base, source=user, target=club, inverse=ClubHasUsers
        ):
            pass


def test_two_that_ask_for_one_to_come() -> None:
    base, user, club = ends()

    class UserInClubs(
        MappingMixin, base, source=user, target=club, inverse="ClubHasUsers"
    ):
        pass

    class UserLikesClubs(
        MappingMixin, base, source=user, target=club, inverse="ClubHasUsers"
    ):
        pass

    with pytest.raises(exc.ClassDefinitionError, match="belongs to one mapping"):

        class ClubHasUsers(MappingMixin, base, source=club, target=user):
            pass

    for cls in (UserInClubs, UserLikesClubs):
        assert cls.__sqla_shard_mapping__.inverse_class is None


def test_each_the_other() -> None:
    base, user, club = ends()

    class ClubHasUsers(
        MappingMixin, base, source=club, target=user, inverse="UserInClubs"
    ):
        pass

    with pytest.raises(exc.ClassDefinitionError, match="belongs to one mapping"):

        class UserInClubs(
            MappingMixin, base, source=user, target=club, inverse=ClubHasUsers
        ):
            pass


@pytest.mark.parametrize("side", ["mapping", "inverse"])
def test_a_column_that_is_not_filled(side: str) -> None:
    base, user, club = ends()

    class Noted(base):  # type: ignore[misc, valid-type]  # made by a call
        __abstract__ = True
        note: Mapped[str]

    class Marked(base):  # type: ignore[misc, valid-type]  # made by a call
        __abstract__ = True
        note: Mapped[str | None]
        mark: Mapped[int] = mapped_column(default=0)

    noted, marked = (Noted, Marked) if side == "mapping" else (Marked, Noted)

    class ClubHasUsers(
        MappingMixin, noted, source=club, target=user, inverse="UserInClubs"
    ):
        pass

    with pytest.raises(exc.ClassDefinitionError, match="'note'"):

        class UserInClubs(MappingMixin, marked, source=user, target=club):
            pass


def test_one_that_is_not_there(cluster: Cluster) -> None:
    base, user, club = ends()

    class ClubHasUsers(
        MappingMixin, base, source=club, target=user, inverse="UserInClubs"
    ):
        pass

    with (
        cluster.session() as session,
        pytest.raises(exc.ClassDefinitionError, match="UserInClubs"),
    ):
        ClubHasUsers.append(session, 0, 0)


@pytest.mark.parametrize("inverse", [3, "", object()])
def test_no_class_at_all(inverse: Any) -> None:
    base, user, club = ends()
    with pytest.raises(exc.ClassDefinitionError, match="inverse="):

        class ClubHasUsers(
            MappingMixin, base, source=club, target=user, inverse=inverse
        ):
            pass
