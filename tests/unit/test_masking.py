"""No secret of a URL or a setting is shown, on whatever way it comes."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from sqla_shard import Cluster, exc, FileSource, Topology
from sqla_shard.topology import describe, diff, read_document
from sqla_shard.topology.follow import load_location
from sqla_shard.topology.urls import OPTIONS
from sqla_shard.util.masking import HARMLESS, masked, redact
from tests.servers.command_line import invoke

SECRET = "hunter2"

#: Texts with a secret in them, where a URL or a name is expected.
TEXTS = [
    "mysql://app:hunter2@h",
    "mysql://app:hunter2@h:3306/db",
    "mysql://app:hunter2",
    "mysql://app:hun/hunter2",
    "mysql://app:x?hunter2@h",
    "mysql://app:x@hunter2@h",
    "mysql://h?auth_key=hunter2",
    "mysql://h?p%61ssword=hunter2",
    "mysql://h?ssl_ca=/ca&Secret=hunter2",
    "mysql://h?ssl_ca=/ca?password=hunter2",
    "mysql://h?ssl_ca=/ca;password=hunter2",
    "mysql://h?hunter2",
    "mysql://h?ssl_key_password=hunter2",
    "sqlite://app:hunter2@/data",
    "redis://:hunter2@h:6379/0",
    "redis://h?password=hunter2",
    "zookeeper://me:hunter2?x@zk",
    "zookeeper://me:hunter2@zk:2181/prod",
    "zookeeper://me:hunter2",
    "zookeeper+tls://zk/prod?auth_key=hunter2",
    "me:hunter2@h",
    "postgresql://app:hunter2@h",
]


def document(primary: object = "mysql://h", **keys: object) -> dict[str, Any]:
    keyspace = {
        "kind": "global",
        "database": "main",
        "servers": [{"name": "a", "primary": primary}],
        **keys,
    }
    return {"epoch": 1, "keyspaces": {"main": keyspace}}


def failure(action: Callable[[], object]) -> str:
    """Return all that an error shows, or the result's repr()."""
    try:
        return repr(action())
    except (exc.ShardError, ValueError, OSError) as error:
        # The chain, too; not the lines of code, which name the tests.
        return "".join(f"{one!r} {one}" for one in _chain(error)) + "".join(
            traceback.format_exception_only(error)
        )


def _chain(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def read(values: object) -> object:
    return read_document(json.dumps(values).encode(), "json", source="test")


#: Functions that take a text, and display a part of it.
SURFACES: dict[str, Callable[[str], object]] = {
    "redact": redact,
    "masked": masked,
    "in a list": lambda text: masked([text]),
    "in a mapping": lambda text: masked({"url": text}),
    "primary": lambda text: read(document(text)),
    "standby": lambda text: read(
        document(servers=[{"name": "a", "primary": "mysql://h", "standby": text}])
    ),
    "server": lambda text: read(
        document(servers=2 * [{"name": text, "primary": "mysql://h"}])
    ),
    "database": lambda text: read(document(database=text)),
    "template": lambda text: read(
        document(
            kind="objects",
            shards=1,
            database=text,
            servers=[{"name": "a", "primary": "mysql://h", "shards": [0, 0]}],
        )
    ),
    "kind": lambda text: read(document(kind=text)),
    "weight": lambda text: read(
        document(servers=[{"name": "a", "primary": "mysql://h", "weight": text}])
    ),
    "epoch": lambda text: read({**document(), "epoch": text}),
    "key": lambda text: read(document(**{text: 1})),
    "keyspace": lambda text: read({"epoch": 1, "keyspaces": {text: {}}}),
    "two keys": lambda text: read_document(
        f"{{{json.dumps(text)}: 1, {json.dumps(text)}: 2}}".encode(),
        "json",
        source="test",
    ),
    "toml": lambda text: read_document(f"x = {text}".encode(), "toml", source="test"),
    "short": lambda text: read({"a": {"range": [0, 1], "master": text}}),
    "short name": lambda text: read({text: {"range": [0, 1], "master": "h"}}),
    "url": lambda text: Topology.from_mapping(document(), url=text),
    "file": lambda text: FileSource(text),
    "location": lambda text: load_location(text, environ={}),
    "hosts": lambda text: Cluster.from_zookeeper(text.partition("://")[2]),
}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("surface", SURFACES)
def test_errors_show_no_secret(surface: str, text: str) -> None:
    found = failure(lambda: SURFACES[surface](text))
    assert found
    assert SECRET not in found


@pytest.mark.parametrize("text", TEXTS)
def test_masked_text_is_masked_to_itself(text: str) -> None:
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize(
    "command",
    [
        ["-t", "{}", "topology", "show"],
        ["topology", "validate", "{}"],
        ["topology", "diff", "{}", "{}"],
        ["-t", "{}", "topology", "push", "topology.toml"],
        ["topology", "push", "topology.toml", "--to", "{}"],
        ["-t", "{}", "topology", "history"],
        ["-t", "{}", "fleet", "status"],
    ],
    ids=lambda command: " ".join(command),
)
def test_commands_show_no_secret(command: list[str], text: str) -> None:
    result = invoke(*(part.format(text) for part in command))
    assert result.exit_code
    assert SECRET not in result.output


def test_a_topology_shows_no_secret(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "topology.json"

    def write(epoch: int, secret: str) -> Topology:
        values = document(f"mysql://app:{secret}@h{epoch}")
        values["epoch"] = epoch
        path.write_text(json.dumps(values))
        return FileSource(path).load()

    caplog.set_level(logging.DEBUG)
    old = write(1, SECRET)
    with Cluster.from_topology(old) as cluster:
        new = write(2, f"{SECRET}x")
        cluster.update_topology(new)
        texts = [
            repr(old),
            repr(old.keyspaces),
            describe(old),
            str(diff(old, new)),
            repr(diff(old, new)),
            json.dumps(diff(old, new).as_dict()),
            repr(cluster),
            repr(cluster.health()),
            repr(cluster.stats()),
            caplog.text,
        ]
    for text in texts:
        assert SECRET not in text
    assert "h2" in repr(diff(old, new))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("redis://:hunter2@h", "'redis://:***@h'"),
        ({"url": "redis://h", "password": "hunter2"}, "{'url': ***, 'password': ***}"),
        (["a:1", "me:hunter2@b"], "['a:1', 'me:***@b']"),
        ("x" * 200, f"'{'x' * 76}..."),
        (5, "5"),
        (None, "None"),
        (object(), "<object>"),
    ],
)
def test_values(value: object, text: str) -> None:
    assert masked(value) == text
    assert text in str(exc.OptionError("is wrong", option="x", value=value))


@pytest.mark.parametrize(
    "arguments",
    [
        {"url": "redis://app:hunter2"},
        {"url": "redis://:hunter2@h?db=hunter2"},
        {"url": "http://:hunter2@h"},
        {"urls": "redis://:hunter2@h"},
        {"passwort": "hunter2"},
        {"port": "redis://:hunter2@h"},
        "redis://:hunter2@h",
    ],
)
def test_settings_of_a_cache_show_no_secret(arguments: object) -> None:
    pytest.importorskip("redis")
    values = {"backend": "dogpile.cache.redis", "arguments": arguments}
    with Cluster.from_topology(document()) as cluster:
        found = failure(
            lambda: cluster.configure_cache(
                regions={"r": values}, classes={}, prefix="x"
            )
        )
    assert SECRET not in found
    assert "OptionError" in found


def test_options_of_urls_are_no_secrets() -> None:
    for allowed in OPTIONS.values():
        assert allowed.keys() <= HARMLESS


@pytest.mark.parametrize(
    "part", ["?a", "&p=x", ":@", "://", "@", "[", ",", "/", "${A}", "pass"]
)
@pytest.mark.parametrize("begin", ["", "mysql://h?", "mysql://"])
def test_the_time_grows_with_the_length(begin: str, part: str) -> None:
    # By the square of the length it would be hours.
    text = begin + part * 200_000
    begun = process_time()
    assert redact(redact(text)) == redact(text)
    assert len(masked(text)) <= 80
    assert process_time() - begun < 30
