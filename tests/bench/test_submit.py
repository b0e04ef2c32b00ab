"""bench/submit.py builds a policy with the number of rules that --rules specifies."""

from __future__ import annotations

import pytest

from bench.submit import policy_of
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.policy.language.check import check_policy


@pytest.mark.parametrize(("n_rules", "n_groups"), [(4, 3), (600, 301)])
def test_the_policy_has_as_many_rules(n_rules: int, n_groups: int) -> None:
    policy = check_policy(parse_yaml(policy_of(n_rules), "policy.yaml"))
    assert (len(policy.rules), len(policy.groups)) == (n_rules, n_groups)
