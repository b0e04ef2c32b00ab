"""Check rules that change jobs: `set:`, `defaults:`, `over_limit:` and `mode: fit`."""

from __future__ import annotations

from collections.abc import Iterable

from slurm_gpu.config.decoder import Decoder
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.limits import LIMITS, Scope
from slurm_gpu.policy.language.model import Mode, Per, Policy, PolicyRule
from slurm_gpu.policy.language.tiers import moving_on, takes_over

# The tables of options that only rules with `per: job` can have.
CHANGES = ("set", "defaults")
OVER_LIMIT = "over_limit"
_FIT = "mode: fit sets options (set:, defaults:) and shortens time limits (limits: {walltime: ...})"


def check_changes(decoder: Decoder, rule: PolicyRule) -> None:
    """Report settings with which a rule cannot change jobs."""
    at = rule.location
    given = [key for key in (*CHANGES, OVER_LIMIT) if decoder.has(*at, key)]
    for key in given:
        if decoder.has(*at, "tiers") and key != OVER_LIMIT:
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
    if OVER_LIMIT in given:
        _over_limit(decoder, rule)
        return
    if given or rule.mode is Mode.FIT:
        _only_walltime(decoder, at)
    for tier in rule.tiers or ():
        if (tier.mode or rule.mode) is Mode.FIT:
            _only_walltime(decoder, tier.location)


def check_not_urgent(decoder: Decoder, rules: Iterable[PolicyRule], qos: str) -> None:
    """Report rules that give jobs the QOS of urgent jobs, which only users can request."""
    for rule in rules:
        for key in (*CHANGES, OVER_LIMIT):
            value = decoder.at(*rule.location, key, "qos")
            if isinstance(value, str) and value.lower() == qos:
                message = f"qos: only users can request the QOS of urgent jobs; write a QOS other than {qos}"
                decoder.fail_once((*rule.location, key, "qos"), message)


def check_no_circles(decoder: Decoder, policy: Policy) -> None:
    """Report rules with `over_limit:` that move jobs in a circle."""
    for rule in policy.rules:
        chain = moving_on(rule, policy)
        if any(takes_over(rule, other, policy) for other in chain[1:]):
            names = ", ".join(one.id for one in chain)
            message = f"rules {names} would move jobs in a circle; give the last one different options"
            decoder.fail((*rule.location, OVER_LIMIT), f"over_limit: {message}", key=True)


def _over_limit(decoder: Decoder, rule: PolicyRule) -> None:
    """Report settings that cannot be combined with `over_limit:` in a rule."""
    at = rule.location
    for key in CHANGES:
        if decoder.has(*at, key):
            message = f"{key}: this rule has over_limit; write {key}: in another rule"
            decoder.fail_once((*at, key), message, key=True)
    if rule.per is Per.JOB:
        message = "over_limit: allowed only with per: user, account or group; for one job, use set: and jobs:"
        decoder.fail_once((*at, OVER_LIMIT), message, key=True)
    for tier in rule.tiers or ():
        if tier.mode is Mode.ENFORCE:
            message = "mode: enforce refuses jobs; leave out either mode: or over_limit:"
            decoder.fail_once((*tier.location, "mode"), message)
    for place in (at, *(tier.location for tier in rule.tiers or ())):
        limits = decoder.at(*place, "limits")
        for key in limits if isinstance(limits, dict) else ():
            if key in LIMITS and LIMITS[key].scope is Scope.RUNNING:
                instead = key.replace("running", "total")
                hint = f"; write {instead}" if instead in LIMITS else ""
                message = f"{key}: at submission, it is unknown which jobs will run at the same time{hint}"
                decoder.fail_once((*place, "limits", key), message, key=True)


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
