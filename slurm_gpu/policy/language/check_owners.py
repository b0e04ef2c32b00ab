"""Checks `owners:`, the groups that lend their idle GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from slurm_gpu.config.checker import did_you_mean, shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import ID, MOST_GPUS, ValueCheck, name_of
from slurm_gpu.policy.language.model import GpuOwner, Group, Manages

_OWNER = ("gpus", "lend_in", "return_within", "qos")
_ORDINARY = "normal"
"""Slurm's own QOS, in which jobs run that name none."""


class OwnersCheck(ValueCheck):
    """Owners by the group that each of them is."""

    def owners(self, value: Any, groups: Mapping[str, Group], manages: Manages) -> tuple[GpuOwner, ...]:
        """All of them, in the order of the file."""
        if not isinstance(value, dict):
            self.fail(("owners",), f"owners must hold `group: {{…}}` lines, not {shown(value)}")
            return ()
        owners = tuple(self._owner(name, item, groups) for name, item in value.items())
        self._one_owner_each(owners)
        lending = {owner.lend_in for owner in owners}
        for owner, item in zip(owners, value.values(), strict=True):
            given = item if isinstance(item, dict) else {}
            if owner.qos and owner.qos in lending | {_ORDINARY}:
                self.fail(
                    (*owner.location, "qos") if "qos" in given else owner.location,
                    f"{owner.qos} cannot be the QOS of {owner.group}'s own jobs: others run in it; name "
                    "another as qos",
                )
            for name, key in ((owner.qos, "qos"), (owner.lend_in, "lend_in")):
                if name and not any(fnmatchcase(name, pattern.lower()) for pattern in manages.qos):
                    self.fail(
                        (*owner.location, key) if key in given else owner.location,
                        f"{key}: {name} is not under manages: qos, so that `policy apply` could not make it",
                    )
        return owners

    def _owner(self, name: Any, value: Any, groups: Mapping[str, Group]) -> GpuOwner:
        location: Location = ("owners", name if isinstance(name, str | int) else str(name))
        table = self.table(location, value, _OWNER)
        self.require(location, value, ("gpus", "lend_in", "return_within"))
        lend_in = self._qos_name((*location, "lend_in"), table["lend_in"]) if "lend_in" in table else ""
        if lend_in == _ORDINARY:
            self.fail(
                (*location, "lend_in"),
                f"lend_in: jobs that name no QOS run in {_ORDINARY}, and would all be preempted; "
                "name another, such as sg-scavenger",
            )
        return GpuOwner(
            group=str(name),
            accounts=self._accounts_of(location, name, groups),
            gpus=self._whole_gpus((*location, "gpus"), table["gpus"]) if "gpus" in table else 1,
            qos=self._qos_name((*location, "qos"), table["qos"]) if "qos" in table else f"sg-{name}".lower(),
            lend_in=lend_in,
            return_within_s=(
                self.duration((*location, "return_within"), table["return_within"], "return_within") or 0
                if "return_within" in table
                else 0
            ),
            location=location,
        )

    def _accounts_of(self, location: Location, name: Any, groups: Mapping[str, Group]) -> tuple[str, ...]:
        group = groups.get(name) if isinstance(name, str) else None
        if group is None:
            self.fail(location, f"owner {shown(name)} is not a group; {did_you_mean(name, groups)}", key=True)
            return ()
        others = (group.users, group.unix_groups, group.qos, group.partitions, group.until)
        if group.accounts is None or any(other is not None for other in others):
            self.fail(
                location,
                f"owner {name}: a group that owns GPUs is one of accounts alone, "
                f"such as {name}: {{accounts: [{name}]}}",
                key=True,
            )
        return tuple(account.lower() for account in group.accounts or ())

    def _one_owner_each(self, owners: tuple[GpuOwner, ...]) -> None:
        of_account: dict[str, GpuOwner] = {}
        of_qos: dict[str, GpuOwner] = {}
        for owner in owners:
            for account in owner.accounts:
                first = of_account.setdefault(account, owner)
                if first is not owner:
                    self.fail(
                        owner.location, f"account {account} is one of {first.group}'s already", key=True
                    )
            first = of_qos.setdefault(owner.qos, owner)
            if first is not owner:
                self.fail(owner.location, f"qos {owner.qos} is that of {first.group} already", key=True)

    def _qos_name(self, location: Location, value: Any) -> str:
        if isinstance(value, str) and ID.fullmatch(value):
            return value.lower()
        self.fail(
            location,
            f"{name_of(location)}: {shown(value)} cannot name a QOS; use letters, digits, _ . - (up to 40)",
        )
        return ""

    def _whole_gpus(self, location: Location, value: Any) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_GPUS:
            return value
        self.fail(location, f"gpus: {shown(value)} must be a whole number of GPUs from 1 up, such as 8")
        return 1
