"""How long planning takes for graphs of 1,000 and of 3,000 operators; nothing is measured on a device.

    python benchmarks/large_graphs.py [--graphs nasnet_a,resnext] [--operators 1000,3000] [--repeats 3] [-o F.json]

The graphs are NASNet-A with more cells, a ResNeXt whose branches are convolutions of their own, and several networks of
the zoo in one file. Channels are few, so that weights are small.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from testbed import print_table, write_results

from iosched.jobs.annotate import annotated
from iosched.jobs.explain import explain_operator
from iosched.jobs.optimize import optimize
from iosched.jobs.optimizing.estimate import estimate
from iosched.jobs.settings import OptimizeSettings
from iosched.models import zoo
from iosched.models.composition.compose import compose
from iosched.models.export import write_model
from iosched.models.load import load_model
from iosched.models.model import Model
from iosched.models.zoo import nasnet_a
from iosched.models.zoo.network import Network, Value
from iosched.runtime.cpu.backend import CpuBackend
from iosched.scheduler.blocks import partition

BRANCHES = 32
TOGETHER = ("squeezenet", "googlenet", "bert_mini")
LANES = 2

T = TypeVar("T")
Samples = dict[str, list[float]]


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graphs", default=",".join(GRAPHS))
    parser.add_argument("--operators", default="1000,3000")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path, help="raw results as JSON")
    options = parser.parse_args()
    found = [
        {"graph": name, "operators": len(model.graph.operators), **planned(model, options.repeats)}
        for name in options.graphs.split(",")
        for model in (GRAPHS[name](int(operators)) for operators in options.operators.split(","))
    ]
    for each in found:
        print(f"\n{each['graph']}, {each['operators']:,} operators\n")
        wall, processor = each["seconds"], each["processor_seconds"]
        rows = [(phase, f"{median(wall[phase]):.2f}", f"{median(processor[phase]):.2f}") for phase in wall]
        print_table(("phase", "seconds", "processor seconds"), rows)
    words = ["--graphs", options.graphs, "--operators", options.operators, "--repeats", str(options.repeats)]
    write_results(options, Path(__file__).stem, words, {"graphs": found}, seeds={})


def planned(model: Model, repeats: int) -> dict[str, Samples]:
    """Seconds of each phase of planning."""
    content, clock = write_model(model.proto, model.weights, None), Clock()
    for _ in range(repeats):
        _plan(content or b"", model.name, clock)
    return asdict(clock)


@dataclass
class Clock:
    """Seconds of phases in all repeats, by the clock and of the processor."""

    seconds: Samples = field(default_factory=dict)
    processor_seconds: Samples = field(default_factory=dict)

    def time(self, phase: str, act: Callable[[], T]) -> T:
        started, worked = time.perf_counter(), time.process_time()
        done = act()
        self.seconds.setdefault(phase, []).append(round(time.perf_counter() - started, 3))
        self.processor_seconds.setdefault(phase, []).append(round(time.process_time() - worked, 3))
        return done


def _plan(content: bytes, name: str, clock: Clock) -> None:
    model = clock.time("read", lambda: load_model(content, name=name))
    clock.time("cut into blocks", lambda: partition(model.graph))
    result = clock.time("optimize for a V100", lambda: optimize(model, OptimizeSettings(device="v100", resume=False)))
    optimized = clock.time("write", lambda: write_model(annotated(model, result.document), model.weights, None))
    clock.time("read with its schedule", lambda: load_model(optimized or b"", name=name))
    operator = model.graph.operators[len(model.graph.operators) // 2].name
    clock.time("explain", lambda: explain_operator(model, result.document, operator))
    clock.time("dry run on the CPU", lambda: estimate(model, OptimizeSettings(device="cpu", resume=False)))
    with clock.time("open on the CPU", lambda: CpuBackend(model, lanes=LANES)) as backend:
        clock.time("plan on the CPU", lambda: backend.lower(result.document.schedule))


def nasnet(operators: int) -> Model:
    """NASNet-A with as many cells in each of its three stages as make about this many operators."""
    cells = max(round((operators - 86) / 48), 1)
    return load_model(nasnet_a.build(cells, filters=8).SerializeToString(), name="nasnet_a")


def resnext(operators: int) -> Model:
    """ResNeXt (Xie et al., 2017, figure 3b): in each block 32 branches of two convolutions, and a shortcut."""
    net = Network("resnext")
    x = net.conv(net.input(3, 56), 64, 3, "stem", padding=1)
    for index in range(max(round(operators / (2 * BRANCHES + 2)), 1)):
        x = _block(net, x, f"block{index}")
    return load_model(net.finish(net.global_average_pool(x, "output")).SerializeToString(), name="resnext")


def _block(net: Network, x: Value, name: str) -> Value:
    branches = [
        net.conv(net.conv(x, 4, 1, f"{name}/{branch}/1x1"), 4, 3, f"{name}/{branch}/3x3", padding=1)
        for branch in range(BRANCHES)
    ]
    joined = net.conv(net.concat(branches, f"{name}/concat"), x.channels, 1, f"{name}/join", relu=False)
    return net.relu(net.sum([joined, x], f"{name}/sum"), name)


def several(operators: int) -> Model:
    """Networks of the zoo in one file, each several times with inputs of its own."""
    networks = {name: load_model(zoo.build(name).SerializeToString(), name=name) for name in TOGETHER}
    copies = max(round(operators / sum(len(model.graph.operators) for model in networks.values())), 1)
    members = {f"{name}{index}": model for index in range(copies) for name, model in networks.items()}
    return compose(members, name="several").model


GRAPHS: Mapping[str, Callable[[int], Model]] = {"nasnet_a": nasnet, "resnext": resnext, "several": several}

if __name__ == "__main__":
    main()
