"""The number of findings per section and rule: today's, and the recorded one that it may not exceed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from tests.prose.files import prose_files, section
from tests.prose.rules import findings
from tests.prose.texts import passages

_RECORDED = Path(__file__).with_name("counts.json")


def today() -> Counter[str]:
    """Count the findings in all files, by "section rule"."""
    return Counter(
        f"{section(path)} {rule}"
        for path in prose_files()
        for passage in passages(path)
        for rule, _ in findings(passage)
    )


def recorded() -> dict[str, int]:
    """Return the numbers that were recorded last."""
    return dict(json.loads(_RECORDED.read_text())) if _RECORDED.exists() else {}


def record(counts: Counter[str]) -> None:
    """Record numbers, sorted, one a line."""
    _RECORDED.write_text(json.dumps(dict(sorted(counts.items())), indent=0) + "\n")
