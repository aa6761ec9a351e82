from __future__ import annotations

import copy
import json
import pickle
import sys

import pytest
from sqlalchemy import create_engine, JSON, select
from sqlalchemy.ext.mutable import Mutable
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, Session
from tracked import check_links, heard, Listener, nest, nodes, repickled, touch

from sqla_shard.types.tracking import plain, TrackedDict, TrackedList

# -- every mutator ----------------------------------------------------------

# Methods that cannot change the container.  A method that is neither in this
# list nor overridden fails the test: it was forgotten, or Python is newer.
READING = {
    *dir(object),
    *("__class_getitem__", "__contains__", "__getitem__", "__getstate__"),
    *("__iter__", "__len__", "__reversed__", "copy"),
    *("__or__", "__ror__", "fromkeys", "get", "items", "keys", "values"),
    *("__add__", "__mul__", "__rmul__", "count", "index"),
} - {"__init__"}

# Calls of each method, as (value before, call).
DICT_CALLS = {
    "__init__": [],
    "__setitem__": [
        ({}, lambda d: d.__setitem__("a", 1)),
        ({"a": [1]}, lambda d: d.__setitem__("a", {"b": [2]})),
    ],
    "__delitem__": [({"a": [1], "b": 2}, lambda d: d.__delitem__("a"))],
    "__ior__": [
        ({"a": [1]}, lambda d: d.__ior__({"a": 2, "b": [3]}) and None),
        ({}, lambda d: d.__ior__([("a", [1])]) and None),
    ],
    "clear": [({"a": [1]}, lambda d: d.clear())],
    "pop": [({"a": [1]}, lambda d: d.pop("a")), ({"a": [1]}, lambda d: d.pop("a", 7))],
    "popitem": [({"a": 1, "b": [2]}, lambda d: d.popitem())],
    "setdefault": [
        ({}, lambda d: d.setdefault("a", [1])),
        ({}, lambda d: d.setdefault("a")),
    ],
    "update": [
        ({"a": [1]}, lambda d: d.update({"a": [2]}, b={"c": 3})),
        ({}, lambda d: d.update([("a", [1, 2])])),
        ({}, lambda d: d.update(a=1)),
    ],
}

LIST_CALLS = {
    "__init__": [],
    "__setitem__": [
        ([1, 2], lambda x: x.__setitem__(0, [3])),
        ([1, 2], lambda x: x.__setitem__(-1, 3)),
        ([1, 2, 3], lambda x: x.__setitem__(slice(1, None), [[4], 5, 6])),
        ([1, 2, 3, 4], lambda x: x.__setitem__(slice(0, 4, 2), ([7], 8))),
        ([1, 2, 3, 4], lambda x: x.__setitem__(slice(None, None, -1), "abcd")),
        ([1, 2, 3], lambda x: x.__setitem__(slice(2, 0), [[9]])),
        ([1, 2, 3], lambda x: x.__setitem__(slice(0, 2), [])),
    ],
    "__delitem__": [
        ([[1], 2], lambda x: x.__delitem__(0)),
        ([[1], 2, [3], 4], lambda x: x.__delitem__(slice(0, None, 2))),
    ],
    "__iadd__": [([1], lambda x: x.__iadd__(([2], 3)) and None)],
    "__imul__": [
        ([[1], 2], lambda x: x.__imul__(3) and None),
        ([[1], 2], lambda x: x.__imul__(0) and None),
    ],
    "append": [([1], lambda x: x.append({"a": [1]}))],
    "clear": [([[1]], lambda x: x.clear())],
    "extend": [
        ([1], lambda x: x.extend(y for y in ([2], 3))),
        ([[1]], lambda x: x.extend(x)),
    ],
    "insert": [
        ([1, 2], lambda x: x.insert(1, [3])),
        ([1, 2], lambda x: x.insert(-99, [3])),
        ([1, 2], lambda x: x.insert(99, [3])),
    ],
    "pop": [([1, [2]], lambda x: x.pop()), ([[1], 2], lambda x: x.pop(0))],
    "remove": [([[1], [2], [1]], lambda x: x.remove([1]))],
    "reverse": [([[1], 2], lambda x: x.reverse())],
    "sort": [
        ([[2], [1]], lambda x: x.sort()),
        ([1, 2], lambda x: x.sort(key=lambda y: -y)),
        ([1, 2], lambda x: x.sort(reverse=True)),
    ],
}


@pytest.mark.parametrize(
    ("base", "cls", "calls"),
    [(dict, TrackedDict, DICT_CALLS), (list, TrackedList, LIST_CALLS)],
)
def test_every_mutator_is_overridden_and_tried(base, cls, calls):
    mutators = {name for name in dir(base) if name not in READING}
    assert mutators <= set(vars(cls))
    assert mutators == set(calls)


@pytest.mark.parametrize(
    ("before", "act"),
    [
        pytest.param(*call, id=f"{name}-{i}")
        for calls in (DICT_CALLS, LIST_CALLS)
        for name, several in calls.items()
        for i, call in enumerate(several)
    ],
)
def test_mutators_do_what_the_plain_ones_do_and_notify(before, act):
    mirror = copy.deepcopy(before)
    for container, listener in (heard(before), _nested(before)):
        mirror = copy.deepcopy(before)
        old = dict(nodes(container))
        assert act(container) == act(mirror)
        assert container == mirror
        assert json.dumps(container) == json.dumps(mirror)
        assert listener.calls >= 1
        check_links(container)
        gone = {id(n): n for n in old.values()}
        for _, node in nodes(container):
            gone.pop(id(node), None)
        listener.calls = 0
        for node in gone.values():
            # Only the top of the removed value has lost its owner.
            assert node._owner is None or id(node._owner) in gone
            node.clear()
        assert listener.calls == 0
        for _, node in nodes(container):
            listener.calls = 0
            touch(node)
            assert listener.calls == 1


def _nested(value):
    root, listener = heard({"x": [{"y": value}]})
    return root["x"][0]["y"], listener


# -- as dict and list -------------------------------------------------------


def test_reads_are_those_of_dict_and_list():
    value = {"a": [1, {"b": None}], "c": "x"}
    root = TrackedDict(value)
    assert root == value
    assert value == root
    assert root["a"] != [1]
    assert repr(root) == repr(value)
    assert str(root["a"]) == str(value["a"])
    assert list(root) == list(value)
    assert json.dumps(root) == json.dumps(value)
    assert dict(root) == {**root} == root | {} == value
    assert type(root | {}) is dict
    assert root["a"] + [1] == value["a"] + [1]
    assert type(root["a"] + [1]) is list
    assert type(root["a"][:1]) is list
    assert not TrackedDict()
    assert TrackedList([1, 3]) > [1, 2]
    for node in (root, root["a"]):
        with pytest.raises(TypeError, match="unhashable"):
            hash(node)


def test_constructors_are_those_of_dict_and_list():
    assert TrackedDict({"a": 1}, b=2) == {"a": 1, "b": 2}
    assert TrackedDict([("a", 1)], mapping=2) == {"a": 1, "mapping": 2}
    assert TrackedDict() == {}
    assert TrackedDict.fromkeys("ab", []) == {"a": [], "b": []}
    assert TrackedList() == []
    assert TrackedList(x for x in "ab") == ["a", "b"]
    with pytest.raises(TypeError):
        TrackedDict({}, {})
    with pytest.raises(TypeError):
        TrackedList([], [])


def test_shallow_copies_are_plain():
    root, listener = heard({"a": [1], "b": {}})
    for duplicate in (root.copy(), copy.copy(root)):
        assert type(duplicate) is dict
        duplicate["c"] = 1
    for duplicate in (root["a"].copy(), copy.copy(root["a"])):
        assert type(duplicate) is list
        duplicate.append(1)
    assert listener.calls == 0
    # As with any shallow copy, the members are the same.
    assert root.copy()["a"] is root["a"]
    assert root == {"a": [1], "b": {}}


@pytest.mark.parametrize(
    "duplicate",
    [
        copy.deepcopy,
        *(lambda x, p=p: repickled(x, p) for p in range(pickle.HIGHEST_PROTOCOL + 1)),
    ],
)
def test_deep_copies_and_pickles_are_tracked_and_on_their_own(duplicate):
    root, listener = heard({"a": [1, [2], {"b": []}]})
    again = duplicate(root)
    assert again == root
    assert type(again) is TrackedDict
    assert again._on_change is None
    check_links(again)
    again["a"][2]["b"].append(1)
    assert listener.calls == 0
    again._on_change = Listener()
    again["a"][1].append(1)
    assert again._on_change.calls == 1
    part = duplicate(root["a"])
    assert part == root["a"]
    assert part._owner is None


def test_pickles_keep_what_is_inside_what():
    root, _ = heard({"a": [1]})
    again, a = repickled((root, root["a"]))
    assert again["a"] is a
    a, again = repickled((root["a"], root))
    assert again["a"] is a
    check_links(again)


def test_plain():
    root = TrackedDict(a=[1, {"b": (2,)}])
    value = plain(root)
    assert value == root
    assert type(value) is dict
    assert type(value["a"]) is list
    assert type(value["a"][1]) is dict
    assert plain((1, root["a"])) == [1, [1, {"b": [2]}]]
    assert plain("x") == "x"


# -- the trusted way in -----------------------------------------------------


def test_trusted_json_is_tracked_and_copied():
    decoded = json.loads('{"a": [1, [2, {}]], "b": {"c": [{}]}, "d": 1}')
    before = copy.deepcopy(decoded)
    root = TrackedDict._trusted(decoded)
    listener = root._on_change = Listener()
    assert root == before
    check_links(root)
    for _, node in list(nodes(root)):
        listener.calls = 0
        touch(node)
        assert listener.calls == 1
    assert decoded == before
    check_links(TrackedList._trusted([1, [2], {"a": {}}]))


def test_trusted_json_makes_the_root_of_the_given_class():
    class Root(TrackedDict):
        pass

    root = Root._trusted({"a": {"b": {}}})
    assert type(root) is Root
    assert type(root["a"]) is TrackedDict
    assert type(copy.deepcopy(root)) is Root


def test_trusted_json_may_be_nested_very_deep():
    # Less than the remaining stack when a test runs.
    depth = sys.getrecursionlimit() * 3
    root = TrackedList._trusted(nest(depth))
    listener = root._on_change = Listener()
    node = root
    while node:
        node = node[0]
    node.append(1)
    assert listener.calls == 1
    while isinstance(root, list):  # too deep to be freed at once
        root = root.pop()


# -- under SQLAlchemy's Mutable ---------------------------------------------


class Blob(Mutable, TrackedDict):
    def _changed(self):
        self.changed()

    @classmethod
    def coerce(cls, key, value):
        return value if isinstance(value, cls) else cls(value)


class Base(DeclarativeBase):
    pass


class Thing(Base):
    __tablename__ = "things"
    id: Mapped[int] = mapped_column(primary_key=True)
    data: Mapped[dict] = mapped_column(Blob.as_mutable(JSON))


def test_a_root_combines_with_mutable():
    engine = create_engine("sqlite://")
    Base.metadata.create_all(engine)
    with Session(engine) as session:
        session.add(Thing(id=1, data={"tags": ["a"], "m": {"n": []}}))
        session.commit()
        thing = session.get_one(Thing, 1)
        assert not session.dirty
        thing.data["m"]["n"].append({"x": 1})
        assert thing in session.dirty
        session.commit()
        assert thing.data["m"]["n"] == [{"x": 1}]
        thing.data["m"]["n"][0]["x"] += 1
        session.commit()
        again = repickled(thing)
    with Session(engine) as session:
        session.add(again)
        assert type(again.data) is Blob
        again.data["tags"] += ["b"]
        assert again in session.dirty
        session.commit()
    with Session(engine) as session:
        assert session.scalars(select(Thing.data)).one() == {
            "tags": ["a", "b"],
            "m": {"n": [{"x": 2}]},
        }
    engine.dispose()
