"""Check rules that change jobs: `set:`, `defaults:` and `mode: fit`."""

from __future__ import annotations

from slurm_gpu.config.decoder import Decoder
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.model import Mode, PolicyRule

# The tables of options that only rules with `per: job` can have.
CHANGES = ("set", "defaults")
_FIT = "mode: fit sets options (set:, defaults:) and shortens time limits (limits: {walltime: ...})"


def check_changes(decoder: Decoder, rule: PolicyRule) -> None:
    """Report settings with which a rule cannot change jobs."""
    at = rule.location
    given = [key for key in CHANGES if decoder.has(*at, key)]
    for key in given:
        if decoder.has(*at, "tiers"):
            message = f"{key}: this rule has tiers; write it in a rule without tiers"
            decoder.fail_once((*at, key), message, key=True)
    if given and rule.mode is Mode.ENFORCE:
        where = (*at, "mode") if decoder.has(*at, "mode") else (*at, given[0])
        origin = "" if decoder.has(*at, "mode") else " at the top of the file"
        message = (
            f"{given[0]}: mode: enforce{origin} refuses jobs; write mode: fit in this rule to change them"
        )
        decoder.fail_once(where, message, key=where[-1] != "mode")
    both = [decoder.at(*at, key) for key in CHANGES]
    for option in both[1] if all(isinstance(one, dict) for one in both) else ():
        if option in both[0]:
            message = f"{option}: set: already sets it; write it once"
            decoder.fail_once((*at, "defaults", option), message, key=True)
    if given or rule.mode is Mode.FIT:
        _only_walltime(decoder, at)
    for tier in rule.tiers or ():
        if (tier.mode or rule.mode) is Mode.FIT:
            _only_walltime(decoder, tier.location)


def _only_walltime(decoder: Decoder, at: Location) -> None:
    """Report amounts and options that a rule cannot change."""
    for section in ("at_least", "exactly", "options"):
        if decoder.has(*at, section):
            message = f"{section}: {_FIT}; write {section}: in another rule"
            decoder.fail_once((*at, section), message, key=True)
    limits = decoder.at(*at, "limits")
    for key in limits if isinstance(limits, dict) else ():
        if key != "walltime":
            message = f"{key}: {_FIT}; write this limit in another rule"
            decoder.fail_once((*at, "limits", key), message, key=True)
