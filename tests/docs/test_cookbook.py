"""The policies of the cookbook are valid and give the refusals on the page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from slurm_gpu.cli.main import main
from slurm_gpu.cli.site import CommandSite
from slurm_gpu.config.yaml_source import parse_yaml
from slurm_gpu.errors import SlurmError
from slurm_gpu.policy.dead_rules import find_doubts
from slurm_gpu.policy.language.check import check_policy
from slurm_gpu.policy.language.names import resolve_names, unmanaged_accounts
from slurm_gpu.slurm.client import SlurmClient

from .explaining import MONDAY_AT_TEN, ExampleCluster, People
from .pages import DOCS, fences
from .submissions import ACCEPTED, JOB_SCRIPT, POLICIES

_PAGE = DOCS / "cookbook.md"
_TITLE = re.compile(r'title="(\w+)\.yaml(?: with mode: (\w+))?"')


def _titled(language: str) -> list[tuple[str, str | None, str]]:
    """Return (recipe name, mode in the title or None, text) of each block."""
    found = []
    for words, text in fences(_PAGE, language):
        match = _TITLE.fullmatch(words)
        assert match is not None, words
        found.append((match[1], match[2], text))
    return found


ON_PAGE = {name: text for name, _, text in _titled("yaml")}
RECIPES = ON_PAGE | {name: path.read_text(encoding="utf-8") for name, path in POLICIES.items()}
REFUSALS = _titled("console")


def _no_slurm() -> SlurmClient:
    raise SlurmError("there is none here")


@pytest.mark.parametrize("name", RECIPES)
def test_policy_check_takes_each_recipe(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_GPU_POLICY", raising=False)
    (tmp_path / "slurm-gpu.yaml").write_text("cluster: c\n")
    (tmp_path / "policy.yaml").write_text(RECIPES[name])
    site = CommandSite(config_path=tmp_path / "slurm-gpu.yaml", connect_slurm=_no_slurm)
    assert main(("policy", "check"), site) == 0
    written = yaml.safe_load(RECIPES[name])
    n_rules, n_groups = (len(written.get(key, ())) for key in ("rules", "groups"))
    assert f"no errors; rules: {n_rules}, groups: {n_groups}\n" in capsys.readouterr().out


@pytest.mark.parametrize("name", RECIPES)
def test_no_recipe_has_ineffective_parts(name: str) -> None:
    source = parse_yaml(RECIPES[name], "policy.yaml")
    policy = check_policy(source)
    names = resolve_names(policy, source, People())
    doubts = find_doubts(policy, names, source, MONDAY_AT_TEN.date())
    assert [str(one) for one in (*names.unknown, *unmanaged_accounts(policy, source), *doubts)] == []


@pytest.mark.parametrize(("name", "mode", "shown"), REFUSALS, ids=[name for name, _, _ in REFUSALS])
def test_the_refusals_are_those_of_the_policies(
    name: str, mode: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.sh").write_text(JOB_SCRIPT)
    monkeypatch.chdir(tmp_path)
    policy = RECIPES[name] if mode is None else RECIPES[name].replace("mode: observe", f"mode: {mode}")
    first, _, answer = shown.partition("\n")
    assert first.startswith("$ ")
    assert answer
    assert ExampleCluster(policy).submit("bob", first.removeprefix("$ ")) == answer + ACCEPTED
