"""Code with one definition (docs/architecture.md, "Done once") is not written a second time."""

import re
from pathlib import Path

import pytest

import slurm_gpu

PACKAGE = Path(slurm_gpu.__file__).parent
# Patterns by subject, with the modules and folders that may contain them.
ONCE = {
    "parsed and formatted durations": (r"\bdivmod\(\w+, 60\)|\* 3600 \+|% 3600\b", ("text/units.py",)),
    "stamps of file names": (r"%Y%m%dT%H%M%S", ("text/cells.py",)),
    "replaced files": (
        r"\bfsync\(|\bos\.(replace|rename)\(|\.(replace|rename)\((self\._)?path\)",
        ("files/atomic.py", "node/shipping/journal.py"),
    ),
    "HTTP servers": (r"^(import|from) (uvicorn|http\.server|socketserver)\b", ("http/",)),
    "YAML readers": (r"^(import|from) yaml\b", ("config/yaml_source.py",)),
    "set up logs": (r"\bbasicConfig\(|\bStreamHandler\(", ("daemon/log.py",)),
}


@pytest.mark.parametrize("what", ONCE)
def test_it_is_written_once(what: str) -> None:
    pattern, places = ONCE[what]
    found = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        if re.search(pattern, path.read_text(), re.MULTILINE)
    }
    assert found
    assert {path for path in found if not path.startswith(places)} == set()
