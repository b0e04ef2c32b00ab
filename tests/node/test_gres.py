"""Slurm's number of a GPU leads to the right UUID, whatever order gres.conf has."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from slurm_gpu.errors import SlurmError
from slurm_gpu.node.gres import GresOrder, minor_of, parse_files
from tests.node.fakes import FakeClock, FakeGpu

SHUFFLED = """\
slurmd-n1: Gres Name=shard Type=a100 Count=4 Index=3 ID=1918986455 File=/dev/x/nvidia3 (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=3 ID=7696487 File=/dev/x/nvidia3 (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=1 ID=7696487 File=/dev/x/nvidia1 Links=(null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=0 ID=7696487 File=/dev/x/nvidia0 (null)
slurmd-n1: Gres Name=gpu Type=a100 Count=1 Index=2 ID=7696487 File=/dev/x/nvidia2 (null)
slurmd-n1: Gres Name=nic Count=1 File=/dev/x/nic0
"""


@pytest.mark.parametrize(
    ("text", "files"),
    [
        (SHUFFLED, [f"/dev/x/nvidia{n}" for n in (3, 1, 0, 2)]),
        (
            "slurmd: Gres Name=gpu Count=4 ID=7 File=/dev/gpu[4-7] (null)",
            [f"/dev/gpu{n}" for n in (4, 5, 6, 7)],
        ),
        ("Gres Name=gpu Count=3 File=/dev/gpu[08-09,11]", ["/dev/gpu08", "/dev/gpu09", "/dev/gpu11"]),
        ("slurmd: Gres Name=gpu Type=a100 Count=4 ID=7696487 (null)", []),
        ("", []),
    ],
)
def test_files_in_the_order_of_slurmd(text: str, files: list[str]) -> None:
    assert parse_files(text) == files


def test_the_minor_number_is_the_device_s_own_and_else_that_of_its_name() -> None:
    assert minor_of("/dev/null") == 3  # c 1 3, whatever it is called
    assert minor_of("/nowhere/gpu12") == 12
    assert minor_of("/nowhere/gpu") is None


class Slurmd:
    def __init__(self, text: str | None) -> None:
        self.text, self.asked = text, 0

    def __call__(self, command: Sequence[str]) -> str:
        assert list(command) == ["slurmd", "-G", "-N", "n1"]
        self.asked += 1
        if self.text is None:
            raise SlurmError("slurmd: not found")
        return self.text


def test_positions_follow_gres_conf_and_a_change_of_it(tmp_path: Path) -> None:
    gpus = [FakeGpu(FakeClock(), f"GPU-{minor}", minor) for minor in (2, 0, 3, 1)]
    (tmp_path / "gres.conf").write_text("a")
    slurmd = Slurmd(SHUFFLED)
    order = GresOrder("n1", slurmd, {"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert order.uuids([0, 3], gpus) == {0: "GPU-3", 3: "GPU-2"}
    assert order.uuids([1], gpus) == {1: "GPU-1"}
    assert slurmd.asked == 1
    slurmd.text = SHUFFLED.replace("nvidia3", "nvidia9").replace("nvidia2", "nvidia3")
    (tmp_path / "gres.conf").write_text("changed")
    assert order.uuids([0, 3], gpus) == {3: "GPU-3"}
    assert slurmd.asked == 2
    assert not order.assumed


def test_without_files_the_order_is_that_of_the_minor_numbers_and_said_so() -> None:
    gpus = [FakeGpu(FakeClock(), f"GPU-{minor}", minor) for minor in (2, 0, 3, 1)]
    order = GresOrder("n1", Slurmd("slurmd: Gres Name=gpu Type=a100 Count=4 ID=7696487 (null)"), {})
    assert order.uuids([0, 3, 9], gpus) == {0: "GPU-0", 3: "GPU-3"}
    assert order.assumed


def test_while_slurmd_cannot_be_asked_nothing_is_guessed(tmp_path: Path) -> None:
    gpus = [FakeGpu(FakeClock(), f"GPU-{minor}", minor) for minor in (2, 0, 3, 1)]
    slurmd = Slurmd(None)
    order = GresOrder("n1", slurmd, {"SLURM_CONF": str(tmp_path / "slurm.conf")})
    assert order.uuids([0], gpus) == {}
    assert not order.assumed
    slurmd.text = SHUFFLED
    assert order.uuids([0], gpus) == {0: "GPU-3"}
