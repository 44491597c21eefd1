"""What `cpu_networks.py` compares on one model: ours, the rivals, and plain onnxruntime on what we rewrite."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx

from iosched import DeviceError, Model, Schedule, ScheduleDocument, TensorSpec
from iosched.models.editable_graph import EditableGraph
from iosched.profiler.devices.candidates import Way
from iosched.profiler.devices.cpu.open import OpenOnCpu
from iosched.runtime.cpu.kernel_graph import KernelGraph
from iosched.runtime.cpu.program import EXTERNAL_LOCATION, Program
from iosched.runtime.cpu.python_executor import open_program
from iosched.runtime.cpu.rewrite.align import align_channels
from iosched.runtime.executor import Candidate
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import ReferenceSettings, bound_source
from iosched.runtime.session import lent_weights, load_onnxruntime, open_session
from iosched.scheduler.baselines import greedy, sequential

INLINE_NBYTES = 1024


def alternatives(
    there: OpenOnCpu, document: ScheduleDocument, inputs: Arrays, *, splits: bool
) -> tuple[dict[str, Candidate], dict[str, str]]:
    """All alternatives that can be measured here, in turn, and why others cannot.

    Args:
        there: the model, open on the CPU.
        document: what `optimize` made of it.
        inputs: what each run is given.
        splits: whether those are wanted too that are no rivals: the greedy schedule, and those that split the gain.
    """
    model, lanes, plain = there.model, there.cost.backend.lanes, there.baselines.onnxruntime
    assert plain is not None
    setting = document.runtime.get("reference") or {"mode": "sequential", "intra_threads": lanes}
    openers: dict[str, Callable[[], Candidate]] = {
        "onnxruntime": partial(plain.ready, ReferenceSettings(**setting), inputs),
        "onnxruntime-default": partial(_plain_by_default, model, inputs),
        "openvino": partial(there.baselines.openers["openvino"], inputs),
        "sequential": partial(there.ready, Way(sequential(there.graph)), inputs),
        "both": partial(there.ready, Way(schedule_found(document)), inputs),
        "iosched": lambda: there.device.executor(model, document, lanes).ready(inputs),
    }
    if splits:
        openers["greedy"] = partial(there.ready, Way(greedy(there.graph)), inputs)
        openers["aligned"] = partial(_plain_on_aligned, model, there.cost.backend.kernels.channel_block, lanes, inputs)
        openers["rewritten"] = partial(_plain_on_rewritten, there.cost.backend.kernels, lanes, inputs)
    found, missing = {}, {}
    for name, opener in openers.items():
        try:
            found[name] = opener()
        except DeviceError as error:
            missing[name] = str(error)
    return found, missing


def schedule_found(document: ScheduleDocument) -> Schedule:
    """The schedule that the search found, also where another one is in the file."""
    others = (each.schedule for each in document.alternatives if each.name == "iosched")
    return next(others, document.schedule)


def _plain_by_default(model: Model, inputs: Arrays) -> Candidate:
    """Plain onnxruntime as it is without any setting."""
    options = _quiet_options()
    source, kept = bound_source(model, options)
    return _bound(open_session(source, options), inputs, kept)


def _plain_on_aligned(model: Model, block: int, threads: int, inputs: Arrays) -> Candidate:
    """Plain onnxruntime on the model with channels that fill whole blocks."""
    graph = EditableGraph.of(model.proto, model.weights, model.graph.tensor)
    align_channels(graph, block)
    graph.drop_unread()
    proto = graph.to_proto()
    options = _quiet_options()
    options.intra_op_num_threads = threads
    names, values, arrays = lent_weights(proto, graph.weights)
    if names:
        options.add_external_initializers(names, values)
    return _bound(open_session(proto.SerializeToString(), options), inputs, arrays)


def _plain_on_rewritten(kernels: KernelGraph, threads: int, inputs: Arrays) -> Candidate:
    """Plain onnxruntime on the nodes that our executor runs, all in one session."""
    program = as_program(kernels)
    options = _quiet_options()
    options.intra_op_num_threads = threads
    session = open_program(program, options)
    return _bound(session, {name: inputs[name] for name in program.inputs}, program)


def as_program(kernels: KernelGraph) -> Program:
    """All of a kernel graph as one program."""
    graph = onnx.GraphProto(name="rewritten", node=kernels.nodes)
    graph.input.extend(_value(kernels.tensors[name]) for name in kernels.inputs)
    computed = [name for name in kernels.outputs if name in kernels.producer]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed)
    graph.initializer.extend(_initializer(name, array) for name, array in kernels.weights.items())
    opsets = [onnx.OperatorSetIdProto(domain=domain, version=version) for domain, version in kernels.opsets.items()]
    proto = onnx.ModelProto(ir_version=kernels.ir_version, graph=graph, opset_import=opsets)
    weights = tuple((name, array) for name, array in kernels.weights.items() if array.nbytes > INLINE_NBYTES)
    return Program(proto.SerializeToString, tuple(kernels.inputs), tuple(computed), weights)


def _value(spec: TensorSpec) -> onnx.ValueInfoProto:
    return onnx.helper.make_tensor_value_info(spec.name, _element(np.dtype(spec.dtype)), spec.shape)


def _initializer(name: str, array: np.ndarray) -> onnx.TensorProto:
    if array.nbytes <= INLINE_NBYTES:
        return onnx.numpy_helper.from_array(array, name)
    tensor = onnx.TensorProto(name=name, data_type=_element(array.dtype), dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=EXTERNAL_LOCATION)
    return tensor


def _element(dtype: np.dtype[Any]) -> int:
    return onnx.helper.np_dtype_to_tensor_dtype(dtype)


def _quiet_options() -> Any:
    options = load_onnxruntime().SessionOptions()
    options.log_severity_level = 4
    return options


def _bound(session: Any, inputs: Mapping[str, np.ndarray], kept: object) -> Candidate:
    """A session with its inputs and outputs bound once; `kept` is what must live as long as the session."""
    binding = session.io_binding()
    for value in session.get_inputs():
        binding.bind_cpu_input(value.name, np.asarray(inputs[value.name], order="C"))
    for value in session.get_outputs():
        binding.bind_output(value.name)

    return Candidate(partial(_timed, session, binding, kept))


def _timed(session: Any, binding: Any, kept: object, repeats: int) -> tuple[float, ...]:
    del kept
    samples = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        session.run_with_iobinding(binding)
        samples.append((time.perf_counter_ns() - started) / 1e3)
    return tuple(samples)
