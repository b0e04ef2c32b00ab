"""Whether the script that slurmctld asks is what a policy gives now."""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path

from slurm_gpu.errors import OutsideError
from slurm_gpu.policy.bundle import MARK, SiteFacts, build_bundle, compile_policy
from slurm_gpu.policy.model import Policy
from slurm_gpu.policy.names import Directory, SystemDirectory, resolve_names
from slurm_gpu.yamlsource import YamlSource

_DECISIONS_LOG = re.compile(r'\["decisions_log"\] = "[^"]*"')


class InForce(Enum):
    """How an installed job_submit.lua stands to a policy."""

    SAME = "same"
    DIFFERENT = "different"
    """The policy, members of its groups, the cluster's GPUs, or slurm-gpu changed since it was installed."""
    FOREIGN = "foreign"
    """It is a site's own."""
    MISSING = "missing"


def compare_installed(
    script: Path,
    policy: Policy,
    source: YamlSource,
    facts: SiteFacts,
    directory: Directory | None = None,
) -> InForce:
    """Compare `script` with what `policy apply` would install; raises OutsideError if it cannot be read."""
    try:
        text = script.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return InForce.MISSING
    except OSError as error:
        raise OutsideError(f"{script} cannot be read: {error.strerror}") from error
    if not text.startswith(MARK):
        return InForce.FOREIGN
    names = resolve_names(policy, source, SystemDirectory() if directory is None else directory)
    if names.unknown:  # it could not have been made here now
        return InForce.DIFFERENT
    now = build_bundle(compile_policy(policy, names, facts))
    return InForce.SAME if _without_log(text) == _without_log(now) else InForce.DIFFERENT


def _without_log(bundle: str) -> str:
    """But for where decisions are logged: `policy apply --run-dir` chose that, and no policy says it."""
    return _DECISIONS_LOG.sub("", bundle, count=1)
