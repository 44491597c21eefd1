"""A model whose outputs differ, and its intermediate tensors on the device and on onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from iosched.models.errors import IoschedError
from iosched.models.graph import quantized_operators
from iosched.models.model import Model
from iosched.models.probing import extracted_operators, probed
from iosched.runtime.compare import HALF_RTOL, Check, compare
from iosched.runtime.device import Device
from iosched.runtime.inputs import Arrays
from iosched.runtime.reference import Reference
from iosched.scheduler.document import ScheduleDocument

Values = Mapping[str, Any]
"""Computed values by tensor."""


FAILURES = (IoschedError, ValueError, KeyError)
"""Raised if a model cannot be run with more outputs: no plan passes, or a library has no such tensor."""


@dataclass(frozen=True, eq=False)
class Original:
    """A model whose onnxruntime results are the reference for another one.

    Attributes:
        model: the reference model.
        inputs: the names of its inputs in the other model.
        prefix: the prefix of its tensors' names in the other model.
    """

    model: Model
    inputs: Mapping[str, str]
    prefix: str = ""

    def values(self, names: Sequence[str], inputs: Arrays) -> dict[str, Any]:
        """The values of the tensors that it has, by their names in the other model; and of none if it cannot run."""
        own = {name.removeprefix(self.prefix): name for name in names if name.startswith(self.prefix)}
        looked_into = probed(self.model, tuple(own))
        try:
            with Reference(looked_into) as reference:
                found = reference.run({name: inputs[called] for name, called in self.inputs.items()})
        except FAILURES:
            return {}
        return {own[name]: value for name, value in found.items() if name in own}


@dataclass(frozen=True, eq=False)
class MismatchCase:
    """A model whose outputs differ from onnxruntime's.

    Attributes:
        document: its schedule, in the names of its operators; None if it has none.
        device: runs it.
        inputs: the model's inputs.
        originals: the references: one model, or each member of a composed one.
        rtol: how far off floats may be, see `compare`.
        threads: how many cores run it; None for all that may be used.
    """

    model: Model
    document: ScheduleDocument | None
    device: Device
    inputs: Arrays
    originals: Sequence[Original]
    rtol: float
    threads: int | None = None

    def computed(self, tensors: Sequence[str]) -> Values:
        """The outputs of the model on the device, and these tensors if it has them.

        The model is compiled again, to return the tensors too.
        """
        looked_into = probed(self.model, tensors)
        with closing(self.device.executor(looked_into, self.document, self.threads)) as executor:
            return executor.run(self.inputs)

    def expected(self, tensors: Sequence[str]) -> Values:
        """onnxruntime's values of these tensors, without those that no original has."""
        found: dict[str, Any] = {}
        for original in self.originals:
            found |= original.values(tensors, self.inputs)
        return found

    @cached_property
    def rtol_between(self) -> float:
        """Tolerance of intermediate floats; those that represent whole numbers may be off by one step.

        If results are requested, a library no longer fuses their operators, and rounding differs.
        """
        return max(self.rtol, HALF_RTOL) if quantized_operators(self.model.graph) else self.rtol

    def compared(self, computed: Values, expected: Values) -> dict[str, Check]:
        """A check of each tensor that both have: outputs of the model by its tolerance, others by `rtol_between`."""
        returned = self.model.graph.outputs
        rtol = {name: self.rtol if name in returned else self.rtol_between for name in expected if name in computed}
        return {name: compare({name: computed[name]}, {name: expected[name]}, rtol=rtol[name]) for name in rtol}

    def alone(self, model: Model, operators: Sequence[str], inputs: Values, outputs: Sequence[str]) -> Values | None:
        """onnxruntime's results of only these operators of `model` from their inputs; None if it cannot run them."""
        if any(name not in model.graph.by_name for name in operators):
            return None
        try:
            part = extracted_operators(model, operators, outputs)
            with Reference(part) as reference:
                return reference.run({spec.name: np.asarray(inputs[spec.name]) for spec in part.graph.inputs})
        except FAILURES:
            return None
