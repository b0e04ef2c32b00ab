"""Options that several commands have."""

from __future__ import annotations

import click

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON; docs/commands.md has its keys."
)
