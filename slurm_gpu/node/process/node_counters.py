"""Read CPU, memory, network and InfiniBand counters of the node."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_gpu.node.process.procfs import read

_LIMIT = 1 << 16
# InfiniBand counters are in words of four bytes.
_PORT_WORD_BYTES = 4
# ARPHRD_INFINIBAND, the type of IPoIB interfaces; the port counters already include their traffic.
_IPOIB = 32
# Added or removed hardware is detected within this time.
_DEVICES_FRESH_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReading:
    """One sample of the node. `cpu_pct` (0–100, of all CPUs) and rates are means since the last sample.

    Bytes are totals since this process started; they never decrease. Values of missing hardware are None.
    """

    at_s: float
    cpu_pct: float | None = None
    mem_used_mib: float | None = None
    mem_total_mib: float | None = None
    net_rx_bytes: int | None = None
    net_tx_bytes: int | None = None
    ib_rx_bytes: int | None = None
    ib_tx_bytes: int | None = None
    net_rx_bytes_per_s: float | None = None
    net_tx_bytes_per_s: float | None = None
    ib_rx_bytes_per_s: float | None = None
    ib_tx_bytes_per_s: float | None = None


class _Traffic:
    """The sum of counters that can appear, disappear or restart."""

    def __init__(self) -> None:
        self.total: int | None = None
        self._last: dict[str, int] = {}

    def feed(self, values: dict[str, int]) -> None:
        for name, value in values.items():
            # A new or reset counter counts from this value on.
            grown = max(0, value - self._last.get(name, value))
            self.total = grown if self.total is None else self.total + grown
        self._last = values


# psutil reads everything except InfiniBand, but importing it takes 0.9 MiB, and slurm-gpud already uses 39
# MiB of at most 40 MiB.
class NodeCounters:
    """Reads the node's counters below `proc` and `sys`."""

    def __init__(self, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> None:
        self._proc, self._net, self._ib = str(proc), f"{sys}/class/net", f"{sys}/class/infiniband"
        self._cpu: tuple[int, int] | None = None
        self._traffic = {name: _Traffic() for name in ("net_rx", "net_tx", "ib_rx", "ib_tx")}
        self._before: NodeReading | None = None
        self._interfaces: frozenset[str] = frozenset()
        self._ports: Sequence[str] = ()
        self._devices_s: float | None = None

    def sample(self, now_s: float) -> NodeReading:
        """Read all counters."""
        if self._devices_s is None or now_s - self._devices_s >= _DEVICES_FRESH_S:
            self._devices_s = now_s
            self._interfaces = frozenset(n for n in _listed(self._net) if self._is_physical(n))
            self._ports = [
                f"{self._ib}/{device}/ports/{port}/counters"
                for device in _listed(self._ib)
                for port in _listed(f"{self._ib}/{device}/ports")
            ]
        received, sent = self._network()
        self._traffic["net_rx"].feed(received)
        self._traffic["net_tx"].feed(sent)
        self._traffic["ib_rx"].feed(self._infiniband("port_rcv_data"))
        self._traffic["ib_tx"].feed(self._infiniband("port_xmit_data"))
        used_mib, total_mib = self._memory()
        before = NodeReading(at_s=now_s) if self._before is None else self._before
        total = {name: traffic.total for name, traffic in self._traffic.items()}
        seconds = now_s - before.at_s

        def rate(then: int | None, now: int | None) -> float | None:
            return None if then is None or now is None or seconds <= 0 else (now - then) / seconds

        self._before = reading = NodeReading(
            at_s=now_s,
            cpu_pct=self._cpu_pct(),
            mem_used_mib=used_mib,
            mem_total_mib=total_mib,
            net_rx_bytes=total["net_rx"],
            net_tx_bytes=total["net_tx"],
            ib_rx_bytes=total["ib_rx"],
            ib_tx_bytes=total["ib_tx"],
            net_rx_bytes_per_s=rate(before.net_rx_bytes, total["net_rx"]),
            net_tx_bytes_per_s=rate(before.net_tx_bytes, total["net_tx"]),
            ib_rx_bytes_per_s=rate(before.ib_rx_bytes, total["ib_rx"]),
            ib_tx_bytes_per_s=rate(before.ib_tx_bytes, total["ib_tx"]),
        )
        return reading

    def _cpu_pct(self) -> float | None:
        try:
            fields = read(f"{self._proc}/stat", 512).split(b"\n", 1)[0].split()
            ticks = [int(field) for field in fields[1:9]]  # user time already includes guest time
            idle, total = ticks[3] + ticks[4], sum(ticks)
        except (OSError, ValueError, IndexError):
            return None
        before, self._cpu = self._cpu, (idle, total)
        if before is None or total <= before[1]:
            return None
        return min(100.0, max(0.0, 100 * (1 - (idle - before[0]) / (total - before[1]))))

    def _memory(self) -> tuple[float | None, float | None]:
        try:
            lines = read(f"{self._proc}/meminfo", _LIMIT).splitlines()
            kib = {name: int(rest.split()[0]) for name, rest in (line.split(b":") for line in lines if line)}
            total, available = kib[b"MemTotal"], kib[b"MemAvailable"]
        except (OSError, ValueError, IndexError, KeyError):
            return None, None
        return (total - available) / 1024, total / 1024

    def _is_physical(self, name: str) -> bool:
        """Return whether an interface is a network card, and not a virtual interface or IPoIB."""
        if not os.path.exists(f"{self._net}/{name}/device"):  # noqa: PTH110
            return False
        try:
            return int(read(f"{self._net}/{name}/type", 16)) != _IPOIB
        except (OSError, ValueError):
            return False

    def _network(self) -> tuple[dict[str, int], dict[str, int]]:
        received: dict[str, int] = {}
        sent: dict[str, int] = {}
        if self._interfaces:
            try:
                lines = read(f"{self._proc}/net/dev", _LIMIT).decode("utf-8", "replace").splitlines()
            except OSError:
                return received, sent
            for line in lines:
                name, _, rest = line.partition(":")
                if name.strip() in self._interfaces:
                    fields = rest.split()
                    received[name.strip()], sent[name.strip()] = int(fields[0]), int(fields[8])
        return received, sent

    def _infiniband(self, counter: str) -> dict[str, int]:
        values = {}
        for port in self._ports:
            try:
                values[port] = _PORT_WORD_BYTES * int(read(f"{port}/{counter}", 64))
            except (OSError, ValueError):
                continue
        return values


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))  # noqa: PTH208
    except OSError:
        return []
