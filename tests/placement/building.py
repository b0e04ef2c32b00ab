"""Build small clusters and requests, and random ones for properties."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from slurm_gpu.placement.state import NodeState
from slurm_gpu.simulate.jobs import ResourceRequest


def node(name: str, *free_mgpu: int, gpu_type: str = "a100", **other: Any) -> NodeState:
    """Build a node, by default with 32 free CPUs and 64,000 MiB of free memory."""
    fields: dict[str, Any] = {"cpus": 32, "free_cpus": 32, "memory_mib": 64000, "free_memory_mib": 64000}
    return NodeState(name=name, gpu_types=(gpu_type,) * len(free_mgpu), free_mgpu=free_mgpu, **fields | other)


@st.composite
def node_states(draw: st.DrawFn, max_nodes: int = 6) -> list[NodeState]:
    found = []
    for index in range(draw(st.integers(1, max_nodes))):
        n_gpus = draw(st.integers(0, 4))
        types = draw(st.lists(st.sampled_from(("a100", "v100")), min_size=n_gpus, max_size=n_gpus))
        free = draw(st.lists(st.sampled_from((0, 250, 500, 1000)), min_size=n_gpus, max_size=n_gpus))
        found.append(
            NodeState(
                name=f"n{index}",
                gpu_types=tuple(types),
                free_mgpu=tuple(free),
                cpus=16,
                free_cpus=draw(st.integers(0, 16)),
                memory_mib=100,
                free_memory_mib=draw(st.integers(0, 100)),
                zone=draw(st.sampled_from(("z1", "z2"))),
                up=draw(st.sampled_from((True, True, True, False))),
            )
        )
    return found


def requests(n_nodes: st.SearchStrategy[int] | None = None) -> st.SearchStrategy[ResourceRequest]:
    common: dict[str, Any] = {
        "nodes": st.just(1) if n_nodes is None else n_nodes,
        "cpus": st.integers(0, 8),
        "memory_mib": st.integers(0, 60),
        "gpu_type": st.sampled_from(("", "", "a100", "h100")),
    }
    return st.one_of(
        st.builds(ResourceRequest, gpus=st.integers(0, 4), **common),
        st.builds(ResourceRequest, share_mgpu=st.sampled_from((250, 300, 500)), **common),
    )


def mixes() -> st.SearchStrategy[list[tuple[ResourceRequest, int]]]:
    return st.lists(st.tuples(requests(), st.integers(1, 9)), max_size=5)
