"""Build the shipments of ten thousand nodes in advance, so that sending them (scale_load.c) is cheap."""

from __future__ import annotations

import gzip
import ipaddress
import json
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scale_records import LENGTHS, Pattern
from bench.scale_slurm import CLUSTER, GPUS, SimulatedJob
from slurm_gpu import __version__
from slurm_gpu.munge import request_digest
from slurm_gpu.wire import WIRE_VERSION

PERIOD_S, JITTER_S, SPREAD_S = 300.0, 60.0, 1.0
FINAL_SEQ = 1000
_BOOT_ID = "0a1b2c3d-4e5f-6789-abcd-ef0123456789"
_FIRST_ADDRESS = ipaddress.IPv4Address("127.100.0.1")
_BODY, _PLAN = struct.Struct("<QII64s"), struct.Struct("<II")
_NODE, _POST = struct.Struct("<4s3I"), struct.Struct("<d")
_ALIGN = 8192
"""Times are shifted by multiples of this, since bins of a timeline begin at multiples of their width."""


def address(number: int) -> str:
    """Return the address from which a node posts."""
    return str(_FIRST_ADDRESS + number)


def name(number: int) -> str:
    """Return a node's name."""
    return f"gpu{number:05d}"


@dataclass(frozen=True, slots=True)
class _Body:
    n_records: int
    text: bytes

    @classmethod
    def of(cls, node: str, records: Sequence[str] = (), hosts: Sequence[str] = (), **given: Any) -> _Body:
        """Return the records and host records in JSON, and other fields."""
        wire = {"wire": WIRE_VERSION, "node": node, "boot_id": _BOOT_ID, "version": __version__}
        wire |= {"events": [], "runs": [], "devices": [], "windows": [], "open": [], **given}
        text = json.dumps(wire, separators=(",", ":"))
        text = f'{text[:-1]},"records":[{",".join(records)}],"hosts":[{",".join(hosts)}]}}'
        return cls(len(records), gzip.compress(text.encode(), 1, mtime=0))


class SimulatedNode:
    """A node with a job on all its GPUs, and the records of `pattern`."""

    def __init__(self, number: int, pattern: Pattern, now_s: int, dice: random.Random) -> None:
        self.number, self.node, self._dice = number, name(number), dice
        self._pattern, self._job_id = pattern, number + 1
        self._segment = f"{dice.getrandbits(64):016x}"
        first_s = int(pattern.records[0]["first_s"])
        shift_s = (now_s - pattern.seconds - 60 - first_s) // _ALIGN * _ALIGN
        self._texts = [
            self._text(pattern.records[gpu % len(pattern.records)], shift_s, gpu) for gpu in range(GPUS)
        ]
        self._host = self._text(pattern.host, shift_s, 0)
        start_s = first_s + shift_s
        self.job = SimulatedJob(self._job_id, self.node, start_s, start_s + pattern.seconds)

    def _text(self, record: Mapping[str, Any], shift_s: int, gpu: int) -> str:
        wire = dict(record) | {
            "cluster": CLUSTER,
            "job_id": self._job_id,
            "node": self.node,
            "boot_id": _BOOT_ID,
            "segment": self._segment,
        }
        for key in ("prolog_s", "first_s", "last_s"):
            wire[key] += shift_s
        if "device" in wire:
            wire["device"] = self._uuid(gpu)
        if "timeline" in wire:
            wire["timeline"] = wire["timeline"] | {"start_s": wire["timeline"]["start_s"] + shift_s}
        return json.dumps(wire | {"seq": "SEQ", "final": "FINAL"}, separators=(",", ":"))

    def _uuid(self, gpu: int) -> str:
        return f"GPU-{self.number:08x}-{gpu:04x}-6789-abcd-ef0123456789"

    def _live(self, *, busy: bool) -> dict[str, Any]:
        dice = self._dice
        devices = {
            self._uuid(gpu): {
                "util_pct": round(dice.uniform(0, 100), 2) if busy else 0.0,
                "mem_used_mib": round(dice.uniform(0, 80000), 3) if busy else 0.0,
                "mem_used_frac": round(dice.uniform(0, 1), 6) if busy else 0.0,
                "power_w": round(dice.uniform(60, 400), 3),
                "temp_c": dice.randrange(30, 80),
                "sm_clock_mhz": dice.randrange(210, 1410),
                "sm_active_frac": round(dice.uniform(0, 1), 4) if busy else 0.0,
                "tensor_frac": round(dice.uniform(0, 0.5), 4) if busy else 0.0,
                "processes": 1 if busy else 0,
                "throttle": [],
                "jobs": [self._job_id] if busy else [],
            }
            for gpu in range(GPUS)
        }
        host = {"cpu_pct": 31.5, "mem_used_mib": 412345.25, "mem_total_mib": 1031234.5}
        host |= {"net_rx_bytes_per_s": 12345678.0, "net_tx_bytes_per_s": 2345678.5}
        return {"at_s": 1.8e9, "devices": devices, "host": host}

    def _devices(self) -> list[dict[str, Any]]:
        facts = {"node": self.node, "at_s": self.job.start_s, "name": "NVIDIA A100-SXM4-80GB"}
        facts |= {"memory_mib": 81920.0, "power_limit_w": 400.0, "sm_clock_max_mhz": 1410.0}
        facts |= {"pcie_bytes_per_s": 31.5e9, "driver": "535.129.03"}
        return [
            facts
            | {"uuid": self._uuid(gpu), "minor": gpu, "index": gpu}
            | {"pci_bus_id": f"00000000:{gpu + 1:02X}:00.0"}
            for gpu in range(GPUS)
        ]

    def live(self, *, busy: bool) -> _Body:
        """Return the shipment that a node sends every 10 s."""
        return _Body.of(self.node, live=self._live(busy=busy), open=[self._job_id] if busy else [])

    def first(self) -> _Body:
        """Return the first shipment."""
        return self._records(1, final=False, devices=self._devices(), live=self._live(busy=True))

    def records(self, seq: int) -> _Body:
        """Return the shipment that a node sends every five minutes."""
        return self._records(seq, final=False, live=self._live(busy=True))

    def last(self) -> _Body:
        """Return the shipment that a node sends at the end of its job."""
        return self._records(FINAL_SEQ, final=True, live=self._live(busy=False))

    def _records(self, seq: int, *, final: bool, **given: Any) -> _Body:
        def at(text: str) -> str:
            return text.replace('"SEQ"', str(seq)).replace('"FINAL"', "true" if final else "false")

        jobs = [] if final else [self._job_id]
        return _Body.of(self.node, list(map(at, self._texts)), [at(self._host)], open=jobs, **given)


def write_plan(
    path: Path,
    patterns: Sequence[Pattern],
    n_nodes: int,
    now_s: int,
    ramp_s: float,
    until_s: float,
    period_s: float = PERIOD_S,
    seed: int = 1,
) -> list[SimulatedJob]:
    """Write the schedule of posts for scale_load, and return the jobs in the order of nodes.

    In the first `ramp_s` each node sends all its records, then again every `period_s` ± JITTER_S until
    `until_s`. scale_load sends the records of ended jobs on request.
    """
    dice = random.Random(seed)
    lengths = dice.choices(list(LENGTHS), weights=list(LENGTHS.values()), k=n_nodes)
    of_length = {pattern.seconds: pattern for pattern in patterns}
    nodes = [SimulatedNode(n, of_length[length], now_s, dice) for n, length in enumerate(lengths)]
    times = [list(_times(dice, ramp_s, until_s, period_s)) for _ in nodes]
    n_posts = sum(len(some) + 1 for some in times)
    head = _PLAN.size + n_nodes * (_NODE.size + 2 * _BODY.size) + n_posts * (_POST.size + _BODY.size)
    node_entries, post_entries = bytearray(), bytearray()
    with path.open("wb") as file:
        file.seek(head)

        def put(body: _Body) -> bytes:
            digest = request_digest("POST", "/v1/node", body.text)
            entry = _BODY.pack(file.tell(), len(body.text), body.n_records, digest)
            file.write(body.text)
            return entry

        first_post = 0
        for node, at in zip(nodes, times, strict=True):
            packed = ipaddress.IPv4Address(address(node.number)).packed
            node_entries += _NODE.pack(packed, len(at) + 1, first_post, 0)
            node_entries += put(node.live(busy=True)) + put(node.live(busy=False))
            for n, due_s in enumerate(at):
                post_entries += _POST.pack(due_s) + put(node.first() if n == 0 else node.records(n + 1))
            post_entries += _POST.pack(-dice.uniform(0.001, SPREAD_S)) + put(node.last())
            first_post += len(at) + 1
        file.seek(0)
        file.write(_PLAN.pack(n_nodes, n_posts) + node_entries + post_entries)
    return [node.job for node in nodes]


def _times(dice: random.Random, ramp_s: float, until_s: float, period_s: float) -> Iterator[float]:
    at_s = dice.uniform(0, ramp_s)
    yield at_s
    # Nodes are at random points of their periods, as if slurm-gpud had run for a long time.
    at_s = ramp_s + dice.uniform(0, period_s)
    while at_s < until_s:
        yield at_s
        at_s += period_s + dice.uniform(-JITTER_S, JITTER_S)
