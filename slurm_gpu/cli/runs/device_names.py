"""Name the devices of a run by their index on the node, or by their UUID."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from slurm_gpu.reports.run_use.device_use import DeviceUse
from slurm_gpu.wire import DeviceFacts

_SHORT_UUID = 12


class DeviceNames:
    """The displayed names of the devices of a run: 3, or "3 GI 1" for a MIG instance, or a UUID.

    A UUID is displayed if the index is unknown or ambiguous, or if `by_uuid` is set. On a terminal, a UUID
    that replaces an unknown index is cut to its beginning, such as GPU-1a2b3c4d, if it remains unique.
    """

    def __init__(
        self, devices: Sequence[str], facts: Mapping[str, DeviceFacts] | None, *, by_uuid: bool
    ) -> None:
        self._facts = facts or {}
        named = {} if by_uuid else {uuid: _indexed(self._facts.get(uuid)) for uuid in devices}
        found = Counter((self._facts[uuid].node, name) for uuid, name in named.items() if name is not None)
        self._indexed = {
            uuid: name
            for uuid, name in named.items()
            if name is not None and found[self._facts[uuid].node, name] == 1
        }
        starts = Counter(uuid[:_SHORT_UUID] for uuid in set(devices))
        self._is_cut = not by_uuid and sys.stdout.isatty() and max(starts.values(), default=0) <= 1

    def cell(self, device: str) -> str:
        """Return the name for a column next to the name of the node."""
        return self._indexed.get(device) or (device[:_SHORT_UUID] if self._is_cut else device)

    def phrase(self, device: str) -> str:
        """Return the name for a sentence, such as GPU 3."""
        return f"GPU {self._indexed[device]}" if device in self._indexed else self.cell(device)

    def ordered(self, uses: Iterable[DeviceUse]) -> list[DeviceUse]:
        """Return the uses by node, in the order of the driver's indices."""
        return sorted(uses, key=lambda use: (use.node, *self.place(use.device)))

    def place(self, device: str) -> tuple[float, int, str]:
        """Return a sort key within the node; devices without an index come last."""
        facts = self._facts.get(device)
        if facts is None or facts.index is None:
            return math.inf, 0, device
        return facts.index, -1 if facts.gpu_instance is None else facts.gpu_instance, device


def _indexed(facts: DeviceFacts | None) -> str | None:
    if facts is None or facts.index is None:
        return None
    return str(facts.index) if facts.gpu_instance is None else f"{facts.index} GI {facts.gpu_instance}"
