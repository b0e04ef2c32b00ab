"""No data of a user, node or file is ever executed as code, and no shell is involved."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

_CODE_OF_DATA = re.compile(
    r"(?<![.\w])(?:eval|exec|compile|__import__)\s*\("
    r"|\bos\.(?:system|popen)\b|\bshell\s*="
    r"|\byaml\.(?:load|load_all|unsafe_load|full_load)\s*\("
    r"|^\s*(?:import|from)\s+(?:pickle|marshal|shelve|dill|cloudpickle)\b",
    re.MULTILINE,
)


def test_no_code_is_made_of_data() -> None:
    found = [
        f"{file.relative_to(ROOT)}: {match[0]}"
        for file in sorted((ROOT / "slurm_gpu").rglob("*.py"))
        for match in _CODE_OF_DATA.finditer(file.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "line",
    ["x = eval(text)", "os.system(c)", "run(c, shell=True)", "yaml.load(f)", "import pickle", "exec (c)"],
)
def test_it_would_be_noticed(line: str) -> None:
    assert _CODE_OF_DATA.search(line)


_LUA = re.compile(r"\b(?:load|loadstring|loadfile|dofile|require)\s*\(|\bio\.popen\b|\bos\.execute\b")


def test_the_script_loads_no_file_but_a_sites_own() -> None:
    """The snapshot and decisions.log are read as text; only `chain:` names files with Lua code."""
    found = {
        file.name
        for file in (ROOT / "plugins" / "job_submit").glob("*.lua")
        for line in file.read_text().splitlines()
        if _LUA.search(line.partition("--")[0])
    }
    assert found == {"chain.lua"}
