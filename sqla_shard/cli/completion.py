"""``sqla-shard completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sqla_shard.cli.printing import examples

__all__ = ["completion_command"]

_SHELLS = ("bash", "zsh", "fish")
_VARIABLE = "_SQLA_SHARD_COMPLETE"


@click.command(
    "completion",
    epilog=examples(
        'eval "$(sqla-shard completion bash)"',
        "sqla-shard completion zsh > ~/.zfunc/_sqla-shard",
        "sqla-shard completion fish | source",
    ),
)
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print a script that lets a shell complete commands."""
    found = get_completion_class(shell)
    if found is None:
        raise click.ClickException(f"this click cannot complete in {shell}")
    program = ctx.find_root().command
    click.echo(found(program, {}, "sqla-shard", _VARIABLE).source())
