"""The map in docs/architecture.md and the packages are the same."""

import re
from pathlib import Path

import slurm_gpu

PACKAGE = Path(slurm_gpu.__file__).parent
PAGE = PACKAGE.parent / "docs" / "architecture.md"
# These hold no package that the map shows by itself.
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


def test_no_folder_has_more_modules_than_one_overlooks():
    counts = {path: len([*path.glob("*.py")]) for path in [PACKAGE, *PACKAGE.rglob("*/")] if path.is_dir()}
    assert {
        str(path): count for path, count in counts.items() if count > 25 and "versions" not in path.parts
    } == {}


def test_every_file_that_the_page_names_exists():
    text = PAGE.read_text()
    named = set(re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|lua))`", text))
    places = (PACKAGE, PACKAGE.parent)
    assert {name for name in named if not any((place / name).exists() for place in places)} == set()
