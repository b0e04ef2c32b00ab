"""Train a net's weights by gradient descent with torch, on devices other than the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from slurm_gpu.colocation.learned.gradients import LONGEST, RATES, TINY, Lesson
from slurm_gpu.colocation.learned.net import Floats, Net
from slurm_gpu.errors import UsageError


def checked_device(name: str) -> None:
    """Raise UsageError if torch cannot use this device."""
    try:
        # Tensors on the device `meta` have shapes but no values.
        float(torch.zeros(1, device=name))
    except (AssertionError, NotImplementedError, RuntimeError) as error:
        why = (str(error).splitlines() or ["no reason given"])[0]
        raise UsageError(f"--device {name}: torch cannot use this device: {why[:200]}") from None


class TorchLearner:
    """See gradients.Learner."""

    def __init__(self, net: Net, rate: float, *, device: str = "cpu", threads: int = 1) -> None:
        torch.set_num_threads(threads)
        self._device = torch.device(device)
        arrays = [array for layer in zip(net.weights, net.biases, strict=True) for array in layer]
        self._layers = [torch.tensor(array, device=self._device, requires_grad=True) for array in arrays]
        self._adam = torch.optim.Adam(self._layers, lr=rate, betas=RATES, eps=TINY)

    @property
    def net(self) -> Net:
        """See gradients.Learner."""
        arrays = [layer.detach().cpu().numpy().copy() for layer in self._layers]
        return Net(tuple(arrays[::2]), tuple(arrays[1::2]))

    @property
    def rate(self) -> float:
        """See gradients.Learner."""
        return float(self._adam.param_groups[0]["lr"])

    @rate.setter
    def rate(self, rate: float) -> None:
        self._adam.param_groups[0]["lr"] = rate

    def step(self, lessons: Sequence[Lesson], entropy: float = 0.0) -> float:
        """See gradients.Learner."""
        n = sum(len(lesson.choice) for lesson in lessons)
        self._adam.zero_grad()
        total = 0.0
        for lesson in lessons:
            loss = self._loss(lesson, entropy) / n
            torch.autograd.backward(loss)
            total += float(loss.detach())
        torch.nn.utils.clip_grad_norm_(self._layers, LONGEST)
        self._adam.step()
        return total

    def _loss(self, lesson: Lesson, entropy: float) -> torch.Tensor:
        inputs = torch.from_numpy(lesson.inputs).to(self._device, torch.float32)
        allowed = torch.from_numpy(lesson.allowed).to(self._device)
        choice = torch.from_numpy(lesson.choice).to(self._device)
        weight = torch.from_numpy(lesson.weight).to(self._device)
        scores = self._scores(inputs).masked_fill(~allowed, -1e9)
        logs = torch.log_softmax(scores, dim=1)
        loss = -(weight * logs.gather(1, choice[:, None])[:, 0]).sum()
        if entropy:
            loss = loss + entropy * (logs.exp() * logs.masked_fill(~allowed, 0.0)).sum()
        return loss

    def _scores(self, inputs: torch.Tensor) -> torch.Tensor:
        out = inputs
        for number, (weight, bias) in enumerate(zip(self._layers[::2], self._layers[1::2], strict=True)):
            out = out @ weight + bias
            if 2 * number + 2 < len(self._layers):
                out = torch.relu(out)
        return out[..., 0] if inputs.ndim == 3 else out

    def state(self) -> dict[str, Floats]:
        """See gradients.Learner."""
        out = {}
        for number, layer in enumerate(self._layers):
            for name, value in self._adam.state.get(layer, {}).items():
                out[f"{name}.{number}"] = np.asarray(torch.as_tensor(value).cpu().numpy(), dtype=np.float32)
        return out

    def restore(self, state: Mapping[str, Floats]) -> None:
        """See gradients.Learner."""
        for key, value in state.items():
            name, _, number = key.rpartition(".")
            layer = self._layers[int(number)]
            if name != "step" and value.shape != tuple(layer.shape):
                raise ValueError(f"{key} has shape {value.shape}, but its layer has {tuple(layer.shape)}")
            tensor = torch.tensor(value)
            self._adam.state[layer][name] = tensor if name == "step" else tensor.to(self._device)
