from __future__ import annotations

import copy
import enum
import json
from collections import OrderedDict
from decimal import Decimal

import pytest
from tracked import check_links, heard, Listener, nest, repickled

from sqla_shard.exc import BlobValueError
from sqla_shard.types.tracking import MAX_DEPTH, plain, track, TrackedDict, TrackedList


class Colour(enum.IntEnum):
    RED = 1


class Name(str, enum.Enum):  # noqa: UP042  # as older code has it
    A = "a"


# -- refusals ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (object, "data[0]: <class 'object'> (type) is not a JSON value"),
        (Decimal(1), "data[0]: Decimal('1') (Decimal) is not a JSON value"),
        (b"x", "data[0]: b'x' (bytes) is not a JSON value"),
        ({1}, "data[0]: {1} (set) is not a JSON value"),
        (float("nan"), "data[0]: nan is not a JSON number"),
        (float("-inf"), "data[0]: -inf is not a JSON number"),
        ("\ud800x", "data[0]: '\\ud800x' has a lone surrogate"),
        ({"\udc00": 1}, 'data[0]["\\udc00"]: '),
        ({"a": [0, 0, b"x"]}, "data[0][\"a\"][2]: b'x' (bytes) is not a JSON value"),
        ({"ö\n": b"x"}, 'data[0]["\\u00f6\\n"]: '),
        ({"ö": b"x"}, 'data[0]["ö"]: '),
        ({1: 2}, "data[0]: the key 1 is of type int"),
        ({None: 2}, "data[0]: the key None is of type NoneType"),
        ([0, ("a", {2: 3})], "data[0][1][1]: the key 2 is of type int"),
    ],
)
def test_refusals_name_the_place_and_the_value(value, message):
    root, listener = heard([])
    with pytest.raises(BlobValueError) as caught:
        root.append(value)
    assert str(caught.value).startswith(message)
    assert root == []
    assert listener.calls == 0


@pytest.mark.parametrize(
    ("act", "place"),
    [
        (lambda x: x.__setitem__(-1, b""), "data[2]"),
        (lambda x: x.__setitem__(slice(1, None), [4, b""]), "data[2]"),
        (lambda x: x.__setitem__(slice(None, None, -2), [4, b""]), "data[0]"),
        (lambda x: x.insert(-1, b""), "data[2]"),
        (lambda x: x.insert(9, b""), "data[3]"),
        (lambda x: x.extend([4, b""]), "data[4]"),
    ],
)
def test_refusals_name_the_index_from_the_start(act, place):
    with pytest.raises(BlobValueError) as caught:
        act(TrackedList([1, 2, 3]))
    assert caught.value.field == place


def test_refusals_carry_the_place_and_the_value():
    with pytest.raises(BlobValueError) as caught:
        TrackedDict({"a": [1, 2, b"x"]})
    assert caught.value.field == 'data["a"][2]'
    assert caught.value.value == b"x"
    again = repickled(caught.value)
    assert str(again) == str(caught.value)


def test_long_values_are_cut_in_messages():
    with pytest.raises(BlobValueError) as caught:
        track(b"x" * 10_000)
    assert len(str(caught.value)) < 400


def test_the_root_can_have_a_name():
    with pytest.raises(BlobValueError, match=r"^Pin\.extra\[0\]: "):
        track([b""], path="Pin.extra")
    root = TrackedList()
    root._label = "Pin.tags"
    with pytest.raises(BlobValueError, match=r"^Pin\.tags\[0\]\[1\]: "):
        root.append([1, b""])


def test_a_number_that_mysql_cannot_parse_is_refused():
    fits = 10**308
    assert track(fits) == fits
    with pytest.raises(BlobValueError, match="an int of 1027 bits is beyond"):
        track(10**309)


@pytest.mark.parametrize(
    "value", [2**63, -(2**63) - 1, 2**64, 10**30, 0, -1, True, None, "", "ö"]
)
def test_scalars_stay_as_they_are(value):
    assert track(value) == value
    assert type(track(value)) is type(value)


def test_subclasses_of_scalars_become_plain():
    class Ratio(float):
        pass

    root = TrackedDict({Name.A: [Colour.RED, Name.A, Ratio(0.5)]})
    assert root == {"a": [1, "a", 0.5]}
    assert [type(x) for x in root["a"]] == [int, str, float]
    assert type(next(iter(root))) is str
    root[Name.A] = True
    assert type(next(iter(root))) is str
    assert json.dumps(root) == '{"a": true}'


def test_subclasses_of_containers_become_tracked():
    value = track(OrderedDict(a=OrderedDict(b=(1, [2]))))
    assert value == {"a": {"b": [1, [2]]}}
    check_links(value)


@pytest.mark.parametrize("kind", [dict, list])
def test_containers_inside_themselves_are_refused(kind):
    if kind is dict:
        loop = {"a": {}}
        loop["a"]["b"] = loop
        place = 'data[0]["a"]["b"]'
    else:
        loop = [[]]
        loop[0].append(loop)
        place = "data[0][0][0]"
    root = TrackedList()
    with pytest.raises(BlobValueError) as caught:
        root.append(loop)
    assert str(caught.value) == f"{place}: the container contains itself"
    assert root == []


def test_wide_containers_inside_themselves_are_refused_at_once():
    loop = []
    loop.extend([loop] * 1000)
    with pytest.raises(BlobValueError, match="contains itself"):
        track(loop)


@pytest.mark.parametrize("with_listener", [True, False])
def test_a_tree_cannot_be_put_into_itself(with_listener):
    root = TrackedDict({"a": {"b": {}}})
    if with_listener:
        root._on_change = Listener()
    before = plain(root)
    for act in (
        lambda: root.update(x=root),
        lambda: root["a"]["b"].update(x=root),
        lambda: root["a"]["b"].update(x=root["a"]),
        lambda: root["a"]["b"].update(x={"y": [root]}),
        lambda: root["a"].setdefault("x", root["a"]),
    ):
        with pytest.raises(BlobValueError, match="contains itself"):
            act()
    assert root == before
    check_links(root)


def test_depth_is_limited_wherever_it_is_added():
    # The root is one of them.
    root = TrackedList()
    root.append(nest(MAX_DEPTH - 1))
    with pytest.raises(BlobValueError, match=f"more than {MAX_DEPTH} levels"):
        root.append(nest(MAX_DEPTH))
    deepest = root
    while deepest:
        deepest = deepest[0]
    deepest.append("scalars do not nest")
    with pytest.raises(BlobValueError, match=f"more than {MAX_DEPTH} levels"):
        deepest.append([])
    taken = root.pop()
    root.append([])
    with pytest.raises(BlobValueError, match=f"more than {MAX_DEPTH} levels"):
        root[0].append(taken)
    assert taken._owner is None
    root[0].append(taken[0])
    check_links(root)


def test_the_value_of_a_field_has_the_blob_around_it():
    track(nest(MAX_DEPTH - 1), path="Pin.extra")
    with pytest.raises(BlobValueError, match="levels of nesting"):
        track(nest(MAX_DEPTH), path="Pin.extra")


def test_extreme_depth_is_refused_without_recursion_error():
    with pytest.raises(BlobValueError, match="levels of nesting"):
        track(nest(100_000))


# -- all or nothing ---------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "act"),
    [
        ({"a": 1}, lambda d: d.update(a=2, b=b"")),
        ({"a": 1}, lambda d: d.update([("a", 2), (1, 2)])),
        ({"a": 1}, lambda d: d.__ior__({"a": 2, "b": b""})),
        ({"a": 1}, lambda d: d.setdefault("b", b"")),
        ({"a": 1}, lambda d: d.__setitem__("a", [b""])),
        ([1], lambda x: x.extend([2, b""])),
        ([1], lambda x: x.__iadd__([2, b""])),
        ([1, 2], lambda x: x.__setitem__(slice(0, 2), [3, b""])),
        ([1, 2], lambda x: x.__setitem__(0, b"")),
        ([1, 2], lambda x: x.insert(0, b"")),
    ],
)
def test_refused_changes_change_nothing(before, act):
    root, listener = heard(before)
    with pytest.raises(BlobValueError):
        act(root)
    assert root == before
    assert listener.calls == 0


@pytest.mark.parametrize(
    ("before", "act", "error"),
    [
        ({}, lambda d: d.pop("x"), KeyError),
        ({}, lambda d: d.__delitem__("x"), KeyError),
        ({}, lambda d: d.popitem(), KeyError),
        ({}, lambda d: d.update(5), TypeError),
        ({}, lambda d: d.update([(1,)]), ValueError),
        ({}, lambda d: d.__ior__(None), TypeError),
        ({"a": 1}, lambda d: d.pop("a", 1, 2), TypeError),
        ([], lambda x: x.pop(), IndexError),
        ([1], lambda x: x.__setitem__(1, 2), IndexError),
        ([1], lambda x: x.__setitem__("a", 2), TypeError),
        ([1], lambda x: x.__setitem__(slice(0, 1), 2), TypeError),
        ([1, 2], lambda x: x.__setitem__(slice(0, 2, 2), [[], []]), ValueError),
        ([1], lambda x: x.__delitem__(1), IndexError),
        ([1], lambda x: x.remove(2), ValueError),
        ([1], lambda x: x.extend(2), TypeError),
        ([1], lambda x: x.insert("a", 2), TypeError),
        ([1], lambda x: x.insert(0), TypeError),
        ([1, "a"], lambda x: x.sort(), TypeError),
        ([3, 1, "a", 2], lambda x: x.sort(), TypeError),
    ],
)
def test_python_errors_are_python_s_and_change_nothing(before, act, error):
    root, listener = heard(before)
    with pytest.raises(error):
        act(copy.deepcopy(before))
    with pytest.raises(error):
        act(root)
    assert root == before
    assert listener.calls == 0


def test_multiplying_by_nonsense_is_python_s_error():
    root, listener = heard([1])
    with pytest.raises(TypeError, match="can't multiply sequence"):
        root *= "a"
    with pytest.raises(TypeError, match="can't multiply sequence"):
        root *= 1.5
    assert root == [1]
    assert listener.calls == 0


def test_a_list_changed_while_it_is_sorted():
    root, _ = heard([3, 1, 2])
    with pytest.raises(ValueError, match="modified during sort"):
        root.sort(key=lambda x: root.append(x) or x)
    assert sorted(root[:3]) == [1, 2, 3]


def test_a_list_whose_items_are_replaced_while_it_is_sorted():
    root, _ = heard([3, 1, 2])
    with pytest.raises(ValueError, match="modified during sort"):
        root.sort(key=lambda x: root.__setitem__(0, 9) or x)
    assert root == [9, 1, 2]


def test_an_iterator_that_fails_leaves_nothing_behind():
    def items():
        yield [1]
        raise RuntimeError("broken")

    root, listener = heard([])
    with pytest.raises(RuntimeError):
        root.extend(items())
    assert root == []
    assert listener.calls == 0


def test_a_container_is_free_again_after_a_refused_change():
    root, listener = heard([])
    free = TrackedDict(a=1)
    with pytest.raises(BlobValueError):
        root.extend([free, b""])
    with pytest.raises(BlobValueError):
        TrackedDict().update(a=free, b=b"")
    with pytest.raises(ValueError, match="extended slice"):
        TrackedList([1, 2])[::2] = [free, free]
    root.append(free)
    assert root[0] is free
    free["a"] = 2
    assert listener.calls == 2


def test_no_change_notifies_no_listener():
    root, listener = heard({"a": [1]})
    root.update()
    root.update({})
    root |= {}
    root.setdefault("a", 2)
    root.pop("x", None)
    root["a"].extend([])
    root["a"] += []
    root["a"] *= 1
    root["a"][1:] = []
    TrackedDict().clear()
    assert listener.calls == 0
