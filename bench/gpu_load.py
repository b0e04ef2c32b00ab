"""Generate a known load on one GPU: matrix products for a fraction of each period, and memory.

CUDA_VISIBLE_DEVICES=GPU-… .venv/bin/python bench/gpu_load.py DUTY SECONDS MEMORY_MIB
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch

from bench import arguments

PERIOD_S = 2.0
BATCH_S = 0.02
SIDE = 8192


def main(duty: float, seconds: float, memory_mib: int) -> None:
    device = torch.device("cuda", 0)
    memory = torch.ones(memory_mib << 20, dtype=torch.uint8, device=device)
    factor = torch.randn(SIDE, SIDE, dtype=torch.bfloat16, device=device)
    product = torch.empty_like(factor)
    products = max(1, round(BATCH_S / batch(factor, product, 5) * 5))
    batch(factor, product, products)
    free, total = torch.cuda.mem_get_info(device)
    report(
        ready=True,
        name=torch.cuda.get_device_name(device),
        used_mib=(total - free) / 2**20,
        memory_bytes=memory.numel(),
    )
    sys.stdin.readline()
    begin = time.monotonic()
    busy_s, batches = 0.0, 0
    while (now := time.monotonic()) < begin + seconds:
        period = begin + (now - begin) // PERIOD_S * PERIOD_S
        if now < period + duty * PERIOD_S:
            busy_s, batches = busy_s + batch(factor, product, products), batches + 1
        else:
            time.sleep(min(period + PERIOD_S, begin + seconds) - now)
    report(busy_s=busy_s, seconds=time.monotonic() - begin, batches=batches, utilization=torch_utilization())


def batch(factor: torch.Tensor, product: torch.Tensor, count: int) -> float:
    """Multiply this many times, and return the GPU time."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(count):
        torch.matmul(factor, factor, out=product)
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def torch_utilization() -> int | None:
    try:
        return int(torch.cuda.utilization())
    except (RuntimeError, ModuleNotFoundError):
        return None


def report(**values: object) -> None:
    print(json.dumps(values), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("duty", type=arguments.part, help="part of the time in which kernels run, 0 to 1")
    parser.add_argument("seconds", type=arguments.seconds(1))
    parser.add_argument("memory_mib", type=arguments.number(1))
    main(**vars(parser.parse_args()))
