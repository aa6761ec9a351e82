"""Progress of a run: lines, and bars on a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from io import StringIO
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from sqla_shard.schema.reports import LineProgress, Outcome, State, TerminalProgress

#: Escape sequences of the colours of complete bars.
COLOURS = {"31": "red", "32": "green", "33": "yellow", "36": "cyan"}
_STYLE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# Sequences of rich that erase the previous lines.
_OVER = re.compile(r"(?:\r\x1b\[2K(?:\x1b\[1A\x1b\[2K)*)+")


def outcome(
    server: int, shard_id: int, state: State = State.CHANGED, **more: Any
) -> Outcome:
    return Outcome(
        shard_id=shard_id,
        server=f"server{server}",
        database=f"db{shard_id:05d}",
        state=state,
        **more,
    )


def totals(servers: int, shards: int = 4) -> dict[str, int]:
    return {f"server{n}": shards for n in range(1, servers + 1)}


class Terminal:
    """A terminal, and the bars on it."""

    def __init__(self, width: int = 100, height: int = 24) -> None:
        self._stream = StringIO()
        self.progress = TerminalProgress(
            Console(
                file=self._stream,
                force_terminal=True,
                color_system="standard",
                width=width,
                height=height,
            )
        )

    def frames(self) -> list[list[str]]:
        """Return the lines of each drawing, with escape sequences."""
        return [
            [line for line in one.splitlines() if _STYLE.sub("", line)]
            for one in _OVER.split(self._stream.getvalue())
            if _STYLE.sub("", one).strip()
        ]

    def lines(self) -> list[str]:
        """Return the content of the terminal."""
        return [_STYLE.sub("", line).rstrip() for line in self.frames()[-1]]

    def colours(self) -> list[str]:
        """Return the colour of each bar that has started."""
        found = (re.search(r"\x1b\[(\d+)m━", one) for one in self.frames()[-1])
        return [COLOURS.get(one[1], one[1]) if one else "" for one in found]

    def run(
        self, servers: int, outcomes: Iterable[Outcome], shards: int = 4
    ) -> Terminal:
        """Show outcomes, up to the last one; the run has not ended."""
        self.progress.begin("upgrade", "head", totals(servers, shards), [])
        for one in outcomes:
            self.progress.advance(one)
        self.progress.waiting()
        return self


def test_shards_with_nothing_to_do_make_a_run_no_quicker():
    outcomes = [outcome(1, shard_id, State.CURRENT) for shard_id in range(100)]
    file = StringIO()
    progress = LineProgress(file)
    progress.begin("upgrade", "head", totals(1, 100), outcomes[:90])
    # Ten seconds ago.
    progress._began -= 10
    progress._shown -= 10
    progress.advance(outcomes[90])
    line = file.getvalue().splitlines()[-1]
    assert line == "91 of 100, 0 failed, 0 a second, 90 s left"


def words(lines: Sequence[str]) -> list[str]:
    """Return lines without bars, rates and times."""
    return [
        " ".join(re.sub(r"[━╸╺]|\d+/s|\S:\S\S:\S\S", " ", line).split())
        for line in lines
    ]


def test_each_server_has_a_bar_that_ends_green_or_red():
    terminal = Terminal().run(
        3,
        [
            *(outcome(1, n) for n in range(4)),
            outcome(2, 4),
            outcome(2, 5, State.FAILED, error="(1050, 'pins exists')"),
        ],
    )
    assert words(terminal.lines()) == [
        "upgrade to head 6/12 1 failed",
        "server1 4/4",
        "server2 2/4 1 failed",
        "server3 0/4",
    ]
    assert terminal.colours() == ["red", "green", "red", "90"]
    terminal.progress.advance(outcome(3, 8))
    terminal.progress.waiting()
    assert terminal.colours() == ["red", "green", "red", "cyan"]
    # The error is above the bars, once.
    errors = [line for one in terminal.frames() for line in one if "1050" in line]
    assert len(errors) == 1
    for one in (outcome(2, 6), outcome(2, 7)):
        terminal.progress.advance(one)
    for n in range(9, 12):
        terminal.progress.advance(outcome(3, n))
    terminal.progress.end()
    assert words(terminal.lines()) == [
        "upgrade to head 12/12 1 failed",
        "server1 4/4",
        "server2 4/4 1 failed",
        "server3 4/4",
    ]
    assert terminal.colours() == ["red", "green", "red", "green"]


def test_shards_left_by_ctrl_c_are_yellow_and_no_failure():
    terminal = Terminal().run(2, [outcome(1, 0), outcome(2, 4)])
    terminal.progress.advance(outcome(1, 1, State.INTERRUPTED))
    for server, shard_id in ((1, 2), (1, 3), (2, 5), (2, 6), (2, 7)):
        terminal.progress.advance(outcome(server, shard_id, State.SKIPPED))
    terminal.progress.end()
    assert words(terminal.lines()) == [
        "upgrade to head 2/8 6 not attempted",
        "server1 1/4 3 not attempted",
        "server2 1/4 3 not attempted",
    ]
    assert terminal.colours() == ["yellow"] * 3
    # It was not finished, so it took no time.
    assert not re.search(r"\d:\d\d:\d\d", "".join(terminal.lines()))


def test_of_many_servers_those_with_failures_and_work_have_bars():
    order = [(server, n) for n in range(4) for server in range(1, 41)]
    terminal = Terminal()
    terminal.run(40, [])
    for server, n in order:
        if server not in (38, 39) or n < 2:
            fails = (server, n) in ((20, 3), (30, 1))
            terminal.progress.advance(
                outcome(
                    server, 4 * server + n, State.FAILED if fails else State.CHANGED
                )
            )
        # So that each of them is drawn.
        terminal.progress.waiting()
    shown = words(terminal.lines())
    assert shown[0] == "upgrade to head 156/160 2 failed"
    assert shown[-1] == "28 other servers 112/112"
    assert [line for line in shown[1:-1] if not line.endswith(" 4/4")] == [
        "server20 4/4 1 failed",
        "server30 4/4 1 failed",
        "server38 2/4",
        "server39 2/4",
    ]
    # Its height never changes.
    assert {len(one) for one in terminal.frames()} == {14}


@pytest.mark.parametrize(
    ("servers", "height", "rows"),
    [(13, 24, 14), (14, 24, 14), (9, 10, 8), (7, 10, 8), (9, 5, 1), (1, 24, 1)],
)
def test_the_bars_fit_the_terminal(servers: int, height: int, rows: int):
    terminal = Terminal(height=height).run(servers, [outcome(1, 0)])
    assert {len(one) for one in terminal.frames()} == {rows}
    assert words(terminal.lines())[0] == f"upgrade to head 1/{4 * servers}"


@pytest.mark.parametrize("width", [20, 30, 45, 60, 80])
def test_no_line_is_longer_than_the_terminal(width: int):
    name = "a-server-with-a-name-as-clouds-have-them.eu-central-1.example"
    terminal = Terminal(width=width)
    terminal.progress.begin("upgrade", "head", {name: 9, "server2": 9}, [])
    terminal.progress.advance(outcome(2, 0, State.FAILED))
    terminal.progress.advance(outcome(2, 1, State.SKIPPED))
    terminal.progress.end()
    shown = terminal.lines()
    assert len(shown) == 3
    assert max(map(cell_len, shown)) <= width
    if width > 20:
        assert [re.findall(r"\d/\d+", line) for line in shown] == [
            ["1/18"],
            ["0/9"],
            ["1/9"],
        ]
        assert "1 failed" in shown[2]


def test_without_colours_the_text_says_it_all(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal().run(2, [outcome(1, 0), outcome(2, 4, State.FAILED)])
    text = "\n".join(terminal.frames()[-1])
    assert not re.search(r"\x1b\[[\d;]*m", text)
    assert words(terminal.lines()) == [
        "upgrade to head 2/8 1 failed",
        "server1 1/4",
        "server2 1/4 1 failed",
    ]
    # Remaining shards are blank.
    assert [line.count("━") for line in terminal.lines()] == [10, 10, 10]


def test_a_run_with_nothing_to_do_has_no_bar():
    known = [outcome(1, n, State.CURRENT) for n in range(4)]
    terminal = Terminal()
    terminal.progress.begin("upgrade", "head", totals(1), known)
    terminal.progress.end()
    assert terminal.frames() == []


@pytest.mark.parametrize("error", ["\x1b[31mred", "a\u202eb"])
def test_errors_do_not_control_the_terminal(error: str):
    file = StringIO()
    lines = LineProgress(file)
    terminal = Terminal()
    for progress in (lines, terminal.progress):
        progress.begin("upgrade", "head", totals(1), [])
        progress.advance(outcome(1, 0, State.FAILED, error=error))
    terminal.progress.end()
    shown = "\n".join(line for one in terminal.frames() for line in one)
    for text in (file.getvalue(), shown):
        assert error not in text
        assert f"failed: {ascii(error)[1:-1]}" in text


def test_names_are_no_markup():
    terminal = Terminal()
    terminal.progress.begin("upgrade", "[red]", {"[b]": 1, "c": 1}, [])
    assert words(terminal.lines()) == ["upgrade to [red] 0/2", "[b] 0/1", "c 0/1"]
