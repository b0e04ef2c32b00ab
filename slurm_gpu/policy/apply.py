"""Apply a policy to Slurm's own limits and then to job_submit.lua, and roll it back.

slurmdbd commits each change separately. An apply is therefore written to the journal before its first step,
and undone if a step fails. Limits that were changed by hand after the apply are reported, not restored.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slurm_gpu.errors import OutsideError, SlurmGpuError, SlurmRefusalError, outside
from slurm_gpu.policy.journal import ApplyJournal, ApplyState, Entry
from slurm_gpu.policy.lua.install import Replacement, install, is_installed, restore
from slurm_gpu.policy.native.difference import LimitChange, commands
from slurm_gpu.policy.native.lending import NewQos
from slurm_gpu.policy.native.plan import read_accounting
from slurm_gpu.slurm.sacctmgr import Entity, Limits, Sacctmgr


@dataclass(frozen=True, slots=True)
class Rollback:
    """The result of undoing an apply."""

    entry: Entry
    # Messages about changes that were not undone, such as limits changed by hand after the apply.
    left: tuple[str, ...] = ()
    # The steps that restored Slurm's own limits.
    steps: tuple[LimitChange, ...] = ()
    # Slurm's own limits before the undo; empty if the apply changed no limits.
    found: Mapping[Entity, Limits] = field(default_factory=dict)
    # Whether the apply had replaced job_submit.lua and the undo restored the previous script.
    script_is_back: bool = False


class PolicyInstaller:
    """Apply and roll back policies on one host; `no_rules` is a script that accepts every job."""

    def __init__(
        self,
        journal: ApplyJournal,
        store: Sacctmgr,
        no_rules: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.journal, self._store, self._no_rules, self._now = journal, store, no_rules, now

    def apply(self, change: Entry, replacement: Replacement | None, new_qos: Iterable[NewQos] = ()) -> Entry:
        """Apply a change; if a step fails, undo the change and raise the error again.

        QOS that the change created are not removed; they remain without limits.
        """
        if replacement is not None:
            change = replace(
                change,
                script=replacement.script,
                previous=replacement.previous,
                digest=replacement.digest,
            )
        entry = self.journal.begin(change)
        try:
            for qos in new_qos:
                self._store.add_qos(qos.name, qos.description, requeued=qos.lends)
            self._set(entry.cluster, entry.steps)
            if replacement is not None:
                install(replacement, self._now)
            return self.journal.mark(entry, ApplyState.DONE)
        except BaseException as error:
            self._undo_after(entry, error)
            raise

    def recover(self) -> Rollback | None:
        """Undo an interrupted apply (for example, after a power failure); return None if there is none."""
        entry = self.journal.newest(ApplyState.BEGUN)
        if entry is None:
            return None
        back = self._roll_back(entry)
        return replace(back, entry=self.journal.mark(entry, ApplyState.UNDONE))

    def rollback(self) -> Rollback | None:
        """Roll back the last apply; return None if no apply can be rolled back."""
        entry = self.journal.newest(ApplyState.DONE)
        if entry is None:
            return None
        back = self._roll_back(entry)
        return replace(back, entry=self.journal.mark(entry, ApplyState.ROLLED_BACK))

    def _undo_after(self, entry: Entry, error: BaseException) -> None:
        try:
            self._roll_back(entry)
            self.journal.mark(entry, ApplyState.UNDONE)
        except SlurmGpuError as second:
            kind = SlurmRefusalError if isinstance(second, SlurmRefusalError) else OutsideError
            raise kind(
                f"{error}\nThe apply could not be undone: {second}\n"
                "Fix this error, and then run `slurm-gpu policy rollback` to undo the apply"
            ) from error

    def _roll_back(self, entry: Entry) -> Rollback:
        left: list[str] = []
        back: list[LimitChange] = []
        found: Mapping[Entity, Limits] = {}
        if entry.steps:
            found = self._found(entry.cluster)
            for step in entry.steps:
                value = found.get(step.entity, {}).get(step.limit)
                if step.entity not in found:
                    left.append(f"{step.entity} is no longer in slurmdbd")
                elif value == step.new:
                    back.append(step.back)
                elif value != step.old:
                    current = step.limit.show(value)
                    left.append(f"{step.entity}: {current} was set by hand after the apply, and was kept")
            self._set(entry.cluster, back)
        is_back = entry.script is not None
        if entry.script is not None and not self._is_old(entry):
            if is_installed(entry.script, entry.digest):
                restore(entry.previous, entry.script, self._no_rules, self._now)
            else:
                is_back = False
                left.append(f"{entry.script} was changed by hand after the apply, and was kept")
        return Rollback(entry, tuple(dict.fromkeys(left)), tuple(back), found, is_back)

    def _is_old(self, entry: Entry) -> bool:
        """Return whether the script is the same as before the apply."""
        assert entry.script is not None
        with outside():
            now = entry.script.read_bytes() if entry.script.exists() else None
            if entry.previous is None:
                return now is None or now == self._no_rules.encode()
            return now == entry.previous.read_bytes()

    def _set(self, cluster: str, steps: Iterable[LimitChange]) -> None:
        steps = tuple(steps)
        if not steps:
            return
        for entities, values in commands(steps, self._store.associations(cluster)):
            self._store.set_limits(cluster, entities, values)
        self._verify(cluster, steps)

    def _verify(self, cluster: str, steps: Iterable[LimitChange]) -> None:
        found = self._found(cluster)
        for step in steps:
            value = found.get(step.entity, {}).get(step.limit)
            if value != step.new:
                raise SlurmRefusalError(
                    f"slurmdbd did not accept {step.entity}: {step.limit.show(step.new)}; "
                    f"the value is {step.limit.show(value)}"
                )

    def _found(self, cluster: str) -> dict[Entity, Limits]:
        return read_accounting(self._store, cluster).limits()
