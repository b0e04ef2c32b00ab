"""The install and upgrade guides give commands that work on a host where nothing is prepared."""

import re
from pathlib import Path

import pytest

from .pages import ROOT

_BLOCK = re.compile(r"```\n.*?```|`[^`\n]+`", re.DOTALL)


@pytest.mark.parametrize("name", ["install.md", "upgrading.md"])
def test_programs_are_installed_so_that_users_may_run_them(name: str) -> None:
    text = Path(ROOT, "docs", name).read_text()
    blocks = [block for block in _BLOCK.findall(text) if "/bin/pip install" in block]
    assert blocks
    assert all(block.index("umask 022") < block.index("/bin/pip install") for block in blocks)


def test_dnf_finds_the_packages() -> None:
    text = Path(ROOT, "docs", "install.md").read_text()
    assert text.index("/etc/yum.repos.d/") < text.index("dnf install slurm-gpu")


def test_each_unit_with_a_timer_is_named_for_an_installation_by_hand() -> None:
    by_hand = Path(ROOT, "docs", "install.md").read_text().partition("## By hand")[2]
    starts = ("slurm-gpu-forecast.", "slurm-gpu-report", "slurm-gpu-adjust.")
    named = [start for start in starts if f"`{start}*`" in by_hand]
    for timer in Path(ROOT, "packaging", "systemd").glob("*.timer"):
        assert timer.name.startswith(tuple(named)), timer.name
