"""slurm.conf and gres.conf may be on a file system that hangs: slurm-gpud continues."""

import os
import threading
from pathlib import Path

import pytest

from slurm_gpu.node.allocation import file_changes as changes
from slurm_gpu.node.allocation.file_changes import ChangeStamp
from slurm_gpu.node.allocation.gres import GresOrder
from tests.node.fakes import FakeClock
from tests.node.machine import ImmediateWorker
from tests.node.test_gres import SHUFFLED, Slurmd, gpus


class Mount:
    """A file system that may hang."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers = threading.Event()
        self.answers.set()
        self.n_asked = 0
        self._modified, self._monkeypatch = changes._modified, monkeypatch
        monkeypatch.setattr(changes, "_modified", self.modified)
        monkeypatch.setattr(changes, "WITHIN_S", 20)

    def hang(self) -> None:
        self.answers.clear()
        self._monkeypatch.setattr(changes, "WITHIN_S", 0.01)

    def modified(self, path: Path) -> int | None:
        self.n_asked += 1
        assert self.answers.wait(20)
        return self._modified(path)


def changed(file: Path, at_ns: int) -> None:
    file.touch()
    os.utime(file, ns=(0, at_ns))


@pytest.fixture
def mount(monkeypatch: pytest.MonkeyPatch) -> Mount:
    return Mount(monkeypatch)


def test_a_changed_file_is_noticed_immediately(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("slurm.conf", "gres.conf")]
    stamp = ChangeStamp(files, ImmediateWorker())
    assert stamp.now() == (None, None, 0)
    for at_ns in range(1, 50):
        changed(files[1], at_ns)
        assert stamp.now() == (None, at_ns, 0)


def test_while_files_cannot_be_read_the_previous_gpu_order_is_used(
    tmp_path: Path, mount: Mount, caplog: pytest.LogCaptureFixture
) -> None:
    gres, slurmd, devices = tmp_path / "gres.conf", Slurmd(SHUFFLED), gpus(2, 0, 3, 1)
    changed(gres, 1)
    environ = {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    order = GresOrder("n1", FakeClock(), run=slurmd, environ=environ, worker=ImmediateWorker(), wait_s=0)
    assert order.uuids([0], devices) == {0: "GPU-3"}
    while not order._files._worker.idle:
        pass
    mount.hang()
    n_asked = mount.n_asked
    for _ in range(100):
        assert order.uuids([0], devices) == {0: "GPU-3"}
    assert mount.n_asked == n_asked + 1, "only one thread may hang"
    assert [item.getMessage() for item in caplog.records] == [
        f"{tmp_path / 'slurm.conf'} cannot be checked; the previous order of GPUs is used"
    ]
    changed(gres, 2)
    slurmd.text = SHUFFLED.replace("nvidia3", "nvidia9").replace("nvidia2", "nvidia3")
    mount.answers.set()
    assert order._files._checked.wait(20)
    assert order.uuids([0, 3], devices) == {3: "GPU-3"}
