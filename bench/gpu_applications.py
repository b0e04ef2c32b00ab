"""The programs of bench/colocation_gpu.py, which contend for different resources of a GPU.

conv         training a convolutional network with residual connections, batch of 64: kernels of many sizes
transformer  training an encoder of six layers in bfloat16, batch of 16: large matrix products
decode       a small decoder that generates tokens for a batch of 4: short kernels, with gaps
md           molecular dynamics: Lennard-Jones particles with neighbour lists, velocity Verlet: gathers
stream       a + s*b over arrays larger than any cache: memory bandwidth

All programs use PyTorch with one seed; `scale` reduces their size (1 for a GPU). On a CPU, small numpy
programs replace them, only to test the measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

Step = Callable[[], None]
"""Runs one step or, on a GPU, enqueues it."""

_CUTOFF = 2.5
_SPACING = 1.2
"""The initial lattice constant, in units of the particle size."""
_TIME_STEP = 0.002


def _conv(device: torch.device, scale: float) -> Step:
    import torch
    from torch import nn

    width, side, batch = max(8, round(64 * scale)), max(8, round(64 * scale)), max(2, round(64 * scale))

    first = nn.Conv2d(3, width, 3, padding=1)
    blocks = [
        nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1),
            nn.BatchNorm2d(width),
        )
        for _ in range(8)
    ]
    last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))
    net = nn.ModuleList([first, *blocks, last]).to(device)
    images = torch.randn(batch, 3, side, side, device=device)
    labels = torch.randint(0, 100, (batch,), device=device)

    def loss() -> torch.Tensor:
        out = first(images)
        for block in blocks:
            out = torch.relu(out + block(out))
        return nn.functional.cross_entropy(last(out), labels)

    return _training(net, loss)


def _transformer(device: torch.device, scale: float) -> Step:
    import torch
    from torch import nn

    heads, length, batch = 8, max(8, round(256 * scale)), max(1, round(16 * scale))
    width = heads * max(4, round(64 * scale))
    layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
    net = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False).to(device, torch.bfloat16)
    inputs = torch.randn(batch, length, width, device=device, dtype=torch.bfloat16)
    return _training(net, lambda: net(inputs).float().square().mean())


def _training(net: Any, loss: Callable[[], Any]) -> Step:
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=1e-4, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()

    return step


def _decode(device: torch.device, scale: float) -> Step:
    """Generate one token, with attention over a constant number of earlier tokens."""
    import torch
    from torch import nn

    heads, batch, said = 8, 4, max(16, round(1024 * scale))
    each = max(8, round(96 * scale))
    width = heads * each
    layers = [
        {name: nn.Linear(width, n, bias=False).to(device, torch.bfloat16) for name, n in sizes.items()}
        for sizes in [{"query": width, "out": width, "up": width}] * 8
    ]
    keys = torch.randn(2, batch, heads, said, each, device=device, dtype=torch.bfloat16)
    state = {"token": torch.randn(batch, width, device=device, dtype=torch.bfloat16)}

    def step() -> None:
        with torch.no_grad():
            token = state["token"]
            for layer in layers:
                query = layer["query"](token).view(batch, heads, 1, each)
                seen = nn.functional.scaled_dot_product_attention(query, keys[0], keys[1])
                token = nn.functional.layer_norm(token + layer["out"](seen.reshape(batch, width)), (width,))
                token = nn.functional.layer_norm(token + nn.functional.gelu(layer["up"](token)), (width,))
            state["token"] = token

    return step


def _md(device: torch.device, scale: float) -> Step:
    import torch

    position, neighbours, box = _particles(max(4, round(40 * scale)))
    at = torch.tensor(position, device=device)
    near = torch.tensor(neighbours, device=device)
    state = {"velocity": torch.zeros_like(at), "force": torch.zeros_like(at)}

    def force() -> torch.Tensor:
        apart = at[:, None, :] - at[near]
        apart -= box * torch.round(apart / box)
        square = apart.square().sum(dim=2, keepdim=True).clamp(min=0.64)
        sixth = square.pow(-3)
        strength = torch.where(square < _CUTOFF**2, 24 * sixth * (2 * sixth - 1) / square, 0.0)
        return (strength * apart).sum(dim=1)

    def step() -> None:
        with torch.no_grad():
            state["velocity"] += 0.5 * _TIME_STEP * state["force"]
            at.add_(state["velocity"], alpha=_TIME_STEP)
            state["force"] = force()
            state["velocity"] += 0.5 * _TIME_STEP * state["force"]

    return step


def _particles(side: int) -> tuple[Any, Any, float]:
    """Return (n, 3) positions on a lattice, (n, k) neighbours, and the length of the periodic box."""
    grid = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), axis=-1).reshape(-1, 3)
    reach = int(_CUTOFF / _SPACING)
    around = np.arange(-reach, reach + 1)
    offsets = np.stack(np.meshgrid(around, around, around, indexing="ij"), axis=-1).reshape(-1, 3)
    offsets = offsets[
        (np.abs(offsets).sum(axis=1) > 0) & ((offsets**2).sum(axis=1) * _SPACING**2 < _CUTOFF**2)
    ]
    near = (grid[:, None, :] + offsets) % side
    index = (near[..., 0] * side + near[..., 1]) * side + near[..., 2]
    jitter = np.random.default_rng(1).normal(scale=0.02, size=grid.shape)
    return (grid * _SPACING + jitter).astype(np.float32), index.astype(np.int64), float(side * _SPACING)


def _stream(device: torch.device, scale: float) -> Step:
    import torch

    n = max(1000, round(2**27 * scale))
    a, b, out = (torch.randn(n, device=device) for _ in range(3))

    def step() -> None:
        torch.add(a, b, alpha=0.5, out=out)

    return step


def _md_on_cpu(scale: float) -> Step:
    at, near, box = _particles(max(4, round(40 * scale)))
    velocity = np.zeros_like(at)

    def step() -> None:
        apart = at[:, None, :] - at[near]
        apart -= box * np.round(apart / box)
        square = np.maximum((apart**2).sum(axis=2, keepdims=True), 0.64)
        sixth = square**-3.0
        nonlocal velocity
        velocity = velocity + _TIME_STEP * (24 * sixth * (2 * sixth - 1) / square * apart).sum(axis=1)
        np.add(at, _TIME_STEP * velocity, out=at, casting="same_kind")

    return step


def _stream_on_cpu(scale: float) -> Step:
    a = np.ones(max(1000, round(2**27 * scale)), dtype=np.float32)
    out = np.empty_like(a)

    def step() -> None:
        np.multiply(a, 0.5, out=out)

    return step


def _products_on_cpu(scale: float) -> Step:
    side = max(16, round(2048 * scale))
    a, out = np.ones((side, side), dtype=np.float32), np.empty((side, side), dtype=np.float32)

    def step() -> None:
        np.matmul(a, a, out=out)

    return step


TORCH: Mapping[str, Callable[[Any, float], Step]] = {
    "conv": _conv,
    "transformer": _transformer,
    "decode": _decode,
    "md": _md,
    "stream": _stream,
}
CPU: Mapping[str, Callable[[float], Step]] = {
    "md": _md_on_cpu,
    "stream": _stream_on_cpu,
    "products": _products_on_cpu,
}
CPU_SCALE = 0.02
