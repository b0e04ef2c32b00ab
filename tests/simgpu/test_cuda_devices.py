"""simgpu drives the devices that CUDA would see, fenced or not."""

import errno
from pathlib import Path

import pytest

from lab.simgpu import devices
from lab.simgpu.errors import RequestError
from lab.simgpu.world import Device

A, B, C = (
    Device(0, "GPU-aaaa-1", minor=2, pci=(0, 9, 0), memory_mib=1, reserved_mib=0, target=0),
    Device(1, "GPU-aaaa-2", minor=0, pci=(0, 7, 0), memory_mib=1, reserved_mib=0, target=0),
    Device(2, "GPU-bbbb-3", minor=1, pci=(0, 8, 0), memory_mib=1, reserved_mib=0, target=0),
)
IN_PCI_ORDER = [B, C, A]


@pytest.fixture
def fenced(tmp_path, monkeypatch):
    """Create device files; only files with the given minor numbers can be opened."""

    def fence(*allowed):
        for minor in range(3):
            (tmp_path / f"nvidia{minor}").touch()

        def fake_open(path, flags):
            code = errno.ENXIO if int(Path(path).name[-1]) in allowed else errno.EPERM
            raise OSError(code, "as the kernel says without a driver")

        monkeypatch.setattr(devices.os, "open", fake_open)
        return tmp_path

    return fence


def test_without_device_files_nothing_is_fenced(tmp_path):
    assert devices.openable([A, B, C], None) == IN_PCI_ORDER
    assert devices.openable([A, B, C], tmp_path / "missing") == IN_PCI_ORDER


def test_fenced_devices_are_not_there(fenced):
    assert devices.openable([A, B, C], fenced(2, 1)) == [C, A]


def test_a_device_without_its_file_is_not_there(tmp_path):
    (tmp_path / "gpu1").touch()
    assert devices.openable([A, B, C], tmp_path) == [C]


@pytest.mark.parametrize(
    ("variable", "seen"),
    [
        (None, [B, C, A]),
        ("", []),
        ("0", [B]),
        ("2,0", [A, B]),
        (" 1 , 2 ", [C, A]),
        ("GPU-bbbb-3", [C]),
        ("GPU-b,0", [C, B]),
        ("GPU-aaaa", []),  # ambiguous
        ("1,-1,0", [C]),
        ("0,7,1", [B]),
        ("0,0", []),
        ("NoDevFiles", []),
    ],
)
def test_cuda_visible_devices_chooses_among_them(variable, seen):
    assert devices.visible(IN_PCI_ORDER, variable) == seen


def test_indices_are_relative_where_fenced(fenced):
    assert devices.visible(devices.openable([A, B, C], fenced(2)), "0") == [A]


def test_gpus_are_ordinals_of_what_cuda_sees():
    assert devices.selected([C, A], "all") == [C, A]
    assert devices.selected([C, A], "1") == [A]
    assert devices.selected([C, A], "1,0,1") == [C, A]
    with pytest.raises(RequestError, match="there is no GPU 2, CUDA would see 2 here"):
        devices.selected([C, A], "2")
    with pytest.raises(RequestError, match="must be all or CUDA ordinals"):
        devices.selected([C, A], "first")
