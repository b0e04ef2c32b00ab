"""Nothing that comes from a user, a node or a file is ever run as code, and no shell is in between."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.docs.pages import ROOT

_MAKES_CODE = {"eval", "exec", "compile", "__import__"}
_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle"}


def _calls(file: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Call):
            yield f"{file.relative_to(ROOT)}:{node.lineno}", node


def _python() -> list[Path]:
    return [file for file in (ROOT / "slurm_gpu").rglob("*.py") if "migrations" not in file.parts]


def test_no_code_is_made_of_data() -> None:
    found = []
    for file in _python():
        for where, call in _calls(file):
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            owner = call.func.value if isinstance(call.func, ast.Attribute) else None
            method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            of = owner.id if isinstance(owner, ast.Name) else ""
            unsafe_yaml = of == "yaml" and method in ("load", "load_all", "unsafe_load", "full_load")
            a_shell = (of, method) in (("os", "system"), ("os", "popen")) or any(
                word.arg == "shell" and getattr(word.value, "value", True) for word in call.keywords
            )
            if name in _MAKES_CODE or unsafe_yaml or a_shell:
                found.append(where)
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{file.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] in _MODULES]
    assert found == []


_LUA = re.compile(r"\b(?:load|loadstring|loadfile|dofile|require)\s*\(|\bio\.popen\b|\bos\.execute\b")


def test_the_script_loads_no_file_but_a_sites_own() -> None:
    """The snapshot and decisions.log are read as text; only `chain:` names files that are Lua."""
    found = {
        file.name
        for file in (ROOT / "plugins" / "job_submit").glob("*.lua")
        for line in file.read_text().splitlines()
        if _LUA.search(line.partition("--")[0])
    }
    assert found == {"95_chain.lua"}
