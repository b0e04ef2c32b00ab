"""The schema for editors and the check agree on valid and invalid policies."""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InputError, InvalidFileError
from slurm_gpu.policy.language.amounts import JobAmounts
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.limits import LIMITS, LimitUnit
from slurm_gpu.policy.language.model import Per

ROOT = Path(__file__).resolve().parents[2]
ETC = ROOT / "etc"
SCHEMA = (ETC / "policy.schema.json").read_text()
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA))

# Errors that no schema can express: references to names, sums, the calendar, improbable numbers.
CHECK_ONLY = re.compile(
    "|".join(
        (
            r"is not a group|is not a rule|is the id of an earlier|already has an exception",
            r"does not set this limit|counts the whole group|has tiers; add a tier|no tier has limits",
            r"is defined by itself|has from or until|an earlier tier|this tier never applies",
            r"is not allowed in a rule|is not a GPU type",
            r"is not in the calendar|three decimals|whole minutes|days; the maximum is",
            r"leave hours out|without days or hours",
            r"not a range of times|less than any program|more than any node has|whole MiB|allows no job",
            r"is set twice|already|is not under manages|other jobs run in it|all be preempted",
            # In JSON a day is a text, keys are texts, and 8.0 is a whole number.
            r"datetime\.|must be letters, digits|must be a GPU type|GPUs from which it",
            r"\d\.0 must be a whole number",
        )
    )
)


def as_json(value: Any) -> Any:
    """Convert a YAML value to the form that an editor validates."""
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [as_json(item) for item in value]
    return value.isoformat() if isinstance(value, dt.date) else value


def mistakes(text: str) -> tuple[list[str], list[str]]:
    """Return the mistakes found by the check and by the schema."""
    source = parse_yaml(text, "p.yaml")
    try:
        check_policy(source)
        found: list[str] = []
    except InvalidFileError as error:
        found = [one.message for one in error.errors]
    return found, [error.message for error in VALIDATOR.iter_errors(as_json(source.value))]


def assert_agree(text: str) -> None:
    check, schema = mistakes(text)
    if not check:
        assert schema == []
    if not schema:
        assert [message for message in check if not CHECK_ONLY.search(message)] == []


JUNK: st.SearchStrategy[Any] = st.sampled_from(
    [
        None,
        True,
        -1,
        0,
        7,
        8.0,
        0.12345,
        1e12,
        "",
        " ",
        "x",
        "a b",
        "é",
        "\x7f",
        "64G",
        "64",
        "4h",
        "09-18",
        [],
        [1],
        ["a", ""],
        {},
        {"x": 1},
        {"a100": 4},
        {1: "7d"},
        {"week": 5},
        dt.date(2026, 12, 5),
        dt.datetime(2026, 12, 5, 10, 0),
        "2026-02-30",
    ]
)


KEY_JUNK: st.SearchStrategy[Any] = st.sampled_from([None, True, -1, 7, 0.12345, "", "x y", "a100", "é"])


def mostly(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 39).flatmap(lambda n: KEY_JUNK if n == 0 else strategy)


def usually(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 39).flatmap(lambda n: JUNK if n == 0 else strategy)


def some(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[Any]:
    return usually(
        st.fixed_dictionaries(
            {key: usually(value) for key, value in required.items()},
            optional={key: usually(value) for key, value in optional.items()},
        )
    )


NAME = st.sampled_from(["vision", "nlp", "cpu", "gpu", "A100", "v100", "한국", "o'hara"])
NAMES = st.lists(usually(NAME), min_size=1, max_size=3)
GPUS = st.sampled_from([0, 1, 8, 0.5, 0.125, 999999])
COUNT = st.integers(0, 1000)
HOURS = st.integers(0, 900) | st.just(1.5)
MEMORY = st.sampled_from(["64G", "1.5T", "512M", " 8 GiB ", "64m", "0G", "9999T", "0.3G"])
DURATION = st.sampled_from(["4h", "7d", "1-12:00:00", "12:00:00", "2w", "90s", "70000h", "0.5h", "1:30"])
DAY = st.sampled_from([dt.date(2026, 12, 5), "2026-12-31", "2026-02-30"])
TEXT = st.sampled_from(["so that all get a turn", "two\nlines", "100% sure"])
MODE = st.sampled_from(["observe", "advise", "enforce"])
ON_ERROR = st.sampled_from(["allow", "deny"])
OF_MEASURE: dict[LimitUnit, st.SearchStrategy[Any]] = {
    LimitUnit.GPUS: GPUS | st.dictionaries(mostly(NAME), usually(GPUS), min_size=1, max_size=2),
    LimitUnit.COUNT: COUNT,
    LimitUnit.MEMORY: MEMORY,
    LimitUnit.WALLTIME: DURATION | st.dictionaries(mostly(GPUS), usually(DURATION), min_size=1, max_size=3),
    LimitUnit.NAMES: NAMES,
    LimitUnit.HOURS: HOURS | some({}, dict.fromkeys(("day", "week", "month"), HOURS)),
}
LIMIT = {
    per: some({}, {kind.key: OF_MEASURE[kind.measure] for kind in LIMITS.values() if kind.allowed_per(per)})
    for per in Per
}
AMOUNTS = some(
    {},
    {
        kind.key: OF_MEASURE[kind.measure]
        for kind in LIMITS.values()
        if kind.field in {one.name for one in dataclasses.fields(JobAmounts)}
    },
)
WHEN = some(
    {},
    {
        "days": st.sampled_from(["mon-fri", "sat,sun", "Mon", ["mon", "wed - fri"], "noday"]),
        "hours": st.sampled_from(["09-18", "22:30-24", "18-09", "25-26", "9-9"]),
        "at": st.sampled_from(["submission", "run", "start"]),
    },
)
GROUP = some(
    {},
    {
        "users": NAMES,
        "unix_groups": NAMES,
        "accounts": NAMES,
        "qos": NAMES,
        "partitions": NAMES,
        "in": st.just(["h"]),
        "not": st.just(["g"]),
        "from": DAY,
        "until": DAY,
    },
)


def rule(per: Per) -> st.SearchStrategy[Any]:
    required = {"id": st.sampled_from(["a", "b-1"]), "per": st.just(str(per)), "why": TEXT}
    group = st.sampled_from(["g", "h"])
    needs = st.sampled_from(["required", "forbidden"])
    options = some({}, dict.fromkeys(("time", "mem", "gpu_type"), needs))
    of_jobs = {"at_least": AMOUNTS, "exactly": AMOUNTS, "options": options}
    tier = some({}, {"for": group, "limits": LIMIT[per], "why": TEXT, "mode": MODE, **of_jobs})
    tiers = st.lists(tier, max_size=3)
    kind = st.sampled_from(["batch", "interactive"])
    optional = {"mode": MODE, "on_error": ON_ERROR, "when": WHEN, "kind": kind, **of_jobs}
    return some({**required, "for": group, "limits": LIMIT[per]}, optional) | some(
        {**required, "tiers": tiers}, {**optional, "for": group, "limits": LIMIT[per]}
    )


RULE = st.sampled_from(list(Per)).flatmap(rule)
EXCEPTION = some(
    {
        "rule": st.sampled_from(["a", "b-1"]),
        "limits": LIMIT[Per.USER] | LIMIT[Per.JOB],
        "why": TEXT,
    },
    {
        "user": NAME,
        "group": st.sampled_from(["g", "h"]),
        "granted_by": NAME,
        "from": DAY,
        "until": DAY,
        "at_least": AMOUNTS,
        "exactly": AMOUNTS,
    },
)
BUNDLE = some(
    {"gpus": GPUS},
    {
        "cpus": COUNT,
        "memory": MEMORY,
        "partitions": NAMES,
        "gpu_types": NAMES,
        "why": TEXT,
        "mode": st.sampled_from(["fit", "observe", "advise", "enforce"]),
    },
)
OWNER = some(
    {
        "gpus": mostly(st.sampled_from([1, 8, 0, -1, 1.5, True, "8", None])),
        "lend_in": mostly(st.sampled_from(["sg-loans", "normal", "a b", 7])),
        "return_within": DURATION,
    },
    {"qos": mostly(st.sampled_from(["sg-own", "sg-loans", "", 7]))},
)
POLICY = some(
    {"version": st.just(1)},
    {
        "contact": TEXT,
        "manages": some({}, {"qos": NAMES, "accounts": NAMES}),
        "chain": some({}, dict.fromkeys(("before", "after"), st.sampled_from(["/etc/a.lua", "a.lua"]))),
        "on_error": ON_ERROR,
        "mode": MODE,
        "bundles": st.dictionaries(mostly(st.sampled_from(["train", "prep"])), BUNDLE, max_size=2),
        "groups": st.dictionaries(mostly(st.sampled_from(["g", "h"])), GROUP, max_size=2),
        "rules": st.lists(RULE, max_size=2),
        "exceptions": st.lists(EXCEPTION, max_size=2),
        "owners": st.dictionaries(mostly(st.sampled_from(["g", "h"])), OWNER, max_size=2),
        "rulez": st.just([]),
    },
)


@given(POLICY)
def test_the_schema_and_the_check_agree(value: Any) -> None:
    assert_agree(yaml.safe_dump(value, allow_unicode=True))


# Test one part at a time in an otherwise valid policy, because mistakes could hide each other.
@given(RULE)
def test_they_agree_on_a_rule(value: Any) -> None:
    assert_agree(yaml.safe_dump({"version": 1, "groups": {"g": {}, "h": {}}, "rules": [value]}))


@given(BUNDLE)
def test_they_agree_on_a_bundle(value: Any) -> None:
    assert_agree(yaml.safe_dump({"version": 1, "bundles": {"train": value}}))


@given(st.sampled_from(sorted(LIMITS)), st.data())
def test_they_agree_on_a_limit(key: str, data: st.DataObject) -> None:
    kind = LIMITS[key]
    per = "job" if kind.allowed_per(Per.JOB) else "user"
    value = data.draw(st.one_of(OF_MEASURE[kind.measure], JUNK))
    limited = {"id": "a", "for": "g", "per": per, "why": "w", "limits": {key: value}}
    assert_agree(yaml.safe_dump({"version": 1, "groups": {"g": {}}, "rules": [limited]}))


@pytest.mark.parametrize(
    "text",
    [
        "version: 2\n",
        "version: 1\nrulez: []\n",
        "version: 1\ngroups: {g: {account: [vision]}}\n",
        "version: 1\nbundles: {train: {gpus: 1}}\n",
        "version: 1\nbundles: {prep: {gpus: 0, cpus: 4, gpu_types: [a100]}}\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: job, why: w, limits: {memory: 64}}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: job, why: w, limits: {jobs_total: 6}}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: user, why: w, limits: {walltime: 4h}}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: job, why: w, limits: {tasks: 1}, k: x}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: job, why: w}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: job, why: w, exactly: {jobs_total: 1}}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: user, why: w, exactly: {nodes: 1}}]\n",
        "version: 1\ngroups: {g: {}}\nrules: [{id: a, for: g, per: job, why: w, at_least: {gpus: {x: 1}}}]\n",
    ],
)
def test_both_find_the_mistake(text: str) -> None:
    check, schema = mistakes(text)
    assert check
    assert schema


def test_the_committed_schema_is_up_to_date() -> None:
    command = [sys.executable, "packaging/policy_schema.py"]
    printed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert printed.stdout == SCHEMA, "run: python packaging/policy_schema.py > etc/policy.schema.json"
    VALIDATOR.check_schema(VALIDATOR.schema)


def test_the_example_policy_is_valid_and_names_the_schema() -> None:
    text = (ETC / "policy.yaml").read_text()
    assert mistakes(text) == ([], [])
    assert text.splitlines()[0] == "# yaml-language-server: $schema=policy.schema.json"


def test_invalid_yaml_is_an_error_before_both() -> None:
    with pytest.raises(InputError):
        mistakes("version: [\n")
