"""Counters of the node include only physical cards, never decrease, and are None if missing."""

from pathlib import Path

import pytest

from slurm_gpu.node.process.node_counters import NodeCounters
from tests.node.fakeproc import write

MEMINFO = "MemTotal:       1048576 kB\nMemFree: 1 kB\nMemAvailable:   786432 kB\nHugePages_Total:       0\n"


def cpu(root: Path, *ticks: int) -> None:
    write(root / "proc/stat", f"cpu  {' '.join(map(str, ticks))}\ncpu0 1 2 3\n")


def network(root: Path, **bytes_of: tuple[int, int]) -> None:
    lines = [f"{name:>6}: {rx} 1 0 0 0 0 0 0 {tx} 1 0 0 0 0 0 0" for name, (rx, tx) in bytes_of.items()]
    write(root / "proc/net/dev", "Inter-|   Receive\n face |bytes\n" + "\n".join(lines) + "\n")


def card(root: Path, name: str, *, physical: bool, kind: int = 1) -> None:
    write(root / f"sys/class/net/{name}/type", f"{kind}\n")
    if physical:
        (root / f"sys/class/net/{name}/device").mkdir()


def counters(root: Path) -> NodeCounters:
    return NodeCounters(root / "proc", root / "sys")


def test_cpu_and_memory(tmp_path: Path) -> None:
    write(tmp_path / "proc/meminfo", MEMINFO)
    cpu(tmp_path, 100, 0, 100, 700, 100, 0, 0, 0, 50, 0)
    node = counters(tmp_path)
    first = node.sample(0.0)
    assert (first.cpu_pct, first.mem_used_mib, first.mem_total_mib) == (None, 256.0, 1024.0)
    cpu(tmp_path, 130, 0, 120, 740, 110, 0, 0, 0, 80, 0)
    assert node.sample(10.0).cpu_pct == pytest.approx(50)


def test_only_physical_cards_count(tmp_path: Path) -> None:
    for name, physical in (
        ("lo", False),
        ("docker0", False),
        ("veth1", False),
        ("eth0", True),
        ("eth1", True),
    ):
        card(tmp_path, name, physical=physical)
    card(tmp_path, "ib0", physical=True, kind=32)
    network(tmp_path, lo=(9, 9), docker0=(9, 9), veth1=(9, 9), ib0=(9, 9), eth0=(1000, 50), eth1=(0, 0))
    node = counters(tmp_path)
    assert node.sample(0.0).net_rx_bytes == 0
    network(tmp_path, lo=(99, 99), docker0=(99, 9), veth1=(9, 9), ib0=(99, 9), eth0=(1600, 70), eth1=(30, 1))
    reading = node.sample(10.0)
    assert (reading.net_rx_bytes, reading.net_tx_bytes) == (630, 21)
    assert (reading.net_rx_bytes_per_s, reading.net_tx_bytes_per_s) == (63.0, 2.1)


def test_a_counter_reset_loses_no_counted_bytes(tmp_path: Path) -> None:
    card(tmp_path, "eth0", physical=True)
    node = counters(tmp_path)
    totals = []
    for rx in (1000, 1500, 20, 60):
        network(tmp_path, eth0=(rx, 0))
        totals.append(node.sample(float(len(totals))).net_rx_bytes)
    assert totals == [0, 500, 500, 540]


def test_infiniband_counts_words_of_four_bytes(tmp_path: Path) -> None:
    directory = tmp_path / "sys/class/infiniband/mlx5_0/ports/1/counters"
    node = counters(tmp_path)
    for rcv, xmit in ((100, 7), (350, 8)):
        write(directory / "port_rcv_data", f"{rcv}\n")
        write(directory / "port_xmit_data", f"{xmit}\n")
        reading = node.sample(float(rcv))
    assert (reading.ib_rx_bytes, reading.ib_tx_bytes, reading.ib_rx_bytes_per_s) == (1000, 4, 4.0)
    assert reading.net_rx_bytes is None


def test_a_node_without_counters_has_only_gaps(tmp_path: Path) -> None:
    node = counters(tmp_path)
    node.sample(0.0)
    reading = node.sample(1.0)
    assert [getattr(reading, name) for name in reading.__dataclass_fields__ if name != "at_s"] == [None] * 11


def test_counters_of_the_real_machine() -> None:
    node = NodeCounters()
    node.sample(0.0)
    reading = node.sample(1.0)
    assert reading.mem_total_mib is not None
    assert reading.mem_used_mib is not None
    assert 0 < reading.mem_used_mib < reading.mem_total_mib
