"""Random objects come back as they were."""

from __future__ import annotations

import json
from datetime import datetime, UTC

from hypothesis import given, HealthCheck, settings, strategies as st
from sqlalchemy import select

from tests.models.objects import Color, Level, Mixed, Point, Size, Thing
from tests.models.objects_harness import raw, Suite, thing
from tests.suites.objects_values import identical

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4
        )
    ),
    max_leaves=20,
)
sizes = st.builds(Size, st.integers(), st.integers())
datetimes = st.datetimes(
    min_value=datetime(2, 1, 1), max_value=datetime(9998, 1, 1), timezones=st.just(UTC)
)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(exclude_categories=["Cs"]))
FIELD_VALUES = {
    "text": texts,
    "note": st.none() | texts,
    "count": st.integers(),
    "ratio": st.floats(allow_nan=False, allow_infinity=False),
    "flag": st.booleans(),
    "price": st.none() | decimals,
    "at": st.none() | datetimes,
    "day": st.none() | st.dates(),
    "uid": st.none() | st.uuids(),
    "color": st.sampled_from(Color),
    "level": st.none() | st.sampled_from(Level),
    "mixed": st.none() | st.sampled_from(list(Mixed)),
    "size": st.none() | sizes,
    "point": st.none()
    | st.builds(
        Point,
        st.floats(allow_nan=False, allow_infinity=False),
        st.floats(allow_nan=False, allow_infinity=False),
        st.lists(texts, max_size=3),
    ),
    "tags": st.lists(texts, max_size=4),
    "scores": st.dictionaries(texts, st.integers(), max_size=4),
    "times": st.lists(datetimes, max_size=3),
    "prices": st.dictionaries(texts, decimals, max_size=3),
    "sizes": st.lists(sizes, max_size=3),
    "free": st.just("null") | json_values,
}


class RandomValueSuite(Suite):
    @given(st.fixed_dictionaries({}, optional=FIELD_VALUES))
    @settings(
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            # The suite runs on several kinds of servers.
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ]
    )
    def test_any_object_comes_back(self, cluster, values):
        new = thing(cluster, **values)
        with cluster.session() as session:
            found = session.get(Thing, new)
            for field, value in values.items():
                assert identical(getattr(found, field), value)
            if "free" in values:
                # MariaDB would compare the text "null" without its quotes.
                is_null = select(Thing.free.is_(None)).where(Thing.id == new)
                assert session.scalar(is_null) is (values["free"] is None)
            # The text is what Python would write, and the server reads it.
            assert raw(cluster, Thing, new) == json.loads(json.dumps(found.data))
            assert not session.dirty
