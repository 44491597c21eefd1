"""Probes one tree with random networks through the Python API: plans, kernels, outputs, and signatures.

Started with the tree's own Python: python probe.py FOLDER COUNT. Prints one JSON object of texts and digests by name.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx

import iosched
from iosched.models import zoo
from iosched.models.load import load_model

ZOO = ("squeezenet", "googlenet", "resnet50", "inception_v3", "randwire", "nasnet_a", "bert_mini", "decoder_mini")


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    found: dict[str, str] = {f"api {name}": signature(getattr(iosched, name)) for name in sorted(iosched.__all__)}
    recorded = record_lowering()
    paths = [*sorted(folder.glob("light_*.onnx")), *(folder / f"seed{seed}.onnx" for seed in range(count))]
    for path in paths:
        found |= {f"{path.stem} {what}": text for what, text in probed(str(path), recorded).items()}
    for name in ZOO:
        data = zoo.build(name).SerializeToString()
        found |= {f"zoo:{name} {what}": text for what, text in probed(data, recorded).items()}
    json.dump(found, sys.stdout)


def probed(source: str | bytes, recorded: list[bytes]) -> dict[str, str]:
    """The results of one model: its digests, its schedule for a V100, and its plan and outputs on two cores."""
    recorded.clear()
    loaded = load_model(source)
    result = iosched.optimize(source, device="v100")
    with iosched.load(source, schedule=result.document, device="cpu", threads=2) as model:
        outputs = model.run(random_inputs(model.inputs))
    assert recorded, "the model did not run by its plan"
    return {
        "graph": digest(repr(loaded.graph.operators).encode()),
        "digests": f"{loaded.digest} {loaded.structure}",
        "schedule": digest(stages(result.document.to_json()).encode()),
        "outputs": digest(*(outputs[name].tobytes() for name in sorted(outputs))),
        "lowering": digest(*sorted(recorded)),
    }


def random_inputs(specs: Iterable[iosched.TensorSpec]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        spec.name: rng.standard_normal(spec.shape, np.float32)
        if spec.dtype == "float32"
        else rng.integers(0, 9, spec.shape).astype(spec.dtype)
        for spec in specs
    }


def record_lowering() -> list[bytes]:
    """Records plans and kernels as they are made, except those of proofs."""
    from iosched.runtime.cpu import native, programs

    recorded: list[bytes] = []
    encoder, program = native.PlanEncoder, programs.Program

    class Recorded(encoder):  # type: ignore[misc, valid-type]
        def __init__(self, plan, inputs, outputs):  # type: ignore[no-untyped-def]
            super().__init__(plan, inputs, outputs)
            recorded.append(repr((plan, inputs, outputs)).encode())

    def made(*given, **named):  # type: ignore[no-untyped-def]
        found = program(*given, **named)
        recorded.append(without_node_names(found.model) + repr((found.inputs, found.outputs, found.cores)).encode())
        return found

    native.PlanEncoder, programs.Program = Recorded, made
    return recorded


def without_node_names(data: bytes) -> bytes:
    """The model without node names; onnxruntime numbers the nodes that it makes differently each time."""
    model = onnx.load_from_string(data)
    for node in model.graph.node:
        node.ClearField("name")
    return bytes(model.SerializeToString(deterministic=True))


def stages(text: str) -> str:
    return json.dumps({key: json.loads(text)[key] for key in ("blocks", "latency_us")}, sort_keys=True)


def signature(value: object) -> str:
    """Parameters of a function, or of a class and its public members; the text of anything else."""
    if inspect.isclass(value):
        members = {name: signature(each) for name, each in sorted(vars(value).items()) if not name.startswith("_")}
        return f"class{parameters(value)} {members}"
    return f"def{parameters(value)}" if inspect.isroutine(value) else type(value).__name__


def parameters(value: object) -> str:
    try:
        return re.sub(r"0x[0-9a-f]+", "", str(inspect.signature(value)))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""


def digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


if __name__ == "__main__":
    main()
