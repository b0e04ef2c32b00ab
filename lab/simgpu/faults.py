"""Inject faults into the simulated GPUs of a running node, and remove them.

For example ``python -m lab.simgpu.faults --world W lose 2``. A daemon that uses NVML gets the fault at its
next call.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from . import layout
from .errors import RequestError, WorldError
from .specs import MigSpec
from .world import World

_SAMPLES = {
    "present": layout.SAMPLES_PRESENT,
    "missing": layout.SAMPLES_MISSING,
    "missing-if-idle": layout.SAMPLES_MISSING_IF_IDLE,
}

_OF_A_DEVICE = ("nvmlDevice", "nvmlGpm")
_OF_NONE = {"nvmlDeviceGetCount_v2", "nvmlGpmSampleAlloc", "nvmlGpmSampleFree", "nvmlGpmMetricsGet"}


def lose(world: World, device: int, at_ns: int | None = None) -> None:
    """Make the device return GPU_IS_LOST from now on, or from the time ``at_ns`` of the world's clock."""
    _faults(world, device).lost_at_ns = world.now_ns() if at_ns is None else at_ns


def restore(world: World, device: int) -> None:
    """Bring a lost device back."""
    _faults(world, device).lost_at_ns = 0


def unsupported(world: World, device: int, functions: Iterable[str]) -> None:
    """Make exactly these functions return NOT_SUPPORTED; an empty list restores all."""
    _faults(world, device).unsupported = _function_bits(world, functions)


def hang(world: World, device: int, functions: Iterable[str] | None = None) -> None:
    """Make exactly these functions hang when called on the device; None means all, [] restores all.

    Only SIGKILL ends the calling thread. Hanging calls continue once the fault is removed.
    nvmlInitWithFlags, if named, hangs for every device. All other functions hang only for this device.
    """
    if functions is None:
        functions = [name for name in world.calls() if name.startswith(_OF_A_DEVICE) and name not in _OF_NONE]
    _faults(world, device).hanging = _function_bits(world, functions)


def _function_bits(world: World, functions: Iterable[str]) -> tuple[int, ...]:
    known = list(world.calls())
    bits = [0] * (layout.MAX_FUNCTIONS // 64)
    for name in functions:
        if name not in known:
            raise RequestError(f"function {name!r}: the simulated NVML has no function of that name")
        number = known.index(name)
        bits[number // 64] |= 1 << number % 64
    return tuple(bits)


def unsupported_fields(world: World, device: int, field_ids: Iterable[int]) -> None:
    """Make exactly these fields of nvmlDeviceGetFieldValues return NOT_SUPPORTED."""
    bits = [0] * (layout.MAX_FIELDS // 64)
    for field in field_ids:
        if not 0 <= field < layout.MAX_FIELDS:
            raise RequestError(f"field {field}: must be 0 to {layout.MAX_FIELDS - 1}")
        bits[field // 64] |= 1 << field % 64
    _faults(world, device).unsupported_fields = tuple(bits)


def slow(world: World, device: int, latency_ms: float) -> None:
    """Add this latency to every call on the device."""
    _faults(world, device).latency_ns = round(latency_ms * 1e6)


def wrap(world: World, device: int, *, bits: int = 64, left: int = 10**9) -> None:
    """Make the byte counters of PCIe and NVLink and the energy counter (mJ) wrap after ``left`` more units.

    The PCIe counters may have 32 bits, and are then reported as unsigned int; the other counters have 64
    bits.
    """
    if bits not in (32, 64):
        raise RequestError(f"a counter of {bits} bits: must be 32 or 64")
    content = world.content.devices[device]
    faults = _faults(world, device)
    full_s, pcie_s, nvlink_s = (
        world.total_pct_ns(device, total) / 100 / 1e9 for total in ("power", "pcie", "nvlink")
    )
    idle_s = (world.now_ns() - world.content.boot_ns) / 1e9
    energy_mj = idle_s * content.idle_power_mw + full_s * (content.power_limit_mw - content.idle_power_mw)
    faults.pcie_counter_bits = bits
    faults.pcie_tx_offset = (2**bits - left - int(pcie_s * content.pcie_tx_bytes_per_s)) % 2**64
    faults.pcie_rx_offset = (2**bits - left - int(pcie_s * content.pcie_rx_bytes_per_s)) % 2**64
    faults.nvlink_tx_offset = (2**64 - left - int(nvlink_s * content.nvlink_tx_bytes_per_s)) % 2**64
    faults.nvlink_rx_offset = (2**64 - left - int(nvlink_s * content.nvlink_rx_bytes_per_s)) % 2**64
    faults.energy_offset_mj = (2**64 - left - int(energy_mj)) % 2**64


def samples(world: World, device: int, state: str) -> None:
    """Set the state of the sample rings: ``present``, ``missing`` (NOT_FOUND) or ``missing-if-idle``."""
    if state not in _SAMPLES:
        raise RequestError(f"samples {state!r}: must be one of {', '.join(_SAMPLES)}")
    _faults(world, device).samples = _SAMPLES[state]


def ecc(world: World, device: int, corrected: int, uncorrected: int) -> None:
    """Set the counts of ECC errors since the driver was loaded."""
    faults = _faults(world, device)
    faults.ecc_corrected, faults.ecc_uncorrected = corrected, uncorrected


def throttle(
    world: World, device: int, reasons: int, *, from_ns: int | None = None, until_ns: int | None = None
) -> None:
    """Add these bits to the clocks event reasons, permanently or between two times of the world's clock."""
    faults = _faults(world, device)
    faults.clocks_event_reasons = reasons
    faults.reasons_from_ns = 0 if from_ns is None else from_ns
    faults.reasons_until_ns = 0 if until_ns is None else until_ns


def xid(world: World, device: int, code: int, gpu_instance: int | None = None) -> None:
    """Make the driver report an error now; each event set on the device receives it once."""
    _faults(world, device)
    world.add_xid(device, code, gpu_instance)


def mig(world: World, device: int, specs: Sequence[MigSpec]) -> None:
    """Replace the MIG instances of the device; processes on the old instances end."""
    _faults(world, device)
    world.set_instances(device, specs)


def driver(world: World, *, loaded: bool) -> None:
    """Unload the driver, so that nvmlInit fails, or load it again.

    Processes that had called nvmlInit get UNINITIALIZED until they call nvmlShutdown and nvmlInit.
    Counters restart with the driver. Although a real driver cannot be unloaded while a GPU is in use,
    schedules continue, so that tests can compare a record with the truth outside the gap.
    """
    if loaded:
        world.load_driver()
    else:
        world.unload_driver()


def swap(world: World, device: int, uuid: str) -> None:
    """Replace the device with another GPU of the same kind, and reload the driver."""
    _faults(world, device)
    if any(other.uuid == uuid for other in world.devices):
        raise RequestError(f"UUID {uuid}: a GPU of this world already has this UUID")
    driver(world, loaded=False)
    world.content.devices[device].uuid = uuid.encode()
    driver(world, loaded=True)


def clear(world: World, device: int | None = None) -> None:
    """Remove the faults of a device, or all. Counters then jump to their true values."""
    if device is None:
        driver(world, loaded=True)
    for index in range(world.content.n_devices) if device is None else (device,):
        world.content.devices[index].faults = layout.FaultsStruct()


def _faults(world: World, device: int) -> layout.FaultsStruct:
    if not 0 <= device < world.content.n_devices:
        raise RequestError(f"device {device}: this world has 0 to {world.content.n_devices - 1}")
    faults: layout.FaultsStruct = world.content.devices[device].faults
    return faults


Action = Callable[[World, argparse.Namespace], None]

_ACTIONS: dict[str, Action] = {
    "lose": lambda world, given: lose(world, given.device),
    "restore": lambda world, given: restore(world, given.device),
    "unsupported": lambda world, given: unsupported(world, given.device, given.functions),
    "unsupported-fields": lambda world, given: unsupported_fields(world, given.device, given.fields),
    "hang": lambda world, given: hang(world, given.device, given.functions or None),
    "slow": lambda world, given: slow(world, given.device, given.ms),
    "wrap": lambda world, given: wrap(world, given.device, bits=given.bits, left=given.left),
    "samples": lambda world, given: samples(world, given.device, given.state),
    "ecc": lambda world, given: ecc(world, given.device, given.corrected, given.uncorrected),
    "throttle": lambda world, given: throttle(world, given.device, given.reasons),
    "xid": lambda world, given: xid(world, given.device, given.code, given.gpu_instance),
    "mig": lambda world, given: mig(world, given.device, given.instances),
    "swap": lambda world, given: swap(world, given.device, given.uuid),
    "driver": lambda world, given: driver(world, loaded=given.state == "load"),
    "clear": lambda world, given: clear(world, given.device),
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lab.simgpu.faults", description=__doc__)
    parser.add_argument(
        "--world", type=Path, default=os.environ.get("SIMGPU_WORLD"), help="a node's gpus.world"
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    def action(name: str, help_text: str) -> argparse.ArgumentParser:
        added = actions.add_parser(name, help=help_text)
        added.add_argument("device", type=int, help="NVML index")
        return added

    action("lose", "GPU_IS_LOST from now on")
    action("restore", "bring the device back")
    action("unsupported", "functions that return NOT_SUPPORTED").add_argument("functions", nargs="*")
    action("unsupported-fields", "fields that are NOT_SUPPORTED").add_argument("fields", nargs="*", type=int)
    action("hang", "functions that never return, by default all").add_argument("functions", nargs="*")
    action("slow", "add latency to every call").add_argument("ms", type=float)
    wrapping = action("wrap", "make the counters wrap soon")
    wrapping.add_argument("--bits", type=int, choices=(32, 64), default=64)
    wrapping.add_argument("--left", type=int, default=10**9, help="bytes and mJ until they wrap")
    action("samples", "whether the sample rings return samples").add_argument("state", choices=_SAMPLES)
    counts = action("ecc", "set the error counts")
    counts.add_argument("corrected", type=int)
    counts.add_argument("uncorrected", type=int)
    action("throttle", "add clocks event reasons").add_argument("reasons", type=lambda text: int(text, 0))
    xid = action("xid", "make the driver report an error once")
    xid.add_argument("code", type=int)
    xid.add_argument("--gpu-instance", type=int, help="the MIG instance that caused the error")
    action("mig", "replace the MIG instances").add_argument(
        "instances", nargs="*", type=_mig_spec, metavar="PROFILE=UUID"
    )
    action("swap", "replace the device with another GPU").add_argument("uuid")
    actions.add_parser("driver", help="make nvmlInit work or fail").add_argument(
        "state", choices=("load", "unload")
    )
    clearing = actions.add_parser("clear", help="remove the faults of a device, or all")
    clearing.add_argument("device", type=int, nargs="?")
    return parser


def _mig_spec(text: str) -> MigSpec:
    profile, _, uuid = text.partition("=")
    return MigSpec(profile, uuid)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = _parser()
    given = parser.parse_args(arguments)
    if given.world is None:
        parser.error("--world: name the node's world file, or set SIMGPU_WORLD")
    try:
        _ACTIONS[given.action](World(given.world), given)
    except RequestError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 2
    except WorldError as error:
        print(f"faults: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
