"""Edits of ONNX graphs that mostly keep the model valid, and strain its reading, scheduling and execution."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

_NUMBERS = (0, -1, 1, 2, 3, 1023, 1024, 1025, 10**9, 10**17, 1.5, -0.0)


def edited_schedule(text: str, random: Random) -> str:
    """A schedule file with one to three edits."""
    content = json.loads(text)
    for _ in range(random.choice((1, 1, 2, 3))):
        random.choice(_SCHEDULE_EDITS)(content, random)
    return json.dumps(content)


def _stages(content: Any) -> list[Any]:
    return [stage for block in content["blocks"] for stage in block["stages"]]


def _swap_operators(content: Any, random: Random) -> None:
    groups = [group for stage in _stages(content) for group in stage["groups"] if group]
    if groups:
        one, other = random.choice(groups), random.choice(groups)
        at, place = random.randrange(len(one)), random.randrange(len(other))
        one[at], other[place] = other[place], one[at]


def _swap_stages(content: Any, random: Random) -> None:
    stages = random.choice(content["blocks"])["stages"] if content["blocks"] else []
    random.shuffle(stages)


def _join_stages(content: Any, random: Random) -> None:
    """The groups of two successive stages in one stage, or all operators of both in one group."""
    stages = random.choice(content["blocks"])["stages"] if content["blocks"] else []
    if len(stages) < 2:
        return
    at = random.randrange(len(stages) - 1)
    groups = [*stages[at]["groups"], *stages.pop(at + 1)["groups"]]
    stages[at]["groups"] = groups if random.random() < 0.5 else [[name for group in groups for name in group]]


def _split_stage(content: Any, random: Random) -> None:
    stages = random.choice(content["blocks"])["stages"] if content["blocks"] else []
    if stages:
        at = random.randrange(len(stages))
        groups = [[name] for group in stages[at]["groups"] for name in group]
        stages[at : at + 1] = [{**stages[at], "strategy": "concurrent", "groups": [group]} for group in groups]


def _join_blocks(content: Any, random: Random) -> None:
    stages = _stages(content)
    content["blocks"] = [{"index": 0, "optimal": random.random() < 0.5, "stages": stages}] if stages else []


def _other_strategy(content: Any, random: Random) -> None:
    stages = _stages(content)
    if stages:
        random.choice(stages)["strategy"] = random.choice(("merge", "concurrent", "session", "stack", "both", ""))


def _lanes(content: Any, random: Random) -> None:
    stages = _stages(content)
    if stages:
        stage = random.choice(stages)
        lanes = random.choice((1, 2, 3, 4, 1024))
        groups = [sorted(random.sample(range(lanes), random.randint(1, min(lanes, 4)))) for _ in stage["groups"]]
        stage["division"] = {"lanes": lanes, "groups": groups}


def _settings(content: Any, random: Random) -> None:
    key = random.choice(
        ("lanes", "by", "without_openvino", "threads", "precision", "launch", "barriers", "measured_share")
    )
    content["runtime"][key] = random.choice((*_NUMBERS, "onnxruntime", "openvino", "sequential", "bf16", None, [], {}))


def _teams(content: Any, random: Random) -> None:
    content["objective"] = random.choice(("throughput", "latency"))
    content["teams"] = {key: random.choice((1, 2, 4, 1024, 10**9)) for key in ("requests", "count", "images")}


def _shipped(content: Any, random: Random) -> None:
    content["shipped"] = random.choice(("iosched", "reference", "sequential", "openvino", "serial", "packed", "mixed"))
    content["device"]["kind"] = random.choice(("cpu", "cuda", "tpu", "../x"))


def _latency(content: Any, random: Random) -> None:
    stages = _stages(content)
    if stages:
        random.choice(stages)["latency_us"][random.choice(("predicted", "measured"))] = random.choice((*_NUMBERS, None))
    content["cost"] = random.choice(("measured", "analytic"))


def _unstructured(content: Any, random: Random) -> None:
    """The format of versions without a structure digest: the digest of the whole model decides."""
    content.pop("structure", None)
    if random.random() < 0.5:
        content["model"]["inputs"] = {name: [random.choice(_NUMBERS)] for name in content["model"]["inputs"]}


_SCHEDULE_EDITS: tuple[Callable[[Any, Random], None], ...] = (
    *(_swap_operators, _swap_stages, _join_stages, _split_stage, _join_blocks, _other_strategy),
    *(_lanes, _lanes, _settings, _teams, _shipped, _latency, _latency, _unstructured),
)


_UNARY = (
    "Relu", "Sigmoid", "Tanh", "Abs", "Neg", "Exp", "Softplus", "Identity", "Floor", "Erf", "HardSwish", "Softmax",
)  # fmt: skip
_BINARY = ("Add", "Mul", "Sub", "Div", "Max", "Min", "Pow", "Sum", "Mean", "PRelu")
_SMALL = (-2, -1, 0, 0, 1, 1, 1, 1, 2, 2, 3, 4, 8, 33)
_NAMES = ("", "../out", "/out", "a/b", "é", "\u202e", "x" * 300, "a\x00b", "\x1b[2J", "out.onnx", "y y", "-", "_")


def edit_graph(model: ModelProto, random: Random, *, keeps_structure: bool = False) -> None:
    """Makes one to three edits; with `keeps_structure` only such that a schedule inside the model still fits."""
    for _ in range(random.choice((1, 1, 2, 3))):
        if keeps_structure:
            _values(model.graph, random)
        elif model.graph.node:
            random.choice(_EDITS)(model.graph, random)
        if random.random() < 0.1:
            random.choice(_MODEL_EDITS)(model, random)


def _another_type(graph: GraphProto, random: Random) -> None:
    node = random.choice(graph.node)
    kinds = {1: _UNARY, 2: _BINARY}.get(len(node.input))
    if kinds and len(node.output) == 1 and (node.op_type in kinds or random.random() < 0.1):
        node.op_type = random.choice(kinds)
        del node.attribute[:]
    else:
        _attribute(graph, random)


def _attribute(graph: GraphProto, random: Random) -> None:
    kinds, every = (AttributeProto.INT, AttributeProto.INTS), (each for node in graph.node for each in node.attribute)
    listed = [each for each in every if each.type in kinds]
    if not listed:
        return _rename(graph, random)
    chosen = random.choice(listed)
    if chosen.type == AttributeProto.INT:
        chosen.i = random.choice(_SMALL)
    elif chosen.ints:
        place = random.randrange(len(chosen.ints))
        for at in range(len(chosen.ints)):
            if at == place or random.random() < 0.5:
                chosen.ints[at] = random.choice(_SMALL)
    return None


def _rename(graph: GraphProto, random: Random) -> None:
    """Another name for a tensor, everywhere at the top."""
    old = random.choice([name for node in graph.node for name in (*node.input, *node.output)])
    new = random.choice(_NAMES)
    for node in graph.node:
        for names in (node.input, node.output):
            for at, name in enumerate(names):
                if name == old:
                    names[at] = new
    for value in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        if value.name == old:
            value.name = new


def _values(graph: GraphProto, random: Random) -> None:
    """Other values of a weight."""
    inside = [tensor for tensor in graph.initializer if tensor.raw_data]
    if not inside:
        return
    tensor = random.choice(inside)
    array = numpy_helper.to_array(tensor).copy()
    at = random.randrange(max(array.size, 1))
    if array.size and array.dtype.kind == "f":
        array.flat[at] = random.choice((np.nan, np.inf, -np.inf, 1e38, 1e-45, 0.0, -1.0))
    elif array.size and array.dtype.kind in "iu":
        array.flat[at] = random.choice((0, 1, 2, 3, 4, 100))
    _store(tensor, array)


def _sizes(graph: GraphProto, random: Random) -> None:
    """Another size or type of a weight."""
    inside = [tensor for tensor in graph.initializer if tensor.raw_data]
    if not inside:
        return
    tensor = random.choice(inside)
    array = numpy_helper.to_array(tensor)
    way = random.choice(("longer", "transpose", "type", "empty"))
    if way == "longer" and array.ndim:
        array = np.concatenate([array] * random.choice((2, 3)))
    elif way == "transpose":
        array = array.T
    elif way == "empty" and array.ndim:
        array = array[:0]
    else:
        array = array.astype(random.choice((np.float16, np.float64, np.int64, np.int32, np.uint8, np.bool_)))
    _store(tensor, array)


def _store(tensor: TensorProto, array: np.ndarray) -> None:
    tensor.CopyFrom(numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), tensor.name))


def _input_size(graph: GraphProto, random: Random) -> None:
    sizes = [dim for value in graph.input for dim in value.type.tensor_type.shape.dim]
    if sizes:
        random.choice(sizes).dim_value = random.choice((0, 1, 1, 2, 2, 3, 4, 5, 7, 9, 17, 224, 3000, 2**31, 2**60))


def _insert(graph: GraphProto, random: Random) -> None:
    """A node of one input on an edge."""
    node = random.choice([each for each in graph.node if each.input])
    at = random.randrange(len(node.input))
    name = f"fuzz{len(graph.node)}"
    place = next(index for index, each in enumerate(graph.node) if each is node or each == node)
    graph.node.insert(place, NodeProto(op_type=random.choice(_UNARY), input=[node.input[at]], output=[name]))
    graph.node[place + 1].input[at] = name


def _remove(graph: GraphProto, random: Random) -> None:
    """Removes a node; its first input replaces its first output."""
    at = random.randrange(len(graph.node))
    node = NodeProto.FromString(graph.node[at].SerializeToString())
    if not node.input or not node.output:
        return
    del graph.node[at]
    for each in graph.node:
        for place, name in enumerate(each.input):
            if name == node.output[0]:
                each.input[place] = node.input[0]


def _rewire(graph: GraphProto, random: Random) -> None:
    """Replaces an input of a node by any other tensor of the graph."""
    node = random.choice([each for each in graph.node if each.input])
    known = [value.name for value in (*graph.input, *graph.initializer)]
    known += [name for each in graph.node for name in each.output]
    node.input[random.randrange(len(node.input))] = random.choice(known)


def _widen(graph: GraphProto, random: Random) -> None:
    """Adds a copy of a node, whose result is an output of the graph, or is added to that of the original."""
    node = NodeProto.FromString(random.choice(graph.node).SerializeToString())
    for at, name in enumerate(node.output):
        node.output[at] = f"{name}/copy{len(graph.node)}"
    node.name = ""
    graph.node.append(node)
    graph.output.add(name=node.output[0])
    graph.output[-1].type.tensor_type.elem_type = TensorProto.FLOAT


def _more_outputs(graph: GraphProto, random: Random) -> None:
    names = [name for node in graph.node for name in node.output if name]
    graph.output.add(name=random.choice(names)).type.tensor_type.elem_type = random.choice((1, 1, 7, 10))


def _shuffle(graph: GraphProto, random: Random) -> None:
    nodes = [NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    random.shuffle(nodes)
    del graph.node[:]
    graph.node.extend(nodes)


def _unbind(graph: GraphProto, random: Random) -> None:
    sizes = [dim for value in graph.input for dim in value.type.tensor_type.shape.dim]
    if sizes:
        random.choice(sizes).dim_param = random.choice(("N", "M", ""))


_EDITS: tuple[Callable[[GraphProto, Random], None], ...] = (
    *(_another_type, _another_type, _attribute, _rename, _values, _values, _values, _sizes, _input_size),
    *(_insert, _insert, _insert, _remove, _rewire, _widen, _widen, _more_outputs, _shuffle, _shuffle, _unbind),
)


def _opset(model: ModelProto, random: Random) -> None:
    if model.opset_import:
        random.choice(model.opset_import).version += random.choice((-12, -5, -3, -1, 1, 3, 5))


def _graph_name(model: ModelProto, random: Random) -> None:
    model.graph.name = random.choice(_NAMES).replace("\x00", "")


def _remarks(model: ModelProto, random: Random) -> None:
    for node in model.graph.node:
        node.doc_string = "x" * 100
        entry = node.metadata_props.add(key=random.choice(("io.iosched.stage", "io.iosched.merged", "k")))
        entry.value = random.choice(_NAMES)


_MODEL_EDITS: tuple[Callable[[ModelProto, Random], None], ...] = (_opset, _graph_name, _remarks)
