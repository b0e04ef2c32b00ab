"""Puts a policy into force, and takes it back: Slurm's own limits first, job_submit.lua last, or neither.

slurmdbd takes each change by itself, so the whole is made one by writing it down first and undoing what was
done when anything fails. Limits are compared before they are undone: what somebody else has changed in the
meantime is left alone, and told.
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
from slurm_gpu.policy.native.wanted import SlurmdbdLimits
from slurm_gpu.slurm.sacctmgr import Entity, Limits, Sacctmgr


@dataclass(frozen=True, slots=True)
class TakenBack:
    """What came of undoing an apply."""

    entry: Entry
    left: tuple[str, ...] = ()
    """What was not undone, because somebody changed it since."""
    steps: tuple[LimitChange, ...] = ()
    """Those that gave Slurm's own limits back what they were."""
    found: Mapping[Entity, Limits] = field(default_factory=dict)
    """Slurm's own limits before; nothing where none were to be undone."""
    script_is_back: bool = False
    """Whether job_submit.lua is what it was before the apply, which had changed it."""


class Force:
    """Carries out applies of one host. `no_rules` is the script that lets everything through."""

    def __init__(
        self,
        journal: ApplyJournal,
        store: Sacctmgr,
        no_rules: str,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.journal, self._store, self._no_rules, self._now = journal, store, no_rules, now

    def apply(self, change: Entry, replacement: Replacement | None, new_qos: Iterable[NewQos] = ()) -> Entry:
        """Carry out a change; when anything fails, all is as it was, and the error is raised again.

        But for QOS that were made for it, which stay, empty.
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

    def recover(self) -> TakenBack | None:
        """Undo an apply that was cut short (by a power cut, say); None where there is none."""
        entry = self.journal.newest(ApplyState.BEGUN)
        if entry is None:
            return None
        back = self._take_back(entry)
        return replace(back, entry=self.journal.mark(entry, ApplyState.UNDONE))

    def rollback(self) -> TakenBack | None:
        """Take the last apply back; None where there is none that could be."""
        entry = self.journal.newest(ApplyState.DONE)
        if entry is None:
            return None
        back = self._take_back(entry)
        return replace(back, entry=self.journal.mark(entry, ApplyState.ROLLED_BACK))

    def _undo_after(self, entry: Entry, error: BaseException) -> None:
        try:
            self._take_back(entry)
            self.journal.mark(entry, ApplyState.UNDONE)
        except SlurmGpuError as second:
            kind = SlurmRefusalError if isinstance(second, SlurmRefusalError) else OutsideError
            raise kind(
                f"{error}\nand it could not be undone: {second}\n"
                "`slurm-gpu policy rollback` undoes it once that is fixed"
            ) from error

    def _take_back(self, entry: Entry) -> TakenBack:
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
                    left.append(f"{step.entity}: {step.limit.show(value)} was set by hand since, and stays")
            self._set(entry.cluster, back)
        is_back = entry.script is not None
        if entry.script is not None and not self._is_old(entry):
            if is_installed(entry.script, entry.digest):
                restore(entry.previous, entry.script, self._no_rules, self._now)
            else:
                is_back = False
                left.append(f"{entry.script} was changed by hand since, and stays")
        return TakenBack(entry, tuple(dict.fromkeys(left)), tuple(back), found, is_back)

    def _is_old(self, entry: Entry) -> bool:
        """Whether the script is (still, or again) what it was before."""
        assert entry.script is not None
        with outside():
            now = entry.script.read_bytes() if entry.script.exists() else None
            if entry.previous is None:
                return now is None or now == self._no_rules.encode()
            return now == entry.previous.read_bytes()

    def _set(self, cluster: str, steps: Iterable[LimitChange]) -> None:
        steps = tuple(steps)
        for entities, values in commands(steps):
            self._store.set_limits(cluster, entities, values)
        if steps:
            self._verify(cluster, steps)

    def _verify(self, cluster: str, steps: Iterable[LimitChange]) -> None:
        found = self._found(cluster)
        for step in steps:
            value = found.get(step.entity, {}).get(step.limit)
            if value != step.new:
                raise SlurmRefusalError(
                    f"slurmdbd did not take {step.entity}: {step.limit.show(step.new)}; "
                    f"it has {step.limit.show(value)}"
                )

    def _found(self, cluster: str) -> dict[Entity, Limits]:
        accounting = SlurmdbdLimits(
            cluster=cluster, associations=self._store.associations(cluster), qos=self._store.qos()
        )
        return accounting.limits()
