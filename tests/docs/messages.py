"""Find the messages of the Python, Lua and shell code, with `…` for inserted values."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from .pages import ROOT

GAP = "…"
_PERCENT = re.compile(r"%%|%[-+ #0]*\d*(?:\.\d+)?[a-zA-Z]")
_LOGGED = {"warning", "error", "exception", "critical"}


def _text(node: ast.expr) -> str | None:
    """Return the text of a literal with `…` for inserted values, or None if it is not text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _PERCENT.sub(lambda found: "%" if found[0] == "%%" else GAP, node.value)
    if isinstance(node, ast.JoinedStr):
        parts = [_text(part) if isinstance(part, ast.Constant) else GAP for part in node.values]
        return "".join(part or "" for part in parts)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left), _text(node.right)
        return None if left is None and right is None else f"{left or GAP}{right or GAP}"
    return None


@functools.cache
def _nodes() -> list[tuple[Path, ast.AST]]:
    """Return the syntax nodes of the product's Python, parsed once."""
    return [
        (path, node)
        for path in sorted((ROOT / "slurm_gpu").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call | ast.Constant | ast.JoinedStr | ast.BinOp)
    ]


def texts() -> Iterator[str]:
    """Yield every text in the product's Python code."""
    for _, node in _nodes():
        if isinstance(node, ast.expr) and (text := _text(node)):
            yield text


def logged() -> Iterator[tuple[str, str]]:
    """Yield (path:line, text) of each warning of the daemons."""
    for path, node in _nodes():
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "OutageLog":
            text = _text(node.args[1])
            if text is not None:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        owner = node.func.value
        if node.func.attr in _LOGGED and isinstance(owner, ast.Name) and owner.id == "log" and node.args:
            text = _text(node.args[0])
            if text is not None:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", text


def scripts() -> Iterator[str]:
    """Yield the Lua of job_submit and the shell of the hooks."""
    for folder in ("plugins/job_submit", "prolog", "epilog", "packaging/hooks"):
        for path in sorted((ROOT / folder).glob("*")) if (ROOT / folder).is_dir() else ():
            yield path.read_text(encoding="utf-8")


@functools.cache
def pieces(message: str) -> tuple[str, ...]:
    """Return the constant parts of a message."""
    return tuple(piece.strip() for piece in message.split(GAP) if piece.strip(" :;,.()"))


def is_like(message: str, text: str) -> bool:
    """Return whether a text of the code contains all constant parts of the message in order."""
    at = 0
    for piece in pieces(message):
        at = text.find(piece, at)
        if at < 0:
            return False
        at += len(piece)
    return True
