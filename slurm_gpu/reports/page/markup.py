"""Build HTML and SVG as element trees. Markup is never built from text, so no name can become markup."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from xml.etree.ElementTree import Element, tostring

from slurm_gpu.reports.page.plain_text import visible

Child = Element | str | None
_VOID, _RAW = ("meta", "link", "img", "input"), ("script", "style")
SVG_NAMESPACE = "http://www.w3.org/2000/svg"


def element(tag: str, attributes: Mapping[str, str] | None = None, *children: Child) -> Element:
    """Return an element with these children, omitting None. Texts and control characters are escaped."""
    made = Element(tag, {name: visible(value) for name, value in (attributes or {}).items()})
    append(made, *children)
    return made


def section(name: str, title: str, *children: Child, level: str = "h2") -> Element:
    """Return a section with an id and a heading."""
    heading = element(level, {"id": f"{name}-title"}, title)
    return element("section", {"id": name, "aria-labelledby": f"{name}-title"}, heading, *children)


def items(classes: str, texts: Iterable[str]) -> Element:
    """Return an unordered list."""
    return element("ul", {"class": classes}, *(element("li", None, text) for text in texts))


def raw(tag: str, attributes: Mapping[str, str], content: str) -> Element:
    """Return a `style` or `script` element with content from this package, which is not escaped."""
    if tag not in _RAW or f"</{tag}" in content.lower() or "<!--" in content:
        raise ValueError(f"content cannot be inside a <{tag}>")
    made = Element(tag, dict(attributes))
    made.text = content
    return made


def append(parent: Element, *children: Child) -> None:
    """Append children to an element, omitting None."""
    for child in children:
        if isinstance(child, Element):
            parent.append(child)
        elif child is not None:
            _append_text(parent, visible(child))


def html_text(root: Element) -> str:
    """Return a complete HTML document.

    ElementTree's own writer leaves `<` in attributes unescaped, and some parsers reject such attributes
    inside `noscript`.
    """
    parts = ["<!doctype html>\n"]
    _write(root, parts)
    return "".join((*parts, "\n"))


def svg_text(root: Element) -> str:
    """Return a complete SVG document."""
    root.set("xmlns", SVG_NAMESPACE)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{tostring(root, encoding="unicode")}\n'


def _write(node: Element, out: list[str]) -> None:
    attributes = "".join([f' {name}="{html.escape(value)}"' for name, value in node.items()])
    out.append(f"<{node.tag}{attributes}>")
    if node.tag not in _VOID:
        if node.text:
            out.append(node.text if node.tag in _RAW else html.escape(node.text, quote=False))
        for child in node:
            _write(child, out)
        out.append(f"</{node.tag}>")
    if node.tail:
        out.append(html.escape(node.tail, quote=False))


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        last = parent[-1]
        last.tail = text if last.tail is None else last.tail + text
    else:
        parent.text = text if parent.text is None else parent.text + text
