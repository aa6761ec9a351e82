"""Normalization policies."""

from __future__ import annotations

import random
import sys
import unicodedata
from typing import Any

import pytest
from hypothesis import assume, example, given, strategies as st

from sqla_shard.exc import InvalidKeyError
from sqla_shard.models import Normalization, normalization
from sqla_shard.models.lookup_table import shard_of

POLICIES = [normalization.exact, normalization.casefold, normalization.email]
# Characters that fold, compose and decompose in odd ways, more often.
ODD = "Hhẖ\u0331ſsßẞıİi\u0307K\u212aÅ\u212b\u0345\u03b1ᾳᾼΣσςﬁǰ\u030c \u2000\u00a0@"
texts = st.text(
    st.one_of(st.sampled_from(ODD), st.characters(exclude_categories=("Cs", "Cn"))),
    min_size=1,
    max_size=40,
)


def made(policy: Normalization, key: str) -> str:
    try:
        return policy(key)
    except InvalidKeyError:
        assume(False)
        raise


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@given(key=texts)
@example(key="H\u0331@x")
@example(key="\u0345\u0301")
@example(key=" \u0301a")
def test_a_normalised_key_stays_as_it_is(policy: Any, key: str) -> None:
    if policy is normalization.email:
        key = f"{key}@{key[::-1]}"
    once = made(policy, key)
    assert policy(once) == once
    assert unicodedata.is_normalized("NFC", once) or (policy is normalization.exact)


@pytest.mark.parametrize("policy", POLICIES[1:], ids=repr)
@given(key=texts, modulus=st.integers(1, 65_536))
def test_equal_keys_are_on_one_shard(policy: Any, key: str, modulus: int) -> None:
    key = f"{key}@x.org"
    spellings = [
        unicodedata.normalize("NFC", key),
        unicodedata.normalize("NFD", key),
        f"  {key}\n",
    ]
    found = {made(policy, one).encode() for one in [key, *spellings]}
    (only,) = found
    assert 0 <= shard_of(only, modulus) < modulus


@given(key=texts)
def test_case_does_not_count(key: str) -> None:
    folded = made(normalization.casefold, key)
    # Marks in canonical order, as Unicode 3.13 (D145) has it: casefold() makes
    # a letter of U+0345, which no mark can pass then.
    decomposed = unicodedata.normalize("NFD", key)
    assert normalization.casefold(decomposed.casefold()) == folded


@pytest.fixture
def numbers(request: pytest.FixtureRequest, rng: random.Random) -> range:
    """Return those of all characters; of an eighth before ``make all``."""
    step = 1 if request.config.getoption("--tier") == "all" else 8
    return range(rng.randrange(step), sys.maxunicode + 1, step)


def test_each_character_alone(numbers: range) -> None:
    for character in map(chr, numbers):
        if unicodedata.category(character) in ("Cn", "Cs"):
            continue
        for policy, key in (
            (normalization.casefold, f"x{character}y"),
            (normalization.email, f"x{character}y@z"),
        ):
            try:
                once = policy(key)
            except InvalidKeyError:
                assert policy is normalization.email, hex(ord(character))
                continue
            assert policy(once) == once, hex(ord(character))


def test_exact_takes_every_character(numbers: range) -> None:
    for number in numbers:
        if not 0xD800 <= number < 0xE000:
            assert normalization.exact(chr(number)) == chr(number)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("Me@Example.COM", "me@example.com"),
        (" me@x.org\n", "me@x.org"),
        ('"odd@local"@x.org', '"odd@local"@x.org'),
        # No rules of providers.
        ("first.last+tag@gmail.com", "first.last+tag@gmail.com"),
        # No other letters than A to Z.
        ("É@x.org", "É@x.org"),
        ("E\u0301@x.org", "É@x.org"),
        ("straße@x.org", "straße@x.org"),
        ("\u0131@x.org", "\u0131@x.org"),
        ("bücher@BÜCHER.example", "bücher@bÜcher.example"),
    ],
)
def test_email(key: str, expected: str) -> None:
    assert normalization.email(key) == expected


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (" Straße ", "strasse"),
        ("ÉCOLE", "école"),
        ("\u212a", "k"),
        ("ΣΊΣΥΦΟΣ", "σίσυφοσ"),
        ("a b", "a b"),
    ],
)
def test_casefold(key: str, expected: str) -> None:
    assert normalization.casefold(key) == expected


def test_characters_that_are_not_there_yet() -> None:
    for key in ("\u0378", "\ufdd0", "\U0010ffff"):
        assert normalization.exact(key) == key
        with pytest.raises(InvalidKeyError, match="not assigned in Unicode"):
            normalization.casefold(key)
        with pytest.raises(InvalidKeyError, match="not assigned in Unicode"):
            normalization.email(f"{key}@x.org")


@pytest.mark.parametrize(
    ("key", "modulus", "expected"),
    [(b"a", 4096, 1633), (b"a", 1, 0), ("é".encode(), 4096, 1903)],
)
def test_shards_stay_where_they_are(key: bytes, modulus: int, expected: int) -> None:
    # The last digits of what md5sum prints; another answer loses every key.
    assert shard_of(key, modulus) == expected


@pytest.mark.parametrize("name", ["", "A", "1a", "a/b", "a" * 31, "é"])
def test_names_that_cannot_be(name: str) -> None:
    with pytest.raises(ValueError, match="name="):
        Normalization(name=name, version=1, function=str)


@pytest.mark.parametrize("version", [0, -1, "1", True, 1.0, 100_000])
def test_versions_that_cannot_be(version: Any) -> None:
    with pytest.raises(ValueError, match="version="):
        Normalization(name="a", version=version, function=str)


def test_the_longest_label_fits() -> None:
    policy = Normalization(name="a" * 30, version=99_999, function=str)
    assert len(policy.label) <= normalization.LONGEST_LABEL
    assert repr(policy) == f"<Normalization {'a' * 30}/99999>"


def test_a_policy_of_ones_own() -> None:
    def digits(number: str) -> str:
        if "x" in number:
            raise ValueError("it has an extension")
        return "".join(c for c in number if c in "0123456789")

    phone = Normalization(name="phone", version=1, function=digits)
    assert phone("+49 (0)30") == "49030"
    with pytest.raises(InvalidKeyError, match="it has an extension") as caught:
        phone("1x2")
    assert caught.value.key == "1x2"
    with pytest.raises(InvalidKeyError, match="is empty after"):
        phone("-")
    wrong: Any = Normalization(name="b", version=1, function=len)  # type: ignore[arg-type]  # to be refused
    with pytest.raises(TypeError, match="must return a str, not 1 for 'x'"):
        wrong("x")
