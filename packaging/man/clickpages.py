"""Build the pages of the slurm-gpu command and of each of its commands from click."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence

import click
from docutils import nodes
from manpage import ManPage, definitions, literal, paragraph, paragraphs, section, see_also, usage
from words import COMMON_ENVIRONMENT, EXIT_STATUS, RELATED, SITE_FILES, described

from slurm_gpu.cli.examples import EXAMPLES
from slurm_gpu.cli.main import SUMMARIES, cli

NAME = "slurm-gpu"


def command_pages(version: str, date: str) -> Iterator[ManPage]:
    """Yield slurm-gpu(1), then slurm-gpu-COMMAND(1) for each command."""
    top = _context(cli, NAME)
    yield _overview(top, version, date)
    for name, context in _subcommands(top):
        page = ManPage(f"{NAME}-{name}", 1, SUMMARIES[name].rstrip("."), version, date)
        _fill(page, context)
        page.add("EXIT STATUS", described(EXIT_STATUS))
        page.add("ENVIRONMENT", described(COMMON_ENVIRONMENT + _variables(context)))
        page.add("FILES", described(SITE_FILES))
        page.add("EXAMPLES", *_examples(name))
        page.add("SEE ALSO", see_also((f"{NAME}(1)", *RELATED.get(name, ()))))
        yield page


def links() -> Iterator[tuple[str, str]]:
    """Yield the file name that man expects and the page, for each command of a group."""
    for name, context in _subcommands(_context(cli, NAME)):
        for inner, _ in _subcommands(context):
            yield f"{NAME}-{name}-{inner}.1", f"{NAME}-{name}.1"


def _overview(context: click.Context, version: str, date: str) -> ManPage:
    page = ManPage(
        NAME, 1, "GPUs of a Slurm cluster: who uses them, how well, and by which rules", version, date
    )
    page.add("SYNOPSIS", _synopsis(context))
    page.add("DESCRIPTION", _help(context.command))
    page.add(
        "COMMANDS",
        definitions(
            (usage([name]), [paragraph(f"{SUMMARIES[name]} See `{NAME}-{name}`(1).")])
            for name, _ in _subcommands(context)
        ),
    )
    page.add("OPTIONS", _options(context))
    page.add("EXIT STATUS", described(EXIT_STATUS))
    page.add("ENVIRONMENT", described(COMMON_ENVIRONMENT))
    page.add("FILES", described(SITE_FILES))
    pages = tuple(f"{NAME}-{name}(1)" for name, _ in _subcommands(context))
    page.add("SEE ALSO", see_also((*pages, *RELATED[NAME])))
    return page


def _fill(page: ManPage, context: click.Context) -> None:
    """Add the description and the options of a command and, if it is a group, of its commands."""
    page.add("SYNOPSIS", *(_synopsis(each) for each in _called(context)))
    page.add("DESCRIPTION", _help(context.command))
    inner = list(_subcommands(context))
    page.add(
        "COMMANDS",
        *(section(name, *_help(each.command), *_options(each, with_help=False)) for name, each in inner),
    )
    page.add("OPTIONS", _options(context))


def _called(context: click.Context) -> list[click.Context]:
    """Return the callable commands: a command, the commands of a group, and a group with an action."""
    inner = [each for _, each in _subcommands(context)]
    return inner if inner and not _group(context).invoke_without_command else [context, *inner]


def _group(context: click.Context) -> click.Group:
    assert isinstance(context.command, click.Group)
    return context.command


def _subcommands(context: click.Context) -> Iterator[tuple[str, click.Context]]:
    group = context.command
    if not isinstance(group, click.Group):
        return
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is not None and not command.hidden:
            yield name, _context(command, name, context)


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    return click.Context(command, info_name=name, parent=parent, **command.context_settings)


def _synopsis(context: click.Context) -> nodes.paragraph:
    pieces = context.command.collect_usage_pieces(context)
    if isinstance(context.command, click.Group) and context.command.invoke_without_command:
        # The commands of the group have their own lines.
        pieces = [piece.partition(" | train")[0] for piece in pieces if piece != "COMMAND [ARGS]..."]
    words = [*context.command_path.split(), *pieces]
    return nodes.paragraph("", "", *usage(words))


def _help(command: click.Command) -> list[nodes.Node]:
    text = inspect.cleandoc(command.help or "").partition("\f")[0]
    # Click does not wrap the lines of a paragraph that begins with a backspace.
    found: list[nodes.Node] = []
    for part in text.split("\n\n"):
        found += [literal(part[2:].strip("\n"))] if part.startswith("\b\n") else paragraphs(part)
    return found


def _options(context: click.Context, *, with_help: bool = True) -> list[nodes.Node]:
    return definitions(
        _option(context, parameter)
        for parameter in context.command.get_params(context)
        if isinstance(parameter, click.Option)
        and not parameter.hidden
        and (with_help or "--help" not in parameter.opts)
    )


def _option(
    context: click.Context, option: click.Option
) -> tuple[Sequence[nodes.Node], Sequence[nodes.Node]]:
    record = option.get_help_record(context)
    assert record is not None, option.name
    names, help_text = record
    return usage(names.split()), [paragraph(help_text)]


def _variables(context: click.Context) -> tuple[tuple[str, str], ...]:
    found = {}
    for each in _called(context):
        for parameter in each.command.params:
            if isinstance(parameter.envvar, str):
                name = (
                    parameter.opts[0] if isinstance(parameter, click.Option) else parameter.make_metavar(each)
                )
                found[parameter.envvar] = f"Used if {name.strip('[]')} is not given."
    return tuple(sorted(found.items()))


def _examples(name: str) -> Iterator[nodes.Node]:
    for command, meaning in EXAMPLES[name]:
        yield paragraph(meaning)
        yield literal(command)
