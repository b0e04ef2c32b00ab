"""The policies in docs/policies, with submissions and their answers."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from .pages import DOCS

POLICIES = {path.stem: path for path in sorted((DOCS / "policies").glob("*.yaml"))}
# The job script of all submissions. Its jobs stay pending, so later submissions count them.
JOB_SCRIPT = "#!/bin/sh\n#SBATCH --begin=now+1hour\n#SBATCH --output=/dev/null\n"
# The last line of the answer to an accepted submission.
ACCEPTED = "accepted"
_PROMPT = re.compile(r"(?P<user>\w+)(?: at (?P<at>[\d-]+ [\d:]+))?\$ (?P<command>.+)")


@dataclass(frozen=True)
class Submission:
    """A command and its answer, with ACCEPTED as the last line if the job is accepted."""

    user: str
    # None if the time does not matter.
    at: dt.datetime | None
    command: str
    answer: str


def submissions(policy: Path) -> list[Submission]:
    """Return the submissions to a policy, in order."""
    found = []
    for block in policy.with_suffix(".jobs").read_text(encoding="utf-8").strip().split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith("#")]
        prompt = _PROMPT.fullmatch(lines[0])
        assert prompt is not None, lines[0]
        at = prompt["at"] and dt.datetime.fromisoformat(f"{prompt['at']}+00:00")
        found.append(Submission(prompt["user"], at or None, prompt["command"], "\n".join(lines[1:])))
    return found


def named(policy: str, key: str) -> set[str]:
    """Return the names under a key such as `partitions` in groups, limits, bundles, `manages:` and `set:`."""
    written: dict[str, Any] = yaml.safe_load(policy)
    parts = [part for rule in written.get("rules", ()) for part in (rule, *rule.get("tiers", ()))]
    tables = [*written["groups"].values(), *(part.get("limits", {}) for part in parts)]
    tables += [*written.get("bundles", {}).values(), written.get("manages", {})]
    names = {name for table in tables for name in table.get(key, ()) if "*" not in name}
    options = [rule.get(section, {}) for rule in written.get("rules", ()) for section in ("set", "defaults")]
    return names | {table[one] for table in options for one in (key, key.removesuffix("s")) if one in table}
