from __future__ import annotations

import copy
import json
import random

from hypothesis import given, strategies as st
from tracked import check_links, heard, nodes, touch

from sqla_shard.exc import BlobValueError
from sqla_shard.types.tracking import plain, track, TrackedDict

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(codec="utf-8"), max_size=5),
)
keys = st.sampled_from("abcd")
json_values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=8,
)
seeds = st.integers(0, 2**32)

DICT_OPS = {
    "set": lambda d, r, v: d.__setitem__(r.choice("abcd"), v),
    "del": lambda d, r, v: d.__delitem__(r.choice("abcd")),
    "pop": lambda d, r, v: d.pop(r.choice("abcd")),
    "pop-default": lambda d, r, v: d.pop(r.choice("abcd"), None),
    "popitem": lambda d, r, v: d.popitem(),
    "setdefault": lambda d, r, v: d.setdefault(r.choice("abcd"), v),
    "update": lambda d, r, v: d.update({r.choice("abcd"): v, "d": [v]}),
    "ior": lambda d, r, v: d.__ior__([(r.choice("abcd"), v)]) and None,
    "clear": lambda d, r, v: d.clear(),
    "own": lambda d, r, v: d.__setitem__(
        r.choice("abcd"), copy.copy(d.get(r.choice("abcd")))
    ),
    "alias": lambda d, r, v: d.__setitem__(r.choice("abcd"), d.get(r.choice("abcd"))),
    "same": lambda d, r, v: d.update(d),
    "refused": lambda d, r, v: d.update({"a": v, "b": b""}),
}


def _slice(x, r):
    low, high = r.randint(-4, 4), r.randint(-4, 4)
    return slice(low, high, r.choice([None, 1, 2, -1]))


LIST_OPS = {
    "append": lambda x, r, v: x.append(v),
    "extend": lambda x, r, v: x.extend([v, [v]]),
    "insert": lambda x, r, v: x.insert(r.randint(-3, 3), v),
    "set": lambda x, r, v: x.__setitem__(r.randint(-3, 3), v),
    "slice": lambda x, r, v: x.__setitem__(_slice(x, r), [v] * r.randint(0, 3)),
    "del": lambda x, r, v: x.__delitem__(r.randint(-3, 3)),
    "del-slice": lambda x, r, v: x.__delitem__(_slice(x, r)),
    "pop": lambda x, r, v: x.pop(r.randint(-3, 3)),
    "remove": lambda x, r, v: x.remove(v),
    "reverse": lambda x, r, v: x.reverse(),
    "sort": lambda x, r, v: x.sort(key=str, reverse=r.random() < 0.5),
    "sort-fails": lambda x, r, v: x.sort(),
    "iadd": lambda x, r, v: x.__iadd__([v]) and None,
    "imul": lambda x, r, v: x.__imul__(r.randint(-1, 2)) and None,
    "clear": lambda x, r, v: x.clear(),
    "own": lambda x, r, v: x.append(copy.copy(x[r.randint(-3, 3)])),
    "alias": lambda x, r, v: x.append(x[r.randint(-3, 3)]),
    "same": lambda x, r, v: x.__setitem__(slice(None), list(reversed(x))),
    "refused": lambda x, r, v: x.extend([v, b""]),
}


def attempt(act, container, seed, value):
    try:
        return copy.deepcopy(act(container, random.Random(seed), value)), None
    except (LookupError, TypeError, ValueError) as error:
        return None, type(error)


def size(value):
    if isinstance(value, dict):
        return 1 + sum(map(size, value.values()))
    if isinstance(value, list):
        return 1 + sum(map(size, value))
    return 1


@given(
    st.dictionaries(keys, json_values, max_size=4),
    st.lists(st.tuples(seeds, json_values), max_size=30),
)
def test_random_operations_do_what_they_do_to_a_plain_tree(start, steps):
    mirror = copy.deepcopy(start)
    root, listener = heard(start)
    detached = []
    for seed, value in steps:
        rng = random.Random(seed)
        path, node = rng.choice(list(nodes(root)))
        target = mirror
        for key in path:
            target = target[key]
        ops = DICT_OPS if isinstance(node, dict) else LIST_OPS
        name = rng.choice(sorted(ops))
        if size(mirror) > 200:
            name = "clear"
        before, inside = copy.deepcopy(mirror), list(nodes(root))
        listener.calls = 0
        result = attempt(ops[name], node, seed, copy.deepcopy(value))
        if name == "refused":
            # The mirror would take it.
            assert result == (None, BlobValueError)
        else:
            expected = attempt(ops[name], target, seed, copy.deepcopy(value))
            if expected[1] is not None and target:
                _restore(mirror, before)  # list.sort() that has failed
            assert result == expected
            # No aliases in the mirror either: ours are copied.
            mirror = copy.deepcopy(json.loads(json.dumps(mirror)))
        assert repr(root) == repr(mirror)
        check_links(root)
        if repr(before) != repr(mirror):
            assert listener.calls >= 1
        if result[1] is not None:
            assert listener.calls == 0
        here = {id(node) for _, node in nodes(root)}
        detached += [node for _, node in inside if id(node) not in here]
        listener.calls = 0
        for node in detached:
            touch(node)
        assert listener.calls == 0
        assert repr(root) == repr(mirror)


def _restore(mirror, before):
    mirror.clear()
    mirror.update(before)


@given(st.dictionaries(keys, json_values))
def test_the_three_ways_in_give_the_same(value):
    for root in (TrackedDict(value), TrackedDict._trusted(value), track(value)):
        assert repr(root) == repr(value)
        assert repr(plain(root)) == repr(value)
        assert json.loads(json.dumps(root)) == value
        check_links(root)
