"""The pictures of the documentation that are drawn as SVG.

``python docs/drawings.py`` writes them again; a test compares them.  A
sequence diagram of :doc:`explanation/package` is a list of steps between lanes;
a step within one lane is a note at its line.  ``id.svg`` is the way from an
id to a row, on the first page.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

LANES = ("application", "session/", "planning/", "engine/", "servers")
WIDTH, STEP, TOP, HALF = 1000, 34, 56, 70

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
        (1, 3, "registry.py: shard -> engine"),
        (3, 1, "one connection per server"),
        (1, 1, "statement prepared once per class"),
        (1, 3, "execute()"),
        (3, 3, "plans.py, rendering.py: schema and local id"),
        (3, 4, "SELECT .. FROM db00042.pins WHERE local_id = 7"),
        (4, 1, "row"),
        (1, 0, "Pin, or None"),
    ],
    "get_many": [
        (0, 1, "session.get_many(Pin, ids)"),
        (1, 1, "get.py: ids by shard; cached rows first; shards"),
        (1, 3, "connections.py: one connection per server"),
        (3, 3, "rendering.py: UNION ALL of a branch per shard"),
        (3, 4, "send to all servers"),
        (3, 4, "poll their sockets (lanes.py)"),
        (4, 3, "rows of all servers"),
        (3, 1, "one result"),
        (1, 0, "list in the order of ids"),
    ],
    "scatter": [
        (0, 1, "scalars(select(..), scatter())"),
        (1, 2, "router.py: all shards"),
        (1, 2, "merge_plan.py: keys and bounds"),
        (2, 1, "shards and merge plan"),
        (1, 3, "connections.py: one connection per server"),
        (3, 3, "rendering.py: ORDER BY, LIMIT in and around UNION"),
        (3, 4, "all servers in parallel (lanes.py)"),
        (4, 3, "10 rows of each server"),
        (3, 3, "merge.py: sort by the keys, cut at LIMIT"),
        (3, 1, "10 rows"),
        (1, 0, "objects"),
    ],
    "commit": [
        (0, 1, "add(pin), commit()"),
        (1, 1, "flush.py, placement.py: shard of each object"),
        (1, 3, "connections.py: BEGIN on the server"),
        (3, 3, "plans.py: schema of the shard"),
        (3, 4, "INSERT INTO db00042.pins"),
        (4, 1, "local id"),
        (1, 1, "transaction.py: written shards"),
        (1, 1, "commit.py: tombstones of cached rows"),
        (1, 4, "commit.py: COMMIT, one server after another"),
        (4, 1, "committed"),
        (1, 1, "commit.py: deletes; outbox: operations"),
        (1, 0, "return"),
    ],
}


#: Stories on other pages: title, lanes and steps.
STORIES: dict[str, tuple[str, tuple[str, ...], list[Step]]] = {
    "intents": (
        "A transaction with a pending operation for another shard",
        ("application", "shard of ada", "shard of grace", "worker"),
        [
            (0, 1, "BEGIN, UPDATE users (ada - 30)"),
            (0, 1, "INSERT sqla_shard_intent (token, grace + 30)"),
            (0, 1, "COMMIT: both, or neither"),
            (1, 0, "committed"),
            (0, 2, "BEGIN, INSERT sqla_shard_applied (token)"),
            (0, 2, "UPDATE users (grace + 30), COMMIT"),
            (0, 1, "DELETE the intent"),
            (3, 1, "or, after a crash: which intents are due?"),
            (3, 2, "the same transaction; a token that exists ends it"),
            (3, 1, "DELETE the intent"),
        ],
    ),
    "lease": (
        "A reader and a writer of one row with the cache between them",
        ("reader", "cache", "writer", "server"),
        [
            (0, 1, "get: a miss, with lease 7"),
            (0, 3, "SELECT: version 1"),
            (2, 3, "UPDATE: version 2, not committed"),
            (2, 1, "tombstone: ends lease 7"),
            (2, 3, "COMMIT"),
            (0, 1, "store version 1 with lease 7: refused"),
            (0, 0, "returns version 1: its read began before COMMIT"),
            (2, 1, "remove the tombstone"),
            (0, 1, "get: a miss, with lease 8"),
            (0, 3, "SELECT: version 2"),
            (0, 1, "store version 2 with lease 8: stored"),
        ],
    ),
    "follow": (
        "A topology from the operator to a transaction",
        ("operator", "ZooKeeper", "follower, a thread", "sessions"),
        [
            (0, 0, "topology push: validate, compare"),
            (0, 1, "epoch 8 and its history, one transaction"),
            (1, 2, "watch: something has changed"),
            (2, 1, "read"),
            (1, 2, "epoch 8"),
            (2, 2, "check; store the snapshot; swap"),
            (2, 3, "the next transaction uses epoch 8"),
            (3, 3, "open ones go on with epoch 7"),
        ],
    ),
    "claim": (
        "Sign-up: claim the key, create the user, confirm",
        ("application", "shard of the key", "shard of the user"),
        [
            (0, 1, "claim ada@example.com, for 15 minutes"),
            (1, 0, "yours; a second one is refused from here on"),
            (0, 2, "INSERT user, and an intent: confirm the key"),
            (0, 2, "COMMIT"),
            (0, 1, "confirm: the key leads to the user"),
            (0, 2, "DELETE the intent"),
            (0, 0, "killed before COMMIT: the claim expires"),
            (0, 0, "killed after it: a worker confirms"),
        ],
    ),
}


def _wide(text: str) -> float:
    """Return about the width of a text, in units of a picture."""
    return len(text) * 6.6


def draw(steps: list[Step], title: str, lanes: tuple[str, ...] = LANES) -> str:
    """Return a diagram as SVG."""
    gap = (WIDTH - 2 * HALF - 8) // (len(lanes) - 1)
    xs = [HALF + 4 + number * gap for number in range(len(lanes))]
    height = TOP + STEP * (len(steps) + 1)
    size = f'width="{WIDTH}" height="{height}"'
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} '
            f'viewBox="0 0 {WIDTH} {height}">'
        ),
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
    ]
    for x, name in zip(xs, lanes, strict=True):
        parts += [
            f'<line class="line" x1="{x}" x2="{x}" y1="34" y2="{height}"/>',
            (
                f'<rect class="box" x="{x - HALF}" y="8" rx="5" '
                f'width="{2 * HALF}" height="26"/>'
            ),
            f'<text class="lane" x="{x}" y="26">{escape(name)}</text>',
        ]
    for number, (start, end, label) in enumerate(steps):
        x, tip, y = xs[start], xs[end], TOP + STEP * (number + 1) - 10
        text = f"{escape(label)}</text>"
        if start == end:
            # To the left of the last lanes: there is no room at their right.
            is_left = x + _wide(label) > WIDTH - 60
            side, off = (' class="left"', -10) if is_left else ("", 10)
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


# -- Boxes and arrows.


def _picture(height: int, title: str, parts: list[str]) -> str:
    head = (
        '<svg xmlns="http://www.w3.org/2000/svg" role="img" '
        f'width="1000" height="{height}" viewBox="0 0 1000 {height}">'
        f"<title>{escape(title)}</title><style>{ID_STYLE}</style>"
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _arrow(
    x: float, y: float, to_x: float, to_y: float, turn: float | None = None
) -> str:
    """Return a vertical arrow, bent at a height if it is not straight."""
    turn = turn or (y + to_y) / 2
    tip = -9 if to_y > y else 9
    return (
        f'<path class="way" d="M{x:g} {y:g} V{turn:g} H{to_x:g} '
        f'V{to_y + tip:g}"/>'
        f'<path class="head" d="M{to_x:g} {to_y:g} l-5 {tip} h10 z"/>'
    )


def _labelled(kind: str, x: float, y: int, wide: int, lines: list[str]) -> list[str]:
    """Return a box with lines of text."""
    high = 16 + 19 * len(lines)
    return [
        _box(kind, x, y, wide, high),
        *(
            _text(x + wide / 2, y + 22 + 19 * number, line)
            for number, line in enumerate(lines)
        ),
    ]


def draw_union() -> str:
    """Return how one statement is sent to servers, and merged."""
    title = "One statement becomes a UNION ALL for each server, and is merged"
    parts = _labelled(
        "part shard", 250, 8, 500, ["the newest ten pins of all shards, with scatter()"]
    )
    for number, first in enumerate((0, 1024, 2048, 3072)):
        x = 14 + number * 246
        parts += [
            _arrow(500, 43, x + 117, 72),
            *_labelled(
                "server",
                x,
                72,
                234,
                [
                    f"server{number + 1}, one connection",
                    f"db{first:05d}.pins, newest 10",
                    f"UNION ALL db{first + 1:05d}.pins",
                    "...",
                    "ORDER BY ts DESC LIMIT 10",
                ],
            ),
            _arrow(x + 117, 183, 500, 232),
            _text(x + 147, 200, "10 rows", "small"),
        ]
    parts += _labelled(
        "part local", 330, 232, 340, ["merge: 40 rows sorted, 10 returned"]
    )
    return _picture(275, title, parts)


def draw_pools() -> str:
    """Return processes with a pool for each server."""
    title = "Each process has one pool for each server, whatever its shards"
    parts = []
    for number in range(2):
        x = 60 + number * 460
        parts += [
            _box("server", x, 8, 420, 96),
            _text(x + 210, 32, f"process {number + 1}: one cluster"),
        ]
        for pool in range(2):
            at = x + 20 + pool * 200
            parts += [
                _box("part shard", at, 48, 180, 42),
                _text(at + 90, 74, f"pool of server{pool + 1}: 5 + 10"),
                _arrow(
                    at + 90,
                    90,
                    180 + pool * 460 + number * 180,
                    160,
                    112 if number == pool else 130 + 10 * pool,
                ),
            ]
    for number in range(2):
        x = 60 + number * 460
        parts += [
            _box("server", x, 160, 420, 92),
            _text(x + 210, 186, f"server{number + 1}: at most 30 connections"),
            *(_box("cell", x + 20 + cell * 24, 202, 20, 34) for cell in range(16)),
        ]
    return _picture(262, title, parts)


def draw_growth() -> str:
    """Return a fleet before and after a second server."""
    title = "Before and after a second server: databases move, ids stay"
    parts = [
        _text(205, 24, "before, epoch 7"),
        _text(700, 24, "after, epoch 8"),
        '<path class="way" d="M395 115 H440"/>',
        '<path class="head" d="M449 115 l-9 -5 v10 z"/>',
    ]
    for x, name, shards in (
        (30, "server1", range(16)),
        (465, "server1", range(8)),
        (735, "server2", range(8, 16)),
    ):
        wide = 350 if len(shards) == 16 else 235
        parts += [
            _box("server", x, 36, wide, 150),
            _text(x + wide / 2, 60, name, "code"),
        ]
        for place, shard in enumerate(shards):
            row, column = divmod(place, 8 if len(shards) == 16 else 4)
            left = x + 12 + column * (41 if len(shards) == 16 else 53)
            kind = "here" if shard == 11 else "cell"
            parts += [
                _box(kind, left, 76 + row * 50, 38, 38),
                _text(left + 19, 100 + row * 50, str(shard), "small"),
            ]
    parts.append(_text(500, 212, "a pin of shard 11 has the same id on both sides"))
    return _picture(224, title, parts)


def draw_waves() -> str:
    """Return a revision that reaches all shards in three steps."""
    title = "A revision: one canary shard, then a wave, then all others"
    parts = []
    for step, (name, done) in enumerate(
        (("canary", {0}), ("wave", {0, 1, 9, 17, 25}), ("all", set(range(32))))
    ):
        x = 14 + step * 332
        parts += [
            _box("server", x, 8, 308, 190),
            _text(x + 154, 34, f"{step + 1}. {name}"),
        ]
        for shard in range(32):
            row, column = divmod(shard, 8)
            kind = "part local" if shard in done else "cell"
            parts.append(_box(kind, x + 14 + column * 35, 48 + row * 36, 30, 30))
        if step:
            parts += [
                f'<path class="way" d="M{x - 24} 103 H{x - 9}"/>',
                f'<path class="head" d="M{x} 103 l-9 -5 v10 z"/>',
            ]
    parts.append(
        _text(500, 222, "a failure stops here: the shards after it are as before")
    )
    return _picture(234, title, parts)


#: The folders of the package, from the top; what is in a row is in no order.
SYSTEMS = (
    ("cli", "testing", "ext"),
    ("monitor", "migrate", "fleet", "contrib", "jobs", "upkeep"),
)
CORE = (
    ("models", "schema"),
    ("cluster", "cache", "outbox", "session"),
    ("planning", "engine"),
    ("dialects", "topology"),
    ("types", "ids", "exc", "util"),
)


def draw_rooms() -> str:
    """Return the folders of the package: systems on top of the core."""
    title = "The folders of the package: systems on top of the core"
    parts = []
    y = 8
    for name, kind, rows in (
        ("systems", "part type", SYSTEMS),
        ("core", "part shard", CORE),
    ):
        parts += [
            _box("server", 14, y, 972, 16 + 46 * len(rows)),
            _text(66, y + 32, name),
        ]
        for row in rows:
            wide = (850 - 10 * (len(row) - 1)) / len(row)
            for number, room in enumerate(row):
                x = 124 + number * (wide + 10)
                parts += [
                    _box(kind, x, y + 12, wide, 36),
                    _text(x + wide / 2, y + 35, f"{room}/", "code"),
                ]
            y += 46
        y += 32
    return _picture(y - 8, title, parts)


#: Question, answer yes, of the tree of tables.
QUESTIONS = [
    ("A relation of objects on any shards?", "mapping, inverse"),
    ("Is it a key that leads to one object?", "lookup"),
    ("Does it belong to one owner?", "object, colocated"),
    ("Is it an owner: a user, a shop?", "object, a root"),
    ("Few rows that all shards join with?", "reference table"),
    ("Does it stay small, without growing?", "global table"),
]
WRITES = [
    ("Are all rows on one shard?", "cluster.run()"),
    ("Is the second side a consequence?", 'operation, "logged"'),
    ("Is it a unique key and its object?", "sign_up(): claim first"),
    ("Can a half be repaired by hand?", 'cross_shard="ordered"'),
]


def draw_tree() -> str:
    """Return the questions that choose a table and a way to write."""
    title = "Which type of table, and which way to write: answer from the top"
    parts = []
    for left, head, rows in ((10, "rows", QUESTIONS), (510, "writes", WRITES)):
        parts.append(_text(left + 240, 22, f"Which way for {head}?"))
        for number, (question, answer) in enumerate(rows):
            y = 36 + number * 62
            parts += [
                *_labelled("server", left, y, 276, [question]),
                *_labelled("part shard", left + 310, y, 170, [answer]),
                f'<path class="way" d="M{left + 276} {y + 17} h25"/>',
                (f'<path class="head" d="M{left + 310} {y + 17} l-9 -5 v10 z"/>'),
                _text(left + 293, y + 10, "yes", "small"),
            ]
            if number + 1 < len(rows):
                parts += [
                    _arrow(left + 138, y + 35, left + 138, y + 62),
                    _text(left + 154, y + 53, "no", "small"),
                ]
    return _picture(36 + 62 * len(QUESTIONS), title, parts)


def drawings() -> dict[str, str]:
    """Return the pictures by their paths in the documentation."""
    return {
        "id.svg": draw_id(),
        **{
            f"explanation/path-{name}.svg": draw(steps, f"The path of {name}")
            for name, steps in DIAGRAMS.items()
        },
        **{
            f"explanation/story-{name}.svg": draw(steps, title, lanes)
            for name, (title, lanes, steps) in STORIES.items()
        },
        "explanation/box-rooms.svg": draw_rooms(),
        "explanation/box-union.svg": draw_union(),
        "explanation/box-pools.svg": draw_pools(),
        "explanation/box-growth.svg": draw_growth(),
        "explanation/box-waves.svg": draw_waves(),
        "explanation/box-tree.svg": draw_tree(),
    }


if __name__ == "__main__":
    for name, text in drawings().items():
        Path(__file__).parent.joinpath(name).write_text(text, "utf-8")
