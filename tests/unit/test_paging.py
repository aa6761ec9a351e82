"""Pages, and bookmarks as such."""

from __future__ import annotations

import base64
import pickle
import string

import pytest
from hypothesis import assume, given, strategies as st

from sqla_shard import exc, Page
from sqla_shard.session.paging import MOST_BYTES, Seal, seal_of, Subject

OLD_KEY = b"an old key of 32 bytes or more.."
NEW_KEY = b"a new key of 32 bytes or more..."
#: Without keys, with one, and while keys are exchanged.
SEALS = [Seal(), Seal([OLD_KEY]), Seal([NEW_KEY, OLD_KEY])]
X = Subject("x")
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


details = st.lists(st.text(), max_size=3).map(tuple)
subjects = st.builds(Subject, st.text(), details)


@pytest.mark.parametrize("seal", SEALS)
@given(payload=st.binary(max_size=300), subject=subjects)
def test_there_and_back(seal, payload, subject):
    bookmark = seal.seal(payload, subject)
    assert set(bookmark) <= SAFE
    assert seal.unseal(bookmark, subject) == payload


@pytest.mark.parametrize("seal", SEALS)
def test_the_longest(seal):
    payload = bytes(MOST_BYTES)
    assert seal.unseal(seal.seal(payload, X), X) == payload


@pytest.mark.parametrize("seal", SEALS)
@given(payload=st.binary(max_size=50), one=subjects, other=subjects)
def test_of_something_else(seal, payload, one, other):
    assume(one != other)
    with pytest.raises(exc.InvalidBookmarkError):
        seal.unseal(seal.seal(payload, one), other)


@pytest.mark.parametrize("seal", SEALS)
@given(payload=st.binary(max_size=50), data=st.data())
def test_every_change_is_seen(seal, payload, data):
    bookmark = seal.seal(payload, X)
    at = data.draw(st.integers(0, len(bookmark)))
    cut = data.draw(st.integers(0, 2))
    more = data.draw(st.text(alphabet="aA0-_+/=. \n", max_size=2))
    wrong = bookmark[:at] + more + bookmark[at + cut :]
    assume(wrong != bookmark)
    with pytest.raises(exc.InvalidBookmarkError):
        seal.unseal(wrong, X)


@pytest.mark.parametrize("seal", SEALS)
@given(wrong=st.text() | st.binary() | st.none() | st.integers() | st.booleans())
def test_anything_else(seal, wrong):
    with pytest.raises(exc.InvalidBookmarkError) as caught:
        seal.unseal(wrong, X)
    assert caught.value.bookmark == wrong
    assert "first page" in str(caught.value)


@pytest.mark.parametrize("seal", SEALS)
@given(raw=st.binary(max_size=60))
def test_random_bytes(seal, raw):
    for version in (b"", b"\x01", b"\x02", b"\x03"):
        wrong = base64.urlsafe_b64encode(version + raw).rstrip(b"=").decode()
        with pytest.raises(exc.InvalidBookmarkError):
            seal.unseal(wrong, X)


@pytest.mark.parametrize(
    "wrong", ["A" * 10**6, 10**5000, ["A"] * 10**6], ids=lambda x: "long"
)
def test_long_ones_are_not_shown_whole(wrong):
    with pytest.raises(exc.InvalidBookmarkError) as caught:
        Seal().unseal(wrong, X)
    assert len(str(caught.value)) < 500


def test_surrogates():
    with pytest.raises(exc.InvalidBookmarkError):
        Seal().unseal("\ud800", X)
    # A value in WHERE may have one.
    subject = Subject("x", ("'\ud800'",))
    assert Seal().unseal(Seal().seal(b"a", subject), subject) == b"a"


def test_keys_are_exchanged_one_after_the_other():
    old, both, new = Seal([OLD_KEY]), Seal([NEW_KEY, OLD_KEY]), Seal([NEW_KEY])
    bookmark = old.seal(b"a", X)
    assert both.unseal(bookmark, X) == b"a"
    assert new.unseal(both.seal(b"a", X), X) == b"a"
    with pytest.raises(exc.InvalidBookmarkError):
        new.unseal(bookmark, X)
    with pytest.raises(exc.InvalidBookmarkError):
        old.unseal(both.seal(b"a", X), X)


def test_a_cluster_with_keys_takes_none_that_anybody_can_make():
    with pytest.raises(exc.InvalidBookmarkError, match="not signed"):
        Seal([OLD_KEY]).unseal(Seal().seal(b"a", X), X)
    with pytest.raises(exc.InvalidBookmarkError, match="has no bookmark_keys"):
        Seal().unseal(Seal([OLD_KEY]).seal(b"a", X), X)


def test_a_bookmark_of_an_earlier_version():
    # As it was given out: by the same statement, sealed without its WHERE.
    for seal in SEALS:
        with pytest.raises(exc.InvalidBookmarkError, match="earlier version"):
            seal.unseal("ATMWNaT1OxMrWzEsMl0", X)


def test_keys_of_the_environment():
    environ = {"KEY": NEW_KEY.decode(), "SHORT": "secret"}
    seal = seal_of(["${KEY}", OLD_KEY], environ)
    assert seal.unseal(SEALS[1].seal(b"a", X), X) == b"a"
    assert SEALS[2].unseal(seal.seal(b"a", X), X) == b"a"
    # One that is no reference is a key.
    same = "no ${KEY}, but a key"
    assert seal_of([same], {}).seal(b"a", X) == (
        seal_of([same.encode()], {}).seal(b"a", X)
    )


@pytest.mark.parametrize(
    ("keys", "index", "message"),
    [
        ("a secret of many characters", None, "pass a list"),
        (b"a secret of many characters", None, "pass a list"),
        ([NEW_KEY, "short secret"], 1, "12 bytes"),
        (["${SHORT}"], 0, "6 bytes"),
        (["${MISSING}"], 0, "MISSING"),
        ([None], 0, "NoneType"),
        ([12345678901234567890], 0, "a int"),
    ],
)
def test_invalid_keys(keys, index, message):
    with pytest.raises(exc.BookmarkKeyError, match=message) as caught:
        seal_of(keys, {"SHORT": "secret"})
    assert caught.value.index == index
    assert "secret of" not in str(caught.value)
    assert "short secret" not in str(caught.value)
    assert "123456" not in str(caught.value)


def test_keys_are_never_shown():
    seal = Seal([OLD_KEY])
    assert repr(seal) == "<Seal with 1 keys>"
