"""Helpers of the tests of tracked containers."""

from __future__ import annotations

import pickle

from sqla_shard.types.tracking import Node, TrackedDict, TrackedList


class Listener:
    def __init__(self):
        self.calls = 0

    def __call__(self):
        self.calls += 1


def heard(value):
    """Return a tracked root and what listens to it."""
    cls = TrackedDict if isinstance(value, dict) else TrackedList
    root = cls(value)
    listener = root._on_change = Listener()
    return root, listener


def nodes(value, path=()):
    if isinstance(value, Node):
        yield path, value
        for key, item in value._items():
            yield from nodes(item, (*path, key))


def check_links(root):
    """Every container below the root is tracked and has its own place."""
    seen = set()
    for _, node in nodes(root):
        assert id(node) not in seen
        seen.add(id(node))
        for _, item in node._items():
            assert type(item) not in (dict, list, tuple)
            if isinstance(item, Node):
                assert item._owner is node


def nest(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def touch(node):
    if isinstance(node, dict):
        node["touched"] = True
    else:
        node.append("touched")


def repickled(value, protocol=pickle.HIGHEST_PROTOCOL):
    data = pickle.dumps(value, protocol)
    return pickle.loads(data)
