"""Checks the limits of a rule or an exception."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from slurm_gpu.config.checker import shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import MOST_MEMORY_PER_GPU_MIB, ValueCheck, name_of
from slurm_gpu.policy.language.limits import LIMITS, LimitKind, LimitUnit
from slurm_gpu.policy.language.model import GpuLimit, HoursPeriod, Per, RuleLimits, WalltimeStep

_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,62}")
_COUNT_EXAMPLES = {"cpus_per_gpu": "8", "nodes": "4", "nodes_running": "4"}
_NAME_EXAMPLES = {"partitions": "[gpu, long]", "gpu_types": "[a100, h100]"}


class LimitsCheck(ValueCheck):
    """Limits of rules and of exceptions to them."""

    def limits(self, location: Location, value: Any, per: Per | None) -> RuleLimits:
        """The limits of a rule with this `per:`; None where it has no valid one."""
        table = self.table(location, value, tuple(LIMITS))
        if isinstance(value, dict) and not value:
            allowed = [key for key, kind in LIMITS.items() if per is None or kind.allowed_per(per)]
            self.fail(location, f"limits is empty; allowed: {', '.join(allowed)}")
        found: dict[str, Any] = {}
        for key, item in table.items():
            kind = LIMITS[key]
            if per is not None and not kind.allowed_per(per):
                where = "per: job" if kind.allowed_per(Per.JOB) else "per: user or per: group"
                message = f"{key!r} cannot stand in a rule with per: {per}; write it in a rule with {where}"
                sums = [name for name in (f"{key}_total", f"{key}_running") if name in LIMITS]
                if sums:
                    message += f"; over all jobs of the {per} it is {' or '.join(sums)}"
                self.fail((*location, key), message, key=True)
            found[kind.field] = self._limit((*location, key), item, kind)
        return RuleLimits(**found)

    def number(self, location: Location, value: Any, kind: LimitKind) -> int | None:
        """One number, in the unit of the limit."""
        if kind.measure is LimitUnit.GPUS:
            return self.mgpu(location, value)
        if kind.measure is LimitUnit.MEMORY:
            return self._memory(location, value, kind)
        return self.count(location, value, _COUNT_EXAMPLES.get(kind.key, "200"))

    def _limit(self, location: Location, value: Any, kind: LimitKind) -> Any:
        if kind.measure is LimitUnit.GPUS:
            return self._gpus(location, value)
        if kind.measure is LimitUnit.WALLTIME:
            return self._walltime(location, value)
        if kind.measure is LimitUnit.NAMES:
            return self._allowed_names(location, value, kind)
        if kind.measure is LimitUnit.GPU_HOURS:
            return self._gpu_hours(location, value)
        return self.number(location, value, kind)

    def _memory(self, location: Location, value: Any, kind: LimitKind) -> int | None:
        if kind.key == "memory_per_gpu":
            return self.memory(location, value, MOST_MEMORY_PER_GPU_MIB)
        return self.memory(location, value)

    def _gpus(self, location: Location, value: Any) -> GpuLimit | None:
        if not isinstance(value, dict):
            mgpu = self.mgpu(location, value)
            return None if mgpu is None else GpuLimit(mgpu)
        if not value:
            self.fail(
                location, f"{name_of(location)} is empty; write a number of GPUs, or {{a100: 4}} by type"
            )
            return None
        by_type: dict[str, int] = {}
        for gpu_type, item in value.items():
            place = (*location, gpu_type if isinstance(gpu_type, str | int) else str(gpu_type))
            if not isinstance(gpu_type, str) or not _GPU_TYPE.fullmatch(gpu_type):
                self.fail(
                    place,
                    f"{gpu_type!r} cannot name a type of GPU; write one as in gres.conf: a100",
                    key=True,
                )
                continue
            if gpu_type.lower() in by_type:
                self.fail(place, f"{gpu_type!r} is there twice, in upper and lower case", key=True)
            mgpu = self.mgpu(place, item)
            if mgpu is not None:
                by_type[gpu_type.lower()] = mgpu
        return GpuLimit(by_type_mgpu=by_type)

    def _walltime(self, location: Location, value: Any) -> tuple[WalltimeStep, ...] | None:
        if not isinstance(value, dict):
            seconds = self.duration(location, value, "walltime")
            return None if seconds is None else (WalltimeStep(0, seconds),)
        if not value:
            self.fail(location, "walltime is empty; write 7d, or by GPUs {1: 7d, 8: 2d}")
            return None
        steps = []
        for gpus, item in value.items():
            place = (*location, gpus if isinstance(gpus, str | int) else str(gpus))
            if isinstance(gpus, bool) or not isinstance(gpus, int | float) or self.mgpu_key(gpus) is None:
                self.fail(
                    place,
                    f"{gpus!r} is not a number of GPUs; write {{1: 7d, 8: 2d}}: from 1 GPU on 7 days, "
                    "from 8 on 2 days",
                    key=True,
                )
                continue
            seconds = self.duration(place, item, f"walltime from {gpus} GPU{'' if gpus == 1 else 's'} on")
            if seconds is not None:
                steps.append(WalltimeStep(round(gpus * 1000), seconds))
        return tuple(sorted(steps, key=lambda step: step.from_mgpu))

    @staticmethod
    def mgpu_key(gpus: float) -> int | None:
        """GPUs that stand as a key, as thousandths; None where they are no such number."""
        mgpu = gpus * 1000
        fits = 0 <= gpus <= 1e6 and abs(mgpu - round(mgpu)) <= 1e-6
        return round(mgpu) if fits else None

    def _allowed_names(self, location: Location, value: Any, kind: LimitKind) -> tuple[str, ...]:
        names = self.names(location, value, _NAME_EXAMPLES[kind.key])
        return tuple(name.lower() for name in names) if kind.key == "gpu_types" else names

    def _gpu_hours(self, location: Location, value: Any) -> Mapping[HoursPeriod, float] | None:
        periods = [str(period) for period in HoursPeriod]
        if not isinstance(value, dict) or not value:
            self.fail(
                location,
                f"gpu_hours: {shown(value)} must say in what time, such as {{week: 500}}; "
                f"allowed: {', '.join(periods)}",
            )
            return None
        hours: dict[HoursPeriod, float] = {}
        for key, item in self.mapping(location, value, periods, "gpu_hours").items():
            place = (*location, key)
            if isinstance(item, bool) or not isinstance(item, int | float) or not 0 <= item <= 1e9:
                self.fail(place, f"{key}: {shown(item)} must be a number of GPU-hours from 0 up, such as 500")
            else:
                hours[HoursPeriod(key)] = item
        return hours
