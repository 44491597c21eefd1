"""A pass of Olive that ends a workflow with a schedule: it optimizes an ONNX model and exports it with a plan file.

    pip install '.[cpu]' olive-ai requests        # in the root of the clone
    olive run --config workflow.json --package-config package.json

package.json tells Olive where the pass is; PYTHONPATH must have the folder of this file:

    {"passes": {"IoschedPlan": {"module_path": "olive_pass.IoschedPlan",
                                "supported_providers": ["CPUExecutionProvider"],
                                "supported_accelerators": ["cpu"], "supported_precisions": ["*"]}}}

workflow.json names it like any other, after those that change the graph:

    {"input_model": {"type": "ONNXModel", "model_path": "model.onnx"},
     "passes": {"plan": {"type": "IoschedPlan", "batch_size": 1, "budget": 60}},
     "output_dir": "out"}

The output model is an ordinary ONNX file next to its plan, for this kind of machine (docs/serving.md).
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from olive.hardware.accelerator import AcceleratorSpec
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.pass_config import PassConfigParam

import iosched

OURS = ("iosched", "sequential")


class IoschedPlan(Pass):
    """Measures schedules on this machine, and exports the model with the best one if it beats onnxruntime."""

    @classmethod
    def _default_config(cls, accelerator_spec: AcceleratorSpec) -> dict[str, PassConfigParam]:
        return {
            "batch_size": PassConfigParam(
                type_=int, default_value=None, description="Batch size of a model whose batch is dynamic."
            ),
            "threads": PassConfigParam(
                type_=int, default_value=None, description="CPU cores; by default all that affinity and quota allow."
            ),
            "budget": PassConfigParam(
                type_=float, default_value=None, description="Seconds to search; by default until the search ends."
            ),
            "always": PassConfigParam(
                type_=bool, default_value=False, description="Export the schedule found even if it is not faster."
            ),
        }

    def _run_for_config(self, model: ONNXModelHandler, config: Any, output_model_path: str) -> ONNXModelHandler:
        given = {name: getattr(config, name) for name in ("batch_size", "threads", "budget")}
        result = iosched.optimize(model.model_path, device="cpu", **given)
        if result.shipped not in OURS and not config.always:
            return model  # onnxruntime or OpenVINO is faster, or no difference was found
        path = Path(resolve_onnx_path(output_model_path, Path(model.model_path).name))
        with TemporaryDirectory() as folder:
            optimized = Path(folder, path.name)
            result.save(optimized)
            exported = iosched.export(optimized, path.parent, overwrite=True, threads=config.threads)
        return ONNXModelHandler(
            model_path=str(exported.model.parent),
            onnx_file_name=exported.model.name,
            model_attributes={**(model.model_attributes or {}), "additional_files": [str(exported.plan)]},
        )
