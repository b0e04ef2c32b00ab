"""Groups with wildcards, and groups defined by other groups."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names
from slurm_gpu.policy.lua.bundle import SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.lua.install import try_bundle
from slurm_gpu.policy.lua.installed import policy_of
from slurm_gpu.policy.lua.script import LUA_VERSIONS, PolicyScript
from slurm_gpu.policy.pages.page import make_page
from slurm_gpu.policy.pages.policy_json import to_json

from .limitstore import qos
from .model import Request
from .nativepolicies import numbers, rules, wanted_limits
from .render import PARTITIONS, description
from .test_coverage_findings import find_warnings, rule
from .test_unknown_names import warnings
from .users import Directory

GROUPS = """
  g: {%s}
  vision: {accounts: [Vision]}
  labs: {accounts: ["Lab_*"]}
  staff: {users: [alice]}
  gpu: {partitions: [gpu]}
  long: {qos: [long]}
  both: {in: [vision, gpu]}
"""
TEXT = "version: 1\nmode: enforce\ngroups:" + GROUPS
RULE = "rules: [{id: one, for: g, per: job, why: w, limits: {gpus: 1}}]\n"
JOB: Mapping[str, str | int] = {"uid": 1001, "account": "vision", "partition": "gpu", "qos": "normal"}


@functools.cache
def bundle(group: str) -> str:
    source = parse_yaml(TEXT % group + RULE, "p.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, Directory())
    assert not names.unknown
    return build_bundle(compile_policy(policy, names, SiteFacts(year=2026)))


MEMBERS = [
    ('accounts: ["vis*"]', {}, True),
    ('accounts: ["vis*"]', {"account": "nlp"}, False),
    ('accounts: ["v?sion", nlp]', {"account": "nlp"}, True),
    ('accounts: ["v?sion"]', {"account": "vsion"}, False),
    ('accounts: ["lab_*"]', {"account": "lab-1"}, False),
    ('accounts: ["lab.*"]', {"account": "labs"}, False),
    ('accounts: ["lab?"]', {"account": "labö"}, True),
    ('accounts: ["lab[1]*"]', {"account": "lab1"}, False),
    ("accounts: [Dept/*]", {}, True),
    ("accounts: [dept/*]", {"account": "dept"}, True),
    ("accounts: [dept/*]", {"account": "nlp-old"}, True),
    ("accounts: [dept/*]", {"account": "other"}, False),
    ("accounts: [nlp/*, other]", {"account": "other"}, True),
    ('users: ["*o*"]', {}, False),
    ('users: ["*o*"]', {"uid": 1002}, True),
    ('qos: ["sg-*"]', {"qos": "normal,SG-x"}, True),
    ('partitions: ["g?u"]', {"partition": "long"}, False),
    ("in: [vision, gpu]", {}, True),
    ("in: [vision, gpu]", {"partition": "long"}, False),
    ("in: [labs], partitions: [gpu]", {"account": "lab_x"}, True),
    ("in: [labs]", {"account": "lab_y"}, True),
    ("in: [labs]", {}, False),
    ("not: [vision, staff]", {}, False),
    ("not: [vision, staff]", {"account": "nlp"}, False),
    ("not: [vision, staff]", {"account": "nlp", "uid": 1002}, True),
    ("not: [both]", {"partition": "long"}, True),
    ("not: [both]", {}, False),
    ("in: [both], not: [long]", {"qos": "long"}, False),
    # A job that may start in several QOS or partitions is in a group if one of them is.
    ("not: [gpu]", {"partition": "gpu,long"}, True),
    ("not: [gpu]", {"partition": "gpu"}, False),
    ("in: [gpu], not: [long]", {"qos": "long,normal", "partition": "gpu,long"}, True),
    ("in: [gpu], not: [long]", {"qos": "long", "partition": "gpu,long"}, False),
]


@pytest.mark.parametrize("lua", LUA_VERSIONS)
@pytest.mark.parametrize(("group", "job", "is_in"), MEMBERS)
def test_the_script_and_slurm_gpuctld_find_the_same_jobs_in_a_group(
    group: str, job: Mapping[str, str | int], is_in: bool, lua: str
) -> None:
    uid, account, partition, qos = (str(value) for value in {**JOB, **job}.values())
    request = Request(int(uid), account, partition, qos, per_job=2)
    script = PolicyScript(bundle(group), lua=lua)
    # Submit with another account first, because the script remembers the rules of an account.
    script.submit(description(Request(1003, "lab_z", per_job=1)), PARTITIONS)
    assert script.submit(description(request), PARTITIONS).accepted != is_in
    in_force = policy_of(bundle(group)).groups[0]
    assert in_force.matches(int(uid), account, qos, partition) == is_in


def test_a_name_longer_than_slurm_s_matches_no_wildcard() -> None:
    script = PolicyScript(bundle('accounts: ["a*"]'))
    for length, accepted in ((255, False), (256, True)):
        job = Request(1001, "a" * length, per_job=2)
        assert script.submit(description(job), PARTITIONS).accepted == accepted


def test_apply_tries_a_job_of_the_group() -> None:
    source = parse_yaml(TEXT % 'in: [labs], not: [long], partitions: ["g*"]' + RULE, "p.yaml")
    policy = check_policy(source)
    compiled = compile_policy(policy, resolve_names(policy, source, Directory()), SiteFacts(year=2026))
    try_bundle(compiled, build_bundle(compiled))
    (one,) = compiled["rules"]
    faulty = {**compiled, "rules": [{**one, "limits": {"walltime": "two"}}]}
    with pytest.raises(OutsideError, match="rule one failed"):
        try_bundle(faulty, build_bundle(faulty))


def test_the_page_describes_the_groups_by_which_a_group_is_defined() -> None:
    text = "users: [bob], in: [both], not: [labs, staff]"
    source = parse_yaml(TEXT % text + RULE, "p.yaml")
    policy = check_policy(source)
    whom = make_page(policy).rules[0].whom
    assert whom == (
        "for g: jobs of both (jobs of vision (accounts Vision) and gpu (partitions gpu)) and users bob, "
        "except jobs of labs (accounts Lab_*) and staff (users alice)"
    )
    group = to_json(policy)["groups"]["g"]
    assert group == {"users": ["bob"], "in": ["both"], "not": ["labs", "staff"]}


def test_a_wildcard_that_matches_no_user_is_reported() -> None:
    source = parse_yaml(TEXT % 'users: ["x*"]' + RULE, "p.yaml")
    (unknown,) = resolve_names(check_policy(source), source, Directory()).unknown
    assert str(unknown) == (
        "p.yaml:4:15: no user of this host matches 'x*' (see getent passwd); list the users"
    )


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        ("{not: [grads]}", ["nlp"]),
        ('{accounts: ["*l?"]}', ["nlp"]),
        ("{not: [undergrads]}", ["vision/alice"]),
        ("{in: [both], not: [alice]}", ["nlp/bob", "vision/bob"]),
        ("{in: [grads], users: [bob]}", ["vision/bob"]),
        ("{not: [long]}", ["QOS sg-a"]),
        ("{not: [long, grads]}", "Slurm limits a QOS or an association, not the jobs that are in both"),
        (
            "{not: [night]}",
            "as a limit of the partition's QOS, it would replace those of other QOS, accounts and users",
        ),
        ("{not: [everyone]}", "no account is both in slurmdbd and under manages: accounts"),
        ('{accounts: ["x*"]}', "no account is both in slurmdbd and under manages: accounts"),
    ],
)
def test_slurm_s_limits_are_set_for_the_jobs_of_a_group(group: str, expected: list[str] | str) -> None:
    text = rules("for: new, per: job, limits: {gpus: 2}").replace("rules:", f"  new: {group}\nrules:")
    wanted = wanted_limits(text, qos=(qos("sg-a"), qos("sg-long")))
    if isinstance(expected, str):
        assert (numbers(wanted), [gap.why for gap in wanted.gaps]) == ({}, [expected])
    else:
        assert sorted(numbers(wanted)) == expected


def test_accounts_outside_those_that_apply_manages_are_reported() -> None:
    text = rules("for: new, per: group, limits: {gpus_running: 2}")
    wanted = wanted_limits(text.replace("rules:", "  new: {not: [grads]}\nrules:"))
    assert numbers(wanted) == {"nlp": {"GrpTRES=gres/gpu": 2}}
    assert [gap.why for gap in wanted.gaps] == [
        "Slurm cannot limit account other, which must be in slurmdbd and under manages: accounts"
    ]


HEAD = """\
version: 1
groups:
  all: {}
  labs: {accounts: ["lab_*"]}
  lab: {accounts: [lab_1]}
  others: {not: [labs]}
  gpu_labs: {in: [labs], partitions: [gpu]}
  %s
rules:
"""


@pytest.mark.parametrize(
    ("wider", "narrower"),
    [("labs", "lab"), ("labs", "gpu_labs"), ("all", "others"), ("others", "others")],
)
def test_a_limit_without_effect_is_found_in_such_groups(wider: str, narrower: str) -> None:
    pair = rule("a", wider, "job", "gpus: 2"), rule("b", narrower, "job", "gpus: 3")
    (warning,) = find_warnings(*pair, head=HEAD % "")
    assert "gpus of rule b has no effect: rule a already allows at most 2 GPUs per job" in warning


@pytest.mark.parametrize(("first", "second"), [("lab", "labs"), ("others", "all"), ("others", "labs")])
def test_a_limit_with_an_effect_is_not_reported(first: str, second: str) -> None:
    pair = rule("a", first, "job", "gpus: 2"), rule("b", second, "job", "gpus: 3")
    assert find_warnings(*pair, head=HEAD % "") == []


def test_a_group_that_excludes_all_of_its_jobs_is_reported() -> None:
    (warning,) = find_warnings(head=HEAD % "none: {in: [gpu_labs], not: [labs]}")
    assert warning == "p.yaml:8:32: group none is empty: all of its jobs are in group labs"


@pytest.mark.parametrize(
    ("group", "found"),
    [
        ('{accounts: ["vis*"]}', []),
        ('{accounts: ["ol*"]}', ["no account with users of cluster c matches 'ol*'"]),
        ('{users: ["al*"], qos: ["sg-*"]}', []),
        ('{users: ["x*"]}', ["user 'x*' has no account of cluster c in slurmdbd"]),
        ('{qos: ["x*"]}', ["slurmdbd has no QOS 'x*'; see sacctmgr show qos"]),
    ],
)
def test_a_wildcard_without_a_match_in_slurmdbd_is_reported(group: str, found: list[str]) -> None:
    assert [line.partition(": ")[2] for line in warnings(group)] == found
