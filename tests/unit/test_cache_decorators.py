"""Decorators for functions whose results are cached, as they are written."""

from __future__ import annotations

import gc
import inspect

import pytest

from sqla_shard import exc
from sqla_shard.cache import cached_list, cached_objects
from tests.models.mapping_models import BoardHasPins, User, UserFollowsUser


def many(session, ids):
    """Describe the function."""
    return {}


def page(session, one, offset=0, limit=50):
    return []


async def awaited(session, ids):
    return []


def objects(function=many, format="d:%d", **options):  # noqa: A002
    return cached_objects("values", format=format, **options)(function)


def a_list(function=page, format="d:%d", **options):  # noqa: A002
    return cached_list("values", format=format, **options)(function)


def test_it_looks_like_the_function():
    cached = objects()
    assert cached.__name__ == "many"
    assert cached.__doc__ == "Describe the function."
    assert cached.__wrapped__ is many
    assert str(inspect.signature(cached)) == "(session, ids)"
    assert not inspect.iscoroutinefunction(cached)
    assert inspect.iscoroutinefunction(objects(awaited, "d:awaited:%d"))


@pytest.mark.parametrize(
    "format_",
    [
        "user",
        "user:%d:%d",
        "user:%s:%d",
        "user:%x",
        "user:%5d",
        "user:%d%%",
        "user %d",
        "usér:%d",
        "user:%d\n",
        "",
        "x" * 99 + "%d",
        None,
        b"user:%d",
    ],
)
@pytest.mark.parametrize("decorate", [objects, a_list])
def test_invalid_formats(decorate, format_):
    with pytest.raises(exc.OptionError, match="is not a valid format of keys"):
        decorate(format=format_)


@pytest.mark.parametrize("format_", ["%d", "%s:user", "x" * 98 + "%s"])
def test_formats(format_):
    assert objects(format=format_)


def test_two_functions_with_one_format():
    first = objects()
    with pytest.raises(exc.OptionError, match=r"format of .*many\(\)"):
        a_list()
    # Made by a function that was called twice, say.
    with pytest.raises(exc.OptionError, match="once, at the top"):
        objects()
    del first
    gc.collect()
    assert a_list()


def test_a_module_that_is_loaded_anew():
    source = "def f(session, ids): return []"
    made = []
    for version in (1, 2):
        names = {"__name__": "a.module"}
        exec(compile(source, "module.py", "exec"), names)  # noqa: S102
        made.append(objects(names["f"], version=version))
    assert len(made) == 2


def test_options():
    for option, value in (
        ("version", "1"),
        ("version", True),
        ("expire", 0),
        ("expire", 1.5),
        ("rows", 0),
        ("rows", 10_001),
    ):
        with pytest.raises(exc.OptionError, match=f"^{option}="):
            a_list(**{option: value})
    with pytest.raises(exc.OptionError, match="must be the name of a region"):
        cached_objects(many, format="d:%d")(many)


def test_classes():
    class Plain:
        pass

    for cls in (User, BoardHasPins, UserFollowsUser):
        assert objects(of=cls)
    with pytest.raises(exc.CacheClassError, match="Plain"):
        objects(of=Plain)
    with pytest.raises(exc.OptionError, match="ids of User, which are"):
        objects(of=User, format="d:%s")


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda session: 0, id="one"),
        pytest.param(lambda self, session, ids: 0, id="method"),
        pytest.param(lambda session, *ids: 0, id="star"),
        pytest.param(lambda session, *, ids: 0, id="keyword"),
        pytest.param(page, id="page"),
    ],
)
def test_functions_with_other_parameters(function):
    with pytest.raises(exc.CachedFunctionError, match="a session and ids"):
        objects(function)


def test_invalid_functions():
    for other in (classmethod(many), staticmethod(many), User):
        with pytest.raises(exc.CachedFunctionError, match="decorate a funct"):
            objects(other)
    with pytest.raises(exc.CachedFunctionError, match="an offset and a lim"):
        a_list(many)


def test_invalid_sessions():
    with pytest.raises(TypeError, match="neither a ShardSession"):
        objects()(object(), [1])
    with pytest.raises(TypeError, match="neither a ShardSession"):
        objects(format="d:2:%d").invalidate(None, [1])
