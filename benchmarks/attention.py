"""Speedup of small transformers on this CPU by scheduling and merging, over onnxruntime and its fused attention.

    python benchmarks/attention.py bert_mini decoder_mini --length 128     # minutes each; adds to the results

The schedule of each strategy runs interleaved with plain onnxruntime on the original model, and on the model with the
attention of each layer as one `MultiHeadAttention` node. onnxruntime's offline tool for transformers writes that node;
the tool needs PyTorch, so the script makes the node itself. Results are in results/attention.json.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import onnx
from command_line import read_options
from onnx import TensorProto, helper
from result_tables import Table, ratio_text
from results_files import RESULTS, keep_results, resumed_results
from testbed import in_turn

from iosched import Model, OptimizeSettings, ScheduleDocument, Strategy, load_model, open_executor
from iosched.jobs.optimize import optimize
from iosched.models import zoo
from iosched.profiler.measuring.interleave import compare
from iosched.profiler.measuring.interleaved_models import Budget
from iosched.profiler.measuring.statistics import summarize
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays, random_inputs

OUT = RESULTS / "attention.json"
STRATEGIES = {"sequential": 6.0, "merge": 20.0, "concurrent": 35.0, "both": 35.0}
"""Strategies to search, and seconds for each, with the final comparison of `optimize`."""
PLAIN, FUSED = "onnxruntime", "onnxruntime, attention fused"
THREADS = 2


def measure(name: str, length: int, batch: int) -> dict[str, Any]:
    build = import_module(f"iosched.models.zoo.{name}").build
    model = load_model(build(batch, length).SerializeToString(), name=name)
    fused = load_model(with_fused_attention(build(batch, length)).SerializeToString(), name=name)
    settings = OptimizeSettings(device="cpu", threads=THREADS)
    found = {
        way: optimize(model, replace(settings, strategy=way, budget_s=s)).document for way, s in STRATEGIES.items()
    }
    check(model, fused, found)
    samples = samples_of(model, fused, found)
    medians = {way: round(summarize(each).median_us) for way, each in samples.items()}
    print(name, length, batch, {way: each.shipped for way, each in found.items()}, medians, file=sys.stderr, flush=True)
    return {
        "shipped": {way: each.shipped for way, each in found.items()},
        "stages": {way: counts(each) for way, each in found.items()},
        "samples_us": samples,
    }


def counts(document: ScheduleDocument) -> dict[str, int]:
    """Numbers of stages: all, merged ones, and ones with concurrent groups."""
    stages = list(document.schedule.stages)
    return {
        "stages": len(stages),
        "merged": sum(stage.strategy is Strategy.MERGE for stage in stages),
        "side by side": sum(stage.strategy is Strategy.CONCURRENT and len(stage.groups) > 1 for stage in stages),
    }


def samples_of(model: Model, fused: Model, found: Mapping[str, ScheduleDocument]) -> dict[str, list[float]]:
    inputs = random_inputs(model.graph.inputs)
    documents = {PLAIN: None, **{way: as_schedule(each) for way, each in found.items()}}
    opened = {way: partial(_ready, model, document, inputs) for way, document in documents.items()}
    taken = in_turn({**opened, FUSED: partial(_ready, fused, None, inputs)}, Budget(30, 25.0))
    return {way: list(each.samples_us) for way, each in taken.items()}


def _ready(model: Model, document: ScheduleDocument | None, inputs: Arrays) -> Candidate:
    return open_executor(model, document, device="cpu", threads=THREADS).ready(inputs)


def check(model: Model, fused: Model, found: Mapping[str, ScheduleDocument]) -> None:
    """Outputs are those of plain onnxruntime, on texts of several words with a mask that has zeros."""
    random = np.random.default_rng(0)
    inputs = {spec.name: random.integers(0, 8192, spec.shape) for spec in model.graph.inputs}
    if "mask" in inputs:
        inputs["mask"] = np.ones_like(inputs["mask"])
        inputs["mask"][:, inputs["mask"].shape[1] * 3 // 4 :] = 0
    expected = _outputs(model, None, inputs)
    for document in (None, *found.values()):
        taken = _outputs(fused, None, inputs) if document is None else _outputs(model, as_schedule(document), inputs)
        np.testing.assert_allclose(taken, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


def _outputs(model: Model, document: ScheduleDocument | None, inputs: Mapping[str, np.ndarray]) -> np.ndarray:
    with closing(open_executor(model, document, device="cpu", threads=THREADS)) as executor:
        return executor.run(inputs)["output"]


def as_schedule(document: ScheduleDocument) -> ScheduleDocument:
    """The document as if its schedule had been shipped."""
    runtime = {key: value for key, value in document.runtime.items() if key != "by"}
    return replace(document, shipped="iosched", runtime=runtime)


def with_fused_attention(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The network with one node for each layer's attention, from its first products to its last one."""
    graph = proto.graph
    layers = sorted({node.name.partition("/")[0] for node in graph.node if node.name.endswith("/attention/scores")})
    parts = "(query|key|value)/(split|heads)|scores|scaled|masked|shares|mixed|by_word"
    inner = re.compile(rf"layer\d+/attention/({parts})$")
    masked = any(each.name == "mask" for each in graph.input)
    nodes = [node for node in graph.node if not inner.match(node.name)]
    if masked:
        nodes.insert(0, helper.make_node("Cast", ["mask"], ["mask/numbers"], "mask/numbers", to=TensorProto.INT32))
    for layer in layers:
        name = f"{layer}/attention"
        place = next(index for index, node in enumerate(nodes) if node.name == f"{name}/joined")
        given = [f"{name}/query", f"{name}/key", f"{name}/value", *(["", "mask/numbers"] if masked else [])]
        nodes[place] = helper.make_node(
            "MultiHeadAttention", given, [f"{name}/joined"], f"{name}/joined", domain="com.microsoft", num_heads=4,
            unidirectional=int(not masked),
        )  # fmt: skip
    del graph.node[:]
    graph.node.extend(nodes)
    proto.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return proto


def table(cases: Mapping[str, Any]) -> Table:
    head = ["network", "words", "batch", "way", "median", "over plain onnxruntime", "stages: all, merged, side by side"]
    return head, list(_rows(cases))


def _rows(cases: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, case in cases.items():
        name, length, batch = key.split(",")
        plain = summarize(case["samples_us"][PLAIN])
        for way, samples in case["samples_us"].items():
            taken = summarize(samples)
            gain = "1" if way == PLAIN else ratio_text(compare(plain, taken))
            counted = case["stages"].get(way)
            stages = "" if counted is None else ", ".join(map(str, counted.values()))
            yield zoo.describe(name).title, length, batch, way, f"{taken.median_us / 1000:.2f} ms", gain, stages


def main() -> None:
    options = read_options(__file__, None, {"names": []}, length=128, batch=1)
    cases = resumed_results(OUT).get("cases", {})
    for name in options.names:
        key = f"{name},{options.length},{options.batch}"
        cases[key] = measure(name, options.length, options.batch)
        keep_results(OUT, {"cases": cases}, goes_on=True)


if __name__ == "__main__":
    main()
