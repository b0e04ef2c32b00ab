"""Format the live values of a node's GPUs as table cells."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurm_gpu.client.database_client import NodeReport
from slurm_gpu.monitor.cluster.overview import driver_order
from slurm_gpu.text.cells import GAP, number, percent
from slurm_gpu.wire import Live, LiveDevice

LIVE_COLUMNS = ("util % now", "memory % now", "W now")


@dataclass(frozen=True, slots=True)
class NodeLive:
    """The live values of a node and, in the driver's order, of its devices."""

    live: Live
    devices: Sequence[LiveDevice]

    def cells(self) -> list[str]:
        """Format the utilisation and memory of each GPU in percent, and its power in watts.

        There are no sums, since users do not see the values of GPUs allocated to other users.
        """
        return [
            _listed(number(item.util_pct) for item in self.devices),
            _listed(percent(item.mem_used_frac, 0) for item in self.devices),
            _listed(number(item.power_w) for item in self.devices),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return a dict for json.dumps."""
        return self.live.to_wire()


def _listed(values: Iterable[str]) -> str:
    """Format one value per GPU, or a single gap if there are no values."""
    shown = list(values)
    return GAP if set(shown) <= {GAP} else " ".join(shown)


def node_lives(values: Mapping[str, Live], reports: Iterable[NodeReport]) -> dict[str, NodeLive]:
    """Return the live values by node, without devices if their order is unknown."""
    reports = list(reports)
    place, known = driver_order(reports), {facts.uuid for report in reports for facts in report.devices}
    return {
        node: NodeLive(
            live,
            [live.devices[uuid] for uuid in sorted(live.devices, key=place)]
            if len(live.devices) == 1 or live.devices.keys() <= known
            else (),
        )
        for node, live in values.items()
    }
