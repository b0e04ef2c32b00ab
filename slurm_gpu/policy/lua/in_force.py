"""Compare the script that slurmctld runs with the script that the current policy produces."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from pathlib import Path

from slurm_gpu.config.yaml_source import YamlSource
from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.language.local_time import YEARS
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import SystemDirectory, resolve_names
from slurm_gpu.policy.lua.bundle import MARK, SiteFacts, build_bundle, compile_policy

_IN_RUN_DIRECTORY = re.compile(r'\["(decisions_log|snapshot)"\] = "[^"]*"')


class InForce(Enum):
    """The state of an installed job_submit.lua compared with a policy."""

    SAME = "same"
    # The policy, the members of its groups, the cluster's GPUs, or slurm-gpu changed after the installation.
    DIFFERENT = "different"
    # The script is a site's own.
    FOREIGN = "foreign"
    MISSING = "missing"


def compare_installed(
    script: Path,
    policy: Policy,
    source: YamlSource,
    facts: SiteFacts,
    directory: SystemDirectory,
) -> InForce:
    """Compare `script` with the bundle of the current policy; raise OutsideError if it cannot be read."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return InForce.MISSING
    except OSError as error:
        raise OutsideError(f"{script} cannot be read: {error.strerror}") from error
    if not text.startswith(MARK):
        return InForce.FOREIGN
    names = resolve_names(policy, source, directory)
    if names.unknown:  # the policy cannot be compiled while a name is unknown
        return InForce.DIFFERENT
    # A bundle from an earlier year lists fewer future clock changes, but includes those of this year.
    years = range(facts.year, facts.year - YEARS, -1)
    now = (build_bundle(compile_policy(policy, names, replace(facts, year=year))) for year in years)
    installed = without_run_directory(text)
    same = any(installed == without_run_directory(bundle) for bundle in now)
    return InForce.SAME if same else InForce.DIFFERENT


def without_run_directory(bundle: str) -> str:
    """Return the text without the paths of decisions.log and the snapshot, which `apply --run-dir` sets."""
    return _IN_RUN_DIRECTORY.sub("", bundle)
