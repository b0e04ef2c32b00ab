"""docs/troubleshooting.md quotes only messages of the code, and lists each warning of the daemons."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import pytest

from .messages import is_like, logged, pieces, scripts, texts
from .pages import DOCS, code_spans

_PAGE = DOCS / "troubleshooting.md"
# An item about messages begins with the messages and a colon.
_QUOTED = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): ", _PAGE.read_text(), re.MULTILINE)
MESSAGES = [span for text in _QUOTED for span in text.split("`")[1::2]]


@functools.cache
def _texts() -> Sequence[str]:
    """Return every message of the code; searched once, and only if these tests run."""
    return [*dict.fromkeys(texts()), *scripts()]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_that_is_quoted_is_in_the_code(message: str) -> None:
    assert any(is_like(message, text) for text in _texts())


def test_a_message_that_is_not_in_the_code_is_found() -> None:
    assert not any(is_like("the spool is half … full", text) for text in _texts())


def _is_on_the_page(text: str) -> bool:
    """Return whether the page quotes the text, or a part of it with at least 20 constant characters."""
    return any(
        is_like(text, message) or (is_like(message, text) and sum(map(len, pieces(message))) >= 20)
        for message in MESSAGES
    )


def test_every_warning_of_the_daemons_is_on_the_page() -> None:
    missing = [f"{where}: {text}" for where, text in logged() if pieces(text) and not _is_on_the_page(text)]
    assert missing == [], "docs/troubleshooting.md lacks these: add their cause and the action"


def test_the_page_has_no_message_twice() -> None:
    spans = [span for span in code_spans(_PAGE) if span in MESSAGES]
    assert len(spans) == len(set(spans))
