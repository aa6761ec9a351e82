"""Database names that two keyspaces share, against writing all of them out."""

from __future__ import annotations

from hypothesis import given, settings, strategies as st

from sqla_shard.topology import ShardRange
from sqla_shard.topology.keyspaces import collisions, shared_name, Template, Tenant

# Few letters, and digits next to the field: most of these nearly collide.
_EDGES = st.text(alphabet="dD01_", max_size=2)
_SPECS = st.sampled_from(["", "d", "02d", "03d"])
_FIELDS = st.builds(
    Template, prefix=_EDGES.map(lambda text: f"x{text}"), spec=_SPECS, suffix=_EDGES
)
_NAMES = st.text(alphabet="xdD01_", min_size=1, max_size=4).map(
    lambda text: Template(prefix=text, spec=None, suffix="")
)
_RANGES = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 9)).map(
        lambda pair: ShardRange(pair[0], pair[0] + pair[1])
    ),
    min_size=1,
    max_size=3,
)


def names(template: Template, ranges: list[ShardRange]) -> set[str]:
    return {template.name(shard).lower() for item in ranges for shard in item}


@given(_FIELDS | _NAMES, _RANGES, _FIELDS | _NAMES, _RANGES)
def test_shared_name(
    one: Template, ours: list[ShardRange], two: Template, theirs: list[ShardRange]
) -> None:
    ours = [ShardRange(0, 0)] if one.spec is None else ours
    theirs = [ShardRange(0, 0)] if two.spec is None else theirs
    expected = names(one, ours) & names(two, theirs)
    found = shared_name((one, ours), (two, theirs))
    assert (found is None) == (not expected)
    assert found is None or found.lower() in expected


@given(st.lists(st.tuples(_FIELDS | _NAMES, _RANGES), max_size=8))
@settings(max_examples=5 * settings().max_examples)
def test_collisions(given_: list[tuple[Template, list[ShardRange]]]) -> None:
    tenants = [
        Tenant(
            str(number),
            template,
            ranges if template.spec is not None else [ShardRange(0, 0)],
        )
        for number, (template, ranges) in enumerate(given_)
    ]
    held = [names(one.template, one.ranges) for one in tenants]
    expected = {
        number
        for number, own in enumerate(held)
        if any(own & other for other in held[:number])
    }
    found = set()
    for later, earlier, name in collisions(tenants):
        one, two = int(later.keyspace), int(earlier.keyspace)
        assert two < one
        assert name.lower() in held[one] & held[two]
        assert one not in found
        found.add(one)
    assert found == expected


def test_one_template_may_end_in_the_digits_of_the_other() -> None:
    one = Template(prefix="x", spec="d", suffix="")
    two = Template(prefix="x", spec="d", suffix="1")
    some, more = [ShardRange(0, 9)], [ShardRange(90, 99)]
    assert shared_name((one, more), (two, some)) == "x91"
    assert shared_name((two, some), (one, more)) == "x91"
    assert shared_name((one, some), (two, more)) is None


@given(_FIELDS, st.integers(0, 65_535))
def test_a_name_leads_back_to_its_shard(template: Template, shard: int) -> None:
    name = template.name(shard)
    assert template.shard_of(name) == shard
    assert template.shard_of(name.upper()) == shard
    assert template.shard_of(f"{name}!") is None
    text = f"{template.prefix}{{shard:{template.spec}}}{template.suffix}"
    assert Template.parse(text, sharded=True) == template
