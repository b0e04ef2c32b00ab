"""Change one limit in the text of policy.yaml, preserving comments and layout."""

from __future__ import annotations

import difflib

from slurm_gpu.config.yaml_source import Location, parse_yaml
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.limit_value import value_text, with_value

_NO_END_OF_LINE = "\\ No newline at end of file"


def edit_limit(text: str, path: str, rule_id: str, key: str, value: int) -> str:
    """Return the text with the value of one limit replaced.

    Raise InputError if the edit would change anything else, for example because several rules share an
    anchor.
    """
    source = parse_yaml(text, path)
    policy = check_policy(source)
    rule = next(rule for rule in policy.rules if rule.id == rule_id)
    location: Location = (*rule.location, "limits", key)
    if location not in source.positions or location not in source.texts:
        raise source.error(rule.location, f"{key} of rule {rule_id} is not written as a single value")
    line, column = source.positions[location]
    old = source.texts[location]
    lines = text.splitlines(keepends=True)
    before, after = lines[line - 1][: column - 1], lines[line - 1][column - 1 :]
    if after.startswith(old):
        lines[line - 1] = f"{before}{value_text(key, value)}{after[len(old) :]}"
        edited = "".join(lines)
        if check_policy(parse_yaml(edited, path)) == with_value(policy, rule_id, key, value):
            return edited
    raise InputError(
        path,
        line,
        column,
        f"{key} of rule {rule_id} cannot be changed separately from other values; write it out in this rule",
    )


def unified_diff(old: str, new: str, path: str) -> str:
    """Return a unified diff of two texts of the file at `path`, which `patch` can apply."""
    lines = difflib.unified_diff(old.splitlines(keepends=True), new.splitlines(keepends=True), path, path)
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_END_OF_LINE}\n" for line in lines)
