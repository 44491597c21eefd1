"""PyTorch on a GPU: eager, in a CUDA graph, and compiled. This file imports PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

import numpy as np
import torch
from torch import nn

from iosched.models.errors import DeviceError
from iosched.runtime.cuda.kernel import Precision

Run = Callable[[], object]
_DEVICE = "cuda"
_WARM_UP = 3
_ROUNDS = 7

_TRIED_IN = {"torch-compile": "torch-cudagraph"}

LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}


@dataclass(frozen=True, eq=False)
class TorchRun:
    """A network with inputs on the GPU; `run` starts it and returns its outputs. `layout` is a key of `LAYOUTS`."""

    run: Run
    layout: str

    def time(self, repeats: int) -> tuple[float, ...]:
        """Microseconds of `repeats` consecutive runs by GPU events; the first finds the GPU idle."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        with torch.inference_mode():
            events[0].record()
            for event in events[1:]:
                self.run()
                event.record()
        events[-1].synchronize()
        return tuple(float(start.elapsed_time(end)) * 1e3 for start, end in pairwise(events))

    def outputs(self) -> tuple[np.ndarray, ...]:
        """Runs once, and returns the outputs in order, floats as float32."""
        with torch.inference_mode():
            found = self.run()
        tensors = found if isinstance(found, tuple | list) else (found,)
        return tuple((each.float() if each.is_floating_point() else each).cpu().numpy() for each in tensors)


def open_way(way: str, network: nn.Module, inputs: Sequence[np.ndarray], precision: Precision) -> TorchRun:
    """Opens `network` in its faster image layout and warms it up; `way` is a key of `WAYS`.

    The compiler takes minutes, so it gets the layout that is faster in a CUDA graph.

    Raises:
        DeviceError: PyTorch cannot run the network this way.
    """
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision.name == "tf32"
    dtype = torch.float16 if precision.name == "fp16" else torch.float32
    try:
        tried = _TRIED_IN.get(way, way)
        better = _fastest([_opened(tried, deepcopy(network), inputs, dtype, layout) for layout in LAYOUTS])
        return better if tried == way else _opened(way, network, inputs, dtype, better.layout)
    except Exception as error:  # compilers raise anything, and the other baselines still run
        raise DeviceError(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}") from error


def _fastest(runs: Sequence[TorchRun]) -> TorchRun:
    """The run with the lowest median; interleaved, because an idle GPU reaches its full clock slowly."""
    rounds = [[each.time(2)[1] for each in runs] for _ in range(_ROUNDS)]
    medians = [median(latencies) for latencies in zip(*rounds, strict=True)]
    return runs[medians.index(min(medians))]


def _opened(way: str, network: nn.Module, inputs: Sequence[np.ndarray], dtype: torch.dtype, layout: str) -> TorchRun:
    placed = network.to(_DEVICE, dtype).to(memory_format=LAYOUTS[layout]).eval()
    return TorchRun(WAYS[way](placed, [_on_gpu(array, dtype, LAYOUTS[layout]) for array in inputs]), layout)


def _on_gpu(array: np.ndarray, dtype: torch.dtype, layout: torch.memory_format) -> torch.Tensor:
    tensor = torch.from_numpy(np.array(array)).to(_DEVICE)
    tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
    return tensor.contiguous(memory_format=layout) if tensor.ndim == 4 else tensor


def _eager(network: nn.Module, arrays: Sequence[torch.Tensor]) -> Run:
    _warm_up(lambda: network(*arrays))
    return lambda: network(*arrays)


def _graphed(network: nn.Module, arrays: Sequence[torch.Tensor]) -> Run:
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # PyTorch requires that before a capture
        _warm_up(lambda: network(*arrays))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        results = network(*arrays)

    def replayed(_read: object = (network, arrays)) -> object:
        graph.replay()
        return results

    return replayed


def _compiled(network: nn.Module, arrays: Sequence[torch.Tensor]) -> Run:
    torch._dynamo.reset()
    compiled = torch.compile(network, mode="max-autotune", fullgraph=True)
    _warm_up(lambda: compiled(*arrays))  # PyTorch records its CUDA graph in the second run
    return lambda: compiled(*arrays)


def _warm_up(run: Run) -> None:
    with torch.inference_mode():
        for _ in range(_WARM_UP):
            run()
    torch.cuda.synchronize()


WAYS: Mapping[str, Callable[[nn.Module, Sequence[torch.Tensor]], Run]] = {
    "torch": _eager,
    "torch-cudagraph": _graphed,
    "torch-compile": _compiled,
}
