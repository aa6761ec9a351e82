"""Every problem that a document can have: its place, and its message."""

from __future__ import annotations

from typing import Any

import pytest

from sqla_shard.exc import Problem, TopologyError
from sqla_shard.topology import ShardRange, Topology

ENVIRON = {"MYSQL_USER": "app", "MYSQL_PASSWORD": "hunter2"}


def server(name: str, shards: object, **keys: object) -> dict[str, Any]:
    return {
        "name": name,
        "primary": f"mysql://app:${{MYSQL_PASSWORD}}@{name}:3306",
        "shards": shards,
        **keys,
    }


def document(**keys: object) -> dict[str, Any]:
    """A valid document, with some keys of its keyspace replaced."""
    keyspace = {
        "kind": "objects",
        "shards": 16,
        "database": "db{shard:05d}",
        "servers": [server("a", [0, 7]), server("b", [8, 15])],
        **keys,
    }
    return {"epoch": 7, "keyspaces": {"objects": keyspace}}


def global_document(**keys: object) -> dict[str, Any]:
    one = server("a", None)
    del one["shards"]
    keyspace = {"kind": "global", "database": "main", "servers": [one]}
    return {"epoch": 7, "keyspaces": {"main": {**keyspace, **keys}}}


def problems(doc: Any, **options: Any) -> tuple[Problem, ...]:
    options.setdefault("environ", ENVIRON)
    with pytest.raises(TopologyError) as caught:
        Topology.from_mapping(doc, **options)
    return caught.value.problems


def check(doc: Any, place: str, *words: str) -> None:
    """The document has this one problem, and its message these words."""
    (problem,) = problems(doc)
    assert problem.place == place
    for word in words:
        assert word in problem.message


def servers(*items: object) -> dict[str, Any]:
    return document(servers=list(items))


OBJECTS = "keyspaces.objects"
FIRST = "keyspaces.objects.servers[0]"
SECOND = "keyspaces.objects.servers[1]"


def test_the_valid_documents_of_this_module_are_valid() -> None:
    for doc in (document(), global_document()):
        Topology.from_mapping(doc, environ=ENVIRON)


class TestDocument:
    @pytest.mark.parametrize("value", [[], "text", 7, None])
    def test_not_a_table(self, value: object) -> None:
        check(value, "document", "not a table", "epoch and keyspaces")

    def test_epoch_missing(self) -> None:
        doc = document()
        del doc["epoch"]
        check(doc, "epoch", "is missing", "in ascending order")

    @pytest.mark.parametrize("value", [True, False, 7.0, "7", None, [7]])
    def test_epoch_is_no_integer(self, value: object) -> None:
        check({**document(), "epoch": value}, "epoch", "not an integer")

    def test_epoch_names_its_value(self) -> None:
        check({**document(), "epoch": "seven"}, "epoch", "'seven'")

    def test_epoch_negative(self) -> None:
        check({**document(), "epoch": -3}, "epoch", "-3", "negative", "use 0 or more")

    def test_the_limits_of_epoch(self) -> None:
        doc = {**document(), "epoch": 2**63 - 1}
        assert Topology.from_mapping(doc, environ=ENVIRON).epoch == 2**63 - 1
        doc["epoch"] = 2**63
        check(doc, "epoch", "9223372036854775808 has more than 63 bits")

    def test_epoch_too_large(self) -> None:
        # Also for Python, which does not print integers of this size.
        doc = {**document(), "epoch": 1 << 20_000}
        check(doc, "epoch", "63 bits", "20001 bits")

    def test_epoch_zero_is_allowed(self) -> None:
        doc = {**document(), "epoch": 0}
        assert Topology.from_mapping(doc, environ=ENVIRON).epoch == 0

    def test_keyspaces_missing(self) -> None:
        check({"epoch": 1}, "keyspaces", "is missing", "[keyspaces.objects]")

    def test_keyspaces_empty(self) -> None:
        doc = {"epoch": 1, "keyspaces": {}}
        check(doc, "keyspaces", "is empty", "[keyspaces.objects]")

    def test_keyspaces_no_table(self) -> None:
        doc = {"epoch": 1, "keyspaces": [1]}
        check(doc, "keyspaces", "[1] is not a table")

    def test_keyspace_no_table(self) -> None:
        doc = {"epoch": 1, "keyspaces": {"objects": "x"}}
        check(doc, "keyspaces.objects", "'x' is not a table", "database")

    @pytest.mark.parametrize("name", ["", "9lives", "a.b", "a b", "x" * 65, 5])
    def test_keyspace_name(self, name: object) -> None:
        doc = document()
        doc["keyspaces"] = {name: doc["keyspaces"]["objects"]}
        check(doc, f"keyspaces.{name}", "not a valid keyspace name", "letters")

    def test_unknown_keys_with_hints(self) -> None:
        doc = document(database_name="x")
        doc["epoh"] = 1
        doc["keyspaces"]["objects"]["servers"][1]["weigth"] = 1
        doc["keyspaces"]["objects"]["servers"][1]["slave"] = "x"
        doc["keyspaces"]["objects"]["zzz"] = 1
        found = problems(doc)
        assert [(one.place, one.message.split("; ")[1]) for one in found] == [
            (f"{SECOND}.weigth", "did you mean 'weight'?"),
            (f"{SECOND}.slave", "did you mean 'standby'?"),
            (f"{OBJECTS}.database_name", "did you mean 'database'?"),
            (f"{OBJECTS}.zzz", "remove it"),
            ("epoh", "did you mean 'epoch'?"),
        ]
        assert "(epoch, resets, keyspaces)" in found[-1].message

    def test_an_unknown_key_that_is_no_text(self) -> None:
        check({**document(), 5: 1}, "5", "not a valid key", "remove it")


class TestKeyspace:
    @pytest.mark.parametrize(
        ("key", "words"),
        [
            ("kind", ("is missing", "'objects', 'mod', 'global'")),
            ("shards", ("is missing", "from 1 to 65536")),
            ("database", ("is missing", "'db{shard:05d}'")),
            ("servers", ("is missing", "[[keyspaces.objects.servers]]")),
        ],
    )
    def test_missing_keys(self, key: str, words: tuple[str, ...]) -> None:
        doc = document()
        del doc["keyspaces"]["objects"][key]
        check(doc, f"{OBJECTS}.{key}", *words)

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("kind", 5, ("5 is not a string", "'mod'")),
            ("kind", "Objects", ("'Objects'", "not a valid kind", "'objects'")),
            ("database", 5, ("5 is not a string", "'db{shard:05d}'")),
            ("servers", {}, ("a table is not a list", "[[keyspaces.")),
            ("servers", "a", ("'a' is not a list",)),
            ("servers", [], ("is empty",)),
            ("shards", True, ("True is not an integer",)),
            ("shards", "16", ("'16' is not an integer",)),
            ("shards", 0, ("0 is out of range", "from 1 to 65536")),
            ("shards", -1, ("-1 is out of range",)),
            ("shards", 65_537, ("65537 is out of range", "to 65536")),
            ("shards", [16], ("[16] is not an integer",)),
        ],
    )
    def test_wrong_values(
        self, key: str, value: object, words: tuple[str, ...]
    ) -> None:
        check(document(**{key: value}), f"{OBJECTS}.{key}", *words)

    @pytest.mark.parametrize("kind", ["objects", "mod"])
    @pytest.mark.parametrize("count", [1, 65_536])
    def test_the_limits_of_shards(self, kind: str, count: int) -> None:
        doc = document(kind=kind, shards=count, servers=[server("a", [0, count - 1])])
        topology = Topology.from_mapping(doc, environ=ENVIRON)
        assert topology.keyspace("objects").shards == count

    @pytest.mark.parametrize(
        ("database", "words"),
        [
            ("db", ("'db'", "exactly one field {shard}")),
            ("", ("exactly one field",)),
            ("db{}", ("exactly one field",)),
            ("db{shard}_{shard}", ("exactly one field",)),
            ("db{shard", ("exactly one field", "expected '}'")),
            ("db{shard:05d}}", ("exactly one field",)),
            ("db{n:05d}", ("other than {shard}", "write 'shard'")),
            ("db{0}", ("other than {shard}",)),
            ("db{shard!r}", ("other than {shard}",)),
            ("db{shard.real}", ("other than {shard}",)),
            ("db{shard[0]}", ("other than {shard}",)),
            ("db{shard:05x}", ("other than {shard}",)),
            ("db{shard:٥d}", ("other than {shard}",)),
            ("db{shard:{shard}}", ("other than {shard}",)),
            ("db{shard:9999999999d}", ("other than {shard}",)),
            ("db{shard:+d}", ("other than {shard}",)),
            ("db{shard:5d}", ("'db    0'", "pad numbers with 0")),
            ("db-{shard}", ("'db-0'", "letters, digits and '_'")),
            ("db{{{shard}", ("'db{0'",)),
            ("bücher{shard}", ("'bücher0'",)),
            ("db{shard:063d}", ("1 to 64 letters",)),
            ("d" * 63 + "{shard}", ("1 to 64 letters",)),
            ("${DB}{shard}", ("exactly one field", "'${DB}{shard}'")),
        ],
    )
    def test_templates(self, database: str, words: tuple[str, ...]) -> None:
        check(document(database=database), f"{OBJECTS}.database", *words)

    @pytest.mark.parametrize(
        ("database", "last"),
        [
            ("db{shard:05d}", "db00015"),
            ("{shard}", "15"),
            ("{shard:d}_x", "15_x"),
            ("d" * 62 + "{shard}", "d" * 62 + "15"),
        ],
    )
    def test_good_templates(self, database: str, last: str) -> None:
        topology = Topology.from_mapping(document(database=database), environ=ENVIRON)
        assert topology.keyspace("objects").database_for(15) == last

    def test_the_longest_template(self) -> None:
        doc = document(
            database="d" * 63 + "{shard}", shards=10, servers=[server("a", [0, 9])]
        )
        Topology.from_mapping(doc, environ=ENVIRON)
        doc = document(
            database="d" * 63 + "{shard}", shards=11, servers=[server("a", [0, 10])]
        )
        check(doc, f"{OBJECTS}.database", "d10'", "1 to 64 letters")

    def test_with_an_unknown_kind_the_rest_is_read_all_the_same(self) -> None:
        doc = document(
            kind="x",
            shards="many",
            database=5,
            servers=[server("a", [0, 3]), server("a", [3, 5])],
        )
        found = problems(doc)
        assert found[1].message == "'many' is not an integer; write a number"
        assert [one.place for one in found] == [
            f"{OBJECTS}.kind",
            f"{OBJECTS}.shards",
            f"{OBJECTS}.database",
            f"{SECOND}.name",
            f"{SECOND}.primary",
            f"{SECOND}.shards",
        ]


class TestServer:
    def test_no_table(self) -> None:
        doc = servers(server("a", [0, 15]), "b")
        check(doc, SECOND, "'b' is not a table", "its own table")

    @pytest.mark.parametrize(
        ("key", "words"),
        [
            ("name", ("is missing", "its own name")),
            ("primary", ("is missing", "mysql://user:password@host:3306")),
            ("shards", ("is missing", "[first, last]")),
        ],
    )
    def test_missing_keys(self, key: str, words: tuple[str, ...]) -> None:
        doc = document()
        del doc["keyspaces"]["objects"]["servers"][0][key]
        check(doc, f"{FIRST}.{key}", *words)

    @pytest.mark.parametrize(
        ("key", "value", "words"),
        [
            ("name", 5, ("5 is not a string",)),
            ("name", "", ("not a valid server name",)),
            ("name", "a b", ("'a b'", "letters")),
            ("name", "a\n", ("not a valid server name",)),
            ("name", "${NAME}", ("'${NAME}'", "not a valid server name")),
            ("primary", 5, ("5 is not a string", "write its URL")),
            ("primary", ["mysql://u:hunter2@h"], ("a list of 1",)),
            ("primary", None, ("null is not a string",)),
            ("standby", 5, ("5 is not a string", "put it in quotes")),
            ("standby", "", ("'' is not the URL of a server",)),
            ("weight", "1", ("'1'", "a number, 0 or more")),
            ("weight", True, ("True",)),
            ("weight", None, ("null",)),
            ("weight", -0.5, ("-0.5", "0 or more")),
            ("weight", float("nan"), ("nan",)),
            ("weight", float("inf"), ("inf",)),
            ("weight", 10**400, ("bits", "not a valid weight")),
            ("shards", "0-15", ("'0-15' is not a range", "[first, last]")),
            ("shards", 7, ("7 is not a range",)),
            ("shards", {"first": 0}, ("a table is not a range",)),
            ("shards", [], ("is empty", "remove the server")),
            ("shards", [0], ("[0] is not a pair", "both included")),
            ("shards", [0, 1, 2], ("[0, 1, 2] is not a pair",)),
            ("shards", [0, True], ("is not a pair of integers",)),
            ("shards", [0, 7.0], ("[0, 7.0] is not a pair of integers",)),
            ("shards", ["0", "7"], ("a list of 2 is not a pair",)),
            ("shards", [-1, 7], ("[-1, 7] has a negative shard",)),
            ("shards", [7, 0], ("[7, 0] is reversed", "write [0, 7]")),
            ("shards", [0, 65_536], ("exceeds 65535", "shard of an id")),
            ("shards", [0, 1 << 20_000], ("exceeds 65535",)),
        ],
    )
    def test_wrong_values(
        self, key: str, value: object, words: tuple[str, ...]
    ) -> None:
        doc = servers(server("a", [0, 7]), server("b", [8, 15]))
        doc["keyspaces"]["objects"]["servers"][0][key] = value
        check(doc, f"{FIRST}.{key}", *words)

    def test_places_in_a_list_of_ranges(self) -> None:
        doc = servers(server("a", [[0, 7], [3, 1], 5, [8, 15]]))
        assert [(one.place, one.message[:6]) for one in problems(doc)] == [
            (f"{FIRST}.shards[1]", "[3, 1]"),
            (f"{FIRST}.shards[2]", "5 is n"),
        ]

    def test_null_standby_is_no_standby(self) -> None:
        doc = servers(server("a", [0, 15], standby=None))
        topology = Topology.from_mapping(doc, environ=ENVIRON)
        assert topology.keyspace("objects").servers[0].standby is None

    def test_tuples_are_lists(self) -> None:
        doc = document(servers=(server("a", ((0, 3), (4, 15))),))
        topology = Topology.from_mapping(doc, environ=ENVIRON)
        (found,) = topology.keyspace("objects").servers
        assert found.shards == (ShardRange(0, 15),)


class TestRanges:
    def test_gap_in_the_middle(self) -> None:
        doc = servers(server("a", [0, 4]), server("b", [8, 15]))
        check(
            doc,
            f"{OBJECTS}.servers",
            "shards 5-7 of the 16 open are on no server",
            "add [5, 7]",
        )

    def test_gaps_at_both_ends(self) -> None:
        found = problems(servers(server("a", [1, 14])))
        assert [one.place for one in found] == [f"{OBJECTS}.servers"] * 2
        assert found[0].message.startswith("shard 0 of the 16 open is on no")
        assert found[1].message.startswith("shard 15 of the 16")

    def test_past_the_open_shards(self) -> None:
        doc = servers(server("a", [0, 7]), server("b", [8, 19]))
        check(
            doc,
            f"{SECOND}.shards",
            "[8, 19] exceeds the last open shard, 15",
            "shards 16-19",
            "keyspaces.objects.shards = 20",
        )

    def test_wholly_past_the_open_shards(self) -> None:
        doc = servers(server("a", [[0, 15], [17, 18]]))
        check(doc, f"{FIRST}.shards[1]", "[17, 18]", "open shards 17-18")

    def test_overlap_names_both_servers_and_the_shards(self) -> None:
        doc = servers(server("a", [0, 9]), server("b", [8, 15]))
        check(
            doc,
            f"{SECOND}.shards",
            "shards 8-9 are on 'a' and on 'b'",
            "server that has its data",
        )

    def test_overlap_is_reported_at_the_later_server(self) -> None:
        doc = servers(server("b", [8, 15]), server("a", [0, 8]))
        check(doc, f"{SECOND}.shards", "shard 8 is on 'b' and on 'a'")

    def test_overlap_within_one_server(self) -> None:
        doc = servers(server("a", [[0, 9], [5, 15]]))
        check(doc, f"{FIRST}.shards[1]", "shards 5-9 are twice on 'a'")

    def test_overlap_with_one_that_began_long_before(self) -> None:
        doc = servers(server("a", [0, 15]), server("b", [1, 2]), server("c", [9, 12]))
        found = problems(doc)
        assert [one.place for one in found] == [
            f"{SECOND}.shards",
            f"{OBJECTS}.servers[2].shards",
        ]
        assert "shards 9-12 are on 'a' and on 'c'" in found[1].message

    def test_overlap_of_a_server_without_a_name(self) -> None:
        doc = servers(server("a", [0, 15]), server("b", [3, 3]))
        del doc["keyspaces"]["objects"]["servers"][1]["name"]
        found = problems(doc)
        assert [one.place for one in found] == [f"{SECOND}.name", f"{SECOND}.shards"]
        assert f"on 'a' and on {SECOND}" in found[1].message

    def test_a_range_that_cannot_be_read_makes_no_gap(self) -> None:
        doc = servers(server("a", [0, 7]), server("b", "8-15"))
        assert [one.place for one in problems(doc)] == [f"{SECOND}.shards"]


class TestServersTogether:
    def test_duplicate_names(self) -> None:
        doc = document()
        doc["keyspaces"]["objects"]["servers"][1]["name"] = "a"
        check(doc, f"{SECOND}.name", "'a' is already the name of", FIRST, "its own")

    def test_one_name_in_two_keyspaces_is_allowed(self) -> None:
        doc = document()
        doc["keyspaces"] |= global_document()["keyspaces"]
        Topology.from_mapping(doc, environ=ENVIRON)

    @pytest.mark.parametrize(
        "url", ["mysql://other:x@a:3306", "mysql://a", "mariadb+pymysql://x@A:3306"]
    )
    def test_one_primary_twice(self, url: str) -> None:
        doc = servers(server("a", [0, 7]), server("b", [8, 15], primary=url))
        check(doc, f"{SECOND}.primary", "a:3306", "already the primary of 'a'", "one")

    @pytest.mark.parametrize(
        ("one", "two"),
        [
            ("mysql://[::1]", "mysql://[0:0:0:0:0:0:0:1]:3306"),
            ("sqlite:///data", "sqlite:///./x/../data/"),
        ],
    )
    def test_one_primary_in_two_spellings(self, one: str, two: str) -> None:
        doc = servers(
            server("a", [0, 7], primary=one), server("b", [8, 15], primary=two)
        )
        check(doc, f"{SECOND}.primary", "is already the primary of 'a'")

    def test_two_ports_are_two_servers(self) -> None:
        doc = servers(
            server("a", [0, 7], primary="mysql://h:3306"),
            server("b", [8, 15], primary="mysql://h:3307"),
        )
        Topology.from_mapping(doc, environ=ENVIRON)

    def test_standby_is_the_primary(self) -> None:
        doc = servers(server("a", [0, 15], standby="mysql://x:y@a"))
        check(doc, f"{FIRST}.standby", "a:3306 is the primary itself")

    def test_sqlite_and_mysql_in_one_keyspace(self) -> None:
        doc = servers(server("a", [0, 7]), server("b", [8, 15], primary="sqlite:///x"))
        check(
            doc, f"{SECOND}.primary", "is on sqlite, but the primary of 'a' is on mysql"
        )

    def test_sqlite_standby_of_mysql(self) -> None:
        doc = servers(server("a", [0, 15], standby="sqlite:///x"))
        check(doc, f"{FIRST}.standby", "the primary of 'a' is on mysql")

    def test_sqlite_and_mysql_in_two_keyspaces(self) -> None:
        doc = servers(server("a", [0, 15], primary="sqlite:///x"))
        doc["keyspaces"] |= global_document()["keyspaces"]
        Topology.from_mapping(doc, environ=ENVIRON)

    @pytest.mark.parametrize("weight", [0, 0.0])
    def test_no_server_takes_new_objects(self, weight: float) -> None:
        doc = servers(
            server("a", [0, 7], weight=weight), server("b", [8, 15], weight=0)
        )
        check(doc, f"{OBJECTS}.servers", "all weights are 0", "above 0")

    def test_weights_of_mod_shards_do_not_matter(self) -> None:
        doc = document(kind="mod", servers=[server("a", [0, 15], weight=0)])
        Topology.from_mapping(doc, environ=ENVIRON)


class TestGlobal:
    def test_two_servers(self) -> None:
        doc = global_document()
        pair = doc["keyspaces"]["main"]["servers"]
        pair.append({"name": "b", "primary": "mysql://b"})
        check(
            doc,
            "keyspaces.main.servers",
            "has 2 servers",
            "one database",
            "write one server",
        )

    def test_shards_of_the_keyspace(self) -> None:
        doc = global_document(shards=1)
        check(doc, "keyspaces.main.shards", "1 is not allowed here", "remove")

    def test_shards_of_the_server(self) -> None:
        doc = global_document(servers=[server("a", [0, 0])])
        check(
            doc,
            "keyspaces.main.servers[0].shards",
            "[0, 0] is not allowed here",
            "remove the key",
        )

    @pytest.mark.parametrize("name", ["db{shard}", "", "a-b", "x" * 65, "a.b"])
    def test_name(self, name: str) -> None:
        doc = global_document(database=name)
        check(doc, "keyspaces.main.database", repr(name), "1 to 64 letters")

    @pytest.mark.parametrize("name", ["mysql", "SYS", "information_schema"])
    def test_name_of_the_servers_own(self, name: str) -> None:
        doc = global_document(database=name)
        check(doc, "keyspaces.main.database", repr(name), "system database")

    def test_database_missing(self) -> None:
        doc = global_document()
        del doc["keyspaces"]["main"]["database"]
        check(doc, "keyspaces.main.database", "is missing; name the database")


class TestCollisions:
    @pytest.mark.parametrize(
        ("database", "shared"),
        [
            ("db{shard:05d}", "db00000"),
            ("DB{shard:05d}", "DB00000"),
            ("db0{shard:04d}", "db00000"),
            ("d{shard}", None),
            ("db{shard}", None),
            ("db1{shard:04d}", None),
            ("db{shard:05d}_x", None),
        ],
    )
    def test_two_templates_on_one_server(
        self, database: str, shared: str | None
    ) -> None:
        doc = servers(server("a", [0, 15]))
        doc["keyspaces"]["lookups"] = {
            "kind": "mod",
            "shards": 4,
            "database": database,
            "servers": [server("x", [0, 3], primary="mysql://other@A")],
        }
        if shared is None:
            Topology.from_mapping(doc, environ=ENVIRON)
        else:
            check(
                doc,
                "keyspaces.lookups.database",
                f"{database!r} names {shared!r} on a:3306",
                "keyspace 'objects'",
                "different database names",
            )

    def test_other_shards_of_one_template_do_not_collide(self) -> None:
        doc = servers(server("a", [0, 7]), server("b", [8, 15]))
        doc["keyspaces"]["mods"] = {
            "kind": "mod",
            "shards": 16,
            "database": "db{shard:05d}",
            "servers": [
                server("a", [0, 7], primary="mysql://b"),
                server("b", [8, 15], primary="mysql://a"),
            ],
        }
        Topology.from_mapping(doc, environ=ENVIRON)

    def test_global_name_among_the_shards(self) -> None:
        doc = servers(server("a", [0, 7]), server("b", [8, 15]))
        doc["keyspaces"] |= global_document(database="db00009")["keyspaces"]
        Topology.from_mapping(doc, environ=ENVIRON)  # that one is on b
        doc["keyspaces"] |= global_document(database="db00007")["keyspaces"]
        check(doc, "keyspaces.main.database", "'db00007' on a:3306")

    def test_two_global_keyspaces(self) -> None:
        doc = global_document()
        twin = global_document(database="MAIN")["keyspaces"]["main"]
        doc["keyspaces"]["twin"] = twin
        check(doc, "keyspaces.twin.database", "'MAIN' names ", "on a:3306")
        twin["database"] = "main2"
        Topology.from_mapping(doc, environ=ENVIRON)

    def test_a_standby_has_the_databases_too(self) -> None:
        doc = servers(server("a", [0, 15], standby="mysql://b"))
        doc["keyspaces"] |= global_document(
            database="db00003", servers=[{"name": "b", "primary": "mysql://b:3306"}]
        )["keyspaces"]
        check(doc, "keyspaces.main.database", "'db00003' on b:3306")

    def test_one_directory(self) -> None:
        doc = servers(server("a", [0, 15], primary="sqlite:///data/a"))
        doc["keyspaces"] |= global_document(
            database="db00003",
            servers=[{"name": "b", "primary": "sqlite:///data/../data/a/"}],
        )["keyspaces"]
        check(doc, "keyspaces.main.database", "'db00003' on /", "data/a")

    def test_reported_once_for_two_keyspaces_on_many_servers(self) -> None:
        doc = document()
        doc["keyspaces"]["twin"] = doc["keyspaces"]["objects"]
        check(doc, "keyspaces.twin.database", "'db0", "'objects'")

    def test_of_three_keyspaces_each_is_reported_once(self) -> None:
        doc = document()
        doc["keyspaces"]["two"] = doc["keyspaces"]["objects"]
        doc["keyspaces"]["three"] = doc["keyspaces"]["objects"]
        assert [one.place for one in problems(doc)] == [
            "keyspaces.two.database",
            "keyspaces.three.database",
        ]


def test_all_problems_at_once_in_the_order_of_the_document() -> None:
    doc = {
        "keyspaces": {
            "objects": {
                "servers": [
                    server("a", [0, 9], weight=-1),
                    server("a", [9, 3], primary="http://u:hunter2@b"),
                    {"shards": [5, 12], "primary": "mysql://c/db", "x": 1},
                ],
                "kind": "objects",
                "database": "db",
                "shards": 0,
            },
            "main": {"kind": "glob", "servers": 5},
        },
        "epock": 3,
    }
    with pytest.raises(TopologyError) as caught:
        Topology.from_mapping(doc, source="the file", environ=ENVIRON)
    third = "keyspaces.objects.servers[2]"
    assert [one.place for one in caught.value.problems] == [
        "epoch",
        f"{FIRST}.weight",
        f"{SECOND}.name",
        f"{SECOND}.primary",
        f"{SECOND}.shards",
        f"{third}.name",
        f"{third}.shards",
        f"{third}.primary",
        f"{third}.x",
        f"{OBJECTS}.database",
        f"{OBJECTS}.shards",
        "keyspaces.main.database",
        "keyspaces.main.kind",
        "keyspaces.main.servers",
        "epock",
    ]
    assert caught.value.source == "the file"
    assert str(caught.value).startswith("the file: 15 problems\n  - epoch: ")
    assert "hunter2" not in str(caught.value)


def test_no_message_shows_a_password() -> None:
    url = "mysql://app:hunter2@a"
    doc = document(
        kind=url,
        shards=url,
        database=url,
        servers=[
            dict.fromkeys(
                ("name", "primary", "standby", "shards", "weight"), url + "/x"
            ),
            url,
            [url],
            {"primary": [url], "standby": {"url": url}, "name": "b"},
        ],
    )
    doc["epoch"] = url
    doc["more"] = url
    found = problems(doc)
    assert len(found) > 10
    assert "hunter2" not in str(found)


def test_a_mapping_that_contains_itself_is_no_endless_loop() -> None:
    doc = document()
    doc["more"] = doc
    check(doc, "more", "not a valid key")
    endless: list[object] = []
    endless.append(endless)
    doc["more"] = endless
    check(doc, "more", "not a valid key")
