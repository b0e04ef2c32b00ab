"""Implement the pyslurm backend, which reads nodes without running a command.

Each pyslurm version supports one major.minor version of Slurm. Versions 22.5.3 and 24.11.0 do not report the
TRES of jobs. All versions up to 25.11.2 omit array task 0 and, in the accounting, each run before a requeue.
Jobs and accounting are therefore read with the commands (docs/design.md). pyslurm reports the allocated GPUs
and shards of a node only in the layouts of its jobs.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import re
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from slurm_gpu.errors import SlurmError
from slurm_gpu.slurm.client import SlurmNode
from slurm_gpu.slurm.commands import CommandClient
from slurm_gpu.slurm.occupancy import ALLOCATED_STATES

log = logging.getLogger(__name__)

_VERSION = re.compile(r"(\d+)\.0?(\d+)")


class PyslurmClient(CommandClient):
    """A SlurmClient that reads nodes with pyslurm and everything else with the commands.

    pyslurm's interface still changes. If it differs from the one used here, the commands are used instead,
    and a warning is logged.
    """

    def __init__(self, pyslurm: ModuleType, commands: CommandClient) -> None:
        super().__init__(commands.run, commands.environ, commands.stream)
        self._pyslurm = pyslurm
        self._usable = True

    @classmethod
    def if_usable(cls, commands: CommandClient) -> PyslurmClient | None:
        """Return a client if pyslurm is installed for this host's version of Slurm; None otherwise."""
        if importlib.util.find_spec("pyslurm") is None:
            return None
        try:
            slurm = commands.version()
            pyslurm = importlib.import_module("pyslurm")
        except (ImportError, SlurmError) as error:
            log.debug("pyslurm is not used: %s", error)
            return None
        own = str(getattr(pyslurm, "__version__", ""))
        if _major_minor(own) is None or _major_minor(own) != _major_minor(slurm):
            log.debug("pyslurm %s is not used with Slurm %s", own, slurm)
            return None
        return cls(pyslurm, commands)

    def nodes(self) -> Sequence[SlurmNode]:
        """Return all nodes, in slurmctld's order."""
        if self._usable:
            try:
                return self._load_nodes()
            except self._pyslurm.RPCError as error:
                raise SlurmError(f"pyslurm: {error}") from error
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                log.warning("pyslurm has an unexpected interface (%r); using Slurm's commands instead", error)
                self._usable = False
        return super().nodes()

    def _load_nodes(self) -> list[SlurmNode]:
        nodes = self._pyslurm.Nodes.load()
        used: dict[str, dict[str, int]] = {}
        for job in self._pyslurm.Jobs.load().values():
            if job.state in ALLOCATED_STATES:
                for name, layout in job.get_resource_layout_per_node().items():
                    allocated = used.setdefault(name, {})
                    for gres, amount in layout["gres"].items():
                        allocated[gres] = allocated.get(gres, 0) + int(amount["count"])
        return [_node(node, used.get(node.name, {})) for node in nodes.values()]


def _node(node: Any, used: dict[str, int]) -> SlurmNode:
    gpus = _by_type(node.configured_gres, "gpu")
    state = node.state.lower()
    if state.startswith("allocated") and node.allocated_cpus < node.total_cpus:
        state = "mixed" + state.removeprefix("allocated")  # pyslurm has no state "mixed"
    return SlurmNode(
        name=node.name,
        address=node.address,
        state=state,
        reason=node.reason,
        cpus=node.total_cpus,
        cpus_allocated=node.allocated_cpus,
        memory_mib=node.real_memory,
        memory_allocated_mib=node.allocated_memory,
        gpus=gpus,
        gpus_allocated=dict.fromkeys(gpus, 0) | _by_type(used, "gpu"),
        shards=sum(_by_type(node.configured_gres, "shard").values()),
        shards_allocated=sum(_by_type(used, "shard").values()),
        features=list(node.active_features),
        partitions=list(node.partitions),
        host=getattr(node, "hostname", None) or "",
        weight=node.weight,
        mps=sum(_by_type(node.configured_gres, "mps").values()),
        mps_allocated=sum(_by_type(used, "mps").values()),
    )


def _by_type(gres: dict[str, int], name: str) -> dict[str, int]:
    """Return the counts of one GRES by type, from pyslurm's {"gpu:a100": 4, "shard": 16}."""
    found: dict[str, int] = {}
    for key, count in gres.items():
        own, _, kind = key.partition(":")
        if own == name:
            found[kind] = found.get(kind, 0) + count
    return found


def _major_minor(version: str) -> tuple[int, int] | None:
    """Return the first two numbers: (22, 5) both for Slurm's 22.05.8 and for pyslurm's 22.5.3."""
    match = _VERSION.match(version)
    return (int(match[1]), int(match[2])) if match else None
