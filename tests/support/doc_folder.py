"""The files that the documentation's commands name, as a reader would have them: small models, a space, and results."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import onnx
from doc_blocks import ROOT
from doc_shell import Shell
from onnx import TensorProto, helper
from small_models import proto_of, weight

from iosched.models.zoo.network import Network

_SPACES = (ROOT / "docs" / "exploring.md").read_text().partition("## Spaces of networks\n")[2]

# What a reader has done before, whatever the page: a model optimized, one of several, and results of yesterday.
_BEFORE = """
iosched -q optimize model.onnx
iosched -q optimize retrained.onnx --schedule-from model.schedule.json
iosched -q batch a.onnx b.onnx c.onnx -o super.onnx
iosched -q bench model.iosched.onnx --with iosched --with onnxruntime --json > before.json
iosched -q profile export h100.jsonl
iosched -q explore base.onnx --space space.py --objective latency:v100,params -o pelee.explored
cp before.json now.json; cp before.json baseline.json
cp model.schedule.json old.schedule.json; cp model.schedule.json new.schedule.json
for file in v100 measurements; do cp h100.jsonl $file.jsonl; done
for name in four_convolutions inception_v3 squeezenet; do cp model.onnx $name.onnx; done
for name in four_convolutions inception_v3 sequential; do cp model.iosched.onnx $name.iosched.onnx; done
"""


def prepare(folder: Path, shell: Shell) -> None:
    """Writes all files into `folder`."""
    for name in ("model", "retrained", "variant", "a", "b", "c"):
        seed = 8 * ord(name[0])  # models have four weights, none of which is also another model's
        onnx.save(two_branches(seed=seed), folder / f"{name}.onnx")
    onnx.save(_of_words("input_ids", "attention_mask"), folder / "bert.onnx")
    onnx.save(_of_words("ids", "mask"), folder / "encoder.onnx")
    onnx.save(_base(), folder / "base.onnx")
    np.save(folder / "x.npy", np.zeros((1, 8, 14, 14), np.float32))
    codes = re.findall(r"```python\n(.*?)```", _SPACES, re.DOTALL)
    for name, code in zip(("space.py", "evolving.py"), codes, strict=True):
        (folder / name).write_text(code)
    (folder / "docs").mkdir()
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    for name in ("NASNetMobile", "DenseNet201"):  # read by nobody
        (folder / f"{name}.onnx").touch()
    (folder / "candidates").mkdir()
    for name in "ab":
        shutil.copy(folder / f"{name}.onnx", folder / "candidates")
    done = shell.run(_BEFORE, folder)
    assert done.code == 0, done.err


def two_branches(channels: int = 8, size: int = 14, seed: int = 0) -> onnx.ModelProto:
    """Two branches of two convolutions each, and their Concat."""
    weights = {f"w{name}": weight(channels, channels, 3, 3, seed=seed + ord(name)) for name in "abcd"}
    nodes = [
        helper.make_node("Conv", [read, f"w{name}"], [name], pads=[1] * 4) for read, name in ("xa", "ab", "xc", "cd")
    ]
    nodes.append(helper.make_node("Concat", ["b", "d"], ["y"], axis=1))
    return proto_of(nodes, {"x": (1, channels, size, size)}, ["y"], weights)


def _of_words(ids: str, mask: str) -> onnx.ModelProto:
    """Words and a mask, of any length."""
    nodes = [
        helper.make_node("Gather", ["words", ids], ["read"]),
        helper.make_node("Unsqueeze", [mask, "last"], ["kept_words"]),
        helper.make_node("Mul", ["read", "kept_words"], ["kept"]),
        helper.make_node("MatMul", ["kept", "weights"], ["y"]),
    ]
    known = {"words": weight(100, 16), "weights": weight(16, 16), "last": np.array([-1])}
    sizes = ("batch", "length")
    return proto_of(nodes, {ids: (TensorProto.INT64, sizes), mask: sizes}, ["y"], known)


def _base() -> onnx.ModelProto:
    """A block that the space of docs/exploring.md matches."""
    net = Network("base")
    x = net.conv(net.input(3, 8), 4, 1, "block/first")
    x = net.conv(x, 4, 3, "block/middle", padding=1)
    return net.finish(net.conv(x, 4, 1, "block/last"))
