"""Run the program with arguments at random, in one process.

Run as a program: ``fuzzed_commands.py SEED COUNT``, in a directory of its own
with a topology and an alembic environment.  It ends with what it was given
when a command raised something, printed what controls a terminal, or took
memory or time without measure.
"""

from __future__ import annotations

import faulthandler
import json
import random
import re
import resource
import sys
import time
import traceback
from typing import Any

import click
from click.testing import CliRunner

from sqla_shard.cli.program import program

#: Bytes of address space.  Without arguments a process has 600 MB.
MEMORY = 3 << 30
#: Seconds after which a command is shown where it is, and ended: one that runs
#: until a signal would run until the limit of the test, and be named by
#: nothing.
LONGEST = 300
#: Seconds of CPU time for each command, and for each character given to it.
SECONDS, SECONDS_PER_CHARACTER = 20.0, 1e-4
#: They run until they are ended, or start what reads a terminal.
ENDLESS = {
    ("topology", "agent"),
    ("topology", "watch"),
    ("dashboard",),
    ("dev", "up"),
    ("exporter",),
    ("shell",),
    ("completion",),
}
#: With them others run until they are ended, too.
ENDLESS_OPTIONS = {"--follow", "--watch"}
#: Options that make the other commands end.
ENDING = {
    ("repair",): ["--once"],
    ("worker",): ["--once"],
    ("cache", "repair"): ["--once"],
}
STATUSES = {0, 1, 2, 3}

#: Control characters, but for what a report has by itself.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")

NUMBERS = [
    *("0", "1", "-1", "7", "63", "64", "65535", "65536", "0.5", "1e9"),
    *("351912440365063", "241294492511762325", str(2**63), str(2**64)),
    *("9" * 5000, "0x" + "f" * 5000, "1e400", "-1e400", "nan", "inf", "-0"),
    *("٣", "１２", "1_000", " 1", "0x", "0b1", "1.0", "True", "None", "½"),
]
TEXTS = [
    *("", " ", "-", "--", "x", "objects", "lookup", "server1", "head", "base"),
    *("\udc80", "é" * 300, "🂡", "a" * 100_000, "%s%n", "{shard}"),
    *("\x1b[31mred", "\x1b]0;title\x07", "line\nline", "tab\t", "\r", "\u202e"),
    *("../../etc/passwd", "${MYSQL_PASSWORD}", "$(id)", "'; DROP TABLE x; --"),
    *("[" * 20_000, "(" * 20_000, "{" * 20_000, "0-", "0-7,", "1-0", "0-9" * 99),
    *("select(1)", "1/0", "lambda: 0", "x" * 300 + ".y", "os.path", "."),
    *("a:b", ":", "a.b:c", "no_such_module", "world:anyone:all", "digest:a:b"),
]
PATHS = [
    *("topology.toml", "nothing.toml", ".", "no/such/directory/file", "-"),
    *("garbage.bin", "deep.json", "empty.toml", "topology.toml/x", "/dev/null"),
    *("topology.json", "cache.toml", "out/report.json", "a" * 300),
    *("\udc80.toml", "file:///topology.toml", "http://127.0.0.1:1/x"),
    *("zookeeper://", "zookeeper://me:secret@", "zookeeper://[::1", "://"),
]


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Any:
    """Yield each command that is no group, by its name."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found
            yield from leaves(found, (*path, name))
    else:
        yield path, command


def value_for(rng: random.Random, parameter: click.Parameter) -> str:
    if rng.random() < 0.2:
        return rng.choice(rng.choice([NUMBERS, TEXTS, PATHS]))
    kind = parameter.type
    if isinstance(kind, click.Choice):
        return rng.choice([*map(str, kind.choices), rng.choice(TEXTS)])
    if kind.name in {"location", "file", "path"}:
        return rng.choice(PATHS)
    if kind.name in {"text", "_names"}:
        return rng.choice(TEXTS)
    return rng.choice(NUMBERS)


def arguments_for(rng: random.Random, command: click.Command) -> list[str]:
    arguments: list[str] = []
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            count = rng.choice([0, 1, 1, 1, 2])
            arguments += [value_for(rng, parameter) for _ in range(count)]
        elif rng.random() < 0.3 and not ENDLESS_OPTIONS.intersection(parameter.opts):
            arguments.append(rng.choice(parameter.opts))
            assert isinstance(parameter, click.Option)
            if not parameter.is_flag:
                arguments.append(value_for(rng, parameter))
    if rng.random() < 0.1:
        arguments.insert(0, rng.choice(TEXTS))
    return arguments


def find_fault(arguments: list[str]) -> str | None:
    """Run a command; return what is wrong with how it ended."""
    started = time.process_time()
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    result = CliRunner().invoke(program, arguments, input="")
    faulthandler.cancel_dump_traceback_later()
    used = time.process_time() - started
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        lines = traceback.format_exception(error)
        return f"it raised {error!r}\n{''.join(lines)[-3000:]}"
    if result.exit_code not in STATUSES:
        return f"its status is {result.exit_code}"
    if found := CONTROL.search(result.output):
        return f"it printed {found[0]!r}: {result.output[:1000]!r}"
    if "Traceback (most recent" in result.output:
        return f"it printed a traceback: {result.output[-3000:]}"
    if result.exit_code and not result.output.strip():
        return f"it did not say why its status is {result.exit_code}"
    allowed = SECONDS + SECONDS_PER_CHARACTER * sum(map(len, arguments))
    return f"it took {used:.1f} s" if used > allowed else None


def main() -> int:
    seed, count = sys.argv[1:]
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    rng = random.Random(seed)
    commands = [
        (path, command) for path, command in leaves(program) if path not in ENDLESS
    ]
    failed = False
    for number in range(int(count)):
        # Each in turn: a short run, too, meets all of them.
        path, command = commands[number % len(commands)]
        arguments = [
            *(["-t", rng.choice(PATHS)] if rng.random() < 0.2 else []),
            *path,
            *ENDING.get(path, []),
            *arguments_for(rng, command),
        ]
        if fault := find_fault(arguments):
            short = [a if len(a) < 200 else f"{a[:200]}..." for a in arguments]
            sys.stderr.write(f"{json.dumps(short)}: {fault}\n")
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
