"""Colours and YAML of sqla-shard's output."""

from __future__ import annotations

import json

import pytest

from sqla_shard.cli.output import coloured, yaml_lines
from tests.servers.command_line import invoke, on_a_terminal

RED, YELLOW, GREEN = "\x1b[31m", "\x1b[33m", "\x1b[32m"


@pytest.mark.parametrize(
    ("line", "colour", "head"),
    [
        ("sqla-shard: error: no such file", RED, "sqla-shard: error"),
        ("critical: server1 primary: is lost", RED, "critical"),
        ("server2 unreachable (2003): 32 shards", RED, "server2 unreachable"),
        ("  32 server not reached: 32-63", RED, "  32 server not reached"),
        ("warning: shards move", YELLOW, "warning"),
        ("unknown: 3 servers", YELLOW, "unknown"),
        ("    - KEY `a` (`a`)", RED, "    -"),
        ("    + KEY `b` (`b`)", GREEN, "    +"),
    ],
)
def test_the_beginning_of_a_line_is_coloured(line, colour, head):
    shown = coloured(line)
    assert shown.startswith(f"{colour}\x1b[1m{head}")


def test_both_sides_of_a_change_are_coloured():
    assert coloured("epoch 1 -> 2").count("\x1b[0m") == 2


@pytest.mark.parametrize(
    "line", ["351912440365063: shard 5", "64 changed: 0-63", "failed jobs", ""]
)
def test_other_lines_are_not(line):
    assert coloured(line) == line


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        ({}, ["{}"]),
        ([], ["[]"]),
        ({"a": [], "b": {}}, ["a: []", "b: {}"]),
        (
            [{"a": 1, "b": [None, True]}, [["x"]], 1.5],
            ["- a: 1", "  b:", "    - null", "    - true", "- - - x", "- 1.5"],
        ),
        ([1e-05, 1e16, 2.5], ["- 1.0e-05", "- 1.0e+16", "- 2.5"]),
        ({"no": "yes", "on/off": "0x1F"}, ['"no": "yes"', 'on/off: "0x1F"']),
        (["2026-03-01", "", "~", "a: b", "- a", "Ünï"], None),
        (["\x1b[31m", "\x7f\u2028\ud800", "😀"], None),
    ],
)
def test_yaml(value, lines):
    found = list(yaml_lines(value))
    if lines is None:
        # Quoted as in JSON, on one line each.
        lines = found
        assert [json.loads(line[2:]) for line in found] == value
        assert all(line.isprintable() for line in found)
    assert found == lines


def test_json_and_yaml_are_formats_of_one_output():
    short = invoke("id", "7", "--json")
    assert invoke("id", "7", "--output", "json").stdout == short.stdout
    table = invoke("id", "7", "--output", "table")
    assert table.stdout == invoke("id", "7").stdout
    shown = invoke("id", "7", "--output", "yaml").stdout
    assert shown.startswith('- id: "7"\n  hex: "0x7"\n')
    assert invoke("id", "7", "--output", "json", "--json").exit_code == 0
    refused = invoke("id", "7", "--json", "--output", "yaml")
    assert (refused.exit_code, refused.stdout) == (2, "")
    assert refused.stderr.startswith("sqla-shard: error: --json excludes")


def test_a_terminal_has_colours_unless_they_are_switched_off():
    wrong = ("id", "boats")
    shown = on_a_terminal(80, *wrong, status=2, keep="1")
    assert shown.startswith(f"{RED}\x1b[1msqla-shard: error\x1b[0m: ")
    for off in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_a_terminal(80, *wrong, status=2, keep="1", **off)
        assert plain.startswith("sqla-shard: error: ")
        assert "\x1b" not in plain
