"""What `iosched devices --selftest` compiles and builds on a GPU, and how long that takes at a desk.

    python benchmarks/selftest_desk.py [--device benchmarks/devices/h100.json] [-o results.json]

Sources are compiled by NVRTC, one after another, where the self-test uses all cores; cuDNN builds the first plan for
each graph. It needs CuPy with NVRTC, and what `cudnn_desk.py` needs. Nothing runs on a GPU.
"""

from __future__ import annotations

import json
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from itertools import product
from pathlib import Path

from testbed import write_results

from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo.light import light_model
from iosched.runtime.cuda.cudnn.graph import GpuDescription, load_cudnn
from iosched.runtime.cuda.cudnn.plans import build_cudnn_plans
from iosched.runtime.cuda.execute.launches import source_calls
from iosched.runtime.cuda.kernel import CudnnKernel, Gpu, Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.network import Network
from iosched.runtime.cuda.lower.plan import Lowering, lower
from iosched.runtime.cuda.lower.timed_choices import fused_everywhere
from iosched.runtime.cuda.samples import CUDNN_SAMPLES, SAMPLES, THREE_GROUPS, sample
from iosched.scheduler.baselines import greedy
from iosched.scheduler.precision import PRECISIONS, PrecisionName

HERE = Path(__file__).parent
MODEL = "light_squeezenet"


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", type=Path, default=HERE / "devices/h100.json", help="description of a GPU")
    parser.add_argument("-o", "--output", type=Path, help="file for raw results")
    options = parser.parse_args()
    device = GpuDescription.from_json(options.device.read_text(encoding="utf-8"))
    gpu = Gpu(device.sm_version, json.loads(device.properties)["multiProcessorCount"])
    model = load_model(light_model(MODEL).SerializeToString(), name=MODEL)
    precisions = [each for each in PRECISIONS if each != "tf32" or gpu.has_tf32]
    own = [lowered(sample(text), *form, gpu) for text in SAMPLES.values() for form in product(precisions, Layout)]
    own.append(lowered(sample(THREE_GROUPS), "fp32", preferred_layout("fp32", gpu), gpu))
    network = lowered(model, "fp32", preferred_layout("fp32", gpu), gpu)
    cudnn = [
        lowered(sample(text), precision, preferred_layout(precision, gpu), gpu)
        for text in CUDNN_SAMPLES.values()
        for precision in precisions
    ]
    compile_s = dict(compiled([*own, *cudnn, network], gpu))
    build_s = dict(built([*cudnn, network], device))
    print(f"{len(compile_s)} sources: {sum(compile_s.values()):.1f} s, the longest {max(compile_s.values()):.2f} s")
    print(f"{len(build_s)} plans of cuDNN: {sum(build_s.values()):.1f} s, the longest {max(build_s.values()):.2f} s")
    found = {"device": device.name, "cudnn": load_cudnn().backend_version_string(), "nvrtc": list(nvrtc_version())}
    write_results(options, Path(__file__).stem, sys.argv[1:], {**found, "compile_s": compile_s, "build_s": build_s})


def lowered(model: Model, precision: PrecisionName, layout: Layout, gpu: Gpu) -> Lowering:
    network = fused_everywhere(Network(model, Precision(precision), layout, gpu=gpu))
    return lower(network, greedy(model.graph))


def compiled(lowerings: Sequence[Lowering], gpu: Gpu) -> Iterator[tuple[str, float]]:
    """Seconds of each different source, by the function in it and a number."""
    from cupy.cuda import nvrtc

    calls = {(call.source, call.entry): call for lowering in lowerings for call in source_calls(lowering)}
    options = [f"--gpu-architecture=sm_{gpu.capability}", "--std=c++17", *(f"-I{each}" for each in headers())]
    for number, call in enumerate(calls.values()):
        started = time.perf_counter()
        program = nvrtc.createProgram(call.source, "kernel.cu", [], [])
        nvrtc.compileProgram(program, options)
        nvrtc.getCUBIN(program)
        yield f"{call.entry} {number}", time.perf_counter() - started


def headers() -> list[Path]:
    spec = find_spec("nvidia")
    roots = [Path(root) for root in (spec.submodule_search_locations or [])] if spec else []
    return [header.parent for root in roots for header in root.glob("*/include/cuda_fp16.h")]


def nvrtc_version() -> tuple[int, ...]:
    from cupy.cuda import nvrtc

    found: tuple[int, ...] = nvrtc.getVersion()
    return found


def built(lowerings: Sequence[Lowering], device: GpuDescription) -> Iterator[tuple[str, float]]:
    """Seconds until the first plan of each different graph is there, by the kernel and a number."""
    graphs = {
        (kernel, task.reads, task.writes): None
        for lowering in lowerings
        for task in lowering.plan.tasks
        if isinstance(kernel := lowering.kernels[task.kernel], CudnnKernel)
    }
    for number, (kernel, reads, writes) in enumerate(graphs):
        started = time.perf_counter()
        offer = build_cudnn_plans(kernel, reads, writes, device, at_most=1, precompiled=True)
        assert offer.plans, f"{kernel} {[v.shape for v in reads]}: {offer.refusal}"
        yield f"{type(kernel).__name__} {kernel.precision.name} {number}", time.perf_counter() - started


if __name__ == "__main__":
    main()
