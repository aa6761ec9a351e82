"""SELECT statements that are refused, and what their message says to do."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    bindparam,
    case,
    cast,
    column,
    DDL,
    func,
    insert,
    literal,
    select,
    String,
    text,
    union_all,
    update,
)
from sqlalchemy.orm import aliased, joinedload, selectinload

from sqla_shard import full_id, scatter, SCHEMA, ShardSession
from tests.models.layouts import pack, unpack
from tests.models.remedy_models import (
    Case,
    Label,
    Post,
    rows,
    Setting,
    User,
    UserLikesPosts,
    UserName,
)
from tests.models.returning import inserted

_TEXT = text(f"SELECT age FROM {SCHEMA}.users").columns(column("age"))
_WHERE = text(f"age IN (SELECT max(age) FROM {SCHEMA}.users)")
_OTHER = aliased(User)
_COUNT = func.count(User.id)
_BY_AGE = select(User.id).order_by(User.age)


def _nicks() -> Any:
    return select(User.nick, func.count(User.id)).group_by(User.nick)


def _with_name(data: Any, condition: Any) -> Any:
    names = select(User.name).where(User.id == data.users[1])
    names = names.group_by(User.name).having(condition)
    other = aliased(User)
    found = select(other.age).where(other.id == data.users[1])
    return found.where(other.name.in_(names))


def _of_one(data: Any, condition: Any) -> Any:
    made = select(func.count(User.id)).where(User.id == data.users[1])
    return made.group_by(User.name).having(condition)


def _names(data: Any) -> Any:
    return select(_OTHER.name).where(_OTHER.id == data.users[1])


def _without_scatter(session: ShardSession) -> None:
    cluster: Any = session.cluster
    cluster.scatters = False
    try:
        rows(session, select(User.id))
    finally:
        cluster.scatters = True


READS: dict[str, Case] = {
    # -- shards that cannot be determined
    "a key of a lookup": Case(
        refused=lambda s, d: s.scalars(
            select(UserName).where(UserName.key == "u1")
        ).all(),
        names=("cannot be determined", "Class.resolve(session, key)"),
        remedy=lambda s, d: UserName.resolve(s, "u1"),
        answer=lambda s, d: None,
    ),
    "a count in a subquery": Case(
        refused=lambda s, d: s.scalar(
            select(select(func.count(Post.id)).scalar_subquery() + User.age).where(
                User.id == d.users[3]
            )
        ),
        names=("count() in a subquery over 'posts'", "name ids inside it"),
        remedy=lambda s, d: s.scalar(
            select(
                select(func.count(Post.id))
                .where(Post.user_id == d.users[3])
                .scalar_subquery()
                + User.age
            ).where(User.id == d.users[3])
        ),
        answer=lambda s, d: 6,
    ),
    "a text in FROM": Case(
        refused=lambda s, d: s.execute(select(_TEXT.subquery())),
        names=("SQL as text inside a statement", '{"shard_id": n}', "SCHEMA"),
        remedy=lambda s, d: s.scalars(
            select(_TEXT.subquery()), bind_arguments={"shard_id": 2}
        ).all(),
        answer=lambda s, d: [2],
    ),
    "a text in WHERE": Case(
        refused=lambda s, d: s.execute(select(User.age).where(_WHERE)),
        names=("a subquery as text cannot be routed", '{"shard_id": n}'),
        remedy=lambda s, d: s.scalars(
            select(User.age).where(_WHERE), bind_arguments={"shard_id": 2}
        ).all(),
        answer=lambda s, d: [2],
    ),
    "HAVING of a field in a subquery": Case(
        refused=lambda s, d: s.scalars(_with_name(d, User.name != "x")),
        names=("in a subquery or UNION", "use func.min(field)"),
        remedy=lambda s, d: s.scalars(_with_name(d, func.min(User.name) != "x")).all(),
        answer=lambda s, d: [1],
    ),
    "HAVING with a subquery that names a field": Case(
        refused=lambda s, d: s.scalars(
            _of_one(d, _names(d).where(_OTHER.name == User.name).exists())
        ),
        names=("with a subquery that names", "compare func.min(field)"),
        remedy=lambda s, d: s.scalars(
            _of_one(d, func.min(User.name).in_(_names(d)))
        ).all(),
        answer=lambda s, d: [1],
    ),
    "DDL": Case(
        refused=lambda s, d: s.execute(DDL("DROP VIEW IF EXISTS of_users")),
        names=("DDL is not a SELECT", "SCHEMA", '{"shard_id": n}'),
        remedy=lambda s, d: (
            s.execute(
                text(f"DROP VIEW IF EXISTS {SCHEMA}.of_users"),
                bind_arguments={"shard_id": 2},
            ).returns_rows
        ),
        answer=lambda s, d: False,
    ),
    "an INSERT in a CTE": Case(
        refused=lambda s, d: s.execute(
            select(
                User.__table__.insert()
                .values(data={}, age=9)
                .returning(User.__table__.c.age)
                .cte()
            )
        ),
        names=("inside another statement", "execute it separately"),
        remedy=lambda s, d: s.scalar(
            insert(User).returning(User.id),
            [{"id": pack(1, 3, 99), "name": "x", "age": 9}],
        ),
        answer=lambda s, d: pack(1, 3, 99),
    ),
    "an INSERT that returns objects": Case(
        refused=lambda s, d: s.scalars(
            select(User).from_statement(insert(User).returning(User))
        ),
        names=(
            "from_statement() of an INSERT",
            "session.add_all()",
            "returning(Class)",
        ),
        remedy=lambda s, d: (
            inserted(s, insert(User), [{"id": pack(1, 3, 99), "name": "x"}])[0].name
        ),
        answer=lambda s, d: "x",
    ),
    "an UPDATE that returns objects": Case(
        refused=lambda s, d: s.scalars(
            select(User).from_statement(
                update(User).where(User.id == d.users[0]).values(age=9).returning(User)
            )
        ),
        names=("from_statement() of an INSERT", "execute the statement"),
        remedy=lambda s, d: (
            s.execute(update(User).where(User.id == d.users[0]).values(age=9)).rowcount
        ),
        answer=lambda s, d: 1,
    ),
    "two keyspaces": Case(
        refused=lambda s, d: s.execute(
            select(User, Setting).where(User.id == d.users[0])
        ),
        names=("cannot read several keyspaces", "one statement for each"),
        remedy=lambda s, d: (
            s.scalars(select(User.id).where(User.id == d.users[0])).all(),
            s.scalars(select(Setting)).all(),
        ),
        answer=lambda s, d: ([d.users[0]], []),
    ),
    "a keyspace of another table": Case(
        refused=lambda s, d: s.execute(
            select(Setting), bind_arguments={"keyspace": "objects"}
        ),
        names=("keyspace 'objects' has shards", '"shard_id": n'),
        remedy=lambda s, d: s.execute(
            text("SELECT age FROM users"),
            bind_arguments={"keyspace": "objects", "shard_id": 1},
        ).all(),
        answer=lambda s, d: [(1,)],
    ),
    "a keyspace that is not that of the class": Case(
        refused=lambda s, d: s.execute(
            select(User), bind_arguments={"keyspace": "main"}
        ),
        names=("name the keyspace 'main'", "leave out the keyspace"),
        remedy=lambda s, d: s.scalars(
            select(User.id).where(User.id == d.users[0])
        ).all(),
        answer=lambda s, d: [d.users[0]],
    ),
    "a shard of a table that no class has": Case(
        refused=lambda s, d: s.execute(select(Setting), bind_arguments={"shard_id": 1}),
        names=("keyspace of 'settings' cannot be determined", "leave out"),
        remedy=lambda s, d: s.scalars(select(Setting)).all(),
        answer=lambda s, d: [],
    ),
    "a connection": Case(
        refused=lambda s, d: s.connection({"keyspace": "objects"}),
        names=("the shard of objects cannot be determined", '{"shard_id": n}'),
        remedy=lambda s, d: (
            s.connection({"shard_id": 2}).execute(text("SELECT age FROM users")).all()
        ),
        answer=lambda s, d: [(2,)],
    ),
    "scatter() that is turned off": Case(
        refused=lambda s, d: _without_scatter(s),
        names=("scatter() is disabled", "cluster.scatters = True"),
        remedy=lambda s, d: set(rows(s, select(User.id))),
        answer=lambda s, d: set(d.users),
    ),
    "a value that stands for a database": Case(
        refused=lambda s, d: s.execute(
            select(User.age).where(
                User.id == d.users[1],
                User.nick != bindparam("n", SCHEMA, literal_execute=True),
            )
        ),
        names=("cannot be in the text", "leave out literal_execute"),
        remedy=lambda s, d: s.scalars(
            select(User.age).where(
                User.id == d.users[1], User.nick != bindparam("n", SCHEMA)
            )
        ).all(),
        answer=lambda s, d: [1],
    ),
    # -- limits
    "too many rows": Case(
        refused=lambda s, d: s.execute(_BY_AGE.options(scatter(max_rows=2))).all(),
        names=("more than 2 rows", "add a LIMIT, or raise the limit"),
        remedy=lambda s, d: s.scalars(
            _BY_AGE.limit(2).options(scatter(max_rows=2))
        ).all(),
        answer=lambda s, d: d.users[:2],
    ),
    "too many rows to skip": Case(
        refused=lambda s, d: s.execute(
            _BY_AGE.limit(1).offset(3).options(scatter(max_offset=2))
        ).all(),
        names=("skips 3 rows", "session.scatter_page(), or raise"),
        remedy=lambda s, d: s.scalars(
            _BY_AGE.limit(1).offset(3).options(scatter(max_offset=3))
        ).all(),
        answer=lambda s, d: [d.users[3]],
    ),
    # -- statements that one shard cannot answer
    "a window function": Case(
        refused=lambda s, d: rows(s, select(func.row_number().over(order_by=User.age))),
        names=("a window function over several shards", "PARTITION BY"),
        remedy=lambda s, d: sorted(
            rows(
                s,
                select(
                    func.row_number().over(partition_by=Post.user_id, order_by=Post.id)
                ),
            )
        ),
        answer=lambda s, d: [1, 1, 1, 2, 2, 3],
    ),
    "FILTER": Case(
        refused=lambda s, d: rows(s, select(func.count().filter(User.age >= 0))),
        names=("FILTER (use func.sum(case(", "instead)"),
        remedy=lambda s, d: rows(
            s, select(func.sum(case((User.age >= 0, 1), else_=0)))
        ),
        answer=lambda s, d: [len(d.users)],
    ),
    "FETCH": Case(
        refused=lambda s, d: rows(s, _BY_AGE.fetch(1)),
        names=("FETCH over several shards", "use limit()"),
        remedy=lambda s, d: rows(s, _BY_AGE.limit(1)),
        answer=lambda s, d: d.users[:1],
    ),
    "two classes that nothing ties": Case(
        refused=lambda s, d: rows(
            s, select(User.age, Label.name).join(Label, literal(True))
        ),
        names=("that no id ties together", "name the ids of one shard"),
        remedy=lambda s, d: s.execute(
            select(User.age, Post.title).join(User.posts).where(User.id == d.users[1])
        ).all(),
        answer=lambda s, d: [(1, "0")],
    ),
    "joinedload() with LIMIT": Case(
        refused=lambda s, d: (
            s.scalars(
                select(User)
                .order_by(User.age.desc())
                .limit(1)
                .options(joinedload(User.posts), scatter())
            )
            .unique()
            .all()
        ),
        names=("joinedload() of a collection", "use selectinload()"),
        remedy=lambda s, d: [
            len(user.posts)
            for user in s.scalars(
                select(User)
                .order_by(User.age.desc())
                .limit(1)
                .options(selectinload(User.posts), scatter())
            )
        ],
        answer=lambda s, d: [3],
    ),
    # -- counts and groups
    "DISTINCT of counts": Case(
        refused=lambda s, d: rows(s, select(_COUNT).group_by(User.nick).distinct()),
        names=("DISTINCT of counts", "make them distinct in Python"),
        remedy=lambda s, d: set(rows(s, select(_COUNT).group_by(User.nick))),
        answer=lambda s, d: {1, 3},
    ),
    "a count of distinct groups": Case(
        refused=lambda s, d: rows(
            s,
            select(func.count()).select_from(
                select(_COUNT).group_by(User.nick).distinct().subquery()
            ),
        ),
        names=("DISTINCT of counts", "count them in Python"),
        remedy=lambda s, d: len(set(rows(s, select(_COUNT).group_by(User.nick)))),
        answer=lambda s, d: 2,
    ),
    "a class beside a count": Case(
        refused=lambda s, d: rows(s, select(User, _COUNT).group_by(User.nick)),
        names=("is more than one column", "select the columns themselves"),
        remedy=lambda s, d: sorted(rows(s, _nicks()), key=str),
        answer=lambda s, d: [("nick", 3), (None, 1)],
    ),
    "a column that is not grouped": Case(
        refused=lambda s, d: rows(s, select(User.age, _COUNT).group_by(User.nick)),
        names=("users.age", "neither grouped nor", "min(), max()"),
        remedy=lambda s, d: sorted(
            rows(s, select(func.max(User.age), _COUNT).group_by(User.nick))
        ),
        answer=lambda s, d: [(0, 1), (3, 3)],
    ),
    "max() of JSON": Case(
        refused=lambda s, d: rows(s, select(func.max(User.facts))),
        names=("how values of type JSON() compare", "cast() them"),
        remedy=lambda s, d: rows(
            s, select(func.max(cast(User.facts["n"].as_integer(), BigInteger)))
        ),
        answer=lambda s, d: [3],
    ),
    "a computation with a text": Case(
        refused=lambda s, d: rows(
            s, select(func.concat(User.nick, func.count())).group_by(User.nick)
        ),
        names=("which is not a number", "compute in Python"),
        remedy=lambda s, d: sorted(
            f"{nick}{count}" for nick, count in rows(s, _nicks())
        ),
        answer=lambda s, d: ["None1", "nick3"],
    ),
    "a computation with an average of texts": Case(
        refused=lambda s, d: rows(s, select(func.max(User.nick) + "x")),
        names=("a value that is not a number", "compute in Python"),
        remedy=lambda s, d: rows(s, select(func.max(User.nick)))[0] + "x",
        answer=lambda s, d: "nickx",
    ),
    "a computation with a quotient": Case(
        refused=lambda s, d: rows(s, select(func.sum(User.age / 7) + 1)),
        names=("an aggregate of a quotient", "compute in Python"),
        remedy=lambda s, d: [
            round(float(total) + 1, 2)
            for total in rows(s, select(func.sum(User.age / 4)))
        ],
        answer=lambda s, d: [2.5],
    ),
    "a computation with a column": Case(
        refused=lambda s, d: rows(s, select(func.sum(User.age) + User.age)),
        names=("not in GROUP BY", "compute in Python"),
        remedy=lambda s, d: rows(s, select(func.sum(User.age)))[0] + 1,
        answer=lambda s, d: 7,
    ),
    "ORDER BY what is made of a count": Case(
        refused=lambda s, d: rows(
            s, _nicks().order_by(case((_COUNT > 1, "a"), else_="b"))
        ),
        names=("how its values compare", "order by the aggregate itself"),
        remedy=lambda s, d: rows(s, _nicks().order_by(func.max(User.age))),
        answer=lambda s, d: [(None, 1), ("nick", 3)],
    ),
    # -- order
    "ORDER BY JSON": Case(
        refused=lambda s, d: rows(s, select(User.age).order_by(User.facts)),
        names=("ORDER BY over several shards compares", "type_coerce()"),
        remedy=lambda s, d: rows(
            s,
            select(User.age).order_by(
                cast(User.facts["n"].as_integer(), BigInteger).desc()
            ),
        ),
        answer=lambda s, d: [3, 2, 1, 0],
    ),
    "ORDER BY a text": Case(
        refused=lambda s, d: rows(s, select(User.age).order_by(text("age"))),
        names=("is SQL as text", "pass the column itself"),
        remedy=lambda s, d: rows(s, select(User.age).order_by(User.age)),
        answer=lambda s, d: [0, 1, 2, 3],
    ),
    "ORDER BY a number": Case(
        refused=lambda s, d: rows(s, select(User.age).order_by(literal(1))),
        names=("the number of a column", "pass the column itself"),
        remedy=lambda s, d: rows(s, select(User.age).order_by(User.age)),
        answer=lambda s, d: [0, 1, 2, 3],
    ),
    "ORDER BY a name that is not there": Case(
        refused=lambda s, d: rows(s, select(User.age).order_by("nick")),
        names=("no column of the statement", "pass the column itself"),
        remedy=lambda s, d: rows(s, select(User.age).order_by(User.nick, User.age)),
        answer=lambda s, d: [0, 1, 2, 3],
    ),
    "GROUP BY the name of another column": Case(
        refused=lambda s, d: rows(
            s, select(func.lower(User.nick).label("age"), _COUNT).group_by("age")
        ),
        names=("has that name as well", "pass the expression itself"),
        remedy=lambda s, d: sorted(
            rows(
                s,
                select(func.lower(User.nick).label("age"), _COUNT).group_by(
                    func.lower(User.nick)
                ),
            ),
            key=str,
        ),
        answer=lambda s, d: [("nick", 3), (None, 1)],
    ),
    "ORDER BY what DISTINCT does not show": Case(
        refused=lambda s, d: rows(s, select(User.nick).distinct().order_by(User.age)),
        names=("ORDER BY users.age with DISTINCT", "select it as well"),
        remedy=lambda s, d: rows(
            s, select(User.nick, User.age).distinct().order_by(User.age)
        )[0],
        answer=lambda s, d: (None, 0),
    ),
    "DISTINCT of a class": Case(
        refused=lambda s, d: rows(s, select(select(User.age).subquery()).distinct()),
        names=("single columns", "select its columns"),
        remedy=lambda s, d: sorted(rows(s, select(User.age, User.id).distinct()))[0],
        answer=lambda s, d: (0, d.users[0]),
    ),
    "LIMIT that is no number": Case(
        refused=lambda s, d: rows(s, _BY_AGE.limit(literal(1) + 1)),
        names=("must be known before", "pass an int"),
        remedy=lambda s, d: rows(s, _BY_AGE.limit(2)),
        answer=lambda s, d: d.users[:2],
    ),
    "LIMIT with FOR UPDATE": Case(
        refused=lambda s, d: rows(s, _BY_AGE.limit(1).with_for_update()),
        names=("with FOR UPDATE", "read the ids first, then lock those"),
        remedy=lambda s, d: s.scalars(
            select(User.age)
            .where(User.id.in_(rows(s, _BY_AGE.limit(1))))
            .with_for_update()
        ).all(),
        answer=lambda s, d: [0],
    ),
    "a random text": Case(
        refused=lambda s, d: rows(
            s, select(User.id).order_by(cast(func.random(), String(40)))
        ),
        names=("would generate its random values twice", "rand() itself"),
        remedy=lambda s, d: set(rows(s, select(User.id).order_by(func.random()))),
        answer=lambda s, d: set(d.users),
    ),
    "from_statement() with LIMIT": Case(
        refused=lambda s, d: rows(
            s, select(User).from_statement(select(User).order_by(User.age).limit(1))
        ),
        names=("from_statement() with ORDER BY", "select() the class itself"),
        remedy=lambda s, d: [
            user.age for user in rows(s, select(User).order_by(User.age))
        ],
        answer=lambda s, d: [0, 1, 2, 3],
    ),
    # -- ids
    "arithmetic with ids": Case(
        refused=lambda s, d: s.execute(
            select(User.id + 1).where(User.id == d.users[0])
        ),
        names=("object ids do not support", "compute in Python"),
        remedy=lambda s, d: (
            unpack(
                s.scalars(select(User.id).where(User.id == d.users[2])).one()
            ).shard_id
        ),
        answer=lambda s, d: 2,
    ),
    "a local id beside a whole one": Case(
        refused=lambda s, d: s.execute(
            select(User.age)
            .where(User.id == d.users[0])
            .join(Post, User.friend_id == User.id)
        ),
        names=("holds local ids and cannot be compared", "full_id("),
        remedy=lambda s, d: rows(
            s, select(User.age).where(User.friend_id == full_id(User.id))
        ),
        answer=lambda s, d: [],
    ),
    "a function of an id": Case(
        refused=lambda s, d: s.execute(
            select(func.abs(User.id)).where(User.id == d.users[1])
        ),
        names=("would see the local id alone", "use full_id(users.local_id)"),
        remedy=lambda s, d: s.scalar(
            select(func.abs(full_id(User.id))).where(User.id == d.users[1])
        ),
        answer=lambda s, d: d.users[1],
    ),
    "case() of an id": Case(
        refused=lambda s, d: s.execute(
            select(case((User.age > 0, User.id), else_=0)).where(User.id == d.users[1])
        ),
        names=("case() returns", "write full_id()"),
        remedy=lambda s, d: s.scalar(
            select(case((User.age > 0, full_id(User.id)), else_=0)).where(
                User.id == d.users[1]
            )
        ),
        answer=lambda s, d: d.users[1],
    ),
    "an id as a value": Case(
        refused=lambda s, d: s.execute(
            select(literal(d.users[1], User.id.type)).where(User.id == d.users[0])
        ),
        names=("cannot be shown", "literal(value, BigInteger())"),
        remedy=lambda s, d: s.scalar(
            select(literal(d.users[1], BigInteger())).where(User.id == d.users[0])
        ),
        answer=lambda s, d: d.users[1],
    ),
    "a UNION of two kinds of ids": Case(
        refused=lambda s, d: s.execute(
            select(
                union_all(
                    select(User.id).where(User.id == d.users[1]),
                    select(Post.id).where(Post.id == d.posts[0]),
                ).subquery()
            )
        ),
        names=("a UNION puts local ids", "full_id() in each part"),
        remedy=lambda s, d: set(
            s.scalars(
                select(
                    union_all(
                        select(full_id(User.id)).where(User.id == d.users[1]),
                        select(full_id(Post.id)).where(Post.id == d.posts[0]),
                    ).subquery()
                )
            )
        ),
        answer=lambda s, d: {d.users[1], d.posts[0]},
    ),
    "a UNION that shows two kinds of ids": Case(
        refused=lambda s, d: s.execute(
            select(User.id)
            .where(User.id == d.users[1])
            .union(select(Post.id).where(Post.id == d.posts[0]))
        ),
        names=("a UNION returns", "write full_id("),
        remedy=lambda s, d: set(
            s.scalars(
                select(full_id(User.id))
                .where(User.id == d.users[1])
                .union(select(Post.id).where(Post.id == d.posts[0]))
            )
        ),
        answer=lambda s, d: {d.users[1], d.posts[0]},
    ),
    "TABLESAMPLE": Case(
        refused=lambda s, d: s.execute(
            select(func.count()).select_from(User.__table__.tablesample(1))
        ),
        names=("in FROM cannot be routed", '{"shard_id": n}'),
        remedy=lambda s, d: s.scalar(
            select(func.count()).select_from(User), bind_arguments={"shard_id": 1}
        ),
        answer=lambda s, d: 1,
    ),
    "FULL OUTER JOIN": Case(
        refused=lambda s, d: s.execute(
            select(User.age)
            .join(Post, Post.user_id == User.id, full=True)
            .where(User.id == d.users[0])
        ),
        names=("FULL OUTER JOIN is not supported", "use two statements"),
        remedy=lambda s, d: s.scalars(
            select(User.age)
            .outerjoin(Post, Post.user_id == User.id)
            .where(User.id == d.users[0])
        ).all(),
        answer=lambda s, d: [0],
    ),
    "a count of what is around": Case(
        refused=lambda s, d: s.execute(
            select(
                select(func.count(User.id))
                .select_from(Post)
                .where(Post.user_id == User.id)
                .correlate(User)
                .scalar_subquery()
            ).where(User.id == d.users[2])
        ),
        names=("depends on rows of the enclosing", "around the subquery"),
        remedy=lambda s, d: s.scalar(
            select(func.count(User.id)).where(User.id == d.users[2])
        ),
        answer=lambda s, d: 1,
    ),
    # -- fields
    "a comparison of a list": Case(
        refused=lambda s, d: rows(s, select(User.age).where(User.tags == ["t"])),
        names=("is structured JSON", "compare in Python"),
        remedy=lambda s, d: sorted(
            user.age for user in rows(s, select(User)) if user.tags == ["t"]
        ),
        answer=lambda s, d: [0, 1, 2, 3],
    ),
    "arithmetic with a sequence": Case(
        refused=lambda s, d: s.execute(
            select(UserLikesPosts.sequence + 1).where(
                UserLikesPosts.user_id == d.users[0]
            )
        ),
        names=("of a sequence is not exact", "compute in Python"),
        remedy=lambda s, d: [
            sequence + 1 > sequence
            for sequence in s.scalars(
                select(UserLikesPosts.sequence).where(
                    UserLikesPosts.user_id == d.users[0]
                )
            )
        ],
        answer=lambda s, d: [True, True],
    ),
    # -- pages
    "pages of a UNION": Case(
        refused=lambda s, d: s.scatter_page(
            union_all(select(User.id), select(User.id)), limit=9
        ),
        names=("not of anything but select()", "use select()"),
        remedy=lambda s, d: set(s.scatter_page(select(User.id), limit=9).items),
        answer=lambda s, d: set(d.users),
    ),
    "pages with LIMIT": Case(
        refused=lambda s, d: s.scatter_page(_BY_AGE.limit(2), limit=9),
        names=("not of LIMIT", "leave it out"),
        remedy=lambda s, d: list(s.scatter_page(_BY_AGE, limit=2)),
        answer=lambda s, d: d.users[:2],
    ),
    "pages with NULLS LAST": Case(
        refused=lambda s, d: s.scatter_page(
            select(User.age).order_by(User.nick.nulls_last(), User.age), limit=9
        ),
        names=("NULLS FIRST or LAST", "column.is_(None)"),
        remedy=lambda s, d: list(
            s.scatter_page(
                select(User.age).order_by(User.nick.is_(None), User.nick, User.age),
                limit=9,
            )
        ),
        answer=lambda s, d: [1, 2, 3, 0],
    ),
    "pages in a random order": Case(
        refused=lambda s, d: s.scatter_page(
            select(User.age).order_by(func.random()), limit=9
        ),
        names=("order differs for each page", "store a random number"),
        remedy=lambda s, d: list(s.scatter_page(_BY_AGE, limit=9)),
        answer=lambda s, d: d.users,
    ),
    "pages by JSON": Case(
        refused=lambda s, d: s.scatter_page(
            select(User.age).order_by(User.facts), limit=9
        ),
        names=("of type JSON()", "order by a number"),
        remedy=lambda s, d: list(
            s.scatter_page(
                select(User.age).order_by(
                    cast(User.facts["n"].as_integer(), BigInteger).desc()
                ),
                limit=9,
            )
        ),
        answer=lambda s, d: [3, 2, 1, 0],
    ),
    "pages of a subquery": Case(
        refused=lambda s, d: s.scatter_page(
            select(select(User.age).subquery()), limit=9
        ),
        names=("a subquery in FROM", "in the statement itself"),
        remedy=lambda s, d: set(s.scatter_page(select(User.age), limit=9).items),
        answer=lambda s, d: {0, 1, 2, 3},
    ),
    "pages that may be incomplete": Case(
        refused=lambda s, d: s.scatter_page(
            _BY_AGE.options(scatter(on_error="partial")), limit=9
        ),
        names=('on_error="partial"', "leave on_error out"),
        remedy=lambda s, d: list(s.scatter_page(_BY_AGE, limit=9)),
        answer=lambda s, d: d.users,
    ),
    "pages beyond a limit": Case(
        refused=lambda s, d: s.scatter_page(
            _BY_AGE.options(scatter(max_rows=2)), limit=3
        ),
        names=("more than 2 rows", "raise the limit"),
        remedy=lambda s, d: list(
            s.scatter_page(_BY_AGE.options(scatter(max_rows=3)), limit=3)
        ),
        answer=lambda s, d: d.users[:3],
    ),
    # -- by id
    "get_many() of a plain class": Case(
        refused=lambda s, d: s.get_many(Setting, ["a"]),
        names=("get_many() takes object classes", "use select() with in_()"),
        remedy=lambda s, d: s.scalars(
            select(Setting).where(Setting.name.in_(["a"]))
        ).all(),
        answer=lambda s, d: [],
    ),
    "get() of a column": Case(
        refused=lambda s, d: s.get(User.age, d.users[1]),
        names=("takes a mapped class", "select(Class.column)"),
        remedy=lambda s, d: s.scalar(select(User.age).where(User.id == d.users[1])),
        answer=lambda s, d: 1,
    ),
    "another shard than that of the id": Case(
        refused=lambda s, d: s.get(User, d.users[1], bind_arguments={"shard_id": 0}),
        names=("which its id names", "leave out shard_id"),
        remedy=lambda s, d: s.get_one(User, d.users[1]).age,
        answer=lambda s, d: 1,
    ),
    "an identity token": Case(
        refused=lambda s, d: s.get(User, d.users[1], identity_token=1),
        names=("contains its shard", "leave it out"),
        remedy=lambda s, d: s.get_one(User, d.users[1]).age,
        answer=lambda s, d: 1,
    ),
}
