"""The facts about a GPU or MIG instance, shipped when slurm-gpud starts and after each change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slurm_gpu.wire import fields


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFacts:
    """The facts about a device on `node` at `at_s`. The key is uuid. None means not reported by the driver.

    `parent` is the GPU of a MIG instance. Each bandwidth is the maximum of the links in one direction.
    """

    uuid: str
    node: str
    at_s: int
    name: str | None = None
    minor: int | None = None
    index: int | None = None
    parent: str | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None
    memory_mib: float | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: float | None = None
    pcie_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
    pci_bus_id: str | None = None
    driver: str | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return a dict for json.dumps without None values, since a missing key means null on the wire."""
        return fields.to_wire(self)

    @classmethod
    def from_wire(cls, wire: Any, dropped: fields.Dropped | None = None) -> DeviceFacts:
        """Return validated facts from decoded JSON, ignoring unknown fields.

        A missing or invalid key or `at_s` raises RecordError, which names the field. Any other invalid field
        is omitted and added to `dropped`, or raises RecordError if `dropped` is None.
        """
        return cls(**fields.checked("a device", wire, _CHECKS, ("uuid", "node", "at_s"), dropped))


_CHECKS: fields.Checks = {
    **dict.fromkeys(("uuid", "node", "parent", "pci_bus_id", "driver"), fields.word),
    "at_s": fields.moment,
    "name": fields.text,
    **dict.fromkeys(("minor", "index", "gpu_instance", "compute_instance"), fields.whole),
    **dict.fromkeys(("memory_mib", "power_limit_w", "sm_clock_max_mhz"), fields.quantity),
    **dict.fromkeys(("pcie_bytes_per_s", "nvlink_bytes_per_s"), fields.quantity),
}
