"""summary.py DIRECTORY...: print one line per version of Slurm, from the results of tests/versions/inside.

The exit status is 1 if a test failed, a limit was exceeded, or a version has no results.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Outcome:
    """The test results of one version."""

    version: str
    rounds: Counter[str] = field(default_factory=Counter)
    """Rounds by kind of limit and counting method."""
    overshoots: int = 0
    """Number of rounds in which the limit was exceeded."""
    judged: int = 0
    refused_with_room: int = 0
    room_unused_s: float = 0.0
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def good(self) -> bool:
        """Return whether a test passed, none failed, and no limit was exceeded."""
        return self.passed > 0 and not self.failed and self.overshoots == 0

    def add_round(self, row: Mapping[str, Any]) -> None:
        """Count one line of rounds.jsonl."""
        self.rounds[f"{row['kind']} by {row['counted_by']}"] += 1
        self.overshoots += row["overshoot"] > 0
        self.judged += row["judged"]
        self.refused_with_room += row["refused_with_room"]
        self.room_unused_s = max(self.room_unused_s, row["room_unused_s"])

    def add_report(self, report: ET.Element) -> None:
        """Count the tests of a JUnit report."""
        for suite in report.iter("testsuite"):
            self.seconds += float(suite.get("time", "0"))
        for case in report.iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                self.failed.append(f"{case.get('classname', '').replace('.', '/')}::{case.get('name')}")
            elif case.find("skipped") is not None:
                self.skipped += 1
            else:
                self.passed += 1


def read(directory: Path) -> Outcome:
    """Return the sum of the results in one version's directory."""
    version_file = directory / "version"
    outcome = Outcome(version_file.read_text().split()[-1] if version_file.exists() else directory.name)
    rounds = directory / "rounds.jsonl"
    for line in rounds.read_text().splitlines() if rounds.exists() else ():
        outcome.add_round(json.loads(line))
    for report in sorted(directory.glob("*.xml")):
        outcome.add_report(ET.parse(report).getroot())
    return outcome


def lines(outcomes: Iterable[Outcome]) -> Iterable[str]:
    """Yield the printed lines."""
    for outcome in outcomes:
        rounds = ", ".join(f"{number} {what}" for what, number in sorted(outcome.rounds.items()))
        yield (
            f"Slurm {outcome.version}: {outcome.passed} tests passed, {len(outcome.failed)} failed, "
            f"{outcome.skipped} skipped; {outcome.rounds.total()} rounds ({rounds or 'none'}), "
            f"{outcome.overshoots} overshoots, {outcome.refused_with_room} of {outcome.judged} submissions "
            f"refused with room that was up to {outcome.room_unused_s:.1f} s old; {outcome.seconds:.0f} s"
        )
        yield from (f"  failed: {name}" for name in outcome.failed)


def main(arguments: Sequence[str]) -> int:
    """Print the lines; return the exit status."""
    outcomes = [read(Path(argument)) for argument in arguments]
    print("\n".join(lines(outcomes)))
    return 0 if outcomes and all(outcome.good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
