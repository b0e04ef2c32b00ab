"""Find names that match no job because slurmdbd lacks them, or because an account has no users."""

from __future__ import annotations

from collections.abc import Iterator

from slurm_gpu.config.yaml_source import Location, YamlSource
from slurm_gpu.errors import InputError
from slurm_gpu.policy.language.account_trees import accounts_below, is_tree, root_of
from slurm_gpu.policy.language.cluster_names import changed_options
from slurm_gpu.policy.language.membership import has_wildcard, is_among
from slurm_gpu.policy.language.model import Policy
from slurm_gpu.policy.language.names import suggest
from slurm_gpu.policy.native.lending import derive_lending
from slurm_gpu.policy.native.required import SlurmdbdLimits
from slurm_gpu.policy.native.urgent import derive_urgent

_Named = tuple[Location, str]


def unknown_to_slurmdbd(
    policy: Policy, source: YamlSource, found: SlurmdbdLimits, n_gpus: int
) -> tuple[InputError, ...]:
    """Return an error for each name in a group that matches no job, and each unknown QOS that rules set.

    QOS that `policy apply` would create are not reported.
    """
    created = (*derive_urgent(policy, found).fresh(), *derive_lending(policy, found, n_gpus).fresh())
    qos = {one.name.lower() for one in (*found.qos, *created)}
    named = (*_accounts(policy, found), *_users(policy, found), *_qos(policy, qos))
    errors = [source.error(location, message, key=True) for location, message in named]
    return tuple(sorted(errors, key=lambda error: (error.line, error.column)))


def _accounts(policy: Policy, found: SlurmdbdLimits) -> Iterator[_Named]:
    known = {one.account for one in found.associations}
    with_users = {one.account for one in found.associations if one.user}
    parents = {one.account: one.parent for one in found.associations if not one.user}
    for group in policy.groups.values():
        listed = {name.lower() for name in group.accounts or ()}
        for index, name in enumerate(group.accounts or ()):
            place = ("groups", group.name, "accounts", index)
            account = name.lower()
            children = sorted(one for one, parent in parents.items() if parent == account)
            if is_tree(account):
                below = accounts_below(root_of(account), parents)  # resolve_names reports an unknown root
                if below and with_users.isdisjoint(below):
                    yield place, f"no account of {name!r} has users, so it matches no job"
            elif has_wildcard(account):
                if not any(is_among(one, (account,)) for one in with_users):
                    message = f"no account with users of cluster {found.cluster} matches {name!r}"
                    yield place, message
            elif account not in known:
                hint = suggest(account, known, "see sacctmgr show associations")
                yield place, f"cluster {found.cluster} has no account {name!r} in slurmdbd; {hint}"
            elif account not in with_users and children and listed.isdisjoint(children):
                yield (
                    place,
                    f"account {name!r} has no users of its own, so it matches no job; "
                    f"write {name}/* for it and its sub-accounts: {', '.join(children)}",
                )
            elif account not in with_users and not children:
                yield place, f"account {name!r} has no users, so it matches no job"


def _users(policy: Policy, found: SlurmdbdLimits) -> Iterator[_Named]:
    known = {one.user for one in found.associations if one.user}
    for group in policy.groups.values():
        for index, name in enumerate(group.users or ()):
            if not any(is_among(one, (name.lower(),)) for one in known):
                message = f"user {name!r} has no account of cluster {found.cluster} in slurmdbd"
                yield ("groups", group.name, "users", index), message


def _qos(policy: Policy, known: set[str]) -> Iterator[_Named]:
    for group in policy.groups.values():
        for index, name in enumerate(group.qos or ()):
            if not any(is_among(one, (name.lower(),)) for one in known):
                hint = suggest(name.lower(), known, "see sacctmgr show qos")
                yield ("groups", group.name, "qos", index), f"slurmdbd has no QOS {name!r}; {hint}"
    for location, key, name in changed_options(policy):
        if key == "qos" and name not in known:
            yield location, f"slurmdbd has no QOS {name!r}; {suggest(name, known, 'see sacctmgr show qos')}"
