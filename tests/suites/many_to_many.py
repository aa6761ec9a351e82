"""Many-to-many relationships whose link rows are on the shard of both."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import delete, func, insert, inspect, select, text
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import (
    contains_eager,
    immediateload,
    joinedload,
    selectinload,
    subqueryload,
)
from sqlalchemy.orm.exc import StaleDataError

from sqla_shard import exc
from sqla_shard.schema import verify
from tests.models.clusters import ShardLog
from tests.models.layouts import pack, unpack
from tests.models.many_models import (
    Base,
    Draft,
    Label,
    MANY,
    Post,
    post_labels,
    post_posts,
    post_topics,
    Topic,
    User,
    Vote,
)


def links(cluster: Any, shard_id: int) -> list[tuple[int, int]]:
    """Return the pairs of posts and labels that a shard has."""
    with cluster.session() as session:
        rows = session.execute(
            select(post_labels), bind_arguments={"shard_id": shard_id}
        )
        return sorted(tuple(row) for row in rows)


def stored(cluster: Any, shard_id: int) -> tuple[int, int, int]:
    """Store a user with a post and a label of it; return the three ids."""
    with cluster.begin() as session:
        user = User(name="u", shard_id=shard_id)
        session.add(user)
        session.flush()
        post = Post(user=user, title="p")
        label = Label(owner_id=user.id, text="l")
        post.labels = [label]
        session.add_all([post, label])
        session.flush()
        return user.id, post.id, label.id


class _Many:
    @pytest.fixture
    def log(self):
        with ShardLog() as log:
            yield log


class WritingMany(_Many):
    def test_link_rows_are_deleted_by_the_objects_that_a_subquery_finds(self, cluster):
        """Not joined with their class, which SQLite cannot delete from."""
        _, post_id, _ = stored(cluster, 2)
        _, other_id, _ = stored(cluster, 6)
        remove = delete(post_labels).where(
            post_labels.c.post_id.in_([post_id, other_id]),
            post_labels.c.label_id.not_in(select(Label.id).where(Label.text == "x")),
        )
        with cluster.begin(cross_shard="unordered") as session:
            assert session.execute(remove).rowcount == 2

    @pytest.mark.parametrize("shard_id", [0, 3, 7])
    def test_link_rows_are_on_the_shard_of_both(self, cluster, shard_id):
        _, post_id, label_id = stored(cluster, shard_id)
        assert (post_id, label_id) in links(cluster, shard_id)
        assert unpack(label_id).shard_id == shard_id
        for other in range(8):
            if other != shard_id:
                assert (post_id, label_id) not in links(cluster, other)

    def test_objects_of_both_classes_that_are_not_linked(self, cluster, log):
        with cluster.begin() as session:
            user = User(name="u", shard_id=2)
            session.add(user)
            session.flush()
            session.add(Post(user_id=user.id))
            session.add(Label(owner_id=user.id))
        assert set(log.take()) == {2}

    def test_all_are_new(self, cluster, log):
        with cluster.begin() as session:
            user = User(name="u", shard_id=5)
            session.add(user)
            session.flush()
            label = Label(owner_id=user.id)
            label.posts = [Post(user=user, title=t) for t in "ab"]
            session.add(label)
            session.flush()
            assert {unpack(p.id).shard_id for p in label.posts} == {5}
            session.expire_all()
            assert [p.title for p in label.posts] == ["a", "b"]
        assert set(log.take()) == {5}

    def test_added_and_removed_from_either_side(self, cluster):
        user_id, post_id, label_id = stored(cluster, 4)
        with cluster.begin() as session:
            post = session.get(Post, post_id)
            post.labels.append(Label(owner_id=user_id, text="m"))
            session.flush()
            second = post.labels[1].id
            session.get(Label, label_id).posts.remove(post)
        assert (post_id, second) in links(cluster, 4)
        assert (post_id, label_id) not in links(cluster, 4)
        with cluster.begin() as session:
            session.get(Post, post_id).labels = []
        assert (post_id, second) not in links(cluster, 4)

    @pytest.mark.parametrize("entity", [Post, Label])
    def test_deleted_with_either_side(self, cluster, entity):
        _, post_id, label_id = stored(cluster, 1)
        with cluster.begin() as session:
            gone = post_id if entity is Post else label_id
            session.delete(session.get(entity, gone))
        assert (post_id, label_id) not in links(cluster, 1)

    def test_deleted_while_linked_to_an_inactive_one(self, cluster):
        _, post_id, label_id = stored(cluster, 1)
        with cluster.begin() as session:
            session.get(Label, label_id).deactivate()
        with cluster.begin() as session:
            post = session.get(Post, post_id)
            assert post.labels == []
            session.delete(post)
        assert (post_id, label_id) not in links(cluster, 1)

    def test_several_shards_in_one_flush(self, cluster, log):
        ids = [stored(cluster, shard_id) for shard_id in (1, 4, 7)]
        log.take()
        with cluster.begin(cross_shard="unordered") as session:
            posts = []
            for user_id, post_id, label_id in ids:
                post = session.get(Post, post_id)
                posts.append(post)
                new = Label(owner_id=user_id, text="n")
                post.labels = [*post.labels, new]
                session.get(Label, label_id).text = "changed"
            session.flush()
            for post in posts:
                assert post.labels[1].shard_id == post.shard_id
        for _, post_id, _ in ids:
            shard_id = unpack(post_id).shard_id
            found = [p for p, _ in links(cluster, shard_id) if p == post_id]
            assert len(found) == 2
        with cluster.begin(cross_shard="unordered") as session:
            posts = session.get_many(Post, [post_id for _, post_id, _ in ids])
            for post in posts:
                post.labels.clear()
        for _, post_id, _ in ids:
            shard_id = unpack(post_id).shard_id
            assert post_id not in dict(links(cluster, shard_id))

    def test_a_link_that_is_gone(self, cluster):
        _, post_id, label_id = stored(cluster, 6)
        with cluster.session() as session:
            post = session.get(Post, post_id)
            assert [label.id for label in post.labels] == [label_id]
            with cluster.begin() as other:
                other.execute(
                    delete(post_labels).where(post_labels.c.post_id == post_id)
                )
            post.labels.clear()
            with pytest.raises(StaleDataError, match="post_labels"):
                session.flush()

    def test_a_link_that_is_there_already(self, cluster):
        _, post_id, label_id = stored(cluster, 6)
        with cluster.session() as session:
            post = session.get(Post, post_id)
            post.labels.append(session.get(Label, label_id))
            with pytest.raises(IntegrityError):
                session.flush()

    def test_of_one_class(self, cluster, log):
        user_id, post_id, _ = stored(cluster, 3)
        log.take()
        with cluster.begin() as session:
            post = session.get(Post, post_id)
            post.related.append(Post(user_id=user_id, title="more"))
        assert set(log.take()) == {3}
        with cluster.begin() as session:
            (more,) = session.get(Post, post_id).related
            assert [p.id for p in more.relating] == [post_id]
            session.delete(more)
        with cluster.session() as session:
            assert session.get(Post, post_id).related == []

    def test_with_the_parent_itself(self, cluster):
        user_id, post_id, _ = stored(cluster, 3)
        with cluster.begin() as session:
            user = session.get(User, user_id)
            user.saved.append(session.get(Post, post_id))
            user.watched.add(session.get(Post, post_id))
        with cluster.begin() as session:
            user = session.get(User, user_id)
            assert [p.id for p in user.saved] == [post_id]
            watched = session.scalars(user.watched.select()).all()
            assert [p.id for p in watched] == [post_id]
            user.watched.remove(watched[0])
        with cluster.session() as session:
            user = session.get(User, user_id)
            assert session.scalars(user.watched.select()).all() == []

    def test_with_rows_of_a_reference_table(self, cluster, log):
        _, post_id, _ = stored(cluster, 7)
        with cluster.begin() as session:
            post = session.get(Post, post_id)
            topic = session.get(Topic, "sport")
            log.take()
            post.topics.append(topic)
            session.flush()
            assert set(log.take()) == {7}
        with cluster.session() as session:
            post = session.get(Post, post_id, options=[selectinload(Post.topics)])
            assert [t.code for t in post.topics] == ["sport"]

    def test_association_objects(self, cluster, log):
        user_id, post_id, _ = stored(cluster, 2)
        log.take()
        with cluster.begin() as session:
            user = session.get(User, user_id)
            session.get(Post, post_id).voters.append(user)
        assert set(log.take()) == {2}
        with cluster.begin() as session:
            post = session.get(Post, post_id)
            assert [user.name for user in post.voters] == ["u"]
            assert post.votes[0] is session.get(Vote, (post_id, user_id))
            post.voters.clear()
        with cluster.session() as session:
            assert session.get(Vote, (post_id, user_id)) is None

    def test_sides_on_two_shards(self, cluster, log):
        _, post_id, _ = stored(cluster, 2)
        _, other_id, label_id = stored(cluster, 5)
        log.take()
        with cluster.session(cross_shard="unordered") as session:
            post = session.get(Post, post_id)
            post.labels.append(session.get(Label, label_id))
            post.title = "not sent"
            log.clear()
            with pytest.raises(exc.ColocationError) as caught:
                session.flush()
            writes = [s for s in log.statements if "SELECT" not in s.upper()]
            assert writes == []
            session.rollback()
            post = session.get(Post, post_id)
            post.related.append(session.get(Post, other_id))
            with pytest.raises(exc.ColocationError):
                session.flush()
            session.rollback()
            user = session.get(User, post.user_id)
            user.watched.add(session.get(Post, other_id))
            with pytest.raises(exc.ColocationError):
                session.flush()
        error = caught.value
        assert (error.class_name, error.field) == ("Post", "labels")
        message = str(error)
        assert "shard 2" in message
        assert "shard 5" in message
        assert "class PostHasLabels(MappingMixin, Base" in message

    def test_an_object_that_is_not_stored_yet(self, cluster):
        _, post_id, _ = stored(cluster, 2)
        other_user, _, _ = stored(cluster, 5)
        with cluster.session(cross_shard="unordered") as session:
            post = session.get(Post, post_id)
            post.labels.append(Label(owner_id=other_user))
            with pytest.raises(exc.ColocationError):
                session.flush()

    def test_statements_of_link_tables(self, cluster, log):
        user_id, post_id, label_id = stored(cluster, 6)
        log.take()
        with cluster.begin() as session:
            new = Post(user_id=user_id)
            session.add(new)
            session.flush()
            session.execute(
                insert(post_labels), {"post_id": new.id, "label_id": label_id}
            )
            # This one has no primary key.
            session.execute(
                insert(post_posts),
                [
                    {"post_id": new.id, "related_id": post_id},
                    {"post_id": post_id, "related_id": new.id},
                ],
            )
            session.execute(
                insert(post_topics), {"topic_code": "news", "post_id": new.id}
            )
            assert new.labels[0].id == label_id
            assert [p.id for p in new.related] == [post_id]
            assert [t.code for t in new.topics] == ["news"]
            gone = session.execute(
                delete(post_posts).where(post_posts.c.post_id.in_([new.id, post_id]))
            )
            assert gone.rowcount == 2
        assert set(log.take()) == {6}

    def test_statements_with_ids_of_two_shards(self, cluster):
        _, post_id, _ = stored(cluster, 6)
        _, other_id, label_id = stored(cluster, 1)
        with cluster.session() as session:
            with pytest.raises(exc.ColocationError):
                session.execute(
                    insert(post_labels), {"post_id": post_id, "label_id": label_id}
                )
            with pytest.raises(exc.ColocationError):
                session.execute(
                    insert(post_posts), {"post_id": post_id, "related_id": other_id}
                )
            with pytest.raises(exc.PlacementError, match="post_posts"):
                session.execute(insert(post_posts), {"post_id": None})

    def test_shards_have_link_tables_alike(self, cluster):
        report = verify(cluster)
        assert report.ok
        assert report.keyspaces[0].tables == len(Base.metadata.tables)
        change = "ALTER TABLE post_labels ADD COLUMN note INTEGER"
        with cluster.session() as session:
            session.connection(bind_arguments={"shard_id": 5}).execute(text(change))
            session.commit()
        assert "post_labels" in str(verify(cluster))
        with cluster.session() as session:
            session.connection(bind_arguments={"shard_id": 5}).execute(
                text(change.replace("ADD", "DROP").replace(" INTEGER", ""))
            )
            session.commit()
        assert verify(cluster).ok


class LoadingMany(_Many):
    @pytest.fixture
    def ids(self, cluster):
        return [stored(cluster, shard_id)[1] for shard_id in (0, 3, 6)]

    @pytest.mark.parametrize(
        "option",
        [joinedload, selectinload, subqueryload, None],
        ids=["joined", "selectin", "subquery", "lazy"],
    )
    def test_of_several_shards(self, cluster, ids, option):
        with cluster.session() as session:
            statement = select(Post).where(Post.id.in_(ids))
            if option is not None:
                statement = statement.options(option(Post.labels))
            posts = session.scalars(statement).unique().all()
            assert {p.id for p in posts} == set(ids)
            for post in posts:
                (label,) = post.labels
                assert label.shard_id == post.shard_id
                assert [p.id for p in label.posts] == [post.id]

    def test_contains_eager(self, cluster, ids):
        with cluster.session() as session:
            posts = (
                session.scalars(
                    select(Post)
                    .join(Post.labels)
                    .where(Post.id.in_(ids))
                    .options(contains_eager(Post.labels))
                )
                .unique()
                .all()
            )
            assert {p.id for p in posts} == set(ids)
            assert all("labels" in p.__dict__ for p in posts)

    def test_any_and_contains(self, cluster, ids):
        with cluster.session() as session:
            labels = session.scalars(
                select(Label).join(Label.posts).where(Post.id == ids[1])
            ).all()
            (label,) = labels
            found = session.scalars(
                select(Post).where(Post.labels.contains(label))
            ).all()
            assert [p.id for p in found] == [ids[1]]
            found = session.scalars(
                select(Post).where(
                    Post.id.in_(ids), Post.labels.any(Label.id == label.id)
                )
            ).all()
            assert [p.id for p in found] == [ids[1]]
            none = session.scalars(
                select(Post).where(Post.id.in_(ids), ~Post.labels.any())
            ).all()
            assert none == []
            count = session.scalar(
                select(func.count())
                .select_from(post_posts)
                .where(post_posts.c.post_id == ids[0])
            )
            assert count == 0

    def test_association_proxies(self, cluster, ids):
        with cluster.begin() as session:
            post = session.get(Post, ids[0])
            post.voters.append(post.user)
        with cluster.session() as session:
            user_id = session.get(Post, ids[0]).user_id
            voted = select(Post).where(
                Post.id.in_(ids), Post.voters.any(User.id == user_id)
            )
            assert [p.id for p in session.scalars(voted)] == [ids[0]]


@pytest.mark.filterwarnings("ignore:Object of type:sqlalchemy.exc.SAWarning")
class BackReferences(_Many):
    """Collections that get an object because it refers to their parent."""

    @pytest.fixture
    def users(self, cluster):
        return [stored(cluster, shard_id)[0] for shard_id in (1, 6)]

    @pytest.mark.parametrize("entity", [Draft, Post])
    def test_one_that_is_never_added(self, cluster, log, users, entity):
        with cluster.begin() as session:
            user, other = session.get_many(User, users)
            user.name = "changed"
            never = entity(user=other)
            log.take()
            session.flush()
            assert set(log.take()) == {1}
            assert inspect(never).transient

    @pytest.mark.parametrize("entity", [Draft, Post])
    def test_the_second_shard_is_named(self, cluster, log, users, entity):
        with cluster.session() as session:
            user, other = session.get_many(User, users)
            user.name = "changed"
            session.add(entity(user=other))
            with pytest.raises(exc.CrossShardWriteError) as caught:
                session.flush()
        first, second = caught.value.first, caught.value.second
        assert (first[0], second[0]) == (1, 6)
        assert first[1].startswith(f"User {users[0]} on")
        assert second[1].startswith(f"a new {entity.__name__} on")

    def test_a_new_parent_of_one_that_is_never_added(self, cluster, log):
        with cluster.begin() as session:
            user = User(name="u", shard_id=3)
            session.add(user)
            session.flush()
            log.take()
            Draft(user=user)
            session.flush()
            assert log.take() == {}

    def test_added_and_removed(self, cluster, log, users):
        with cluster.begin() as session:
            user = session.get(User, users[0])
            draft = Draft(title="a")
            user.drafts.add(draft)
            session.flush()
            assert draft.user_id == user.id
        with cluster.begin() as session:
            user = session.get(User, users[0])
            (draft,) = session.scalars(user.drafts.select()).all()
            session.delete(draft)
        with cluster.session() as session:
            user = session.get(User, users[0])
            assert session.scalars(user.drafts.select()).all() == []


class Elsewhere(_Many):
    """Relationships to one object, on whatever shard it is."""

    @pytest.fixture
    def pairs(self, cluster):
        """Posts and their reviewers, by id, each on the next shard."""
        found = {}
        for shard_id in range(8):
            reviewer = stored(cluster, (shard_id + 1) % 8)[0]
            post_id = stored(cluster, shard_id)[1]
            with cluster.begin() as session:
                session.get(Post, post_id).reviewer_id = reviewer
            found[post_id] = reviewer
        return found

    @pytest.mark.parametrize("load", [selectinload, immediateload, None])
    def test_loaded(self, cluster, log, pairs, load):
        statement = select(Post).where(Post.id.in_(pairs))
        if load is not None:
            statement = statement.options(load(Post.reviewer))
        with cluster.session() as session:
            posts = session.scalars(statement).all()
            if load is not None:
                log.take()
            assert {p.id: p.reviewer.id for p in posts} == pairs
            if load is not None:
                assert log.take() == {}

    def test_one_statement_for_each_server(self, cluster, log, pairs):
        statement = select(Post).where(Post.id.in_(pairs))
        with cluster.session() as session:
            plain = session.scalars(statement).all()
            before = len(log.executions)
            log.clear()
            session.expunge_all()
            posts = session.scalars(
                statement.options(selectinload(Post.reviewer))
            ).all()
            assert len(plain) == len(posts) == 8
            # As many again as for the posts, which are on all shards too.
            assert len(log.executions) <= 2 * before

    def test_those_that_are_not_there(self, cluster, pairs):
        (first, gone), (second, hidden), *_ = pairs.items()
        with cluster.begin() as session:
            user = session.get(User, hidden)
            user.deactivate()
        with cluster.begin() as session:
            post = session.get(Post, first)
            post.reviewer_id = pack(unpack(gone).shard_id, 3, 10**9)
        statement = (
            select(Post)
            .where(Post.id.in_([first, second]))
            .options(selectinload(Post.reviewer))
        )
        with cluster.session() as session:
            posts = session.scalars(statement).all()
            assert [post.reviewer for post in posts] == [None, None]

    def test_a_join_says_what_to_do(self, cluster, pairs):
        statement = select(Post).where(Post.id.in_(pairs))
        for wrong in (
            statement.options(joinedload(Post.reviewer)),
            statement.join(Post.reviewer),
            statement.where(Post.reviewer.has()),
        ):
            with (
                cluster.session() as session,
                pytest.raises(exc.UnsupportedStatementError, match=r"selectinload\(\)"),
            ):
                session.scalars(wrong).all()


cluster = MANY.on_backend()
