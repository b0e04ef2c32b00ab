"""The text of a policy as it is checked, and what is wrong with it."""

from __future__ import annotations

import pytest

from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import InvalidFileError
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.model import Policy


def check(text: str) -> Policy:
    """As the file p.yaml."""
    return check_policy(parse_yaml(text, "p.yaml"))


def mistakes(text: str) -> list[str]:
    """Its mistakes, of which there must be one at least, in the order of the file."""
    with pytest.raises(InvalidFileError) as caught:
        check(text)
    return str(caught.value).splitlines()
