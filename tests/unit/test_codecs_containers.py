"""Containers of fields: tracked changes, and checked values."""

from __future__ import annotations

import copy
import datetime as dt
import json
from decimal import Decimal
from typing import Any, Literal

import pytest
from hypothesis import given, strategies as st
from tracked import check_links, heard, Listener, nest, nodes, repickled

from sqla_shard.exc import BlobValueError
from sqla_shard.models.field_types import codec_for
from sqla_shard.types.tracking import (
    detach,
    MAX_DEPTH,
    TrackedDict,
    TrackedList,
    ValueDict,
    ValueList,
)

ONE = dt.date(2024, 1, 1)
TWO = dt.date(2024, 1, 2)


def field(annotation, name="Pin.field"):
    return codec_for(annotation, field=name)


def decoded(annotation, stored):
    listener = Listener()
    value = field(annotation).decode(stored, on_change=listener)
    return value, listener


# -- native: the container of the blob --------------------------------------


@pytest.mark.parametrize(
    ("annotation", "stored"),
    [
        (list[str], ["a"]),
        (list[str | None], ["a", None]),
        (dict[str, int], {"a": 1}),
        (list[list[int]], [[1], []]),
        (dict[str, list[Literal["a"]] | None], {"a": ["a"], "b": None}),
        (list[Any], [1, [None]]),
        (list[dict[str, Any]], [{"a": [1]}]),
        (dict, {"a": [1]}),
        (Any, [1]),
    ],
)
def test_native_containers_are_those_of_the_blob(annotation, stored):
    blob, listener = heard({"field": stored})
    codec = field(annotation)
    value = codec.decode(blob["field"], on_change=Listener())
    assert value is blob["field"]
    assert codec.decode(blob["field"]) is value
    # As ``pin.tags += [...]`` ends: the same object is assigned.
    assert codec.encode(value) is value
    blob["field"] = codec.encode(value)
    assert blob["field"] is value
    check_links(blob)
    assert listener.calls == 0
    value.clear()
    assert listener.calls == 1
    assert blob == {"field": type(stored)()}


def test_native_containers_learn_what_they_may_hold():
    blob, listener = heard({"tags": ["a"]})
    tags = field(list[str], "Pin.tags").decode(blob["tags"])
    for act in (
        lambda: tags.append(1),
        lambda: tags.extend(["b", None]),
        lambda: tags.__setitem__(0, b"x"),
        lambda: blob["tags"].insert(0, 2.0),
    ):
        with pytest.raises(BlobValueError, match=r"^Pin\.tags\[\d\]: .* a str"):
            act()
    assert listener.calls == 0
    tags += ["b"]
    assert blob == {"tags": ["a", "b"]}
    assert listener.calls == 1


def test_native_containers_learn_at_every_depth():
    blob, listener = heard({"m": {"a": [[1], [2]]}})
    codec = field(dict[str, list[list[int]]], "Pin.m")
    value = codec.decode(blob["m"])
    with pytest.raises(BlobValueError) as caught:
        value["a"][1].append("x")
    assert caught.value.field == 'Pin.m["a"][1][1]'
    with pytest.raises(BlobValueError) as caught:
        value["b"] = [[1, None]]
    assert caught.value.field == 'Pin.m["b"][0][1]'
    value["b"] = [(3,)]
    with pytest.raises(BlobValueError):
        value["b"][0].append("x")
    value["b"].append([4])
    value["b"].append(value["b"].pop(0))
    with pytest.raises(BlobValueError):
        value["b"][1].append("x")
    assert blob == {"m": {"a": [[1], [2]], "b": [[4], [3]]}}
    assert listener.calls == 4
    check_links(blob)


def test_items_removed_from_a_typed_container_are_not_shared():
    blob, _ = heard({"m": [["a"]], "n": {}})
    value = field(list[list[str]]).decode(blob["m"])
    taken = value.pop()
    blob["n"]["x"] = taken
    assert blob["n"]["x"] is not taken
    blob["n"]["x"].append(1)
    value.append(taken)
    assert value[0] is taken
    # And the other way: free JSON has to be checked.
    free = TrackedList([1])
    with pytest.raises(BlobValueError):
        value.append(free)
    assert free._owner is None


def test_free_json_in_a_typed_container_is_taken_as_it_is():
    blob, listener = heard({"m": [{"a": 1}]})
    value = field(list[dict[str, Any]]).decode(blob["m"])
    taken = value.pop()
    value.append(taken)
    assert value[0] is taken
    with pytest.raises(BlobValueError, match=r"is not a dict"):
        value.append(TrackedList())
    with pytest.raises(BlobValueError, match=r"is not a dict"):
        value.append("x")
    listener.calls = 0
    taken["b"] = [1]
    assert listener.calls == 1


@pytest.mark.parametrize(
    ("annotation", "stored", "place"),
    [
        (list[str], ["a", 1], "Pin.field[1]"),
        (dict[str, int], {"a": 1, "b": "x"}, 'Pin.field["b"]'),
        (list[list[int]], [[1], 5], "Pin.field[1]"),
        (list[list[int]], [[1], [1.5]], "Pin.field[1][0]"),
        (list[dict[str, Any]], [{}, []], "Pin.field[1]"),
        (list[float], ["x"], "Pin.field[0]"),
        (dict[str, list[dt.date]], {"a": ["x"]}, 'Pin.field["a"][0]'),
    ],
)
def test_stored_elements_that_do_not_fit(annotation, stored, place):
    blob, _ = heard({"field": stored})
    for value in (blob["field"], stored):
        with pytest.raises(BlobValueError, match="does not fit") as caught:
            field(annotation).decode(value)
        assert caught.value.field == place


def test_native_containers_of_plain_json_are_roots():
    stored = {"a": [1]}
    value, listener = decoded(dict[str, list[int]], stored)
    value["a"].append(2)
    assert listener.calls == 1
    assert stored == {"a": [1]}
    value, listener = decoded(Any, stored)
    value["a"].append("free")
    assert listener.calls == 1
    assert stored == {"a": [1]}


def test_encoding_native_values_copies_what_is_another_object_s():
    codec = field(list[str])
    one, _ = heard({"tags": ["a"]})
    two, _ = heard({})
    two["tags"] = codec.encode(codec.decode(one["tags"]))
    assert two["tags"] is not one["tags"]
    check_links(one)
    check_links(two)
    free = field(Any)
    two["any"] = free.encode(one["tags"])
    two["any"].append(5)
    assert one == {"tags": ["a"]}


def test_encoding_free_json_checks_all_of_it():
    with pytest.raises(BlobValueError) as caught:
        field(Any, "Pin.extra").encode({"a": [0, Decimal(1)]})
    assert caught.value.field == 'Pin.extra["a"][1]'
    value = field(dict).encode({"a": (1,)})
    assert value == {"a": [1]}
    blob = TrackedDict()
    blob["extra"] = value
    assert blob["extra"] is value  # not walked and copied again


def test_a_free_container_takes_the_name_of_its_place():
    value = field(Any, "Pin.extra").decode({"a": 1})
    with pytest.raises(BlobValueError, match=r'^Pin\.extra\["b"\]: '):
        value["b"] = b""
    blob = TrackedDict()
    blob["x"] = value
    assert blob["x"] is value
    with pytest.raises(BlobValueError, match=r'^data\["x"\]\["b"\]: '):
        value["b"] = b""


def test_the_listener_of_a_field_is_not_the_blob_s():
    blob, blob_listener = heard({"field": {"a": 1}, "tags": ["a"]})
    listener = Listener()
    for annotation, name in ((dict, "field"), (list[str], "tags")):
        field(annotation).decode(blob[name], on_change=listener)
        blob.pop(name).clear()
    assert listener.calls == 0
    assert blob_listener.calls == 2


def test_bare_lists_take_tuples():
    assert field(list).encode((1, 2)) == [1, 2]
    assert field(list[int]).encode((1, 2)) == [1, 2]


def test_free_elements_make_a_free_container():
    assert type(field(list[Any])) is type(field(list))
    assert type(field(dict[str, Any])) is type(field(dict))


def test_pickled_typed_containers_are_free_json():
    blob, _ = heard({"tags": ["a"]})
    codec = field(list[str])
    codec.decode(blob["tags"])
    for again in (repickled(blob), copy.deepcopy(blob)):
        again["tags"].append(1)
        with pytest.raises(BlobValueError, match="does not fit"):
            codec.decode(again["tags"])


# -- decoded: a container of Python values ----------------------------------


@pytest.mark.parametrize(
    ("annotation", "stored", "value"),
    [
        (list[dt.date], ["2024-01-01"], [ONE]),
        (dict[str, dt.date | None], {"a": None}, {"a": None}),
        (dict[str, list[dt.date]], {"a": ["2024-01-01"]}, {"a": [ONE]}),
        (list[list[float]], [[1, 0.5]], [[1.0, 0.5]]),
    ],
)
def test_decoded_containers_are_dict_and_list(annotation, stored, value):
    blob, _ = heard({"field": stored})
    for source in (stored, blob["field"]):
        result, listener = decoded(annotation, source)
        assert result == value
        assert repr(result) == repr(value)
        assert field(annotation).encode(result) == stored
        for again in (copy.deepcopy(result), repickled(result)):
            assert again == value
            assert type(again) is type(value)
        assert listener.calls == 0
    assert json.dumps(field(annotation).encode(value)) == json.dumps(
        field(annotation).encode(result)
    )


def test_decoded_containers_notify_of_every_change():
    value, listener = decoded(dict[str, list[dt.date]], {"a": []})
    value["a"].append(ONE)
    value["b"] = (TWO,)
    value["b"] += [ONE]
    value["b"].sort()
    value.update(c=[ONE])
    value["c"][0] = TWO
    assert listener.calls == 6
    assert value == {"a": [ONE], "b": [ONE, TWO], "c": [TWO]}
    check_links(value)
    taken = value.pop("a")
    assert listener.calls == 7
    taken.append(ONE)
    assert listener.calls == 7
    value["a"] = taken
    assert value["a"] is taken
    taken.append(ONE)
    assert listener.calls == 9


def test_decoded_containers_refuse_before_they_change():
    value, listener = decoded(dict[str, list[dt.date]], {"a": []})
    value["a"].append(ONE)
    listener.calls = 0
    for act, place in (
        (lambda: value["a"].append("x"), 'Pin.field["a"][1]'),
        (lambda: value["a"].append("2024-01-01"), 'Pin.field["a"][1]'),
        (lambda: value["a"].append(None), 'Pin.field["a"][1]'),
        (lambda: value["a"].extend([TWO, 1]), 'Pin.field["a"][2]'),
        (lambda: value.update(b=[ONE], c=[1]), 'Pin.field["c"][0]'),
        (lambda: value.setdefault("b", ONE), 'Pin.field["b"]'),
    ):
        with pytest.raises(BlobValueError) as caught:
            act()
        assert caught.value.field == place
    assert value == {"a": [ONE]}
    assert listener.calls == 0


def test_decoded_elements_are_as_they_would_be_read_back():
    value, _ = decoded(list[dt.datetime], [])
    east = dt.timezone(dt.timedelta(hours=2))
    value.append(dt.datetime(2024, 1, 1, 2, tzinfo=east))
    assert value[0].tzinfo is dt.UTC
    value, _ = decoded(list[float], [])
    value.append(1)
    assert type(value[0]) is float


def test_decoded_values_are_not_part_of_the_blob():
    blob, blob_listener = heard({"field": [{"at": "2024-01-01"}]})
    value, listener = decoded(list[dict[str, dt.date]], blob["field"])
    value[0]["at"] = TWO
    assert listener.calls == 1
    assert blob_listener.calls == 0
    assert blob == {"field": [{"at": "2024-01-01"}]}


def test_decoded_containers_can_be_cut_off():
    value, listener = decoded(list[list[dt.date]], [[]])
    detach(value)
    value[0].append(ONE)
    value.append([])
    assert listener.calls == 0


def test_a_decoded_container_without_a_listener():
    value = field(list[dt.date]).decode([])
    value.append(ONE)
    with pytest.raises(BlobValueError, match=r"^Pin\.field\[1\]"):
        value.append(1)


def test_decoded_containers_are_not_json():
    value, _ = decoded(list[dt.date], ["2024-01-01"])
    with pytest.raises(BlobValueError, match=r"\(date\) is not a JSON value"):
        TrackedDict(x=value)
    taken = field(list[list[dt.date]]).decode([["2024-01-01"]]).pop()
    with pytest.raises(BlobValueError, match=r"\(date\) is not a JSON value"):
        TrackedDict(x=taken)


def test_containers_made_without_a_field_hold_anything():
    # As dataclasses.asdict() makes them.
    value = ValueList([ONE, ValueDict(a=ONE)])
    assert value == [ONE, {"a": ONE}]
    typed, listener = decoded(list[list[dt.date]], [["2024-01-01"]])
    value.append(typed[0])
    value[-1].append("not checked")
    assert listener.calls == 0
    assert typed == [[ONE]]
    assert repickled(value) == value


def test_depth_counts_the_blob_around_a_field():
    value, _ = decoded(list[Any | None], [])
    value.append(nest(MAX_DEPTH - 2))
    with pytest.raises(BlobValueError, match="levels of nesting"):
        value.append(nest(MAX_DEPTH - 1))


@pytest.mark.parametrize(
    ("annotation", "value", "place", "message"),
    [
        (list[str], ["a", 1], "Pin.field[1]", "1 (int) is not a str"),
        (list[str], "ab", "Pin.field", "'ab' (str) is not a list"),
        (list[str], {"a"}, "Pin.field", "{'a'} (set) is not a list"),
        (list[str], (x for x in "a"), "Pin.field", "is not a list"),
        (dict[str, int], [], "Pin.field", "[] (list) is not a dict"),
        (dict[str, int], {1: 1}, "Pin.field", "the key 1 is of type int"),
        (dict[str, int], {"a": None}, 'Pin.field["a"]', "None is not an int"),
        (dict[str, dt.date], {"a b": 1}, 'Pin.field["a b"]', "1 (int) is not a date"),
        (list[list[Any]], [[b""]], "Pin.field[0][0]", "b'' (bytes) is not a"),
        (list[dict], [[]], "Pin.field[0]", "[] (list) is not a dict"),
    ],
)
def test_values_that_are_refused(annotation, value, place, message):
    with pytest.raises(BlobValueError) as caught:
        field(annotation).encode(value)
    assert caught.value.field == place
    assert message in str(caught.value)


def test_encoding_gives_plain_json_of_its_own():
    dates = {"a": [ONE]}
    stored = field(dict[str, list[dt.date]]).encode(dates)
    assert type(stored) is dict
    assert type(stored["a"]) is list
    tags = ["a"]
    stored = field(list[str]).encode(tags)
    assert stored == tags
    assert stored is not tags
    assert field(list[str]).encode(("a", "b")) == ["a", "b"]


# -- random changes ---------------------------------------------------------

dates = st.dates()
date_lists = st.lists(dates, max_size=3)
keys = st.sampled_from("ab")
changes = st.one_of(
    st.tuples(st.just("set"), keys, date_lists),
    st.tuples(st.just("append"), keys, dates),
    st.tuples(st.just("slice"), keys, date_lists),
    st.tuples(st.just("sort"), keys, st.none()),
    st.tuples(st.just("copy"), keys, keys),
    st.tuples(st.just("delete"), keys, st.none()),
    st.tuples(st.just("refused"), keys, dates),
)


def change(target, what, key, value):
    if what == "set":
        target[key] = value
    elif what == "append":
        target.setdefault(key, []).append(value)
    elif what == "slice":
        target.setdefault(key, [])[1:2] = value
    elif what == "sort":
        target.setdefault(key, []).sort()
    elif what == "copy":
        target[key] = list(target.get(value, ()))
    elif what == "delete":
        target.pop(key, None)


@given(st.dictionaries(keys, date_lists), st.lists(changes, max_size=20))
def test_changes_are_stored(start, steps):
    """As a field does it: encode again after every change."""
    codec = field(dict[str, list[dt.date]])
    blob = TrackedDict(field=codec.encode(start))

    def store():
        blob["field"] = codec.encode(value)

    value = codec.decode(blob["field"], on_change=store)
    mirror = copy.deepcopy(start)
    for what, key, argument in steps:
        if what == "refused":
            with pytest.raises(BlobValueError):
                value.setdefault(key, []).extend([argument, "x"])
            mirror.setdefault(key, [])
        else:
            change(value, what, key, copy.deepcopy(argument))
            change(mirror, what, key, copy.deepcopy(argument))
        assert value == mirror
        stored = json.loads(json.dumps(blob))
        assert codec.decode(stored["field"]) == mirror
        check_links(value)
        assert len(list(nodes(value))) == 1 + len(mirror)
