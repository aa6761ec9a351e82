"""Colours and JSON of sqla-shard's output."""

from __future__ import annotations

import pytest

from sqla_shard.cli.output import coloured
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


def test_json_is_a_format_of_the_output():
    short = invoke("id", "7", "--json")
    assert invoke("id", "7", "--output", "json").stdout == short.stdout
    table = invoke("id", "7", "--output", "table")
    assert table.stdout == invoke("id", "7").stdout
    assert invoke("id", "7", "--output", "json", "--json").exit_code == 0
    refused = invoke("id", "7", "--json", "--output", "table")
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
