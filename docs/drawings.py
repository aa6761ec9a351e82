"""The pictures of the documentation that are drawn as SVG.

``python docs/drawings.py`` writes them again; a test compares them.  A
sequence diagram of :doc:`explanation/paths` is a list of steps between lanes;
a step within one lane is a note at its line.  ``id.svg`` is the way from an
id to a row, on the first page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

LANES = ("application", "session/", "routing/, merging/", "engine/", "servers")
WIDTH, STEP, TOP, HALF = 1000, 34, 56, 70
X = [HALF + 4 + i * 213 for i in range(len(LANES))]

STYLE = """
text { font: 12.5px system-ui, sans-serif; fill: #1b1f24 }
.lane { font-weight: 600; text-anchor: middle }
.line { stroke: #8a94a0; stroke-dasharray: 3 4 }
.box { fill: #eef2f7; stroke: #8a94a0 }
.step { stroke: #2a6fb0; stroke-width: 1.6 }
.head { fill: #2a6fb0 }
.label { text-anchor: middle }
.left { text-anchor: end }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ed }
  .box { fill: #262c33 }
  .step { stroke: #6fb1ec }
  .head { fill: #6fb1ec }
}
"""

Step = tuple[int, int, str]

DIAGRAMS: dict[str, list[Step]] = {
    "get": [
        (0, 1, "session.get(Pin, id)"),
        (1, 1, "get.py: the bits of the id name the shard"),
        (1, 3, "locations.py: shard -> engine"),
        (3, 1, "one connection per server"),
        (1, 1, "statement prepared once per class"),
        (1, 3, "execute()"),
        (3, 3, "preparation.py, rendering.py: schema and local id"),
        (3, 4, "SELECT .. FROM db00042.pins WHERE local_id = 7"),
        (4, 1, "row"),
        (1, 0, "Pin, or None"),
    ],
    "get_many": [
        (0, 1, "session.get_many(Pin, ids)"),
        (
            1,
            1,
            "get.py: ids by shard; cached rows first; shards",
        ),
        (1, 3, "connections.py: one connection per server"),
        (3, 3, "rendering.py: UNION ALL of a branch per shard"),
        (3, 4, "send to all servers"),
        (3, 4, "poll their sockets (polled_lanes.py)"),
        (4, 3, "rows of all servers"),
        (3, 1, "one result"),
        (1, 0, "list in the order of ids"),
    ],
    "scatter": [
        (0, 1, "scalars(select(..), scatter())"),
        (1, 2, "router.py: all shards"),
        (1, 2, "planning.py: keys and bounds"),
        (2, 1, "shards and merge plan"),
        (1, 3, "connections.py: one connection per server"),
        (3, 3, "rendering.py: ORDER BY, LIMIT in and around UNION"),
        (3, 4, "all servers in parallel (lanes.py)"),
        (4, 3, "10 rows of each server"),
        (3, 2, "merge.py: sort by the keys, cut at LIMIT"),
        (2, 1, "10 rows"),
        (1, 0, "objects"),
    ],
    "commit": [
        (0, 1, "add(pin), commit()"),
        (1, 1, "flush.py, placement.py: shard of each object"),
        (1, 3, "connections.py: BEGIN on the server"),
        (3, 3, "preparation.py: schema of the shard"),
        (3, 4, "INSERT INTO db00042.pins"),
        (4, 1, "local id"),
        (1, 1, "transaction.py: written shards"),
        (1, 1, "invalidation.py: tombstones of cached rows"),
        (1, 4, "commit.py: COMMIT, one server after another"),
        (4, 1, "committed"),
        (1, 1, "invalidation.py: deletes; outbox: operations"),
        (1, 0, "return"),
    ],
}


def draw(steps: list[Step], title: str) -> str:
    """Return a diagram as SVG."""
    height = TOP + STEP * (len(steps) + 1)
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} '
            f'viewBox="0 0 {WIDTH} {height}">'
        ),
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
    ]
    for x, name in zip(X, LANES, strict=True):
        parts += [
            f'<line class="line" x1="{x}" x2="{x}" y1="34" y2="{height}"/>',
            (
                f'<rect class="box" x="{x - HALF}" y="8" rx="5" '
                f'width="{2 * HALF}" height="26"/>'
            ),
            f'<text class="lane" x="{x}" y="26">{escape(name)}</text>',
        ]
    for number, (start, end, label) in enumerate(steps):
        x, tip, y = X[start], X[end], TOP + STEP * (number + 1) - 10
        text = f"{escape(label)}</text>"
        if start == end:
            # To the left of the last lanes: there is no room at their right.
            side, off = (' class="left"', -10) if start > 2 else ("", 10)
            parts += [
                f'<circle class="head" cx="{x}" cy="{y}" r="4"/>',
                f'<text{side} x="{x + off}" y="{y + 4}">{text}',
            ]
            continue
        back = -8 if end > start else 8
        middle = (x + tip) // 2
        parts += [
            f'<path class="step" d="M{x} {y} H{tip + back}"/>',
            f'<path class="head" d="M{tip} {y} l{back} -4 v8 z"/>',
            f'<text class="label" x="{middle}" y="{y - 6}">{text}',
        ]
    return "\n".join([*parts, "</svg>\n"])


# -- From an id to a row.

ID = 241294492511762325
#: The parts of an id, with their bits; the widths are not to scale, since 2
#: bits have no room for a word.
PARTS = [
    ("", 2, 0, 64, "part zero"),
    ("virtual shard", 16, ID >> 46 & 0xFFFF, 256, "part shard"),
    ("type", 10, ID >> 36 & 0x3FF, 190, "part type"),
    ("local id", 36, ID & (1 << 36) - 1, 382, "part local"),
]
COLUMNS = [
    (70, 130, "local_id", "7075733"),
    (208, 520, "data", '{"link": "https://example.com", "details": ""}'),
    (736, 194, "ts", "2026-11-26 09:30:00"),
]
SERVERS = [(1024 * i, 1024 * i + 1023) for i in range(4)]

ID_STYLE = """
text { font: 14px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle }
.id { font: 600 21px ui-monospace, monospace }
.value { font: 600 17px ui-monospace, monospace }
.small { font-size: 12.5px; fill: #57606a }
.code { font: 13.5px ui-monospace, monospace }
.part { stroke: #ffffff; stroke-width: 2 }
.zero { fill: #d0d7de }
.shard { fill: #bfdcf7 }
.type { fill: #f7dfb5 }
.local { fill: #cdebc9 }
.server { fill: #f6f8fa; stroke: #8a94a0 }
.cell { fill: #ffffff; stroke: #d0d7de }
.here { fill: #bfdcf7; stroke: #2a6fb0; stroke-width: 2 }
.way { fill: none; stroke: #2a6fb0; stroke-width: 2 }
.head { fill: #2a6fb0 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e9ed }
  .small { fill: #9aa4af }
  .part { stroke: #0d1117 }
  .zero { fill: #3d444d }
  .shard, .here { fill: #1c4a75 }
  .type { fill: #6b4d12 }
  .local { fill: #23562a }
  .server { fill: #1f252c }
  .cell { fill: #0d1117; stroke: #3d444d }
  .here, .way { stroke: #6fb1ec }
  .head { fill: #6fb1ec }
}
"""


def _text(x: float, y: int, text: str, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<text{style} x="{x:g}" y="{y}">{escape(text)}</text>'


def _box(kind: str, x: float, y: int, width: float, height: int) -> str:
    return (
        f'<rect class="{kind}" x="{x:g}" y="{y}" width="{width:g}" '
        f'height="{height}" rx="5"/>'
    )


def draw_id() -> str:
    """Return the way from an id to a row as SVG."""
    width, height, left = 1000, 376, 54
    title = (
        f"The id {ID} names virtual shard 3429, type 1 and local id 7075733: "
        "the row of the table pins in the database db03429, which the "
        "topology has on the server sharddb004"
    )
    parts = [
        (
            '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
            f'width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}">'
        ),
        f"<title>{escape(title)}</title><style>{ID_STYLE}</style>",
        _text(500, 30, str(ID), "id"),
    ]
    x = left
    middles = []
    for name, bits, value, wide, kind in PARTS:
        middle = x + wide / 2
        middles.append(middle)
        parts += [
            _box(kind, x, 52, wide, 44),
            _text(middle, 80, str(value), "value"),
            _text(middle, 116, f"{name}, {bits} bits".lstrip(", "), "small"),
        ]
        x += wide
    parts.append(_text(118, 180, "topology, epoch 7", "small"))
    wide, here = 182, 3
    for number, (first, last) in enumerate(SERVERS):
        x = 194 + number * (wide + 8)
        kind = "here" if number == here else "server"
        parts += [
            _box(kind, x, 152, wide, 54),
            _text(x + wide / 2, 175, f"sharddb00{number + 1}", "code"),
            _text(x + wide / 2, 195, f"shards {first} to {last}", "small"),
        ]
    middle = 194 + here * (wide + 8) + wide / 2
    parts += [
        f'<path class="way" d="M{middles[1]:g} 124 V136 H{middle:g} V144"/>',
        f'<path class="head" d="M{middle:g} 152 l-5 -9 h10 z"/>',
        f'<path class="way" d="M{middle:g} 206 V228"/>',
        f'<path class="head" d="M{middle:g} 237 l-5 -9 h10 z"/>',
        _box("server", 54, 237, 892, 128),
        _text(122, 264, "database", "small"),
        _box("part shard", 166, 246, 96, 28),
        _text(214, 265, "db03429", "code"),
        _text(302, 264, "table", "small"),
        _box("part type", 330, 246, 66, 28),
        _text(363, 265, "pins", "code"),
    ]
    for x, wide, head, value in COLUMNS:
        kind = "part local" if head == "local_id" else "cell"
        parts += [
            _text(x + wide / 2, 300, head, "small"),
            _box(kind, x, 310, wide, 36),
            _text(x + wide / 2, 333, value, "code"),
        ]
    return "\n".join([*parts, "</svg>\n"])


def drawings() -> dict[str, str]:
    """Return the pictures by their paths in the documentation."""
    return {
        "id.svg": draw_id(),
        **{
            f"explanation/path-{name}.svg": draw(steps, f"The path of {name}")
            for name, steps in DIAGRAMS.items()
        },
    }


if __name__ == "__main__":
    for name, text in drawings().items():
        Path(__file__).parent.joinpath(name).write_text(text, "utf-8")
