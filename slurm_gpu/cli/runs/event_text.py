"""Format events as text for users."""

from __future__ import annotations

from slurm_gpu.text.cells import number
from slurm_gpu.wire import Event

# Xid codes that users encounter, from "XID Errors" of NVIDIA (docs.nvidia.com/deploy/xid-errors).
_XIDS = {
    13: "the program made an invalid access on the GPU",
    31: "the program touched GPU memory that was not its own",
    43: "the GPU stopped the program after an error of its own",
    45: "the program was stopped while it used the GPU",
    48: "GPU memory lost data (double-bit ECC error)",
    63: "GPU memory retires a bad row at the next reset",
    64: "GPU memory could not retire a bad row",
    74: "NVLink failed",
    79: "the GPU fell off the bus",
    92: "GPU memory had many correctable errors",
    94: "GPU memory lost data of this program",
    95: "GPU memory lost data; the GPU needs a reset",
    119: "the GPU's own processor did not answer",
    120: "the GPU's own processor failed",
}
_KINDS = {
    "gpu_lost": "the GPU was lost",
    "gpu_back": "the GPU is back",
    "gpu_hung": "the GPU did not answer in time; it was not measured until it did",
    "driver_reloaded": "the driver was reloaded",
    "epilog_missing": "the job ended without an epilog on this node",
    "prolog_missing": "Slurm ran no prolog for this run on this node; its GPU use was not measured",
    "gres_order_assumed": "Slurm did not name the GPUs' files; their order was assumed",
    "gres_order_unknown": "slurmd did not report the GPUs of the job; until it did, they were not measured",
    "reader_failing": "slurm-gpud's NVML reader ended repeatedly; meanwhile no GPU was measured",
    "double_watch": "two slurm-gpud watched it; the longer watch counts",
    "device_elsewhere": "another node also reports this GPU",
}


def event_text(event: Event) -> str:
    """Describe an event in one line; use the name of a kind that only a newer version has."""
    data = event.data
    match event.kind:
        case "xid":
            code = data.get("code")
            meaning = _XIDS.get(code) if isinstance(code, int) else None
            return f"Xid {code}{'' if meaning is None else f': {meaning}'}"
        case "intruder" if "left_out" in data:
            return f"processes of {data.get('of')} continued to do so; not listed: {data['left_out']}"
        case "intruder":
            job = "" if data.get("job") is None else f"job {data['job']}, "
            return f"process {data.get('pid')} of {job}uid {data.get('uid')} used it without an allocation"
        case "job_mismatch":
            return (
                f"process {data.get('pid')} used a GPU of job {_joined(data.get('allocated'))}, "
                f"and belongs to job {data.get('cgroup')}"
            )
        case "implausible":
            field, value = data.get("field"), data.get("value")
            return f"the driver's {field} was {value}, which is impossible; such values are gaps"
        case "clock_step":
            return f"the node's clock was set by {_seconds(data.get('seconds'))}"
        case "gpu_lost" | "gpu_hung" if "index" in data:
            return f"the GPU with NVML index {data['index']} has not answered since slurm-gpud started"
        case "spool_lost":
            return "the node's spool was lost, with the records that slurm-gpudbd did not have yet"
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
