"""Check the text of a policy and return its mistakes."""

from __future__ import annotations

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.model import Policy


def check(text: str) -> Policy:
    """Check a policy as the file p.yaml."""
    return check_policy(parse_yaml(text, "p.yaml"))


def mistakes(text: str) -> list[str]:
    """Return the mistakes of a policy in the order of the file, and fail if it has none."""
    with pytest.raises(InvalidFileError) as caught:
        check(text)
    return str(caught.value).splitlines()
