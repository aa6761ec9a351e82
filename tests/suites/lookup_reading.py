"""Finding ids by keys: equal keys, and the cost."""

from __future__ import annotations

import sys
from hashlib import md5
from typing import Any

import pytest
from sqlalchemy import distinct, func, select, update

from sqla_shard import exc, scatter, ShardSession
from sqla_shard.models import lookup_table
from sqla_shard.testing import StatementLog
from tests.models.layouts import pack
from tests.models.lookup_models import (
    ids,
    LOOKUPS,
    MODULUS,
    rows_of,
    Suite,
    UserContact,
    UserEmail,
    UserLogin,
    UserName,
    UserTag,
)


class Reading(Suite):
    def test_a_key_is_found(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserEmail.claim, f"Me.{mark}@Example.com", user)
        with cluster.session() as session:
            assert UserEmail.resolve(session, f" me.{mark}@EXAMPLE.com ") == (user)
            assert UserEmail.resolve(session, f"you.{mark}@x.org") is None

    def test_the_shard_is_md5_modulo_shards(self, session, mark):
        key = f"é{mark}"
        number = int(md5(key.encode(), usedforsecurity=False).hexdigest(), 16)
        assert UserName.shard_of(session, key) == number % MODULUS

    def test_many(self, cluster, mark, rng):
        users = ids(50)
        given = {f"{i}.{mark}@x.org": user for i, user in enumerate(users)}
        for key, user in given.items():
            cluster.run(UserEmail.claim, key, user)
        asked = [key.upper() for key in given] + [
            f"{i}.{mark}@nobody.org" for i in range(50)
        ]
        rng.shuffle(asked)
        with cluster.session() as session:
            found = UserEmail.resolve_many(session, asked)
            assert UserEmail.resolve_many(session, []) == {}
        assert found == {key.upper(): user for key, user in given.items()}

    @pytest.mark.parametrize("how", ["auto", "evaluate", "fetch"])
    @pytest.mark.parametrize("named", [False, True])
    def test_objects_change_with_their_rows(self, cluster, mark, how, named):
        users = ids(8)
        for user in users:
            cluster.run(UserName.claim, f"{user}{mark}", user)
        mine = UserName.user_id.in_(users)
        with cluster.session(cross_shard="unordered") as session:
            rows = session.scalars(select(UserName).where(mine).options(scatter()))
            shards = {row: UserName.shard_of(session, row.key) for row in rows}
            first = next(iter(shards.values()))
            made = update(UserName).where(mine).values(policy=UserName.policy + "x")
            session.execute(
                made if named else made.options(scatter()),
                bind_arguments={"shard_id": first} if named else {},
                execution_options={"synchronize_session": how},
            )
            stored = select(UserName.key, UserName.policy).options(scatter())
            policies = dict(session.execute(stored.where(mine)).all())
            assert {row.key: row.__dict__["policy"] for row in shards} == policies
            changed = {row.key for row in shards if row.policy.endswith("x")}
            assert changed == {
                row.key for row, shard in shards.items() if not named or shard == first
            }

    def test_two_spellings_of_one_key(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserEmail.claim, f"a{mark}@x.org", user)
        spellings = [f"a{mark}@x.org", f"A{mark}@X.org"]
        with cluster.session() as session:
            found = UserEmail.resolve_many(session, spellings)
        assert found == dict.fromkeys(spellings, user)

    def test_keys_with_different_bytes_are_different(self, cluster, mark):
        keys = [
            *("a", "A", "a ", " a", "a\t", "a\0", "á", "a\u0301", "ａ"),
            *("ß", "ss", "ı", "i", "\u212a", "K", "k", "%", "_", "a%"),
        ]
        given = dict(zip((k + mark for k in keys), ids(len(keys)), strict=True))
        given |= dict(zip((mark + k for k in keys), ids(len(keys)), strict=True))
        for key, user in given.items():
            cluster.run(UserName.claim, key, user)
        with cluster.session() as session:
            assert UserName.resolve_many(session, given) == given
            for key, user in given.items():
                assert UserName.resolve(session, key) == user

    def test_nothing_breaks_out(self, cluster, mark):
        keys = [
            f"{mark}{part}"
            for part in (
                "'",
                '"',
                "`",
                "\\",
                "\\'",
                "%s",
                "%(x)s",
                "?",
                ":x",
                "' OR '1'='1",
                "') OR 1=1 -- ",
                "*/",
                "\x1a",
                "\n",
                "X'41'",
                "__sqla_shard__",
            )
        ]
        given = dict(zip(keys, ids(len(keys)), strict=True))
        for key, user in given.items():
            cluster.run(UserName.claim, key, user)
        with cluster.session() as session:
            assert UserName.resolve_many(session, given) == given
            for key, user in given.items():
                assert UserName.resolve(session, key) == user
        for key, user in given.items():
            assert cluster.run(UserName.release, key, user)

    def test_keys_of_all_of_unicode(self, cluster, mark, rng):
        # Each code point once, in keys as long as they may be; some of them.
        keys = []
        part = mark
        for number in range(sys.maxunicode + 1):
            if 0xD800 <= number < 0xE000:
                continue
            character = chr(number)
            if len((part + character).encode()) > 255:
                keys.append(part)
                part = mark
            part += character
        keys.append(part)
        keys = rng.sample(keys, 200)
        given = dict(zip(keys, ids(len(keys)), strict=True))
        with cluster.begin(cross_shard="unordered") as session:
            for key, user in given.items():
                UserName.claim(session, key, user)
        with cluster.session() as session:
            assert UserName.resolve_many(session, given) == given

    @pytest.mark.parametrize("letter", ["a", "é", "漢", "😀"])
    def test_the_longest_key(self, cluster, mark, letter):
        mark = f"{mark}-"
        size = len(letter.encode())
        longest = mark + letter * ((255 - len(mark)) // size)
        longest += "x" * (255 - len(longest.encode()))
        (user,) = ids()
        cluster.run(UserName.claim, longest, user)
        with cluster.session() as session:
            assert UserName.resolve(session, longest) == user
            for call in (UserName.resolve, UserName.claim):
                with pytest.raises(exc.InvalidKeyError, match="256 bytes"):
                    call(session, longest + "x")

    @pytest.mark.parametrize(
        ("key", "reason"),
        [
            (None, "must be a str"),
            (b"bytes", "must be a str"),
            (7, "must be a str"),
            ("", "is empty after"),
            ("\ud83d", "surrogate"),
        ],
    )
    def test_no_keys(self, session, key, reason):
        with pytest.raises(exc.InvalidKeyError, match=reason) as caught:
            UserName.resolve(session, key)
        assert caught.value.key == key

    @pytest.mark.parametrize(
        "key", ["", " ", "me", "@x.org", "me@", "me @x.org", "a@b\0", "\u0378@b"]
    )
    def test_no_addresses(self, session, key):
        with pytest.raises(exc.InvalidKeyError):
            UserEmail.resolve(session, key)
        with pytest.raises(exc.InvalidKeyError):
            UserEmail.resolve_many(session, ["you@x.org", key])
        for wrong in ("you@x.org", None, 5):
            with pytest.raises(exc.InvalidKeyError, match="a list of keys"):
                UserEmail.resolve_many(session, wrong)

    def test_a_claim_has_no_target(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        with cluster.session() as session:
            assert UserName.resolve(session, mark) is None
            assert UserName.resolve_many(session, [mark]) == {}
        (user,) = ids()
        cluster.run(claim.confirm, user)
        with cluster.session() as session:
            assert UserName.resolve(session, mark) == user

    def test_rows_written_by_the_transaction(self, cluster, mark):
        (user,) = ids()
        with cluster.session() as session:
            UserName.claim(session, mark, user)
            assert UserName.resolve(session, mark) == user
            session.rollback()
            assert UserName.resolve(session, mark) is None

    # -- policies

    def test_rows_of_an_older_policy(self, cluster, mark):
        old, both = f"Old{mark}", f"both{mark}"
        first, second = ids(2)
        _write(cluster, old, first, "exact/1")
        _write(cluster, both, second, "exact/1")
        with cluster.session() as session:
            found = UserLogin.resolve_many(session, [old, both, both.upper()])
            assert UserLogin.resolve(session, old.upper()) is None
        # The spelling of the row is found, and what it is under both.
        assert found == {old: first, both: second, both.upper(): second}

    def test_an_older_row_is_taken(self, cluster, mark):
        old = f"Old{mark}"
        first, second = ids(2)
        _write(cluster, old, first, "exact/1")
        with pytest.raises(exc.KeyTakenError) as caught:
            cluster.run(UserLogin.claim, old)
        assert caught.value.target_id == first
        with pytest.raises(exc.KeyTakenError):
            cluster.run(UserLogin.claim, old, second)

    def test_an_older_row_is_rewritten(self, cluster, mark):
        old, same = f"Old{mark}", f"same{mark}"
        (user,) = ids()
        for key in (old, same):
            _write(cluster, key, user, "exact/1")
            with cluster.begin(cross_shard="unordered") as session:
                UserLogin.rename(session, key, key, user)
            with cluster.session() as session:
                assert UserLogin.resolve(session, key.upper()) == user
        rows = rows_of(cluster, UserLogin)
        assert old not in rows
        for key in (old.casefold(), same):
            assert (rows[key].user_id, rows[key].policy) == (user, "casefold/1")

    def test_an_older_row_is_released(self, cluster, mark):
        old = f"Old{mark}"
        (user,) = ids()
        _write(cluster, old, user, "exact/1")
        assert cluster.run(UserLogin.release, old, user)
        assert not cluster.run(UserLogin.release, old, user)
        with cluster.session() as session:
            assert UserLogin.resolve(session, old) is None

    def test_the_row_that_was_found_so_far_comes_first(self, cluster, mark):
        names = [f"Mark{mark}", f"mark{mark}"]
        users = ids(2)
        for name, user in zip(names, users, strict=True):
            _write(cluster, name, user, "exact/1")
        with cluster.session() as session:
            found = UserLogin.resolve_many(session, names)
        assert found == dict(zip(names, users, strict=True))

    def test_a_policy_that_is_not_known(self, cluster, mark):
        user, other = ids(2)
        _write(cluster, mark, user, "email/2")
        calls: list[Any] = [
            lambda s: UserLogin.resolve(s, mark),
            lambda s: UserLogin.resolve_many(s, [mark, f"x{mark}"]),
            lambda s: UserLogin.claim(s, mark),
            lambda s: UserLogin.claim(s, mark, user),
            lambda s: UserLogin.claim(s, mark, other),
            lambda s: UserLogin.rename(s, mark, f"y{mark}", user),
        ]
        for call in calls:
            with cluster.session() as session:
                with pytest.raises(exc.LookupPolicyError) as caught:
                    call(session)
                assert caught.value.policy == "email/2"
                assert caught.value.known == ("casefold/1", "exact/1")

    def test_former_keys(self, cluster, mark):
        old = f"no address {mark}"
        (user,) = ids()
        _write(cluster, old, user, "exact/1", UserContact)
        with cluster.session() as session:
            assert UserContact.resolve(session, old) == user
            with pytest.raises(exc.InvalidKeyError, match="mail address"):
                UserContact.claim(session, old)
            # Under neither of the two.
            with pytest.raises(exc.InvalidKeyError, match="mail address"):
                UserContact.resolve(session, "")
        with cluster.begin(cross_shard="unordered") as session:
            UserContact.rename(session, old, f"{mark}@x.org", user)
        with cluster.session() as session:
            assert UserContact.resolve(session, old) is None
            assert UserContact.resolve(session, f"{mark}@X.org") == user

    # -- statements by hand

    def test_get_is_refused(self, session):
        with pytest.raises(exc.NoShardKeyError, match="resolve"):
            session.get(UserName, "x")

    def test_add_is_refused(self, cluster):
        with cluster.session() as session:
            session.add(UserName(key="x", user_id=ids()[0], policy="exact/1"))
            with pytest.raises(exc.PlacementError, match="claim"):
                session.flush()

    def test_select_without_a_shard_is_refused(self, session):
        with pytest.raises(exc.NoShardKeyError, match="shard_of"):
            session.scalars(select(UserName).where(UserName.key == "x"))

    def test_select_of_a_shard_that_is_named(self, cluster, mark):
        (user,) = ids()
        cluster.run(UserName.claim, mark, user)
        wanted = select(UserName).where(UserName.key == mark)
        with cluster.session() as session:
            shard_id = UserName.shard_of(session, mark)
            (row,) = session.scalars(wanted, bind_arguments={"shard_id": shard_id})
            assert (row.key, row.user_id, row.policy) == (mark, user, "exact/1")
            assert len(row.token) == 16
            assert row.expires_at is None
            assert repr(row) == f"<UserName {mark!r} -> {user}>"
            (again,) = session.scalars(wanted.options(scatter()))
            assert again is row

    def test_ids_of_other_classes_are_refused(self, cluster, mark):
        claim = cluster.run(UserName.claim, mark)
        stranger = pack(1, 9, 1)
        calls: list[Any] = [
            lambda s: UserName.claim(s, f"x{mark}", stranger),
            lambda s: claim.confirm(s, stranger),
            lambda s: UserName.release(s, mark, stranger),
            lambda s: UserName.rename(s, mark, "b", stranger),
            lambda s: UserTag.add(s, mark, stranger),
        ]
        for call in calls:
            with cluster.session() as session, pytest.raises(exc.WrongTypeError):
                call(session)

    # -- the cost

    def test_one_statement_for_each_server(self, cluster, mark):
        keys = [f"{i}-{mark}" for i in range(1000)]
        with cluster.session() as session:
            servers = {
                session.places.place(
                    session.places.keyspace("lookup", "mod"),
                    UserName.shard_of(session, key),
                ).engine
                for key in keys
            }
            # The first time it begins the transactions.
            UserName.resolve_many(session, keys)
            with StatementLog() as log:
                assert UserName.resolve_many(session, keys) == {}
        assert len(log.executions) == len(servers)

    def test_more_keys_than_one_statement_takes(self, cluster, mark):
        keys = [f"{i}-{mark}-".ljust(250, "x") for i in range(9000)]
        given = dict(zip(keys[::900], ids(10), strict=True))
        for key, user in given.items():
            cluster.run(UserName.claim, key, user)
        with cluster.session() as session:
            assert UserName.resolve_many(session, keys) == given

    def test_one_statement_for_one_key(self, cluster, mark):
        with cluster.session() as session:
            with StatementLog() as log:
                UserName.resolve(session, mark)
            assert len(log.executions) == 1

    def test_the_compiled_cache_does_not_grow(self, cluster, mark):
        with cluster.session() as session:
            UserName.resolve_many(session, [f"a{mark}", f"b{mark}"])
            engines = {
                place.engine
                for place in session.places.all_places(
                    session.places.keyspace("lookup", "mod")
                )
            }
            caches = [engine._compiled_cache for engine in engines]
            before = sum(map(len, caches))
            for count in range(1, 60):
                keys = [f"{count}-{i}-{mark}" for i in range(count)]
                UserName.resolve_many(session, keys)
            # One for each file, of SQLite's.
            assert sum(map(len, caches)) <= before + len(caches)


class Sharing(Suite):
    """Keys that several objects share."""

    def test_all_are_found(self, cluster, mark):
        users = sorted(ids(5))
        for user in users[::-1]:
            cluster.run(UserTag.add, f"Blue{mark}", user)
        cluster.run(UserTag.add, f"blue{mark}", users[0])
        cluster.run(UserTag.add, f"red{mark}", users[1])
        with cluster.session() as session:
            assert UserTag.resolve_all(session, f" BLUE{mark} ") == users
            assert UserTag.resolve_all(session, f"red{mark}") == [users[1]]
            assert UserTag.resolve_all(session, f"green{mark}") == []

    def test_all_of_several_pages_are_found(self, cluster, mark, monkeypatch):
        """Without a limit nothing is left out without a word."""
        monkeypatch.setattr(lookup_table, "_PAGE", 2)
        users = sorted(ids(5))
        for user in users:
            cluster.run(UserTag.add, mark, user)
        with cluster.session() as session:
            assert UserTag.resolve_all(session, mark) == users
            assert UserTag.resolve_all(session, mark, after=users[0]) == (users[1:])
            assert UserTag.resolve_all(session, mark, after=users[2]) == (users[3:])

    def test_pages(self, cluster, mark):
        users = sorted(ids(5))
        for user in users:
            cluster.run(UserTag.add, mark, user)
        with cluster.session() as session:
            shown = []
            after = None
            while page := UserTag.resolve_all(session, mark, limit=2, after=after):
                shown.append(page)
                after = page[-1]
        assert shown == [users[:2], users[2:4], users[4:]]

    def test_keys_of_all_shards(self, cluster, mark):
        """They are distinct, sorted and grouped by their bytes."""
        users = ids(3)
        keys = [f"{mark}{word}" for word in ("a", "ab", "b", "é", "z")]
        for number, key in enumerate(keys):
            for user in users[: 1 + number % 3]:
                cluster.run(UserTag.add, key, user)
        every = sorted(keys, key=str.encode)
        key = UserTag.key
        counts = {one: 1 + keys.index(one) % 3 for one in every}
        here = key.in_(keys)

        def found(statement: Any) -> list[Any]:
            made = statement.where(here).options(scatter())
            with cluster.session() as session:
                return [tuple(row) for row in session.execute(made)]

        assert found(select(key).distinct().order_by(key)) == [(one,) for one in every]
        newest = select(key).distinct().order_by(key.desc()).limit(2)
        assert found(newest) == [(one,) for one in every[:-3:-1]]
        grouped = select(key, func.count()).group_by(key).order_by(key)
        assert found(grouped) == list(counts.items())
        ends = select(func.min(key), func.max(key), func.count(distinct(key)))
        assert found(ends) == [(every[0], every[-1], len(every))]

    def test_release_and_rename(self, cluster, mark):
        one, two = ids(2)
        for user in (one, two):
            cluster.run(UserTag.add, f"a{mark}", user)
        assert cluster.run(UserTag.release, f"A{mark}", one)
        assert not cluster.run(UserTag.release, f"a{mark}", one)
        with cluster.begin(cross_shard="unordered") as session:
            UserTag.rename(session, f"a{mark}", f"b{mark}", two)
        with cluster.session() as session:
            assert UserTag.resolve_all(session, f"a{mark}") == []
            assert UserTag.resolve_all(session, f"b{mark}") == [two]
        with pytest.raises(exc.KeyNotHeldError):
            cluster.run(UserTag.rename, f"a{mark}", f"c{mark}", one)

    def test_keys_of_the_other_kind(self, session):
        calls: list[Any] = [
            (UserTag.resolve, "x"),
            (UserTag.resolve_many, ["x"]),
            (UserTag.claim, "x"),
            (UserName.resolve_all, "x"),
            (UserName.add, "x", ids()[0]),
        ]
        for call, *given in calls:
            with pytest.raises(exc.UnsupportedStatementError) as caught:
                call(session, *given)
            assert caught.value.construct == f"{call.__name__}()"


def _write(
    cluster: Any, key: str, user: int, policy: str, cls: Any = UserLogin
) -> None:
    """Write a row as another version of the application has."""

    def write(session: ShardSession) -> None:
        table = cls.__table__
        session.execute(
            table.insert().values(key=key, user_id=user, policy=policy),
            bind_arguments={"shard_id": _shard(session, key)},
        )

    def _shard(session: ShardSession, key: str) -> int:
        return UserName.shard_of(session, key)  # which changes nothing

    cluster.run(write)


cluster = LOOKUPS.on_backend()
