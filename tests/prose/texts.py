"""Extract the prose of a file: what a person reads in pages, docstrings, comments and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

_MARKDOWN = MarkdownIt("commonmark").enable("table")
# Of other files comments begin with #.
_COMMENT = {".lua": "--", ".js": "//", ".css": ""}
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/|--\[\[.*?\]\]|<!--.*?-->", re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|`(?:[^`\\]|\\.)*`')
# A message has at least three words; shorter strings are mostly keys.
_MESSAGE = re.compile(r"[A-Za-z]+[,;:]? [a-z]+.* [a-z]+")
# JavaScript, shell, Lua or Python in a string, or a row of a table in Markdown.
_SCRIPT = re.compile(r"=>|;;|&&|^import \w|^from \S+ import|^local \w|\bconst \w+ =|^\|.*\|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Passage:
    """A paragraph, docstring, comment or message, with the line where it begins."""

    line: int
    text: str
    is_docstring: bool = False


def passages(path: Path) -> list[Passage]:
    """Return all prose of a file, by its suffix. Code in backquotes is left out of pages."""
    text = path.read_text(encoding="utf-8")
    match path.suffix:
        case ".md":
            return list(_of_markdown(text))
        case ".py":
            return [*_of_docstrings_and_messages(text), *_joined(_of_python_comments(text))]
        case ".txt" | ".html" | ".svg":
            return list(_of_paragraphs(re.sub(r"<[^>]+>|\{[^}]*\}", " ", text)))
    return [*_joined(_of_comments(text, _COMMENT.get(path.suffix, "#"))), *_of_strings(text, path.suffix)]


def _of_markdown(text: str) -> Iterator[Passage]:
    for token in _MARKDOWN.parse(text):
        if token.type == "inline" and token.map is not None:
            words = "".join(map(_readable, token.children or ()))
            if words.strip():
                yield Passage(token.map[0] + 1, words)


def _readable(token: Token) -> str:
    if token.type == "code_inline":
        return "`code`"
    return " " if token.type.endswith("break") else token.content if token.type == "text" else ""


def _of_docstrings_and_messages(text: str) -> Iterator[Passage]:
    nodes = list(ast.walk(ast.parse(text)))
    other: set[ast.expr] = set()
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str() as words) as constant):
                other.add(constant)
                yield Passage(node.lineno, words, is_docstring=True)
            case ast.JoinedStr(values=parts):
                other.update(parts)
                words = "".join(str(one.value) if isinstance(one, ast.Constant) else "`x`" for one in parts)
                if _is_message(words):
                    yield Passage(node.lineno, words)
    for node in nodes:
        match node:
            case ast.Constant(value=str() as words) if node not in other and _is_message(words):
                yield Passage(node.lineno, words)


def _is_message(words: str) -> bool:
    return bool(_MESSAGE.search(words)) and not _SCRIPT.search(words)


def _of_python_comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#!: ")


def _of_comments(text: str, mark: str) -> Iterator[tuple[int, str]]:
    # In scripts of a shell, /* is a pattern of files.
    for match in _BLOCK_COMMENT.finditer(text) if mark != "#" else ():
        yield text.count("\n", 0, match.start()) + 1, match[0].strip("/*-[]<>! \n")
    if mark:
        for number, line in enumerate(text.splitlines(), start=1):
            if line.lstrip().startswith(mark) and not line.startswith("#!"):
                yield number, line.lstrip().removeprefix(mark).strip("-#/ ")
            elif (at := line.find(f" {mark} ")) > 0:
                yield number, line[at:].strip(f" {mark}")


def _joined(lines: Iterator[tuple[int, str]]) -> Iterator[Passage]:
    """Join comments on consecutive lines."""
    begun: list[str] = []
    first = last = -1
    for number, line in lines:
        if number != last + 1 or not line:
            if begun:
                yield Passage(first, " ".join(begun))
            begun, first = [], number
        begun.append(line)
        last = number
    if begun:
        yield Passage(first, " ".join(begun))


def _of_strings(text: str, suffix: str) -> Iterator[Passage]:
    if suffix not in (".lua", ".js"):
        return
    for match in _STRING.finditer(text):
        if _MESSAGE.search(match[0]):
            yield Passage(text.count("\n", 0, match.start()) + 1, match[0][1:-1])


def _of_paragraphs(text: str) -> Iterator[Passage]:
    line = 1
    for paragraph in re.split(r"(\n\s*\n)", text):
        if paragraph.strip():
            yield Passage(line, paragraph)
        line += paragraph.count("\n")
