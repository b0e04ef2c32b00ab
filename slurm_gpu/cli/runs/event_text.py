"""Format events as text for users."""

from __future__ import annotations

from slurm_gpu.text.cells import number
from slurm_gpu.wire import Event

# Xid codes that users encounter, from "XID Errors" of NVIDIA (docs.nvidia.com/deploy/xid-errors).
_XIDS = {
    13: "the program made an invalid access on the GPU",
    31: "the program accessed an invalid address of GPU memory",
    43: "the GPU stopped the program after an error in the program",
    45: "the program was stopped while it used the GPU",
    48: "GPU memory lost data (double-bit ECC error)",
    63: "a faulty row of GPU memory is replaced at the next reset",
    64: "a faulty row of GPU memory could not be replaced",
    74: "NVLink failed",
    79: "the GPU fell off the bus",
    92: "GPU memory had many correctable errors",
    94: "GPU memory lost data of this program only",
    95: "GPU memory lost data; the GPU needs a reset",
    119: "the GPU's system processor (GSP) did not answer",
    120: "the GPU's system processor (GSP) failed",
}
_KINDS = {
    "gpu_lost": "the GPU was lost",
    "gpu_back": "the GPU answers again",
    "gpu_hung": "the GPU did not answer in time, and was not measured until it answered",
    "driver_reloaded": "the driver was reloaded",
    "epilog_missing": "the job ended without an epilog on this node",
    "prolog_missing": "Slurm ran no prolog for this run on this node; its GPU use was not measured",
    "gres_order_assumed": "Slurm did not report the device files of the GPUs, so their order was assumed",
    "gres_order_unknown": "the GPUs of the job were not measured until slurmd reported them",
    "reader_failing": "slurm-gpud's NVML reader ended repeatedly; no GPU was measured in the meantime",
    "double_watch": "two instances of slurm-gpud measured this GPU; the longer measurement counts",
    "device_elsewhere": "another node also reports this GPU",
}


def event_text(event: Event) -> str:
    """Describe an event in one line; for an unknown kind of event, return its name and data."""
    data = event.data
    match event.kind:
        case "xid":
            code = data.get("code")
            meaning = _XIDS.get(code) if isinstance(code, int) else None
            return f"Xid {code}{'' if meaning is None else f': {meaning}'}"
        case "intruder" if "left_out" in data:
            return f"more processes of {data.get('of')} used GPUs without an allocation: {data['left_out']}"
        case "intruder":
            job = "" if data.get("job") is None else f"job {data['job']}, "
            return (
                f"process {data.get('pid')} of {job}uid {data.get('uid')} used this GPU without an allocation"
            )
        case "job_mismatch":
            return (
                f"process {data.get('pid')} of job {data.get('cgroup')} used a GPU that is allocated to "
                f"job {_joined(data.get('allocated'))}"
            )
        case "implausible":
            field, value = data.get("field"), data.get("value")
            return f"the driver reported the impossible value {value} of {field}; such values become gaps"
        case "clock_step":
            return f"the node's clock was changed by {_seconds(data.get('seconds'))}"
        case "gpu_lost" | "gpu_hung" if "index" in data:
            return f"the GPU with NVML index {data['index']} has not answered since slurm-gpud started"
        case "gpu_lost" if str(event.device).startswith("position:"):  # its UUID was never known
            return "no driver listed this GPU when it was allocated"
        case "spool_lost":
            return "the node's spool was lost, including the records that slurm-gpudbd had not received"
        case "spool_full":
            return f"the node's spool was full; records dropped: {data.get('dropped')}"
    known = _KINDS.get(event.kind)
    if known is not None:
        return known
    return event.kind.replace("_", " ") + "".join(f" {name}={value}" for name, value in data.items())


def _joined(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _seconds(value: object) -> str:
    return f"{number(value, 1)} s" if isinstance(value, int | float) else "some seconds"
