"""Each mistake in policy.yaml is reported with its position, value and allowed values, all in one run."""

from __future__ import annotations

import contextlib
import datetime as dt

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slurm_gpu.config.site import Placement
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InputError
from slurm_gpu.notices.settings import Settings
from slurm_gpu.policy.language.amounts import GpuLimit, LimitStep, RuleLimits
from slurm_gpu.policy.language.model import BundleMode, Mode, OnError, Per

from .checking import check, mistakes

GOOD = """\
version: 1
contact: gpu-help@cs.example.edu
manages: {qos: [sg-a], accounts: [vision]}
on_error: deny
groups:
  grads: {accounts: [vision, nlp], partitions: [gpu]}
  course: {unix_groups: [cs540], until: 2026-12-20}
  all: {}
rules:
  - id: share
    for: grads
    per: user
    why: |
      Sixteen each
      keeps waiting short.
    limits: {gpus_total: 2.5, jobs_total: 0}
  - id: days
    for: all
    per: job
    why: Others get a turn.
    limits: {walltime: "1-12:00:00", gpus: 16}
    mode: advise
    on_error: allow
exceptions:
  - {rule: share, user: alice, limits: {gpus_total: 32}, until: 2026-12-05, why: deadline, granted_by: carol}
"""


def test_a_full_policy_is_read() -> None:
    policy = check(GOOD)
    assert policy.on_error is OnError.DENY
    assert policy.groups["grads"].accounts == ("vision", "nlp")
    assert policy.groups["course"].until == dt.date(2026, 12, 20)
    share, days = policy.rules
    assert (share.per, share.why, share.mode) == (Per.USER, "Sixteen each keeps waiting short.", Mode.OBSERVE)
    assert share.limits == RuleLimits(gpus_total=GpuLimit(2500), jobs_total=0)
    assert share.on_error is OnError.DENY  # the default of the policy
    assert days.limits == RuleLimits(gpus=GpuLimit(16000), walltime=(LimitStep(0, 36 * 3600),))
    assert (days.mode, days.on_error) == (Mode.ADVISE, OnError.ALLOW)
    assert policy.exceptions[0].limits.gpus_total == GpuLimit(32000)


def test_the_default_mode_is_observe() -> None:
    policy = check(
        "version: 1\ngroups: {all: {}}\nbundles: {train: {gpus: 1, cpus: 8}}\ncolocation: {why: x}\n"
        "cancel_idle: {warn: [30m], after: 2h, why: x}\n"
        "rules: [{id: a, for: all, per: job, why: x, limits: {gpus: 1}}]\n"
    )
    assert policy.mode is policy.rules[0].mode is Mode.OBSERVE
    assert policy.bundles["train"].mode is BundleMode.OBSERVE
    assert policy.colocation is not None
    assert policy.colocation.mode is Mode.OBSERVE
    assert policy.cancel_idle is not None
    assert policy.cancel_idle.mode is Mode.OBSERVE
    assert Placement().mode == Settings().mode == "observe"


def test_the_limit_on_urgent_jobs_is_always_enforced() -> None:
    policy = check(
        "version: 1\nmode: advise\nmanages: {qos: [urgent]}\ngroups: {leads: {users: [carol]}}\n"
        "urgent: {for: [leads], jobs_running: 2, why: x}\n"
    )
    assert [(rule.id, rule.mode) for rule in policy.rules] == [("urgent", Mode.ENFORCE)]


def test_a_policy_without_rules_is_valid() -> None:
    assert check("version: 1\n").rules == ()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version: 1", "version: 2", "p.yaml:1:10: version: 2 must be 1"),
        ("version: 1\n", "", "p.yaml:1:1: the file lacks version; write version: 1"),
        ("on_error: deny", "on_eror: deny", "p.yaml:4:1: 'on_eror' is not a setting of the file; did"),
        ("on_error: deny", "on_error: maybe", "p.yaml:4:11: on_error: 'maybe' is not valid; allowed"),
        ("for: grads", "for: grad", "p.yaml:11:10: for: 'grad' is not a group; did you mean grads?"),
        ("per: user", "per: person", "per: 'person' is not valid; allowed: user, account, group, job"),
        ("jobs_total: 0", "jobs_total: -1", "p.yaml:16:43: jobs_total: -1 must be a whole number"),
        ("gpus_total: 2.5", "gpus_total: many", "p.yaml:16:26: gpus_total: 'many' must be a number"),
        ("gpus_total: 2.5", "gpus_total: 0.12345", "must have at most three decimals"),
        ("gpus_total: 2.5", "gpus_total: yes", "gpus_total: True must be a number of GPUs"),
        ("gpus_total: 2.5", "gpus_total:", "gpus_total: None must be a number of GPUs"),
        ('walltime: "1-12:00:00"', "walltime: 7", "p.yaml:21:24: walltime: 7 has no unit; write 7m, "),
        (
            'walltime: "1-12:00:00"',
            "walltime: 12:00",
            "'12:00' may be hours or minutes; write 12h or 12:00:00",
        ),
        (
            'walltime: "1-12:00:00"',
            "walltime: 09:00",
            "'09:00' may be hours or minutes; write 09h or 09:00:00",
        ),
        ('walltime: "1-12:00:00"', "walltime: 1:30", "'1:30' may be hours or minutes; write 1:30:00"),
        ("gpus_total: 2.5", "gpus_total: 1:30", "p.yaml:16:26: gpus_total: '1:30' must be a number of GPUs"),
        ("gpus_total: 2.5", "gpus_total: 1:30.5", "gpus_total: '1:30.5' must be a number of GPUs"),
        ("gpus_total: 2.5", "gpus_total: 010", "gpus_total: '010' must be a number of GPUs"),
        ("gpus_total: 2.5", "gpus_total: -0x1F", "such as 8 or 0.5 (written as -0x1F)"),
        ("on_error: deny", "on_error: no", "allowed: allow, deny (written as no)"),
        ('walltime: "1-12:00:00"', "walltime: 7 days", "walltime: '7 days' must be a duration, such as 4h"),
        ('walltime: "1-12:00:00"', "walltime: 30s", "walltime: '30s' must be in whole minutes"),
        ("{walltime:", "{jobs_total: 8, walltime:", "with per: job; write it in a rule with per: user"),
        ("jobs_total: 0", "gpus: 1", "'gpus' is not allowed in a rule with per: user; write it in"),
        ("jobs_total: 0", "gpus: 1", "; the limit over all jobs of the user is gpus_total or gpus_running"),
        ("mode: advise", "mode: advice", "mode: 'advice' is not valid; did you mean advise?"),
        (
            "- id: days",
            "- id: share",
            "p.yaml:17:9: id: 'share' is the id of an earlier rule; ids must be unique",
        ),
        ("- id: days", '- id: "a b"', "id: 'a b' must be letters, digits, _ . -"),
        ("    why: Others get a turn.\n", "", "p.yaml:17:5: rule days lacks why"),
        ("  - id: days\n    for: all", "  - for: all", "p.yaml:17:5: rule 2 lacks id; write letters,"),
        ("  all: {}", "  all:", "p.yaml:8:3: groups.all is empty; allowed: users, unix_groups,"),
        ("[vision, nlp]", "vision", "p.yaml:6:21: accounts: 'vision' must be a list of names"),
        ("[vision, nlp]", "[vision, 540]", "accounts: 540 must be a name; put it in quotes"),
        ("until: 2026-12-20", "until: soon", "until: 'soon' must be a day written as YYYY-MM-DD"),
        ("until: 2026-12-20", "until: 2026-02-30", "p.yaml:7:41: until: '2026-02-30' is not in the calendar"),
        ("rule: share", "rule: shares", "rule: 'shares' is not a rule; did you mean share?"),
        ("{gpus_total: 32}", "{walltime: 3d}", "'walltime' is not allowed in a rule with per: user"),
        (
            "until: 2026-12-20",
            "from: 2026-12-21, until: 2026-12-20",
            "p.yaml:7:34: from: 2026-12-21 is after until",
        ),
        (
            "until: 2026-12-05",
            "until: 2026-12-05, from: 2027-01-01",
            "from: 2027-01-01 is after until: 2026-",
        ),
        ("per: user", "per: group", "counts the whole group together"),
        ("why: deadline", 'why: "\\e[31m"', "contains a control character"),
        (
            "gpus_total: 2.5",
            "gpus_total: {gpus_running: 2}",
            "p.yaml:16:27: gpus_total: 'gpus_running' is not a GPU type; write this limit directly under",
        ),
        ("gpus: 16", "gpus: {min: 1}", "gpus: 'min' is not a GPU type; gpus is a maximum: write gpus: 8, or"),
        ("gpus_total: 32", "gpus_total: {MAX: 3}", "gpus_total: 'MAX' is not a GPU type; gpus_total is a"),
        (
            "[vision, nlp]",
            '[vision, "dept/nlp"]',
            "p.yaml:6:30: accounts: 'dept/nlp' must be a name without /",
        ),
        ("gpus: 16", 'partitions: ["gpu*"]', "partitions: 'gpu*' must be one full name"),
        ("all: {}", "all: {not: [gards]}", "not: 'gards' is not a group; did you mean grads?"),
        ("all: {}", "all: {in: [all]}", "group all is defined by itself (in: or not:)"),
        (
            "all: {}",
            "all: {in: [spring]}\n  spring: {from: 2027-02-01}",
            "in: group spring has from or until;",
        ),
    ],
)
def test_each_mistake_is_reported(old: str, new: str, message: str) -> None:
    assert old in GOOD
    found = mistakes(GOOD.replace(old, new, 1))
    assert any(message in line for line in found), found


@pytest.mark.parametrize("text", ["36:00:00", '"36:00:00"', "'36:00:00'", "36h", "1-12:00:00", '"2160:00"'])
def test_an_unambiguous_duration_needs_no_quotes(text: str) -> None:
    assert check(GOOD.replace('"1-12:00:00"', text)) == check(GOOD)


def test_an_empty_file_is_reported_as_empty() -> None:
    assert mistakes("# nothing yet\n") == [
        "p.yaml:1:1: the file is empty; it should begin with version: 1, then groups and rules"
    ]


def test_a_tab_is_reported() -> None:
    with pytest.raises(InputError, match=r"^p\.yaml:2:1: is not valid YAML: a tab .* use spaces$"):
        parse_yaml("groups:\n\tall: {}\n", "p.yaml")


def test_a_day_that_does_not_exist_hides_no_other_mistake() -> None:
    lines = mistakes(GOOD.replace("2026-12-20", "2026-02-30").replace("gpus: 16", "gpus: x"))
    assert [line.split(":")[1] for line in lines] == ["7", "21"]


def test_all_mistakes_are_reported_in_the_order_of_the_file() -> None:
    text = (
        GOOD.replace("on_error: deny", "on_error: no")
        .replace("gpus: 16", "gpus: x")
        .replace("for: all", "for: al")
    )
    lines = mistakes(text)
    assert [line.split(":")[1] for line in lines] == ["4", "18", "21"]


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "version",
                        "groups",
                        "rules",
                        "limits",
                        "id",
                        "for",
                        "per",
                        "gpus",
                        "exceptions",
                        "rule",
                        "user",
                        "x",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_the_check_fails_only_with_input_errors_for_any_yaml(value: object) -> None:
    with contextlib.suppress(InputError):
        check(yaml.safe_dump(value, allow_unicode=True))


@pytest.mark.parametrize(
    ("section", "old", "new"),
    [
        ("colocation: {why: x, may: [all]}", "may", "allowed_groups"),
        ("colocation: {why: x, must: [all]}", "must", "required_groups"),
        ("colocation: {why: x, together: 2}", "together", "jobs_per_gpu"),
        ("colocation: {why: x, largest: 0.5}", "largest", "max_gpu_fraction"),
        ("colocation: {why: x, hold: 5m}", "hold", "max_wait"),
        ("cancel_idle: {warn: [30m], after: 2h, why: x, then: hold}", "then", "action"),
    ],
)
def test_a_renamed_key_is_an_error_that_names_the_new_one(section: str, old: str, new: str) -> None:
    name = section.partition(":")[0]
    (mistake,) = mistakes(f"{GOOD}{section}\n")
    assert mistake.endswith(f"{old!r} is not a setting of {name}; did you mean {new}?")
