"""The sequence diagrams of :doc:`explanation/paths`, drawn as SVG.

``python docs/drawings.py`` writes them again; a test compares them.  A diagram
is a list of steps between lanes; a step within one lane is a note beside it.
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


def drawings() -> dict[str, str]:
    """Return the diagrams by the names of their files."""
    return {
        f"path-{name}.svg": draw(steps, f"The path of {name}")
        for name, steps in DIAGRAMS.items()
    }


if __name__ == "__main__":
    for name, text in drawings().items():
        Path(__file__).with_name("explanation").joinpath(name).write_text(
            text, "utf-8"
        )
