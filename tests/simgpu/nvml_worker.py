"""Call the real pynvml in a process whose LD_LIBRARY_PATH has the simulated library.

One JSON request per line; the answer is {"value": …} or {"error": name of the NVMLError}.

{"world": path} initialises. {"cpu": true} returns the processor time.
{"call": name, "device": index, UUID or null, "args": [...]} calls; with "keep": name the result is kept, and
an argument {"kept": name} is that result. Handles are reported as indices.
{"gpm": [first, second], "metrics": ids} computes metrics of two kept samples, null if unsupported.
"""

import ctypes
import json
import os
import sys
import time

import pynvml

UNION_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}


def index_of(handle):
    try:
        return pynvml.nvmlDeviceGetIndex(handle)
    except pynvml.NVMLError_GpuIsLost:
        return "lost"


def plain(value, value_type=None):
    if isinstance(value, ctypes.Union):
        return getattr(value, UNION_MEMBERS[value_type])
    if isinstance(value, pynvml.c_nvmlFieldValue_t):
        fields = {name: getattr(value, name) for name, _ in value._fields_ if name != "value"}
        return fields | {"value": plain(value.value, value.valueType) if value.nvmlReturn == 0 else None}
    if isinstance(value, pynvml.c_nvmlDevice_t):
        return index_of(value)
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name), value_type) for name, _ in value._fields_}
    if isinstance(value, ctypes.Array | list):
        return [plain(item, value_type) for item in value]
    if isinstance(value, tuple):  # nvmlDeviceGetSamples
        return [plain(item, value[0]) for item in value[1]]
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, ctypes._SimpleCData):
        return value.value
    return value if isinstance(value, int | float | str | None) else vars(value)


kept = {}


def handle_of(device):
    if isinstance(device, str):
        return pynvml.nvmlDeviceGetHandleByUUID(device)
    return pynvml.nvmlDeviceGetHandleByIndex(device)


def metrics_between(first, second, ids):
    wanted = pynvml.c_nvmlGpmMetricsGet_t()
    wanted.version, wanted.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(ids)
    wanted.sample1, wanted.sample2 = kept[first], kept[second]
    for metric, metric_id in zip(wanted.metrics, ids, strict=False):
        metric.metricId = metric_id
    found = pynvml.nvmlGpmMetricsGet(wanted).metrics[: len(ids)]
    return [metric.value if metric.nvmlReturn == pynvml.NVML_SUCCESS else None for metric in found]


def call(request):
    device = request.get("device")
    handle = () if device is None else (handle_of(device),)
    given = [kept[value["kept"]] if isinstance(value, dict) else value for value in request["args"]]
    value = getattr(pynvml, request["call"])(*handle, *given)
    if "keep" in request:
        kept[request["keep"]] = value
        return None
    return plain(value)


def main():
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "world" in request:
                os.environ["SIMGPU_WORLD"] = request["world"]
                pynvml.nvmlInit()
                answer = {"value": None}
            elif "cpu" in request:
                answer = {"value": time.process_time()}
            elif "gpm" in request:
                answer = {"value": metrics_between(*request["gpm"], request["metrics"])}
            else:
                answer = {"value": call(request)}
        except pynvml.NVMLError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


main()
