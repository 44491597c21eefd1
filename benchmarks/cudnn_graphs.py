"""The cuDNN graphs that the CUDA runtime makes of the benchmark networks; to lower these takes no cuDNN and no GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

from iosched import Model, Stage, Strategy, load_model
from iosched.models.light import NAMES, light_model
from iosched.models.zoo import build, names
from iosched.runtime.cuda.cudnn.target import GpuDescription
from iosched.runtime.cuda.kernel import CudnnKernel, Precision
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.network import Network
from iosched.runtime.cuda.lower.plan import Lowering, lower, lower_stage
from iosched.runtime.cuda.target import Gpu
from iosched.runtime.plan import View
from iosched.scheduler.baselines import sequential
from iosched.scheduler.precision import precision_named
from iosched.scheduler.strategies import merge_classes


@dataclass(frozen=True)
class Graph:
    """A kernel with the tensors it works on, wherever these are."""

    kernel: CudnnKernel
    reads: tuple[View, ...]
    writes: tuple[View, ...]

    @property
    def parts(self) -> tuple[CudnnKernel, tuple[View, ...], tuple[View, ...]]:
        """The kernel, what it reads and what it writes."""
        return self.kernel, self.reads, self.writes

    @property
    def is_sliced(self) -> bool:
        """Whether it reads or writes a part of a wider tensor."""
        return any(_is_slice(view) for view in (*self.reads, *self.writes))

    @property
    def text(self) -> str:
        """For people."""
        shapes = " ".join("x".join(map(str, view.shape or ())) for view in (*self.reads[:2], *self.writes))
        return f"{_kernel_text(self.kernel)} {shapes}{' sliced' if self.is_sliced else ''}"


def all_names() -> list[str]:
    """Networks of the zoo, and the onnx package's with drawn weights."""
    return [*names(), *(f"light_{name}" for name in NAMES)]


def network_of(name: str, batch_size: int = 1) -> Model:
    """The network of that name."""
    proto = light_model(name) if name.startswith("light_") else build(name)
    return load_model(proto.SerializeToString(), name=name, batch_size=batch_size)


def gpu_of(device: GpuDescription) -> Gpu:
    """What the lowering knows of a described GPU."""
    return Gpu(device.sm_version, json.loads(device.properties)["multiProcessorCount"])


def preferred(precision: str, gpu: Gpu) -> tuple[Precision, Layout]:
    """The precision of that name, and the layout of images that goes with it.

    Raises:
        UsageError: there is no such precision.
    """
    name = precision_named(precision)
    return Precision(name), preferred_layout(name, gpu)


def all_graphs(model: Model, precision: Precision, layout: Layout, gpu: Gpu) -> dict[Graph, bool]:
    """Every different graph of the model under any schedule, and whether it is of merged convolutions."""
    network = Network(model, precision, layout, gpu=gpu)
    found = dict.fromkeys(graphs_of(lower(network, sequential(model.graph))), False)
    for members in merge_classes(model.graph, model.graph.by_name):
        lowering = lower_stage(network, Stage(Strategy.MERGE, tuple((name,) for name in members)))
        for graph in graphs_of(lowering) if lowering else ():
            found.setdefault(graph, True)
    return found


def graphs_of(lowering: Lowering) -> Iterator[Graph]:
    """The graphs of a plan, in its order."""
    for task in (task for lane in lowering.plan.lanes for task in lane):
        kernel = lowering.kernels[task.kernel]
        if isinstance(kernel, CudnnKernel):
            yield Graph(kernel, tuple(map(_anywhere, task.reads)), tuple(map(_anywhere, task.writes)))


def _anywhere(view: View) -> View:
    """The view with nothing of its place but how well it is aligned."""
    return replace(view, buffer="", offset=view.offset % 16)


def _is_slice(view: View) -> bool:
    item = 2 if view.dtype == "float16" else 4
    return view.strides is not None and view.strides not in {each.strides_of(view.shape or (), item) for each in Layout}


def _kernel_text(kernel: CudnnKernel) -> str:
    if not isinstance(kernel, Conv):
        return type(kernel).__name__
    parts = [f"Conv stride {kernel.strides} pads {kernel.pads}"]
    parts += [f"groups {kernel.groups}"] if kernel.groups > 1 else []
    parts += ["+ residual"] if kernel.residual else []
    parts += ["+ bias"] if kernel.bias else []
    parts += [kernel.activation.type] if kernel.activation.type else []
    return " ".join(parts)
