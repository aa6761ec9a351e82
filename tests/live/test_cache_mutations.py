"""Values of the cache that were changed at random, on real memcached."""

from __future__ import annotations

import random

import pytest

from sqla_shard.cache import columns
from sqla_shard.cache.columns import RowChecks
from tests.models.cached_models import cached_on_servers, key_of, seen, stored, User
from tests.suites import cache_mutations
from tests.suites.cache_mutations import MemcachedItems

pytestmark = pytest.mark.live

cluster = cached_on_servers("cachemutations")


TestMutated = cache_mutations.Mutated
TestWrongCells = cache_mutations.WrongCells


class TestControl(cache_mutations.Mutated):
    """Without the checks, the same reads raise, or answer with nonsense."""

    def test_reads(self, cluster, cases, items, rng, monkeypatch):
        def accepts(self, row):
            return type(row) is list and len(row) == len(self._checks)

        monkeypatch.setattr(RowChecks, "accepts", accepts)
        with pytest.raises((AssertionError, TypeError, ValueError)):
            super().test_reads(cluster, cases, items, rng)


#: Items that are neither a value, nor a lease, nor a tombstone.
_STRANGE = [
    (0, b"not empty"),
    (1, b""),
    (2, b""),
    (2, b"x" * 23),
    (2, b"x" * 25),
    (3, b""),
    (3, b"x" * 24),
    (7, None),
    (0, None),
    (4_294_967_295, None),
]


@pytest.mark.parametrize(("flags", "data"), _STRANGE)
def test_items_with_other_flags_are_removed(cluster, flags, data):
    """None: a value that could be read, were its flags right."""
    new = stored(cluster, User(name="x"), warm=True)
    key = key_of(cluster, User, new)
    items = MemcachedItems(cluster, "objects")
    value = items.get(key)
    items.put_with(key, value if data is None else data, flags)
    assert seen(cluster, User, new).name == "x"
    assert items.flags(key) is None
    assert seen(cluster, User, new).name == "x"
    assert items.get(key) == value


def test_a_tombstone_stays(cluster):
    """Of the right length; that it is forged shows nowhere."""
    new = stored(cluster, User(name="x"), warm=True)
    items = MemcachedItems(cluster, "objects")
    key = key_of(cluster, User, new)
    items.put_with(key, b"x" * 24, 2)
    for _ in range(3):
        assert seen(cluster, User, new).name == "x"
    assert items.flags(key) == 2


def test_texts_of_a_value_are_whole_characters():
    rng = random.Random(0)
    for _ in range(2000):
        text = "".join(rng.choice('\\ud8Dc0"é\n') for _ in range(12))
        assert columns.parse(columns.dump([text])) == [text]
