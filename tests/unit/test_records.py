"""Dataclasses as values of a field."""

from __future__ import annotations

import abc
import copy
import dataclasses
import datetime as dt
import functools
import json
import pprint
from dataclasses import dataclass, InitVar
from decimal import Decimal
from typing import Any, ClassVar, Generic, TYPE_CHECKING, TypeVar

import pytest
from hypothesis import given, strategies as st
from tracked import check_links, Listener, repickled

from sqla_shard.exc import BlobValueError, ClassDefinitionError
from sqla_shard.models.field_types import codec_for
from sqla_shard.types.tracking import TrackedDict

if TYPE_CHECKING:
    from nowhere import Unknown  # on purpose: cannot be resolved

ONE = dt.date(2024, 1, 1)


@dataclass
class Place:
    name: str
    opened: dt.date | None = None
    tags: list[str] = dataclasses.field(default_factory=list)
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    cities: ClassVar[list[str]] = []

    def shout(self):
        self.name = self.name.upper()

    @functools.cached_property
    def words(self):
        return self.name.split()


@dataclass
class Comment:
    text: str
    place: Place | None = None
    replies: list[Comment] = dataclasses.field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: str
    days: list[dt.date] = dataclasses.field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class FrozenSlots:
    name: str
    days: list[dt.date] = dataclasses.field(default_factory=list)


@dataclass(slots=True)
class Slots:
    name: str
    days: list[dt.date] = dataclasses.field(default_factory=list)


@dataclass(kw_only=True)
class KeywordOnly:
    name: str
    days: list[dt.date] = dataclasses.field(default_factory=list)


class Base(abc.ABC):
    @abc.abstractmethod
    def shout(self): ...


@dataclass
class Derived(Base):
    name: str
    days: list[dt.date] = dataclasses.field(default_factory=list)

    def shout(self):
        return self.name.upper()


SHAPES = [Frozen, FrozenSlots, Slots, KeywordOnly, Derived]


def field(annotation, name="Pin.field"):
    return codec_for(annotation, field=name)


def decoded(annotation, stored):
    listener = Listener()
    value = field(annotation).decode(stored, on_change=listener)
    return value, listener


# -- a record is like an instance -------------------------------------------


@pytest.mark.parametrize("cls", SHAPES)
def test_records_pass_for_instances(cls):
    value, listener = decoded(cls, {"name": "a", "days": ["2024-01-01"]})
    same = cls(name="a", days=[ONE])
    assert value == same
    assert same == value
    assert repr(value) == repr(same)
    assert value.__class__ is cls
    assert isinstance(value, cls)
    assert dataclasses.is_dataclass(value)
    assert dataclasses.asdict(value) == dataclasses.asdict(same)
    assert dataclasses.astuple(value) == dataclasses.astuple(same)
    assert type(value).__name__ == cls.__name__
    assert type(value).__module__ == cls.__module__
    assert type(value).__doc__ == cls.__doc__
    assert hasattr(value, "__dict__") == hasattr(same, "__dict__")
    other = dataclasses.replace(value, name="b")
    assert type(other) is cls
    assert other == cls(name="b", days=[ONE])
    assert value != other
    assert pprint.pformat(value) == pprint.pformat(same)
    if hasattr(same, "__dict__"):
        assert vars(value) == vars(same)
    assert listener.calls == 0


def test_records_compare_and_hash_as_their_class():
    value, _ = decoded(FrozenSlots, {"name": "a"})
    assert value < FrozenSlots("b")
    with pytest.raises(TypeError, match="unhashable type: 'list'"):
        hash(FrozenSlots("a"))
    with pytest.raises(TypeError, match="unhashable type"):
        hash(value)

    @dataclass(frozen=True)
    class Key:
        name: str

    value, _ = decoded(Key, {"name": "a"})
    assert hash(value) == hash(Key("a"))
    assert value in {Key("a")}


@pytest.mark.parametrize("cls", [*SHAPES, Place])
def test_copies_and_pickles_are_plain_instances(cls):
    stored = {"name": "a", "other": 1}
    value, listener = decoded(cls, stored)
    for again in (
        copy.copy(value),
        copy.deepcopy(value),
        repickled(value),
        dataclasses.replace(value),
    ):
        assert type(again) is cls
        assert again == value
    again = copy.deepcopy(value)
    getattr(again, "days", getattr(again, "tags", None)).append("anything")
    assert listener.calls == 0


def test_copies_have_the_other_attributes():
    value, _ = decoded(Place, {"name": "a b"})
    assert value.words == ["a", "b"]
    value.note = 1
    again = repickled(value)
    assert vars(again) == vars(value)
    assert again.note == 1


# -- changes ----------------------------------------------------------------


def test_records_notify_of_every_change():
    value, listener = decoded(Place, {"name": "a"})
    value.name = "b"
    value.opened = ONE
    value.tags.append("x")
    value.tags = ["y"]
    value.tags += ["z"]
    value.extra["a"] = {"b": []}
    value.extra["a"]["b"].append(1)
    value.shout()
    assert listener.calls == 8
    assert field(Place).encode(value) == {
        "name": "B",
        "opened": "2024-01-01",
        "tags": ["y", "z"],
        "extra": {"a": {"b": [1]}},
    }
    check_links(value)


def test_records_in_records_notify_too():
    stored = {"text": "a", "replies": [{"text": "b", "place": {"name": "c"}}]}
    value, listener = decoded(list[Comment], [stored])
    place = value[0].replies[0].place
    place.tags.append("x")
    value[0].replies.append(Comment("d", Place("e")))
    value[0].replies[1].place.name = "f"
    assert listener.calls == 3
    check_links(value)
    value[0].replies[0].place = None
    listener.calls = 0
    place.name = "no longer part of it"
    assert listener.calls == 0
    value[0].replies[1].place = place
    assert value[0].replies[1].place is place
    place.name = "again"
    assert listener.calls == 2
    assert field(Comment).encode(value[0])["replies"] == [
        {"text": "b", "place": None, "replies": []},
        {
            "text": "d",
            "place": {"name": "again", "opened": None, "tags": ["x"], "extra": {}},
            "replies": [],
        },
    ]


def test_records_are_copied_where_they_come_from_elsewhere():
    one, one_listener = decoded(Comment, {"text": "a", "place": {"name": "b"}})
    two, two_listener = decoded(Comment, {"text": "c"})
    two.place = one.place
    assert two.place is not one.place
    mine = Place("d")
    two.place = mine
    mine.name = "not part of it"
    assert two.place.name == "d"
    one_listener.calls = two_listener.calls = 0
    two.place.name = "e"
    assert (one_listener.calls, two_listener.calls) == (0, 1)


def test_free_nodes_of_another_kind_are_refused():
    value, listener = decoded(Comment, {"text": "a"})
    for node in (
        TrackedDict(name="b"),
        field(Comment).decode({"text": "b"}),
        field(Frozen).decode({"name": "b"}),
    ):
        with pytest.raises(BlobValueError, match="is not a Place"):
            value.place = node
    assert listener.calls == 0


def test_records_of_a_blob_have_free_json_of_their_own():
    @dataclass
    class Notes:
        by_name: dict[str, Any]
        items: list[Any]

    stored = {"by_name": {"b": [[1]]}, "items": [[{"c": []}]]}
    blob = TrackedDict(field=stored)
    blob_listener = blob._on_change = Listener()
    value, listener = decoded(Notes, blob["field"])
    value.by_name["b"][0].append(2)
    value.items[0][0]["c"].append(3)
    assert (listener.calls, blob_listener.calls) == (2, 0)
    assert blob == {"field": stored}
    check_links(value)
    check_links(blob)


def test_a_value_assigned_to_its_place_stays_there():
    value, listener = decoded(Comment, {"text": "a", "place": {"name": "b"}})
    place, replies = value.place, value.replies
    value.place = value.place
    value.replies += []
    assert value.place is place
    assert value.replies is replies
    assert listener.calls == 0
    check_links(value)


@pytest.mark.parametrize(
    ("act", "place", "message"),
    [
        (lambda x: setattr(x, "text", 1), "Pin.field.text", "1 (int) is not"),
        (lambda x: setattr(x, "text", None), "Pin.field.text", "None is not"),
        (
            lambda x: setattr(x, "place", {"name": "a"}),
            "Pin.field.place",
            "{'name': 'a'} (dict) is not a Place",
        ),
        (
            lambda x: setattr(x.place, "opened", "2024-01-01"),
            "Pin.field.place.opened",
            "'2024-01-01' (str) is not a date",
        ),
        (
            lambda x: x.place.tags.append(1),
            "Pin.field.place.tags[0]",
            "1 (int) is not a str",
        ),
        (
            lambda x: x.place.extra.update(a=[b""]),
            'Pin.field.place.extra["a"][0]',
            "b'' (bytes) is not a JSON value",
        ),
        (
            lambda x: x.replies.append(Comment("a", Place(5))),
            "Pin.field.replies[0].place.name",
            "5 (int) is not a str",
        ),
        (lambda x: x.replies.append(x), "Pin.field.replies[0]", "contains itself"),
        (
            lambda x: x.replies.append(Comment("a", replies=[x])),
            "Pin.field.replies[0].replies[0]",
            "contains itself",
        ),
    ],
)
def test_records_refuse_before_they_change(act, place, message):
    stored = {"text": "a", "place": {"name": "b"}}
    value, listener = decoded(Comment, stored)
    before = copy.deepcopy(value)
    with pytest.raises(BlobValueError) as caught:
        act(value)
    assert caught.value.field == place
    assert message in str(caught.value)
    assert value == before
    assert listener.calls == 0
    check_links(value)


def test_fields_cannot_be_deleted():
    value, listener = decoded(Place, {"name": "a"})
    with pytest.raises(AttributeError, match=r"Pin\.field\.name cannot be de"):
        del value.name
    value.note = 1
    del value.note
    with pytest.raises(AttributeError):
        del value.note
    assert listener.calls == 0


@pytest.mark.parametrize("cls", [Frozen, FrozenSlots])
def test_frozen_records_stay_frozen_but_what_is_in_them_can_change(cls):
    value, listener = decoded(cls, {"name": "a"})
    for name in ("name", "days", "other"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 1)
        with pytest.raises(dataclasses.FrozenInstanceError):
            delattr(value, name)
    assert listener.calls == 0
    value.days.append(ONE)
    assert listener.calls == 1
    assert field(cls).encode(value) == {"name": "a", "days": ["2024-01-01"]}


def test_slots_records_have_no_other_attributes():
    value, _ = decoded(Slots, {"name": "a"})
    with pytest.raises(AttributeError):
        value.other = 1


def test_a_setter_of_the_class_is_called():
    @dataclass
    class Guarded:
        size: int
        shelf: list[int] = dataclasses.field(default_factory=list)

        def __setattr__(self, name, value):
            if name == "size" and value < 0:
                raise RuntimeError("negative")
            if name == "shelf" and len(value) > 2:
                raise RuntimeError("full")
            super().__setattr__(name, value)

    value, listener = decoded(Guarded, {"size": 1, "shelf": [1]})
    shelf = value.shelf
    with pytest.raises(RuntimeError, match="negative"):
        value.size = -1
    with pytest.raises(RuntimeError, match="full"):
        value.shelf = [1, 2, 3]
    assert value.shelf is shelf
    assert listener.calls == 0
    value.shelf.append(2)
    assert listener.calls == 1
    value.shelf = [5]
    shelf.append(3)
    with pytest.raises(RuntimeError, match="full"):
        value.shelf = shelf
    listener.calls = 0
    shelf.append(4)
    assert listener.calls == 0
    assert value.shelf == [5]


# -- classes that have changed ----------------------------------------------


def test_missing_keys_take_the_defaults():
    value, listener = decoded(Place, {"name": "a"})
    assert value == Place("a")
    value.tags.append("x")
    assert listener.calls == 1
    assert Place("b").tags == []


def test_missing_keys_without_a_default_are_refused():
    with pytest.raises(BlobValueError) as caught:
        decoded(list[Place], [{"tags": []}])
    assert caught.value.field == "Pin.field[0].name"
    assert "the stored JSON has no 'name'" in str(caught.value)
    assert "Give it one in the class" in str(caught.value)


@pytest.mark.parametrize("cls", [*SHAPES, Place])
def test_unknown_keys_are_preserved(cls):
    codec = field(list[cls])
    stored = [{"name": "a", "new": {"x": [1]}, "_owner": 1}]
    value = codec.decode(copy.deepcopy(stored))
    again = codec.encode(value)
    assert {k: again[0][k] for k in stored[0]} == stored[0]
    assert value[0] == cls(name="a")
    value.append(value.pop())  # still the same record
    assert codec.encode(value)[0]["new"] == {"x": [1]}
    value.append(value[0])  # a copy of it
    assert codec.encode(value)[1]["new"] == {"x": [1]}
    assert "new" not in repr(value)


def test_unknown_keys_are_those_of_the_record():
    codec = field(Frozen)
    value = codec.decode({"name": "a", "new": 1})
    for other in (dataclasses.replace(value, name="b"), copy.copy(value)):
        assert "new" not in codec.encode(other)
    blob = TrackedDict(field={"name": "a", "new": [1]})
    value = codec.decode(blob["field"])
    blob["field"]["new"].append(2)
    assert codec.encode(value)["new"] == [1]
    codec.encode(value)["new"].append(3)
    assert codec.encode(value)["new"] == [1]


@pytest.mark.parametrize(
    ("stored", "place"),
    [
        ([], "Pin.field"),
        ("a", "Pin.field"),
        (None, "Pin.field"),
        ({"name": 1}, "Pin.field.name"),
        ({"name": "a", "tags": ["b", 2]}, "Pin.field.tags[1]"),
        ({"name": "a", "opened": "x"}, "Pin.field.opened"),
    ],
)
def test_stored_records_that_do_not_fit(stored, place):
    with pytest.raises(BlobValueError, match="does not fit") as caught:
        decoded(Place, stored)
    assert caught.value.field == place


# -- __init__ and __post_init__ ---------------------------------------------


@dataclass
class Normalised:
    name: str
    tags: list[str] = dataclasses.field(default_factory=list)
    parent: Place | None = None

    def __post_init__(self):
        self.name = self.name.strip()
        self.tags = sorted(self.tags)
        self.seen = [self.name]
        if self.name == "!":
            raise ValueError("not a name")
        if self.name == "?":
            self.tags = [1]


def test_post_init_runs_and_what_it_makes_is_tracked():
    value, listener = decoded(Normalised, {"name": " a ", "tags": ["b", "a"]})
    assert value == Normalised("a", ["a", "b"])
    assert value.seen == ["a"]
    assert listener.calls == 0
    value.tags.append("c")
    assert listener.calls == 1
    check_links(value)


def test_values_refused_by_post_init_are_refused():
    with pytest.raises(BlobValueError) as caught:
        decoded(list[Normalised], [{"name": "!"}])
    assert str(caught.value) == (
        "Pin.field[0]: Normalised rejected the stored values: not a name"
    )
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(BlobValueError) as caught:
        decoded(Normalised, {"name": "?"})
    assert caught.value.field == "Pin.field.tags[0]"


def test_subclasses_are_not_registered_as_the_users():
    class Registered:
        known: ClassVar[list[type]] = []

        def __init_subclass__(cls, required=0, **kw):
            cls.known.append(cls)

    @dataclass
    class One(Registered):
        name: str

    value, _ = decoded(One, {"name": "a"})
    assert value == One("a")
    assert Registered.known == [One]


def test_one_subclass_for_all_fields():
    one, _ = decoded(Place, {"name": "a"})
    two, _ = decoded(list[Place], [{"name": "a"}])
    assert type(one) is type(two[0])
    assert one == two[0]


# -- classes that are refused -----------------------------------------------

T = TypeVar("T")


@dataclass
class WithInitVar:
    name: str
    salt: InitVar[str] = ""


@dataclass
class WithoutInit:
    name: str
    length: int = dataclasses.field(init=False, default=0)


@dataclass
class OwnInit:
    name: str

    def __init__(self):
        self.name = "a"


@dataclass
class OtherInit:
    name: str

    def __init__(self, name, salt):
        self.name = name


@dataclass
class OwnNew:
    name: str

    def __new__(cls, *args, **kw):
        return super().__new__(cls)


@dataclass
class Unresolved:
    name: Unknown


@dataclass
class Clashing:
    _owner: str


@dataclass
class ClashingMethod:
    name: str

    def _changed(self):
        pass


@dataclass
class BadDefault:
    name: str = None


@dataclass
class BadNested:
    place: Clashing | None = None


@dataclass
class Union:
    name: int | str


@dataclass
class Box(Generic[T]):
    item: T


@dataclass
class Number(int):
    name: str = ""


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (WithInitVar, "WithInitVar.__init__ takes 'salt', which is not a fi"),
        (WithoutInit, "WithoutInit.length is not a parameter of __init__"),
        (OwnInit, "OwnInit.__init__ does not take the field 'name'"),
        (OtherInit, "OtherInit.__init__ takes 'salt', which is not a field"),
        (OwnNew, "OwnNew defines __new__"),
        (Unresolved, "the annotations of Unresolved cannot be resolved: nam"),
        (Clashing, "Clashing._owner is a name that tracked records use"),
        (ClashingMethod, "ClashingMethod._changed is a name that tracked"),
        (BadDefault, "default of BadDefault.name: None is not a str"),
        (BadNested, "Clashing._owner is a name that tracked records use"),
        (Union, "int | str (of Union.name) cannot be stored in a JSON blob"),
        (Box, "~T (of Box.item) cannot be stored in a JSON blob"),
        (Box[int], "Box[int] cannot be stored in a JSON blob"),
        (Number, "Number defines __new__"),
    ],
)
def test_classes_that_are_refused(cls, message):
    for annotation in (cls, list[cls]):
        with pytest.raises(ClassDefinitionError) as caught:
            field(annotation)
        assert str(caught.value).startswith("class Pin: field 'field': ")
        assert message in str(caught.value)
        assert caught.value.class_name == "Pin"


def test_layouts_that_cannot_be_combined_are_refused():
    class Meta(type):
        def __new__(mcs, name, bases, namespace):
            if len(bases) > 1:
                raise TypeError("one base only")
            return super().__new__(mcs, name, bases, namespace)

    odd = dataclass(Meta("Odd", (), {"__annotations__": {"name": str}}))
    with pytest.raises(ClassDefinitionError, match="one base only"):
        field(odd)


def test_a_class_inside_a_function_may_name_itself():
    @dataclass
    class Tree:
        name: str
        children: list[Tree] = dataclasses.field(default_factory=list)

    value, listener = decoded(
        Tree, {"name": "a", "children": [{"name": "b", "children": []}]}
    )
    value.children[0].children.append(Tree("c"))
    assert listener.calls == 1


# -- values -----------------------------------------------------------------


@dataclass
class Special(Place):
    level: int = 0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "None is not a Place. Annotate it as Place | None"),
        ({"name": "a"}, "{'name': 'a'} (dict) is not a Place"),
        (Place, "(type) is not a Place"),
        (Special("a"), "is of a subclass of Place, and would be read back"),
    ],
)
def test_values_that_are_refused(value, message):
    with pytest.raises(BlobValueError) as caught:
        field(Place).encode(value)
    assert caught.value.field == "Pin.field"
    assert message in str(caught.value)


def test_an_instance_that_has_lost_a_field():
    place = Place("a")
    del place.name
    with pytest.raises(BlobValueError, match=r"^Pin\.field\.name: "):
        field(Place).encode(place)


def test_instances_inside_themselves_are_refused():
    loop = Comment("a")
    loop.replies.append(Comment("b", replies=[loop]))
    with pytest.raises(BlobValueError) as caught:
        field(Comment).encode(loop)
    assert caught.value.field == "Pin.field.replies[0].replies[0]"
    deep = Comment("a")
    for _ in range(10_000):
        deep = Comment("a", replies=[deep])
    with pytest.raises(BlobValueError, match="levels of nesting"):
        field(Comment).encode(deep)


def test_optional_and_nested_annotations():
    codec = field(dict[str, Place | None] | None)
    assert codec.encode(None) is None
    value, listener = decoded(
        dict[str, Place | None] | None, {"a": None, "b": {"name": "x"}}
    )
    value["a"] = Place("y")
    value["a"].name = "z"
    assert listener.calls == 2
    assert value["a"] == Place("z")


places = st.builds(
    Place,
    name=st.text(st.characters(codec="utf-8")),
    opened=st.none() | st.dates(),
    tags=st.lists(st.text(st.characters(codec="utf-8"), max_size=3)),
    extra=st.dictionaries(st.sampled_from("ab"), st.none() | st.lists(st.booleans())),
)
comments = st.recursive(
    st.builds(Comment, st.just("a"), st.none() | places),
    lambda inner: st.builds(
        Comment, st.just("b"), st.none(), st.lists(inner, max_size=3)
    ),
    max_leaves=6,
)


@given(comments)
def test_round_trips(value):
    codec = field(Comment)
    stored = json.loads(json.dumps(codec.encode(value)))
    again = codec.decode(stored)
    assert again == value
    assert codec.encode(again) == stored
    assert copy.deepcopy(again) == value
    check_links(again)


@dataclass
class Money:
    amount: Decimal
    at: list[dt.datetime] = dataclasses.field(default_factory=list)


@given(st.lists(st.decimals(allow_nan=False, allow_infinity=False)))
def test_changes_are_stored(amounts):
    codec = field(list[Money])
    blob = TrackedDict(field=[])

    def store():
        blob["field"] = codec.encode(value)

    value = codec.decode(blob["field"], on_change=store)
    for amount in amounts:
        value.append(Money(Decimal(0)))
        value[-1].amount = amount
        value[0].at.append(dt.datetime(2024, 1, 1, tzinfo=dt.UTC))
        assert codec.decode(json.loads(json.dumps(blob))["field"]) == value
    assert [money.amount for money in value] == amounts
