"""Checks `bundles:`, what so many GPUs may take along."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slurm_gpu.config.checker import shown
from slurm_gpu.config.yaml_source import Location
from slurm_gpu.policy.language.check_values import ID, MOST_MEMORY_PER_GPU_MIB, ValueCheck
from slurm_gpu.policy.language.model import Bundle, BundleMode
from slurm_gpu.text.units import format_memory_mib

_BUNDLE = ("gpus", "cpus", "memory", "partitions", "gpu_types", "mode", "why")


class BundlesCheck(ValueCheck):
    """Bundles by name."""

    def bundles(self, value: Any) -> Mapping[str, Bundle]:
        """All of them, in the order of the file."""
        if not isinstance(value, dict):
            self.fail(("bundles",), f"bundles must hold `name: {{…}}` lines, not {shown(value)}")
            return {}
        return {str(name): self.bundle(name, item) for name, item in value.items()}

    def bundle(self, name: Any, value: Any) -> Bundle:
        """One of them."""
        location: Location = ("bundles", name if isinstance(name, str | int) else str(name))
        if not isinstance(name, str) or not ID.fullmatch(name):
            self.fail(
                location, f"{name!r} cannot name a bundle; use letters, digits, _ . - (up to 40)", key=True
            )
        table = self.table(location, value, _BUNDLE)
        self.require(location, value, ("gpus",))
        mgpu = self.mgpu((*location, "gpus"), table["gpus"]) if "gpus" in table else None
        types = (
            self.names((*location, "gpu_types"), table["gpu_types"], "[a100]")
            if "gpu_types" in table
            else None
        )
        if isinstance(value, dict) and not {"cpus", "memory", "partitions"} & value.keys():
            self.fail(location, f"bundle {name} says nothing; give cpus, memory or partitions")
        if types is not None and mgpu == 0:
            self.fail(
                (*location, "gpu_types"),
                "a bundle with gpus: 0 cannot have gpu_types; leave them out",
                key=True,
            )
        return Bundle(
            name=str(name),
            mgpu=0 if mgpu is None else mgpu,
            cpus=self._cpus((*location, "cpus"), table["cpus"]) if "cpus" in table else None,
            memory_mib=self._bundle_memory((*location, "memory"), table["memory"], mgpu)
            if "memory" in table
            else None,
            partitions=self.names((*location, "partitions"), table["partitions"], "[cpu]")
            if "partitions" in table
            else None,
            gpu_types=None if types is None else tuple(gpu_type.lower() for gpu_type in types),
            mode=self.choice((*location, "mode"), table.get("mode", BundleMode.ADVISE), BundleMode),
            why=self.text((*location, "why"), table["why"]) if "why" in table else None,
        )

    def _cpus(self, location: Location, value: Any) -> int | None:
        cpus = self.count(location, value, "8")
        if cpus == 0:
            self.fail(location, "cpus: 0 would let no job run; give 1 or more, or leave it out")
        return cpus

    def _bundle_memory(self, location: Location, value: Any, mgpu: int | None) -> int | None:
        mib = self.memory(location, value)
        if mib == 0:
            self.fail(location, f"memory: {value} would let no job run; give some, or leave it out")
        elif mib is not None and mgpu is not None and mgpu > 0:
            per_gpu = mib * 1000 / mgpu
            if per_gpu > MOST_MEMORY_PER_GPU_MIB:
                self.fail(
                    location,
                    f"memory: {value} is {format_memory_mib(per_gpu)} for each GPU, more than there is",
                )
        return mib
