"""Build a manual page as a docutils document, and convert it to the format of man(1)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from docutils import nodes
from docutils.core import publish_from_doctree
from docutils.utils import new_document

_MANUAL = "slurm-gpu"
_BACKTICKED = re.compile(r"`([^`]+)`")
_SPACE_BELOW_HEADING = re.compile(r"^(\.S[HS] .*\n)\.sp\n", re.MULTILINE)
_SETTINGS = {"output_encoding": "unicode", "report_level": 2, "halt_level": 2}

Inline = Sequence[nodes.Node]


@dataclass(slots=True)
class ManPage:
    """A manual page; sections appear in the order in which they are added."""

    name: str
    section: int
    summary: str
    version: str
    date: str
    _sections: list[nodes.section] = field(default_factory=list)

    @property
    def file_name(self) -> str:
        """Return the file name that man expects."""
        return f"{self.name}.{self.section}"

    def add(self, title: str, *content: nodes.Node | Iterable[nodes.Node]) -> None:
        """Add a section, unless it is empty."""
        body = [node for item in content for node in ([item] if isinstance(item, nodes.Node) else item)]
        if body:
            self._sections.append(section(title, *body))

    def to_roff(self) -> str:
        """Return the page in the format of man."""
        document = new_document(self.file_name)
        document += nodes.title("", self.name)
        document += nodes.subtitle("", self.summary)
        information = nodes.docinfo()
        for name, value in (("Manual section", str(self.section)), ("Manual group", _MANUAL)):
            information += nodes.field("", nodes.field_name("", name), nodes.field_body("", _text(value)))
        information += nodes.version("", f"slurm-gpu {self.version}")
        information += nodes.date("", self.date)
        document += information
        document += self._sections
        text = str(publish_from_doctree(document, writer="manpage", settings_overrides=_SETTINGS))
        # Omit empty lines below headings, about which mandoc would warn, and write all headings in capitals.
        return _SPACE_BELOW_HEADING.sub(r"\1", text).replace("\n.SH Name\n", "\n.SH NAME\n", 1)


def section(title: str, *content: nodes.Node) -> nodes.section:
    """Return a section or subsection."""
    return nodes.section("", nodes.title("", title), *content, ids=[nodes.make_id(title)])


def paragraph(text: str) -> nodes.paragraph:
    """Return running text, with text in backticks in bold."""
    return nodes.paragraph("", "", *inline(text))


def paragraphs(text: str) -> list[nodes.Node]:
    """Return running text, split into paragraphs."""
    return [paragraph(part) for part in re.split(r"\n\s*\n", text.strip()) if part]


def literal(text: str) -> nodes.literal_block:
    """Return lines that are not wrapped or formatted."""
    return nodes.literal_block("", text)


def definitions(items: Iterable[tuple[Inline, Sequence[nodes.Node]]]) -> list[nodes.Node]:
    """Return a list of terms and their descriptions; [] without terms."""
    found = [
        nodes.definition_list_item("", nodes.term("", "", *term), nodes.definition("", *meaning))
        for term, meaning in items
    ]
    return [nodes.definition_list("", *found)] if found else []


def inline(text: str) -> list[nodes.Node]:
    """Return text in which the parts between backticks are bold."""
    parts = _BACKTICKED.split(" ".join(text.split()))
    return [strong(part) if index % 2 else nodes.Text(part) for index, part in enumerate(parts) if part]


def usage(words: Iterable[str]) -> list[nodes.Node]:
    """Return a command line with options and fixed words in bold, and placeholders in italics."""
    found: list[nodes.Node] = []
    for word in words:
        found += [nodes.Text(" ")] if found else []
        for part in re.split(r"([\[\]|,=]|\.\.\.)", word):
            if re.search("[A-Z]", part) and not part.startswith("-"):
                found.append(nodes.emphasis("", part))
            elif re.search(r"\w", part):
                found.append(strong(part))
            elif part:
                found.append(nodes.Text(part))
    return found


def strong(text: str) -> nodes.strong:
    """Return bold text."""
    return nodes.strong("", text)


def see_also(names: Iterable[str]) -> nodes.paragraph:
    """Return references to pages such as "squeue(1)"."""
    found: list[nodes.Node] = []
    for name in names:
        page, bracket, number = name.partition("(")
        found += [nodes.Text(", ")] if found else []
        found += [strong(page), nodes.Text(bracket + number)]
    return nodes.paragraph("", "", *found)


def _text(text: str) -> nodes.paragraph:
    return nodes.paragraph("", text)
