"""Changes made in place: at any depth, the next flush writes them."""

from __future__ import annotations

import gc
import random
import weakref
from datetime import datetime, UTC
from decimal import Decimal

import pytest

from sqla_shard.exc import BlobError, BlobValueError
from tests.models.objects import Point, Shape, Size, Thing
from tests.models.objects_harness import raw, set_raw, Suite, thing, updates

UTC = UTC
T0 = datetime(2024, 1, 1, tzinfo=UTC)
T1 = datetime(2025, 1, 1, tzinfo=UTC)
ISO0, ISO1 = ("2024-01-01T00:00:00.000000+00:00", T1.isoformat(timespec="microseconds"))

FULL = {
    "tags": ["a", "b"],
    "scores": {"x": 1},
    "times": [T0],
    "prices": {"a": Decimal("1.50")},
    "sizes": [Size(1), Size(2)],
    "size": Size(1, 2),
    "point": Point(0.5, labels=["p"]),
    "shape": Shape("s", [Size(1)], Point(0.0, labels=["q"]), T0),
    "free": {"a": [{"b": [1]}]},
    "tree": {"a": {"b": []}},
}

# The change, the field, and the value stored then.
IN_PLACE = {
    "append": (lambda t: t.tags.append("c"), "tags", ["a", "b", "c"]),
    "iadd": (lambda t: t.__setattr__("tags", _iadd(t.tags, ["c"])), "tags", [*"abc"]),
    "slice": (lambda t: t.tags.__setitem__(slice(1), "xyz"), "tags", [*"xyzb"]),
    "sort": (lambda t: t.tags.sort(reverse=True), "tags", ["b", "a"]),
    "clear": (lambda t: t.tags.clear(), "tags", []),
    "dict": (lambda t: t.scores.update(y=2), "scores", {"x": 1, "y": 2}),
    "pop": (lambda t: t.scores.pop("x"), "scores", {}),
    "decoded list": (lambda t: t.times.append(T1), "times", [ISO0, ISO1]),
    "decoded dict": (
        lambda t: t.prices.__setitem__("b", Decimal("2.0")),
        "prices",
        {"a": "1.50", "b": "2.0"},
    ),
    "dataclass": (lambda t: setattr(t.size, "w", 9), "size", {"w": 9, "h": 2}),
    "dataclass in a list": (
        lambda t: setattr(t.sizes[1], "h", 9),
        "sizes",
        [{"w": 1, "h": 3}, {"w": 2, "h": 9}],
    ),
    "list in a frozen dataclass": (
        lambda t: t.point.labels.append("r"),
        "point",
        {"x": 0.5, "y": 0.0, "labels": ["p", "r"]},
    ),
    "three deep": (
        lambda t: t.shape.origin.labels.append("r"),
        "shape",
        {
            "name": "s",
            "sizes": [{"w": 1, "h": 3}],
            "origin": {"x": 0.0, "y": 0.0, "labels": ["q", "r"]},
            "made": ISO0,
        },
    ),
    "free": (
        lambda t: t.free["a"][0]["b"].append({"c": 2}),
        "free",
        {"a": [{"b": [1, {"c": 2}]}]},
    ),
    "tree": (lambda t: t.tree["a"]["b"].append(1), "tree", {"a": {"b": [1]}}),
    "data": (lambda t: t.data["tags"].insert(0, "z"), "tags", ["z", "a", "b"]),
    "data of a decoded field": (
        lambda t: t.data["sizes"][0].update(w=7),
        "sizes",
        [{"w": 7, "h": 3}, {"w": 2, "h": 3}],
    ),
}


def _iadd(value, more):
    value += more
    return value


class InPlaceSuite(Suite):
    @pytest.mark.parametrize("case", IN_PLACE)
    def test_change_is_written(self, cluster, session, log, case):
        change, field, expected = IN_PLACE[case]
        new = thing(cluster, **FULL)
        before = raw(cluster, Thing, new)
        found = session.get(Thing, new)
        assert not session.dirty
        change(found)
        assert found in session.dirty
        log.clear()
        session.commit()
        assert len(updates(log)) == 1
        assert raw(cluster, Thing, new) == {**before, field: expected}
        # Nor is it written again.
        log.clear()
        session.commit()
        assert not updates(log)

    @pytest.mark.parametrize("case", IN_PLACE)
    def test_change_before_the_insert(self, cluster, session, case):
        change, field, expected = IN_PLACE[case]
        new = Thing(**FULL)
        for name in FULL:
            getattr(new, name)
        change(new)
        session.add(new)
        session.commit()
        assert raw(cluster, Thing, new.id)[field] == expected

    @pytest.mark.parametrize("case", IN_PLACE)
    def test_change_after_the_insert(self, cluster, session, case):
        change, field, expected = IN_PLACE[case]
        new = Thing(**FULL)
        session.add(new)
        for name in FULL:
            getattr(new, name)
        session.flush()
        change(new)
        session.commit()
        assert raw(cluster, Thing, new.id)[field] == expected

    def test_reading_changes_nothing(self, cluster, session, log):
        new = thing(cluster, **FULL)
        old = thing(cluster)
        set_raw(cluster, Thing, old, {})
        for object_id in (new, old):
            found = session.get(Thing, object_id)
            for field in Thing.__sqla_shard__.fields:
                getattr(found, field)
                getattr(found, field)
            assert not session.dirty
        log.clear()
        session.commit()
        assert not updates(log)

    @pytest.mark.parametrize(
        ("field", "put", "one", "two", "three"),
        [
            ("tags", "append", "a", "b", "c"),
            ("times", "append", T0, T1, T0),
            ("sizes", "append", Size(1), Size(2), Size(3)),
            ("scores", "update", {"a": 1}, {"b": 2}, {"c": 3}),
            ("prices", "update", {"a": Decimal(1)}, {"b": Decimal(2)}, {}),
            ("tree", "update", {"a": 1}, {"b": {"c": []}}, {"d": 1}),
        ],
    )
    @pytest.mark.parametrize("how", ["new", "old", "stored"])
    def test_default_is_one_container(
        self, cluster, session, field, put, one, two, three, how
    ):
        """Changes by all holders of a value are stored."""
        if how == "new":
            found = Thing()
        else:
            document = {} if how == "old" else {field: _empty(field)}
            old = thing(cluster)
            set_raw(cluster, Thing, old, document)
            found = session.get(Thing, old)
        held = getattr(found, field)
        getattr(held, put)(one)
        getattr(getattr(found, field), put)(two)
        session.add(found)
        session.flush()
        getattr(held, put)(three)
        expected = type(_empty(field))()
        for value in (one, two, three):
            getattr(expected, put)(value)
        assert getattr(found, field) == expected
        assert getattr(found, field) is held
        session.commit()
        assert getattr(found, field) == expected

    def test_default_knows_what_it_may_hold(self):
        new = Thing()
        held = new.tags, new.scores
        for _ in range(2):
            held[0].append("a")
            held[1]["a"] = 1
            with pytest.raises(BlobValueError, match=r"Thing\.tags"):
                held[0].append(5)
            with pytest.raises(BlobValueError, match=r"Thing\.scores"):
                held[1]["a"] = "x"
        assert held == (["a", "a"], {"a": 1})

    def test_default_read_before_the_insert(self, cluster, session):
        new = Thing()
        tags, times = new.tags, new.times
        session.add(new)
        session.flush()
        tags.append("a")
        times.append(T0)
        new.tags.append("b")
        session.commit()
        assert (new.tags, new.times) == (["a", "b"], [T0])

    def test_assigning_what_was_read(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL))
        for field in FULL:
            value = getattr(new, field)
            setattr(new, field, value)
            assert getattr(new, field) == value
        times, tags = new.times, new.tags
        new.times = times
        new.tags = tags
        times.append(T1)
        tags.append("c")
        session.commit()
        assert (new.times, new.tags) == ([T0, T1], ["a", "b", "c"])

    def test_augmented_assignment(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL))
        new.tags += ["c"]
        new.times += [T1]
        new.scores |= {"y": 2}
        new.prices |= {"b": Decimal(2)}
        new.count += 1
        held = new.times
        new.times += [T0]
        held.append(T0)
        session.commit()
        assert new.tags == ["a", "b", "c"]
        assert new.times == [T0, T1, T0, T0]
        assert new.scores == {"x": 1, "y": 2}
        assert new.prices == {"a": Decimal("1.50"), "b": Decimal(2)}
        assert new.count == 1

    def test_replaced_values_are_released(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL))
        old = {field: getattr(new, field) for field in FULL}
        for field in FULL:
            setattr(new, field, getattr(Thing(**FULL), field))
        session.commit()
        before = raw(cluster, Thing, new.id)
        old["tags"].append("lost")
        old["times"].append(T1)
        old["size"].w = 99
        old["shape"].origin.labels.append("lost")
        old["free"]["a"].append("lost")
        assert not session.dirty
        session.commit()
        assert raw(cluster, Thing, new.id) == before

    def test_two_objects_do_not_share_a_container(self, cluster, session):
        ids = [thing(cluster, **FULL, shard_id=1), thing(cluster, shard_id=1)]
        one, two = session.get_many(Thing, ids)
        for field in FULL:
            setattr(two, field, getattr(one, field))
            assert getattr(two, field) == getattr(one, field)
            assert getattr(two, field) is not getattr(one, field)
        two.tags.append("two")
        one.times.append(T1)
        two.shape.origin.labels.append("two")
        session.commit()
        assert (one.tags, two.tags) == (["a", "b"], ["a", "b", "two"])
        assert (one.times, two.times) == ([T0, T1], [T0])
        assert one.shape.origin.labels == ["q"]
        assert two.shape.origin.labels == ["q", "two"]

    def test_two_objects_do_not_share_a_blob(self, cluster, session):
        ids = [thing(cluster, **FULL, shard_id=1), thing(cluster, shard_id=1)]
        one, two = session.get_many(Thing, ids)
        two.data = one.data
        assert two.data is not one.data
        two.tags.append("two")
        assert one not in session.dirty
        session.commit()
        assert (one.tags, two.tags) == (["a", "b"], ["a", "b", "two"])

    def test_a_plain_container_is_copied_when_it_is_assigned(self):
        mine = ["a"]
        size = Size(1)
        new = Thing(tags=mine, size=size)
        mine.append("b")
        size.w = 5
        assert (new.tags, new.size) == (["a"], Size(1))

    def test_fields_and_data_show_the_same(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL))
        assert new.sizes == [Size(1), Size(2)]
        new.data["sizes"] = [{"w": 5, "h": 6}]
        assert new.sizes == [Size(5, 6)]
        new.sizes.append(Size(7))
        assert new.data["sizes"] == [{"w": 5, "h": 6}, {"w": 7, "h": 3}]
        new.data["sizes"].append({"w": 8, "h": 8})
        assert new.sizes[2] == Size(8, 8)
        held = new.sizes
        new.data["sizes"] = [{"w": 0, "h": 0}]
        held.append(Size(9))  # of the value that was replaced
        assert new.sizes == [Size(0, 0)]
        del new.data["sizes"]
        assert new.sizes == []
        new.text = "t"
        assert new.data["text"] == "t"
        new.data.update(text="u", count=3)
        assert (new.text, new.count) == ("u", 3)
        session.commit()
        assert (new.text, new.count, new.sizes) == ("u", 3, [])

    def test_data_takes_only_json(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL))
        for value in (T0, {1, 2}, Decimal(1), float("nan"), b"x"):
            with pytest.raises(BlobValueError, match='data\\["x"\\]'):
                new.data["x"] = value
        for value in ([1], "text", 5, None):
            with pytest.raises(BlobValueError, match="must be a dict"):
                new.data = value
            with pytest.raises(BlobValueError, match="must be a dict"):
                Thing(data=value)
        assert "x" not in new.data
        assert not session.dirty

    def test_assigning_the_whole_blob(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL))
        new.data = {"text": "x", "free": [1]}
        assert (new.text, new.tags, new.free) == ("x", [], [1])
        new.free.append(2)
        session.commit()
        assert raw(cluster, Thing, new.id) == {"text": "x", "free": [1, 2]}

    def test_deleting(self, cluster, session):
        new = session.get(Thing, thing(cluster, **FULL, count=5, limit=None))
        sizes = new.sizes
        for field in ("count", "tags", "sizes", "limit", "note"):
            delattr(new, field)
        assert (new.count, new.tags, new.sizes, new.limit) == (0, [], [], 10)
        sizes.append(Size(9))
        delattr(new, "note")
        session.commit()
        assert (new.count, new.tags, new.sizes, new.limit) == (0, [], [], 10)
        assert not {"count", "tags", "sizes", "limit", "note"} & set(new.data)

    def test_same_value_is_no_update(self, cluster, session, log):
        new = session.get(Thing, thing(cluster, **FULL, text="t"))
        log.clear()
        new.text = "t"
        new.tags.append("x")
        new.tags.pop()
        new.data["scores"] = {"x": 1}
        new.size.w = 1
        session.commit()
        assert not updates(log)

    def test_one_and_true_are_different_changes(self, cluster, session):
        new = session.get(Thing, thing(cluster, free=1))
        new.free = True
        session.commit()
        assert raw(cluster, Thing, new.id)["free"] is True
        new.free = 1.0
        session.commit()
        assert repr(new.free) == "1.0"

    def test_container_of_an_earlier_state(self, cluster, session):
        """A change that would never be written is an error."""
        new = session.get(Thing, thing(cluster, **FULL))
        for end in (session.commit, lambda: session.refresh(new)):
            tags, times, labels = new.tags, new.times, new.point.labels
            end()
            assert new.tags == ["a", "b"]
            for change in (
                lambda tags=tags: tags.append("c"),
                lambda times=times: times.append(T1),
                lambda labels=labels: labels.append("z"),
            ):
                with pytest.raises(BlobError, match="was refreshed"):
                    change()
        new.tags.append("c")
        session.commit()
        assert (new.tags, new.times) == (["a", "b", "c"], [T0])

    @pytest.mark.parametrize(
        ("field", "value"), [("tags", "c"), ("times", T1), ("sizes", Size(3))]
    )
    def test_object_without_references(self, cluster, session, field, value):
        """Only its list is changed, and the change is stored."""
        new = thing(cluster, **FULL, shard_id=1)
        old = thing(cluster, shard_id=1)
        set_raw(cluster, Thing, old, {})
        for object_id in (new, old):
            getattr(session.get(Thing, object_id), field).append(value)
            gc.collect()
        session.commit()
        assert getattr(session.get(Thing, new), field)[-1] == value
        assert getattr(session.get(Thing, old), field) == [value]

    def test_objects_are_not_referenced(self, cluster, session):
        """Unless a container was taken, and then until the collector runs."""
        new = thing(cluster, **FULL)
        for read in (lambda t: t.text, lambda t: t.tags):
            found = session.get(Thing, new)
            read(found)
            gone = weakref.ref(found)
            del found
            gc.collect()
            assert gone() is None

    def test_random_changes(self, cluster, session, rng):
        """Like those of plain Python values, at any depth."""
        values: dict = {"tree": {}, "sizes": [], "tags": []}
        found = session.get(Thing, thing(cluster, **values))
        held = []
        for _ in range(300):
            change = _random_change(rng)
            change(found.tree, found.sizes, found.tags)
            change(values["tree"], values["sizes"], values["tags"])
            held.append((found.tree, found.sizes, found.tags))
            step = rng.random()
            if step < 0.1:
                session.flush()
                assert found.tree is held[-1][0]
                assert found.sizes is held[-1][1]
            elif step < 0.15:
                session.commit()
            assert found.tree == values["tree"]
            assert found.sizes == values["sizes"]
            assert found.tags == values["tags"]
        session.commit()
        assert found.tree == values["tree"]
        assert found.sizes == values["sizes"]
        assert found.tags == values["tags"]


def _empty(field):
    return {} if field in ("scores", "prices", "tree") else []


def _random_change(rng: random.Random):
    kind = rng.randrange(6)
    path = [rng.choice("ab") for _ in range(rng.randint(1, 4))]
    number = rng.randint(0, 9)

    def change(tree, sizes, tags):
        if kind == 0:
            for key in path[:-1]:
                tree = tree.setdefault(key, {})
                if not isinstance(tree, dict):
                    return
            tree[path[-1]] = {"n": [number]}
        elif kind == 1:
            for key in path:
                tree = tree.get(key)
                if not isinstance(tree, dict):
                    return
            tree.clear()
        elif kind == 2:
            sizes.append(Size(number))
        elif kind == 3 and sizes:
            sizes[number % len(sizes)].h += 1
        elif kind == 4:
            tags.insert(0, str(number))
        elif tags:
            tags.pop()

    return change
