"""Define conditions on single jobs (`jobs:`): a rule applies to jobs that may meet all its conditions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from slurm_gpu.config.decoder import Items, Key
from slurm_gpu.policy.language.lua_literals import Plain
from slurm_gpu.policy.language.value_types import COUNT, GPU_TYPE_NAME, GPUS, JOB_NAME, WALLTIME
from slurm_gpu.text.units import counted, format_duration, format_gpus

_NOT_EMPTY = Items(least=1)


@dataclass(frozen=True, slots=True)
class JobSize:
    """Amounts of one job; None means that the amount does not matter."""

    mgpu: Annotated[int | None, GPUS, Key("gpus"), "GPUs."] = None
    nodes: Annotated[int | None, COUNT, "Nodes."] = None
    walltime_s: Annotated[int | None, WALLTIME, "Time limit."] = None

    def table(self) -> dict[str, Plain]:
        """Return the amounts as the Lua code reads them."""
        return {"mgpu": self.mgpu, "nodes": self.nodes, "walltime_s": self.walltime_s}

    def texts(self, bound: str) -> list[str]:
        """Return each amount in words, such as "at least 2 nodes"."""
        texts = []
        if self.mgpu is not None:
            texts.append(f"{bound} {format_gpus(self.mgpu)}")
        if self.nodes is not None:
            texts.append(f"{bound} {counted(self.nodes, 'node')}")
        if self.walltime_s is not None:
            texts.append(f"a time limit of {bound} {format_duration(self.walltime_s)}")
        return texts


@dataclass(frozen=True, slots=True)
class JobConditions:
    """The jobs to which a rule applies."""

    at_least: Annotated[JobSize, _NOT_EMPTY, "Minimum amounts."] = field(default_factory=JobSize)
    at_most: Annotated[JobSize, _NOT_EMPTY, "Maximum amounts."] = field(default_factory=JobSize)
    gpu_types: Annotated[
        tuple[Annotated[str, GPU_TYPE_NAME], ...] | None, _NOT_EMPTY, "GPU types of the jobs."
    ] = None
    array: Annotated[bool | None, "Job arrays (true) or other jobs (false)."] = None
    names: Annotated[tuple[Annotated[str, JOB_NAME], ...] | None, _NOT_EMPTY, "`--job-name`."] = None

    def table(self) -> dict[str, Plain]:
        """Return the conditions as the Lua code reads them."""
        return {
            "at_least": self.at_least.table(),
            "at_most": self.at_most.table(),
            "gpu_types": None if self.gpu_types is None else dict.fromkeys(sorted(self.gpu_types), True),
            "array": self.array,
            "names": None if self.names is None else dict.fromkeys(sorted(self.names), True),
            "text": self.text,
        }

    @property
    def text(self) -> str:
        """The conditions in words, such as "with GPUs that may be of type a100"."""
        parts = [] if self.gpu_types is None else [f"GPUs that may be of type {' or '.join(self.gpu_types)}"]
        parts += self.at_least.texts("at least") + self.at_most.texts("at most")
        text = f"with {' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))}" if parts else ""
        arrays = {None: "", True: "in arrays", False: "outside arrays"}[self.array]
        names = f"named {' or '.join(self.names)}" if self.names is not None else ""
        return " ".join(part for part in (names, arrays, text) if part)
