"""Plain onnxruntime on the original model: the reference for outputs, and the baseline for schedules.

It gets all of onnxruntime's optimizations, the true shapes, and the cheapest public way to be called.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from iosched.models.errors import MismatchError, UsageError
from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.models.source import read_proto
from iosched.runtime.compare import Check, compare
from iosched.runtime.inputs import Arrays, check_names, random_inputs
from iosched.runtime.session import external_weights, load_onnxruntime, open_session, run_on_any_types, running

_NUMPY_TYPES = frozenset(
    f"tensor({name})"
    for name in ("float", "double", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
                 "bool")
)  # fmt: skip


_DYNAMIC_BLOCK_BASE = 4
"""The value that onnxruntime suggests (onnxruntime_session_options_config_keys.h)."""


@dataclass(frozen=True)
class ReferenceSettings:
    """Settings of plain onnxruntime for a model.

    Attributes:
        mode: one operator after another, or independent ones at the same time.
        intra_threads: threads that share one operator.
        inter_threads: operators that may run at the same time, in parallel mode.
        dynamic_block_base: initial number of blocks per thread into which an operator is split; later blocks are
            smaller (`session.dynamic_block_base`). 0 for blocks of one size.
        binds_threads: whether onnxruntime chooses (`intra_op_num_threads=0`): one thread bound to each physical core
            of the machine, `intra_threads` in all.
    """

    mode: Literal["sequential", "parallel"] = "sequential"
    intra_threads: int = 1
    inter_threads: int = 1
    dynamic_block_base: int = 0
    binds_threads: bool = False

    def __post_init__(self) -> None:
        if self.intra_threads < 1 or self.inter_threads < 1:
            raise UsageError("the number of threads must be at least 1")

    @property
    def description(self) -> str:
        """Mode and threads, for users and results files."""
        if self.mode == "sequential":
            bound = ", bound to cores" if self.binds_threads else ""
            blocks = f", dynamic blocks from {self.dynamic_block_base}" if self.dynamic_block_base else ""
            return f"sequential mode, {self.intra_threads} threads{bound}{blocks}"
        return f"parallel mode, {self.inter_threads} x {self.intra_threads} threads"


def candidates(threads: int, cores: int | None = None, *, is_whole: bool = False) -> tuple[ReferenceSettings, ...]:
    """The settings that a user of `threads` threads would try, without duplicates; the fastest is the baseline.

    Args:
        cores: physical cores that they run on; default: one for each thread.
        is_whole: whether these are all cores of the machine, which onnxruntime uses by default.
    """
    usual = ReferenceSettings("sequential", threads)
    if threads <= 1:
        return (usual,)
    parallel = sorted({(1, threads), (max(1, threads // 2), 2)})
    of_cores = replace(usual, intra_threads=min(threads, cores or threads))
    tried = [usual, of_cores]
    if of_cores.intra_threads > 1:
        tried += [replace(of_cores, binds_threads=True)] if is_whole and of_cores != usual else []
        tried.append(replace(of_cores, dynamic_block_base=_DYNAMIC_BLOCK_BASE))
    tried.append(ReferenceSettings("sequential", 1))
    tried += (ReferenceSettings("parallel", intra, inter) for intra, inter in parallel)
    return tuple(dict.fromkeys(tried))


class Reference:
    """One onnxruntime session with its own threads, until it is closed; also a context manager."""

    def __init__(
        self, model: Model | bytes | Path, settings: ReferenceSettings | None = None, *, keeps_spinning: bool = True
    ) -> None:
        """Open `model`: the original file, bound to its shapes.

        The bound graph is opened instead if there is no file, or if naming its free dimensions does not bind it (a
        changed fixed batch size, or a free dimension without name).

        Args:
            keeps_spinning: whether its threads keep spinning after each run, onnxruntime's default, which slows down
                any other session that runs next.

        Raises:
            InvalidModelError: onnxruntime refuses the model.
            DeviceError: onnxruntime is not installed.
        """
        self.settings = settings or ReferenceSettings()
        options = _options(self.settings)
        if not keeps_spinning:
            options.add_session_config_entry("session.force_spinning_stop", "1")
        source: bytes | Path
        source, self._kept = bound_source(model, options) if isinstance(model, Model) else (model, [])
        self._session = open_session(source, options, bound=model if isinstance(model, Model) else None)
        self._inputs = {value.name: value.type for value in self._session.get_inputs()}
        self._outputs = {value.name: value.type for value in self._session.get_outputs()}
        known = model.graph.tensor if isinstance(model, Model) else {}
        self._rebinds = any(_is_misjudged(value, known.get(value.name)) for value in self._session.get_outputs())

    def __enter__(self) -> Reference:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the session and its threads."""
        self._session = None

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name: arrays, and onnxruntime's values for sequences and maps.

        Raises:
            UsageError: an input is missing or unknown.
            ExecutionError: onnxruntime fails.
        """
        check_names(inputs, self._inputs)
        names = list(self._outputs)
        with running():
            if not self._speaks_numpy and all(
                kind.startswith("tensor(") and kind != "tensor(string)" for kind in self._types
            ):
                return dict(zip(names, run_on_any_types(self._session, names, inputs), strict=True))
            return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))

    def time(self, inputs: Mapping[str, Any], repeats: int) -> tuple[float, ...]:
        """Microseconds of each of `repeats` runs, with the inputs bound beforehand where possible."""
        run, latencies = self.bound(inputs), []
        with running():
            for _ in range(repeats):
                start = time.perf_counter_ns()
                run()
                latencies.append((time.perf_counter_ns() - start) / 1e3)
        return tuple(latencies)

    def bound(self, inputs: Mapping[str, Any]) -> Callable[[], object]:
        """A function that runs once, with the inputs bound beforehand where possible; call it within `running`."""
        check_names(inputs, self._inputs)
        if not self._speaks_numpy:
            return partial(self.run, dict(inputs))
        binding = self._session.io_binding()
        with running():
            arrays = {name: np.asarray(inputs[name], order="C") for name in self._inputs}
            for name, array in arrays.items():
                binding.bind_cpu_input(name, array)
            for name in self._outputs:
                binding.bind_output(name)
        return partial(_run_bound, self._session, binding, arrays, tuple(self._outputs) if self._rebinds else ())

    @property
    def _types(self) -> tuple[str, ...]:
        return (*self._inputs.values(), *self._outputs.values())

    @property
    def _speaks_numpy(self) -> bool:
        return _NUMPY_TYPES.issuperset(self._types)


def _is_misjudged(value: Any, spec: TensorSpec | None) -> bool:
    """Whether onnxruntime computes an output of another size than it infers, and so refuses a buffer of that size."""
    if spec is None or spec.shape is None or len(spec.shape) != len(value.shape or ()):
        return False
    return any(isinstance(size, int) and size != own for size, own in zip(value.shape, spec.shape, strict=True))


def _run_bound(session: Any, binding: Any, kept_alive: object, rebound: Iterable[str]) -> None:
    """One run on bound inputs, with new memory for the outputs `rebound`; `kept_alive` is the memory of the inputs."""
    del kept_alive
    if rebound:
        binding.clear_binding_outputs()
        for name in rebound:
            binding.bind_output(name)
    session.run_with_iobinding(binding)


def _options(settings: ReferenceSettings) -> Any:
    onnxruntime = load_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = 0 if settings.binds_threads else settings.intra_threads
    if settings.dynamic_block_base:
        options.add_session_config_entry("session.dynamic_block_base", str(settings.dynamic_block_base))
    options.log_severity_level = 4
    if settings.mode == "parallel":
        options.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
        options.inter_op_num_threads = settings.inter_threads
    return options


def bound_source(model: Model, options: Any) -> tuple[bytes | Path, list[np.ndarray]]:
    """The source of the original model, bound to the shapes of `model`.

    Returns:
        The source, for which `options` of onnxruntime are prepared, and arrays that must outlive the session.
    """
    original, sizes = model.original, free_dimensions(model)
    if original is not None and sizes is not None:
        for name, size in sizes.items():
            options.add_free_dimension_override_by_name(name, size)
        return original, []
    names, values, arrays = external_weights(model.proto, model.weights)
    if names:
        options.add_external_initializers(names, values)
    return model.proto.SerializeToString(), arrays


def free_dimensions(model: Model) -> dict[str, int] | None:
    """Sizes by dimension name that bind the original graph to the model's shapes.

    None if names cannot bind it, or if there is no original graph.
    """
    if model.original is None:
        return None
    sizes: dict[str, int] = {}
    for value in read_proto(model.original).graph.input:
        shape = model.bindings.get(value.name)
        if shape is None:
            continue
        dims = value.type.tensor_type.shape.dim
        if len(dims) != len(shape):
            return None
        for dim, size in zip(dims, shape, strict=True):
            if dim.dim_param and sizes.setdefault(dim.dim_param, size) == size:
                continue
            if not dim.HasField("dim_value") or dim.dim_value != size:
                return None
    return sizes


@dataclass(frozen=True)
class SelfCheck:
    """A check that tries one feature of a device.

    Attributes:
        part: part of the runtime, such as "kernels".
        name: name of the check within its part.
        run: runs the check and returns its result in a few words; raises `MismatchError` if numbers are wrong, and
            other errors if something fails.
    """

    part: str
    name: str
    run: Callable[[], str]


def passed(check: Check) -> str:
    """The relative error of a passed check, for users.

    Raises:
        MismatchError: the numbers differ.
    """
    if not check.passed:
        raise MismatchError("; ".join(check.reasons))
    return f"relative error {check.max_rel:.1e}" if check.max_rel else "exact"


def worst(checks: Iterable[Check]) -> Check:
    """The check with the largest error, of the failed ones if there are any."""
    return max(checks, key=lambda check: (not check.passed, check.max_rel))


def agrees_with_onnxruntime(model: Model, run: Callable[[Arrays], Arrays], *, runs: int = 1) -> str:
    """Compare the outputs of `runs` runs on random inputs with those of plain onnxruntime.

    Raises:
        MismatchError: the outputs of a run differ.
    """
    inputs = random_inputs(model.graph.inputs)
    with Reference(model) as reference:
        expected = reference.run(inputs)
    return passed(worst(compare(run(inputs), expected) for _ in range(runs)))
