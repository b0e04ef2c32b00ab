"""A group such as dept/* contains an account and all accounts below it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InvalidFileError, OutsideError
from slurm_gpu.policy.language.account_trees import with_listed
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names, unmanaged_accounts
from slurm_gpu.policy.pages.page import make_page

from .users import PARENTS

TEXT = """\
version: 1
manages: {accounts: [%s]}
groups: {g: {accounts: [%s]}}
rules: [{id: one, for: g, per: account, why: w, limits: {gpus_total: 1}}]
"""


def unknown(tree: str, directory: SystemDirectory) -> list[str]:
    source = parse_yaml(TEXT % ("vision", tree), "p.yaml")
    return [str(one) for one in resolve_names(check_policy(source), source, directory).unknown]


def test_a_tree_contains_its_account_and_all_accounts_below_it() -> None:
    source = parse_yaml(TEXT % ("nlp/*", "NLP/*, vision, oth*"), "p.yaml")
    policy = check_policy(source)
    listed = with_listed(policy, resolve_names(policy, source, SystemDirectory(lambda: PARENTS)))
    assert listed.groups["g"].accounts == ("nlp", "nlp-old", "vision", "oth*")
    assert listed.manages.accounts == ("nlp", "nlp-old")


def test_an_unknown_account_is_an_error() -> None:
    (message,) = unknown("detp/*", SystemDirectory(lambda: PARENTS))
    assert message == "p.yaml:3:25: the cluster has no account 'detp' in slurmdbd; did you mean dept?"


def test_a_tree_requires_slurmdbd() -> None:
    def parents() -> Mapping[str, str]:
        raise OutsideError("sacctmgr: no answer")

    for directory, reason in (
        (SystemDirectory(parents), "sacctmgr: no answer"),
        (SystemDirectory(), "slurmdbd is not known here"),
    ):
        (message,) = unknown("dept/*", directory)
        assert message == f"p.yaml:3:25: the accounts of 'dept/*' cannot be read from slurmdbd: {reason}"
    assert unknown("dept", SystemDirectory(parents)) == []


@pytest.mark.parametrize("name", ["de*/*", "/*", "dept/nlp", "dept/**", "dept/*/nlp"])
def test_only_one_account_has_a_tree(name: str) -> None:
    source = parse_yaml(TEXT % ("vision", f"'{name}'"), "p.yaml")
    with pytest.raises(InvalidFileError, match="must be a name without /, or vision/\\* for it and its sub-"):
        check_policy(source)


@pytest.mark.parametrize(
    ("managed", "missing"), [("dept/*", 0), ("Dept", 0), ("'*'", 0), ("other", 1), ("depts/*", 1)]
)
def test_a_tree_outside_those_that_apply_manages_is_reported(managed: str, missing: int) -> None:
    source = parse_yaml(TEXT % (managed, "dept/*"), "p.yaml")
    assert len(unmanaged_accounts(check_policy(source), source)) == missing


def test_the_page_names_the_tree() -> None:
    (rule, _) = make_page(check_policy(parse_yaml(TEXT % ("dept", "dept/*, nlp"), "p.yaml"))).rules
    assert rule.whom == "for g: accounts dept and its sub-accounts, nlp"
    assert rule.limits == ("at most 1 GPU running and pending per account",)
