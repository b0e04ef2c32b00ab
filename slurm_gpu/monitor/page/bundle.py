"""Bundle a page's modules into one script, which a browser loads with a single request.

Each imported module becomes a function that is called once and returns its exports. The page's first module
remains a module. Other code is unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

_IMPORT = re.compile(r'^import (?:\* as (\w+)|\{ ([^}]+) \}) from "\./([a-z]+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:const|class|(?:async )?function) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*$", re.MULTILINE)

# Returns the text of a module by its name without ".js".
Read = Callable[[str], str]


class BundleError(Exception):
    """Raised for a module with an import or export that cannot be bundled."""


def bundled(first: str, read: Read) -> str:
    """Return `first` and all its direct and indirect imports as one module; raise BundleError on failure."""
    exported: dict[str, list[str]] = {}
    parts = []
    for name in in_order(first, read):
        text = _IMPORT.sub(partial(_taken, name, exported), read(name))
        if name != first:
            exported[name] = _EXPORT.findall(text)
            text = _EXPORT.sub("", text)
            if (other := _OTHER.search(text)) is not None:
                raise BundleError(f"{name}.js: {other[0]!r} is an import or export that cannot be bundled")
            text = f"const ${name} = (() => {{\n{text}return {{ {', '.join(exported[name])} }};\n}})();\n"
        parts.append(text)
    return "".join(parts)


def in_order(first: str, read: Read) -> list[str]:
    """Return the names of `first` and its imports, each after its own imports.

    Raise BundleError if modules import each other.
    """
    found: list[str] = []
    open_: list[str] = []

    def visit(name: str) -> None:
        if name in open_:
            raise BundleError(f"modules import each other: {' → '.join([*open_, name])}")
        if name in found:
            return
        open_.append(name)
        for each in _IMPORT.finditer(read(name)):
            visit(each[3])
        found.append(open_.pop())

    visit(first)
    return found


def _taken(importer: str, exported: dict[str, list[str]], found: re.Match[str]) -> str:
    """Return the text that replaces an import statement."""
    whole, some, name = found.groups()
    if whole is not None:
        return f"const {whole} = ${name};"
    names = [each.partition(" as ")[::2] for each in some.split(", ")]
    for wanted, _ in names:
        if wanted not in exported[name]:
            raise BundleError(f"{importer}.js imports {wanted}, which {name}.js does not export")
    taken = ", ".join(f"{wanted}: {alias}" if alias else wanted for wanted, alias in names)
    return f"const {{ {taken} }} = ${name};"
