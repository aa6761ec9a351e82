from __future__ import annotations

import pytest
from tracked import check_links, heard, touch

from sqla_shard.types.tracking import detach, track, TrackedDict, TrackedList


def test_removed_containers_no_longer_notify():
    root, listener = heard({"a": [1], "b": {"c": [2]}, "d": [[3], [4]]})
    out = [root.pop("a"), root["b"], root["d"][0], root["d"][1]]
    root["b"] = 1
    del root["d"][0]
    root["d"][:] = []
    listener.calls = 0
    for node in out:
        touch(node)
    out[1]["c"].append(5)
    assert listener.calls == 0
    assert root == {"b": 1, "d": []}


def test_a_value_without_an_owner_is_not_copied():
    root, listener = heard({"a": [[1]]})
    taken = root.pop("a")
    root["b"] = taken
    assert root["b"] is taken
    listener.calls = 0
    taken[0].append(2)
    assert listener.calls == 1
    assert root == {"b": [[1, 2]]}


def test_a_value_with_an_owner_is_copied():
    one, one_listener = heard({"a": [[1]]})
    two, two_listener = heard({})
    two["a"] = one["a"]
    one["b"] = one["a"]
    assert two["a"] is not one["a"]
    assert one["b"] is not one["a"]
    one_listener.calls = two_listener.calls = 0
    two["a"][0].append(2)
    assert (one_listener.calls, two_listener.calls) == (0, 1)
    one["b"][0].append(3)
    assert (one_listener.calls, two_listener.calls) == (1, 1)
    assert one == {"a": [[1]], "b": [[1, 3]]}
    assert two == {"a": [[1, 2]]}
    check_links(one)
    check_links(two)


def test_the_same_container_twice_in_one_change():
    root, _ = heard({})
    free = TrackedList([1])
    root.update(a=free, b=free)
    root["c"] = [root["a"], root["a"]]
    same = [2]
    root["d"] = [same, same]
    assert root == {"a": [1], "b": [1], "c": [[1], [1]], "d": [[2], [2]]}
    check_links(root)


def test_a_root_with_a_listener_is_copied():
    inner, inner_listener = heard({"x": [1]})
    outer, outer_listener = heard({})
    outer["inner"] = inner
    inner["x"].append(2)
    assert outer == {"inner": {"x": [1]}}
    assert (inner_listener.calls, outer_listener.calls) == (1, 1)


def test_roots_of_a_subclass_are_copied():
    class Root(TrackedDict):
        pass

    outer = TrackedDict()
    root = Root(a=[1])
    outer["x"] = root
    assert type(outer["x"]) is TrackedDict
    assert root._owner is None


def test_assigning_a_container_to_its_place_keeps_it():
    root, listener = heard({"a": [[1], {"b": 2}]})
    a, first = root["a"], root["a"][0]
    root["a"] = root["a"]
    root.update(a=a)
    root["a"] += [3]
    root["a"][0] = first
    root["a"][0] *= 2
    root["a"][1] |= {"c": 3}
    a[:] = list(reversed(a))
    a[0:2] = a[0:2]
    a.sort(key=str)
    assert root["a"] is a
    assert any(x is first for x in a)
    check_links(root)
    listener.calls = 0
    first.append(4)
    assert listener.calls == 1


def test_a_slice_keeps_one_of_two_and_copies_the_other():
    root, _ = heard([[1], [2]])
    first = root[0]
    root[:] = [first, first]
    assert root == [[1], [1]]
    assert root[0] is first
    check_links(root)


def test_swapping_keeps_the_values():
    root, listener = heard([[1], [2]])
    root[0], root[1] = root[1], root[0]
    assert root == [[2], [1]]
    check_links(root)
    listener.calls = 0
    root[0].append(3)
    assert listener.calls == 1


def test_shuffling_keeps_the_values(rng):
    root, _ = heard([[n] for n in range(20)])
    rng.shuffle(root)
    assert sorted(root) == [[n] for n in range(20)]
    check_links(root)


def test_detach():
    root, listener = heard({"a": [1]})
    a = root["a"]
    detach(a)
    detach("anything")
    a.append(2)
    assert listener.calls == 0
    detach(root)
    root["b"] = 1
    assert listener.calls == 0


def test_track_can_link_to_an_owner():
    root, listener = heard({})
    node = track({"a": [1]}, owner=root)
    node["a"].append(2)
    assert listener.calls == 1


def test_the_tree_lives_as_long_as_one_of_its_containers():
    root, listener = heard({"a": {"b": []}})
    b = root["a"]["b"]
    del root
    b.append(1)
    assert listener.calls == 1


def test_a_listener_that_fails_is_heard_of():
    root, _ = heard([])

    def fail():
        raise RuntimeError("from the listener")

    root._on_change = fail
    with pytest.raises(RuntimeError, match="from the listener"):
        root.append(1)
    assert root == [1]
