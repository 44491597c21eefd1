"""A model whose operators are lowered to kernel calls, for any schedule."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

import numpy as np

from iosched.models.graph import TensorSpec
from iosched.models.model import Model
from iosched.runtime.cuda.builder import Builder, KernelCall
from iosched.runtime.cuda.kernel import H100, Gpu, Precision
from iosched.runtime.cuda.layout import Layout, is_row_major
from iosched.runtime.cuda.lower.fused import DEFAULT_CHOICE, KernelChoice
from iosched.runtime.cuda.lower.hoist import hoisted, rectifiable
from iosched.runtime.cuda.lower.joined import joined, private_tensors
from iosched.runtime.cuda.lower.operators import lower_merged, lower_operator
from iosched.runtime.cuda.lower.padding import Padding
from iosched.runtime.cuda.lower.placement import place_calls
from iosched.runtime.placement import Placement
from iosched.scheduler.schedule import Stage
from iosched.scheduler.signature import Signatures

CALLER_SUFFIX = "@caller"
"""Suffix of the caller's buffers for inputs and outputs that are converted."""

Fused = Mapping[str, KernelChoice]
NONE: Fused = MappingProxyType({})


class LoweredModel:
    """A model whose operators are lowered to kernel calls, for any schedule.

    Attributes:
        layout: of feature maps.
        gpu: the target GPU.
        fused: how operators with a choice are computed; see `timed_choices`.
        private: tensors between kernels; see `private_tensors`.
    """

    def __init__(
        self,
        model: Model,
        precision: Precision,
        layout: Layout = Layout.NHWC,
        base: LoweredModel | None = None,
        fused: Fused = NONE,
        *,
        gpu: Gpu = H100,
    ) -> None:
        """Lowers each operator; needs no GPU.

        Args:
            base: a `LoweredModel` of equal model, precision, layout and GPU, whose equal operators are reused.
            fused: see `with_fused`.

        Raises:
            ValueError: the model is not `is_supported`.
        """
        if not is_supported(model):
            raise ValueError(f"{model.name!r} has tensors of unknown or zero size")
        self.model, self.precision, self.layout, self.gpu, self.fused = model, precision, layout, gpu, fused
        self._plain: Builder = Builder.of(model, precision, layout, gpu) if base is None else base._plain.copy()
        self._nodes = {node.name: node for node in model.proto.graph.node}
        self._merged: dict[tuple[str, ...], list[KernelCall] | None] = {}
        self._keys: dict[str, str] = {}
        self._lowered: dict[str, list[KernelCall]] = {
            operator.name: base._lowered[operator.name]
            if base is not None and base.fused.get(operator.name) == fused.get(operator.name)
            else lower_operator(self._plain, operator, self._nodes, fused.get(operator.name, DEFAULT_CHOICE))
            for operator in model.graph.operators
        }
        self._rectified = rectifiable(model.graph, self._lowered)
        calls = joined(self._plain, hoisted(self._plain, self._lowered, self._rectified))
        self.private = private_tensors(model.graph, calls)
        self._padding = Padding(self._plain, [call for own in calls.values() for call in own])
        self.calls = {name: self._padding.padded(own) for name, own in calls.items()}

    def with_fused(self, fused: Fused) -> LoweredModel:
        """This model with other kernels for some separable convolutions and Concats.

        Args:
            fused: choices by operator; ignored where they do not apply.
        """
        return LoweredModel(self.model, self.precision, self.layout, self, MappingProxyType(dict(fused)), gpu=self.gpu)

    @property
    def builder(self) -> Builder:
        """Tensors and constants of the calls."""
        return self._padding.builder

    @property
    def has_images(self) -> bool:
        """Whether the layout matters for some tensor."""
        ranks = {len(spec.shape or ()) for spec in self.builder.tensors.values()}
        return not all(layout.is_row_major(rank) for layout in Layout for rank in ranks)

    def in_layout(self, layout: Layout) -> LoweredModel:
        """The model in another layout, with nothing fused."""
        return LoweredModel(self.model, self.precision, layout, gpu=self.gpu)

    @cached_property
    def caller_inputs(self) -> Mapping[str, str]:
        """Inputs that are converted from the caller's type or layout, with the names of the caller's buffers."""
        return {spec.name: f"{spec.name}{CALLER_SUFFIX}" for spec in self.model.graph.inputs if self._differs(spec)}

    @cached_property
    def caller_outputs(self) -> Mapping[str, str]:
        """Outputs that are converted to the caller's type or layout, with the names of the caller's buffers."""
        graph = self.model.graph
        return {
            name: f"{name}{CALLER_SUFFIX}"
            for name in graph.outputs
            if self._differs(graph.tensor[name]) or name not in graph.producer
        }

    @cached_property
    def fixed(self) -> frozenset[str]:
        """Inputs and outputs that the caller reads or writes directly, and that need separate buffers."""
        graph = self.model.graph
        outputs = (name for name in graph.outputs if name not in self.caller_outputs)
        return frozenset((*(spec.name for spec in graph.inputs), *outputs))

    @cached_property
    def placement(self) -> Placement:
        """Placement for calls in graph order with nothing merged."""
        return self._place(self._in_order)

    def placement_of(self, calls: Sequence[KernelCall]) -> Placement:
        """Placement for these calls of the whole model, in this order."""
        return self.placement if calls == self._in_order else self._place(calls)

    @cached_property
    def _in_order(self) -> list[KernelCall]:
        return [call for operator in self.model.graph.operators for call in self.calls[operator.name]]

    def _place(self, calls: Sequence[KernelCall]) -> Placement:
        return place_calls(calls, self.builder.tensors, self.layout, self.fixed, self.builder.weights, self.fused)

    def _differs(self, spec: TensorSpec) -> bool:
        stored = self.builder.tensors[spec.name]
        shape = stored.shape or ()
        item = np.dtype(stored.dtype).itemsize
        return stored.dtype != spec.dtype or not is_row_major(shape, self.layout.strides_of(shape, item), item)

    def layout_of(self, name: str) -> tuple[object, ...]:
        """Kernels of an operator, with types, shapes and strides of their tensors when nothing is merged."""
        return tuple(
            (call.kernel, tuple(self._form(tensor) for tensor in (*call.reads, *call.writes)))
            for call in self.calls[name]
        )

    def operator_key(self, name: str) -> str:
        """Hash of `layout_of`: equal for equal operators."""
        if name not in self._keys:
            self._keys[name] = hashlib.sha256(repr(self.layout_of(name)).encode()).hexdigest()
        return self._keys[name]

    def signature(self, stage: Stage) -> str:
        """Signature of a stage: equal for stages with the same latency."""
        return self._signatures.of(stage)

    @cached_property
    def _signatures(self) -> Signatures:
        return Signatures(self.model.graph, lambda operator: self.operator_key(operator.name))

    def _form(self, tensor: str) -> tuple[object, ...]:
        view = self.placement.views[tensor]
        return view.dtype, view.shape, view.strides

    def merged_calls(self, names: tuple[str, ...]) -> list[KernelCall] | None:
        """Calls of the merged operators; None if they cannot be merged."""
        if names not in self._merged:
            operators = [self.model.graph.by_name[name] for name in names]
            calls = lower_merged(self._plain, operators, self._nodes, self._rectified)
            self._merged[names] = None if calls is None else self._padding.merged(calls)
        return self._merged[names]


def is_supported(model: Model) -> bool:
    """Whether all tensors have static, non-zero sizes, so that memory can be planned."""
    graph = model.graph
    specs = (graph.tensor[name] for name in (*(spec.name for spec in graph.inputs), *_computed(model)))
    return bool(graph.operators) and all(spec.is_static and spec.nbytes > 0 for spec in specs)


def _computed(model: Model) -> Iterable[str]:
    return (name for operator in model.graph.operators for name in operator.outputs)
