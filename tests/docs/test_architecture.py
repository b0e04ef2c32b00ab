"""The map in docs/architecture.md lists all packages and no other folders."""

import re
from itertools import groupby
from pathlib import Path

import slurm_gpu
from slurm_gpu.node.jobs.transitions import AllocationState, Transition
from tests.node.transition_table import TRANSITIONS

PACKAGE = Path(slurm_gpu.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
MOST_BORDERS = 8
# Folders without packages that the map lists separately.
_IN_THE_MAP_OF_ANOTHER = {
    "cli/doctor/checks",
    "wire/answers",
    "database/storage/migrations",
    "reports/page/script",
}


def _mapped() -> set[str]:
    block = PAGE.read_text().split("```")[1]
    found: set[str] = set()
    above = ""
    for indent, name in re.findall(r"^( +)([a-z_]+)/ ", block, re.MULTILINE):
        above = name if len(indent) == 2 else above
        found.add(name if len(indent) == 2 else f"{above}/{name}")
    return found


def _packages() -> set[str]:
    folders = {path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("__init__.py")} - {"."}
    return {one for one in folders if not any(one.startswith(part) for part in _IN_THE_MAP_OF_ANOTHER)}


def test_the_map_has_every_package_and_no_other():
    assert _mapped() == _packages()


def test_no_folder_has_more_than_25_modules():
    counts = {path: len([*path.glob("*.py")]) for path in [PACKAGE, *PACKAGE.rglob("*/")] if path.is_dir()}
    assert {
        str(path): count for path, count in counts.items() if count > 25 and "versions" not in path.parts
    } == {}


def test_every_file_that_the_page_names_exists():
    text = PAGE.read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|lua))`", text))
    places = (PACKAGE, PACKAGE.parent)
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()


def _ways() -> dict[str, str]:
    """Return the sections "The path of a …", by title."""
    sections = (one.partition("\n") for one in PAGE.read_text().split("\n## "))
    return {title: body for title, _, body in sections if title.startswith("The path of")}


def test_every_module_of_a_way_is_in_the_folder_named_before_it():
    for body in _ways().values():
        folder = ""
        text = re.sub(r"\(`[a-z_]+/.*?\)", "", body)
        for path, name in re.findall(r"`((?:[a-z_]+/)*)([a-z_]+\.py)`", text):
            folder = path or folder
            assert (PACKAGE / folder / name).exists(), folder + name


def test_a_way_enters_each_package_once():
    for title, body in _ways().items():
        text = re.sub(r"\([^()]*\)", "", body)
        named = [name for name in re.findall(r"`([a-z_]+)/", text) if (PACKAGE / name).is_dir()]
        passed = [name for name, _ in groupby(named)]
        assert len(passed) == len({*passed}), f"{title} enters a package twice: {passed}"
        assert len(passed) - 1 <= MOST_BORDERS
        assert f"\nPackages: {', '.join(passed)}.\n" in body


def test_the_page_shows_the_changes_of_state_of_an_allocation():
    section = PAGE.read_text().split("## The life of an allocation\n")[1].split("\n## ")[0]
    _, _, *rows = [line for line in section.splitlines() if line.startswith("|")]
    events: dict[tuple[str, str], list[str]] = {}
    for transition in TRANSITIONS:
        if transition.state != transition.to:
            events.setdefault((transition.state, transition.to), []).append(transition.event)
    assert rows == [f"| {a} | {b} | {', '.join(dict.fromkeys(of_it))} |" for (a, b), of_it in events.items()]
    assert {state for state in AllocationState if f"*{state}*" not in section} == set()


def test_each_event_of_a_state_has_one_row_that_needs_no_condition():
    rows: dict[tuple[str, str], list[Transition]] = {}
    for transition in TRANSITIONS:
        rows.setdefault((transition.state, transition.event), []).append(transition)
    assert [
        key for key, of_it in rows.items() if [r.condition for r in of_it].index(None) < len(of_it) - 1
    ] == []
