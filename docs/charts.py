"""The charts of :doc:`explanation/figures`, drawn from the tables of the page.

``python docs/charts.py`` writes them again; a test compares them.  Figures are
in the tables only, so a chart cannot differ from its table.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parent / "explanation" / "figures.rst"
WIDTH, LABELS, BARS, BAR = 1000, 460, 390, 18

#: Styles of the bars of the columns.
KINDS = ("first", "second")

STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b1f24 }
.label { text-anchor: end }
.small { font-size: 12.5px; fill: #57606a }
.title { font-weight: 600 }
.axis { stroke: #8a94a0 }
.first { fill: #2a6fb0 }
.second { fill: #b7791f }
.other { fill: #8a94a0 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ed }
  .small { fill: #9aa4af }
  .first { fill: #6fb1ec }
  .second { fill: #e0b25c }
  .other { fill: #6b7580 }
}
"""


class Chart(NamedTuple):
    """A bar chart of a table.

    :ivar title: what the bars compare.
    :ivar columns: numbers of the columns with a bar.
    :ivar unit: what follows a number; cells without it have no bar.
    :ivar others: rows that are measured for comparison, in grey.
    :ivar has_base: whether the first row is the unit of all others.
    """

    title: str
    columns: tuple[int, ...]
    unit: str
    others: str = "$^"
    has_base: bool = False


#: The charts, by the name of their table.
CHARTS = {
    "many-shards": Chart(
        "50 objects on 50 virtual shards, times PyMySQL by hand",
        (2,),
        "",
        "^PyMySQL|Spider|Session``?$|^the same|ShardedSession",
    ),
    "newest": Chart(
        "The newest 10 of 256 virtual shards, times PyMySQL by hand",
        (1, 2),
        " times",
        has_base=True,
    ),
    "round-trips": Chart(
        "Servers with round trips of 20, 5, 2 and 1 ms", (1, 2), " ms"
    ),
    "schema-changes": Chart(
        "Changing tables on 4,096 virtual shards, for each database",
        (1,),
        " ms",
        "by hand$|^``alembic",
    ),
    "many-servers": Chart(
        "64 objects of up to 64 servers with a session open", (1, 2), " ms"
    ),
    "several-servers": Chart(
        "Writes to several servers, times one transaction on one server",
        (2,),
        "",
        "transaction",
    ),
    "job-queues": Chart(
        "Jobs of a task that does nothing, a second", (2,), "", "Redis"
    ),
    "row-cache": Chart(
        "Fifty rows from memcached, times HashClient and json.loads()", (1, 2), "x"
    ),
}

_ROW = re.compile(r"   (\*| ) - ?(.*)")


def tables(text: str) -> dict[str, list[list[str]]]:
    """Return the rows of the tables of a page that have a name.

    The first row of a table is its header.
    """
    found = {}
    for block in re.split(r"(?m)^\.\. list-table::", text)[1:]:
        lines = re.split(r"\n(?=\S)", block)[0].splitlines()
        name, rows = "", []
        for line in lines:
            if line.startswith("   :name: "):
                name = line.removeprefix("   :name: ")
            elif cell := _ROW.fullmatch(line):
                if cell[1] == "*":
                    rows.append([])
                rows[-1].append(cell[2])
            elif rows and line.strip():
                rows[-1][-1] += f" {line.strip()}"
        if name:
            found[name] = rows
    return found


def _plain(text: str) -> str:
    """Return a cell without its markup."""
    return text.replace("``", "")


def _value(chart: Chart, cell: str, row: int) -> float | None:
    """Return the number of a cell; None if it has no bar."""
    if chart.has_base and row == 0:
        return 1.0
    number = re.match(rf"([\d,]+(?:\.\d+)?){chart.unit}(?![\w.])", cell)
    if number is None and cell:
        raise ValueError(f"{cell!r} is no number with {chart.unit!r}")
    return float(number[1].replace(",", "")) if number else None


def _text(kind: str, x: float, y: float, text: str) -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}">{escape(text)}</text>'


def _bar(kind: str, x: float, y: float, wide: float, high: float) -> str:
    size = f'width="{wide:g}" height="{high:g}"'
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" {size}/>'


def draw(chart: Chart, rows: list[list[str]]) -> str:
    """Return a chart as SVG."""
    head, *body = rows
    count = len(chart.columns)
    values = [
        [_value(chart, row[column], number) for column in chart.columns]
        for number, row in enumerate(body)
    ]
    most = max(value or 0 for row in values for value in row)
    step, top = BAR * count + 10, 34 if count == 1 else 58
    height = top + step * len(body) + 4
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'width="{WIDTH}" height="{height}" '
            f'viewBox="0 0 {WIDTH} {height}">'
        ),
        f"<title>{escape(chart.title)}</title><style>{STYLE}</style>",
        _text("title", LABELS, 18, chart.title),
    ]
    for place, column in enumerate(chart.columns if count > 1 else ()):
        x = LABELS + place * 240
        parts += [
            _bar(KINDS[place], x, 32, 12, 12),
            _text("legend", x + 18, 43, _plain(head[column])),
        ]
    for number, row in enumerate(body):
        y = top + step * number
        middle = y + BAR * count / 2 + 5
        parts.append(_text("label", LABELS - 10, middle, _plain(row[0])))
        is_other = re.search(chart.others, row[0]) is not None
        for place, column in enumerate(chart.columns):
            value = values[number][place]
            if value is None:
                continue
            text = _plain(row[column])
            if chart.has_base and number == 0:
                text = f"1 ({text})"
            kind = "other" if is_other else KINDS[place]
            wide = round(max(1, BARS * value / most), 1)
            at = y + BAR * place
            parts += [
                _bar(kind, LABELS, at + 1, wide, BAR - 2),
                _text("small", LABELS + wide + 6, at + 13, text),
            ]
    parts.append(f'<path class="axis" d="M{LABELS} {top - 4} V{height - 6}"/>')
    return "\n".join([*parts, "</svg>\n"])


def drawings() -> dict[str, str]:
    """Return the charts by their paths in the documentation."""
    found = tables(PAGE.read_text("utf-8"))
    return {
        f"explanation/chart-{name}.svg": draw(chart, found[name])
        for name, chart in CHARTS.items()
    }


if __name__ == "__main__":
    for name, text in drawings().items():
        Path(__file__).parent.joinpath(name).write_text(text, "utf-8")
