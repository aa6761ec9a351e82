"""The check of ``make lint`` for imports of names that have moved."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests.imports import missing


@pytest.fixture
def root(tmp_path: Path) -> Path:
    models = tmp_path / "tests" / "models"
    models.mkdir(parents=True)
    (models / "users.py").write_text(
        "try:\n"
        "    from json import dumps as encode\n"
        "except ImportError:\n"
        "    encode = None\n"
        "A, (B, *C) = 1, (2, 3)\n"
        "for one in A: pass\n"
        "class User:\n"
        "    name = ''\n"
        "def load():\n"
        "    local = 1\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from sqla_shard import Cluster", None),
        ("from sqla_shard import cluster", None),
        ("from sqla_shard.engine.lanes import LaneTask", None),
        ("import sqla_shard.engine.lanes", None),
        ("from tests import models", None),
        ("from tests.models import users", None),
        ("from .models.users import User", None),
        ("from nowhere import Name", None),
        *(
            (f"from tests.models.users import {name}", None)
            for name in ("encode", "A", "B", "C", "one", "User", "load")
        ),
        ("from sqla_shard import Clusters", "no Clusters of sqla_shard"),
        ("from sqla_shard.cluster import Lanes", "no Lanes of sqla_shard.cluster"),
        ("from sqla_shard.moved.here import X", "no X of sqla_shard.moved.here"),
        ("import sqla_shard.moved", "no sqla_shard.moved"),
        ("from tests.models import posts", "no posts of tests.models"),
        ("from tests.posts import Post", "no Post of tests.posts"),
        ("from .models.users import Post", "no Post of tests.models.users"),
        ("from .models.users import User, A as a, load", None),
        ("from .models.users import (\n  User,  # a, b\n  B as b,\n)", None),
        ("from .models.users import User, Post", "no Post of tests.models.users"),
        *(
            (
                f"from tests.models.users import {name}",
                f"no {name} of tests.models.users",
            )
            for name in ("dumps", "name", "local")
        ),
    ],
)
def test_a_name(root: Path, line: str, expected: str | None) -> None:
    path = root / "tests" / "test_users.py"
    path.write_text(f"def test():\n    {line}\n")
    found = list(missing(root, path))
    assert found == ([] if expected is None else [f"tests/test_users.py:2: {expected}"])


def test_the_error_of_a_module_is_not_hidden(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that a module needs is not the module that an import names."""

    def fail(name: str) -> None:
        raise ModuleNotFoundError("No module named 'kazoo'", name="kazoo")

    monkeypatch.setattr(importlib, "import_module", fail)
    path = root / "tests" / "test_users.py"
    path.write_text("import sqla_shard.uncached\n")
    with pytest.raises(ModuleNotFoundError, match="kazoo"):
        list(missing(root, path))
