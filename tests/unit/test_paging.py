"""Pages, and bookmarks as such."""

from __future__ import annotations

import base64
import pickle
import string

import pytest
from hypothesis import assume
from hypothesis import given
from hypothesis import strategies as st

from sqla_shard import exc
from sqla_shard import Page
from sqla_shard.paging import seal
from sqla_shard.paging import unseal

SAFE = set(string.ascii_letters + string.digits + "-_")


def test_a_page():
    page = Page([1, 2], "abc")
    assert list(page) == [1, 2]
    assert len(page) == 2
    assert page
    assert page.next == "abc"
    assert pickle.loads(pickle.dumps(page)) == page
    with pytest.raises(AttributeError):
        page.next = "other"


def test_an_empty_page_is_false():
    assert not Page([], None)


@given(payload=st.binary(max_size=300), about=st.text())
def test_there_and_back(payload, about):
    bookmark = seal(payload, about)
    assert set(bookmark) <= SAFE
    assert unseal(bookmark, about) == payload


@given(payload=st.binary(max_size=50), one=st.text(), other=st.text())
def test_of_something_else(payload, one, other):
    assume(one != other)
    with pytest.raises(exc.InvalidBookmarkError):
        unseal(seal(payload, one), other)


@given(payload=st.binary(max_size=50), data=st.data())
def test_every_change_is_seen(payload, data):
    bookmark = seal(payload, "x")
    at = data.draw(st.integers(0, len(bookmark)))
    cut = data.draw(st.integers(0, 2))
    more = data.draw(st.text(alphabet="aA0-_+/=. \n", max_size=2))
    wrong = bookmark[:at] + more + bookmark[at + cut :]
    assume(wrong != bookmark)
    with pytest.raises(exc.InvalidBookmarkError):
        unseal(wrong, "x")


@given(wrong=st.text() | st.binary() | st.none() | st.integers())
def test_anything_else(wrong):
    with pytest.raises(exc.InvalidBookmarkError) as caught:
        unseal(wrong, "x")
    assert caught.value.bookmark == wrong
    assert "first page" in str(caught.value)


@given(raw=st.binary(max_size=60))
def test_random_bytes(raw):
    for version in (b"", b"\x01"):
        wrong = base64.urlsafe_b64encode(version + raw).rstrip(b"=").decode()
        with pytest.raises(exc.InvalidBookmarkError):
            unseal(wrong, "x")


def test_long_ones_are_not_shown_whole():
    with pytest.raises(exc.InvalidBookmarkError) as caught:
        unseal("A" * 10**6, "x")
    assert len(str(caught.value)) < 500


def test_surrogates():
    with pytest.raises(exc.InvalidBookmarkError):
        unseal("\ud800", "x")
