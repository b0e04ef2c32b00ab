"""Calls the real pynvml in a process of its own, which LD_LIBRARY_PATH leads to the simulated library.

One JSON request per line: {"world": path} initialises; {"call": name, "device": index or null,
"args": [...]} calls; {"cpu": true} asks for the processor time used so far. The answer is {"value": …} or
{"error": name of the NVMLError}.
"""

import ctypes
import json
import os
import sys
import time

import pynvml

UNION_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}


def plain(value, value_type=None):
    if isinstance(value, ctypes.Union):
        return getattr(value, UNION_MEMBERS[value_type])
    if isinstance(value, pynvml.c_nvmlFieldValue_t):
        fields = {name: getattr(value, name) for name, _ in value._fields_ if name != "value"}
        return fields | {"value": plain(value.value, value.valueType) if value.nvmlReturn == 0 else None}
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name), value_type) for name, _ in value._fields_}
    if isinstance(value, ctypes.Array | list):
        return [plain(item, value_type) for item in value]
    if isinstance(value, tuple):  # nvmlDeviceGetSamples
        return [plain(item, value[0]) for item in value[1]]
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, int | float | str | None) else vars(value)


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
            else:
                function = getattr(pynvml, request["call"])
                device = request.get("device")
                handle = () if device is None else (pynvml.nvmlDeviceGetHandleByIndex(device),)
                value = function(*handle, *request["args"])
                if isinstance(value, pynvml.c_nvmlDevice_t):  # a handle: say whose
                    value = pynvml.nvmlDeviceGetIndex(value)
                answer = {"value": plain(value)}
        except pynvml.NVMLError as error:
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(answer), flush=True)


main()
