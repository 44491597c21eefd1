"""Serves an exported model by its plan as a custom predictor of KServe.

    pip install '.[cpu]' kserve                   # in the root of the clone
    iosched export model.iosched.onnx             # on a machine like the server's; writes the folder model.plan
    python kserve_server.py --model_name model --plan model.plan --http_port 8080

It answers version 2 of the protocol over HTTP and gRPC. In a cluster, an InferenceService starts this command in a
container (`predictor: containers:`). One process serves the model: scale by replicas, each with whole cores
(`requests` equal to `limits`, docs/serving.md).
"""

from __future__ import annotations

import asyncio
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import numpy as np
from kserve import InferOutput, InferRequest, InferResponse, Model, ModelServer, model_server
from kserve.errors import InvalidInput
from kserve.utils.numpy_codec import from_np_dtype
from kserve.utils.utils import generate_uuid

import iosched


class PlanModel(Model):
    """A model that is opened before the server starts."""

    def __init__(self, name: str, path: Path, *, strict: bool) -> None:
        super().__init__(name)
        self.path, self.strict = path, strict

    def load(self) -> bool:
        """Opens the model; with `strict`, a plan that cannot be used here is an error."""
        self.model = iosched.load_any(self.path, strict=self.strict)
        self.ready = True
        return self.ready

    async def get_input_types(self) -> list[dict[str, Any]]:
        return [metadata(spec) for spec in self.model.inputs]

    async def get_output_types(self) -> list[dict[str, Any]]:
        return [metadata(spec) for spec in self.model.outputs]

    async def predict(self, payload: InferRequest, headers: dict[str, str] | None = None) -> InferResponse:
        """Runs the model in a thread, so that health requests are answered meanwhile."""
        given = {each.name: each.as_numpy() for each in payload.inputs}
        try:
            found = await asyncio.to_thread(self.model.run, given)
        except iosched.UsageError as error:  # a name, a type or a shape
            raise InvalidInput(str(error)) from error
        return InferResponse(
            payload.id or generate_uuid(),
            self.name,
            [output_of(name, array, is_binary=payload.use_binary_outputs) for name, array in found.items()],
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )


def metadata(spec: iosched.TensorSpec | iosched.DynamicBatchSpec) -> dict[str, Any]:
    """An input or output in the protocol's form, where -1 is a dynamic dimension."""
    shape = [-1 if isinstance(dim, str) else dim for dim in spec.shape or ()]
    return {"name": spec.name, "datatype": from_np_dtype(np.dtype(spec.dtype)), "shape": shape}


def output_of(name: str, array: np.ndarray, *, is_binary: bool) -> InferOutput:
    output = InferOutput(name, list(array.shape), from_np_dtype(array.dtype))
    output.set_data_from_numpy(array, binary_data=is_binary)
    return output


if __name__ == "__main__":
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0], parents=[model_server.parser])
    parser.add_argument("--plan", type=Path, required=True, help="folder that iosched export wrote, or its ONNX file")
    parser.add_argument("--strict", action="store_true", help="fail if the plan cannot be used on this machine")
    options = parser.parse_args()
    served = PlanModel(options.model_name, options.plan, strict=options.strict)
    served.load()
    ModelServer().start([served])
