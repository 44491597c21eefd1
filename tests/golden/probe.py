"""What one tree makes of the random networks through the Python API: plans, kernels, outputs, and signatures.

Started with the tree's own Python: python probe.py FOLDER COUNT. Prints one JSON object of texts and digests by name.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np
import onnx

import iosched


def main() -> None:
    folder, count = Path(sys.argv[1]), int(sys.argv[2])
    found: dict[str, str] = {f"api {name}": signature(getattr(iosched, name)) for name in sorted(iosched.__all__)}
    x = np.load(folder / "x.npy")
    recorded = record_lowering()
    for seed in range(count):
        recorded.clear()
        path = folder / f"seed{seed}.onnx"
        result = iosched.optimize(str(path), device="v100")
        found[f"seed {seed} schedule"] = digest(stages(result.document.to_json()).encode())
        with iosched.load(str(path), schedule=result.document, device="cpu", threads=2) as model:
            outputs = model.run({"x": x})
        found[f"seed {seed} outputs"] = digest(*(outputs[name].tobytes() for name in sorted(outputs)))
        found[f"seed {seed} lowering"] = digest(*sorted(recorded))
        assert recorded, f"seed {seed} did not run by its plan"
    json.dump(found, sys.stdout)


def record_lowering() -> list[bytes]:
    """Has plans and kernels recorded as they are made, without pointers and processors."""
    from iosched.runtime.cpu.encoding import PlanEncoder
    from iosched.runtime.cpu.program import Program

    recorded: list[bytes] = []
    words, init = PlanEncoder.words, Program.__init__

    def recorded_words(self, sessions, cpus):  # type: ignore[no-untyped-def]
        masked = {key: place for place, key in enumerate(sessions)}
        recorded.append(repr(words(self, masked, range(len(cpus)))).encode())
        return words(self, sessions, cpus)

    def recorded_init(self, *given, **named):  # type: ignore[no-untyped-def]
        init(self, *given, **named)
        recorded.append(without_node_names(self.model) + repr((self.inputs, self.outputs, self.cores)).encode())

    PlanEncoder.words, Program.__init__ = recorded_words, recorded_init  # type: ignore[method-assign]
    return recorded


def without_node_names(data: bytes) -> bytes:
    """The model; onnxruntime numbers the nodes that it makes in an order of its own each time."""
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
