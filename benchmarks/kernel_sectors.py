"""Memory requests of our CUDA kernels with images in NHWC and in NCHW, from accesses recorded on the host.

    python benchmarks/kernel_sectors.py [--networks NAME,...] [-o benchmarks/results/kernel-sectors.json]

It has every window, reduction and separable convolution kernel of the networks, once per shape, and the resizing of
detectors. `tests/support/traced_kernels.py` defines the counts. Needs no GPU, and measures no time.

Options:
    --networks: comma-separated names from `iosched zoo list`
    --output: raw results as JSON
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np
from result_tables import print_table
from results_files import write_results
from testbed import zoo_model

sys.path.insert(0, str(Path(__file__).parent.parent / "tests/support"))

from dataclasses import replace
from typing import Any

from command_line import read_options
from host_cuda import blank, put, weight
from traced_kernels import moved

from iosched.runtime.cuda.kernel import Precision, SourceKernel
from iosched.runtime.cuda.kernels.depthwise import Depthwise
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.reduce import Reduce
from iosched.runtime.cuda.kernels.resize import Resize
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.layout import Layout
from iosched.runtime.cuda.lower.fused import SEPARABLE, KernelChoice
from iosched.runtime.cuda.lower.lowered_model import LoweredModel

NETWORKS = ("inception_v3", "nasnet_a", "randwire", "squeezenet", "googlenet", "resnet50", "densenet121")
COUNTED = (Depthwise, Pool, Reduce, Separable)
MOST_BLOCKS = 48
MOST_BLOCKS_OF_SEPARABLE = 12  # they have many more accesses
_IMAGE_RANK = 4
RESIZED = ((256, 13, 2), (128, 26, 2), (256, 20, 2), (256, 25, 2), (256, 50, 2), (21, 33, 8))
"""Channels, extent and scale where detectors (YOLO, feature pyramids) and segmentation (DeepLab) make images larger."""


@dataclass(frozen=True)
class Case:
    """A kernel on tensors of some shapes.

    Attributes:
        where: the network, or the models that resize so.
        uses: number of such kernels in the network.
        constants: its operands after the first one.
    """

    where: str
    uses: int
    kernel: SourceKernel
    x: tuple[int, ...]
    y: tuple[int, ...]
    constants: Sequence[np.ndarray]

    def counts(self, layout: Layout) -> Mapping[str, int]:
        """Counts of the blocks that were run; `of_blocks` is the number in the launch."""
        constants = [weight(array) for array in self.constants]
        x, y = put(np.zeros(self.x, np.float32), layout=layout), blank(self.y, layout=layout)
        call = self.kernel.call([each.view for each in (x, *constants)], [y.view])
        most_blocks = MOST_BLOCKS_OF_SEPARABLE if isinstance(self.kernel, Separable) else MOST_BLOCKS
        return {**asdict(moved(call, [x, *constants, y], most_blocks)), "of_blocks": call.grid[0]}


def main(arguments: Sequence[str] | None = None) -> None:
    options = read_options(__file__, arguments, networks=NETWORKS, output=Path)
    found = []
    for case in cases(options.networks):
        found.append(counted(case))
        print(described(found[-1]), file=sys.stderr, flush=True)
    print_table(*table(found))
    write_results(options, {"kernels": found})


def cases(networks: Sequence[str]) -> Iterator[Case]:
    for name in networks:
        yield from cases_of(name)
    for channels, extent, scale in RESIZED:
        places = np.repeat(np.arange(extent, dtype=np.int32), scale)[:, None]
        tables = [places, np.ones(places.shape, np.float32)] * 2
        larger = (1, channels, scale * extent, scale * extent)
        yield Case("larger images", 1, Resize(1), (1, channels, extent, extent), larger, tables)


def cases_of(name: str) -> Iterator[Case]:
    """Of a network of the zoo, with two kernels for a separable convolution and with one."""
    network = LoweredModel(zoo_model(name), Precision("fp32"))
    operators = [each.name for each in network.model.graph.operators if each.type == SEPARABLE]
    seen: dict[object, Case] = {}
    uses: Counter[object] = Counter()
    for version in (network, network.with_fused(dict.fromkeys(operators, KernelChoice(0)))):
        for call in (call for operator in version.model.graph.operators for call in version.calls[operator.name]):
            x, y = (version.builder.tensors[each].shape for each in (call.reads[0], call.writes[0]))
            if any(each not in version.builder.weights for each in call.reads[1:]):  # a sum too
                continue
            if not isinstance(call.kernel, COUNTED) or x is None or y is None or len(x) != _IMAGE_RANK:
                continue
            if version is not network and not isinstance(call.kernel, Separable):
                continue
            key = call.kernel, x, y
            uses[key] += 1
            constants = [version.builder.weights[each] for each in call.reads[1:]]
            seen.setdefault(key, Case(name, 1, call.kernel, x, y, constants))
    yield from (replace(case, uses=uses[key]) for key, case in seen.items())


def counted(case: Case) -> dict[str, Any]:
    """The stored part of a case."""
    window = getattr(case.kernel, "window", case.kernel)
    found: dict[str, Any] = {"where": case.where, "kernel": type(case.kernel).__name__, "uses": case.uses}
    found |= {"x": case.x, "y": case.y}
    if hasattr(window, "strides"):
        found |= {"window": window.kernel, "strides": window.strides}
    return found | {layout.value: case.counts(layout) for layout in Layout}


def ratio(record: Mapping[str, Any], key: str) -> float:
    """NCHW over NHWC, of whole launches."""
    return _whole(record[Layout.NCHW.value], key) / _whole(record[Layout.NHWC.value], key)


def _whole(counts: Mapping[str, int], key: str) -> float:
    return counts[key] * counts["of_blocks"] / counts["blocks"]


def described(record: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key} {ratio(record, key):.2f}" for key in ("requests", "sectors", "distinct_sectors"))
    named = " ".join(str(record[key]) for key in ("where", "kernel", "x", "y"))
    return f"{named} {record.get('window', '')} {record.get('strides', '')}: {text} (NCHW over NHWC)"


def table(records: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """By kernel and stride, the least, median and largest ratio over shapes."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for record in records:
        strides = record.get("strides")
        stride = f", stride {max(strides)}" if isinstance(strides, (tuple, list)) else ""
        groups.setdefault(f"{record['kernel']}{stride}", []).append(record)
    rows = []
    for name, group in sorted(groups.items()):
        spread = [sorted(ratio(each, key) for each in group) for key in ("sectors", "distinct_sectors")]
        rows.append([name, str(len(group)), *(f"{low[0]:.2f}, {median(low):.2f}, {low[-1]:.2f}" for low in spread)])
    return ["kernel", "shapes", "sectors of all requests", "distinct sectors of a block"], rows


if __name__ == "__main__":
    main()
