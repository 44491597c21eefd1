"""An encoder like BERT (Devlin et al., 2019), with BERT-Mini's sizes (Turc et al., 2019), fewer words, and seeded
weights.
"""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.zoo.network import Network
from iosched.models.zoo.transformer import MASKED, Sizes, Text

SIZES = Sizes(layers=4, width=256, heads=4, words=8192, longest=512)


def build(batch: int | str = 1, length: int | str = 128) -> onnx.ModelProto:
    """Inputs `ids` and `mask` (batch, length) int64, output (batch, length, 256) float32.

    `mask` is 1 for words and 0 for padding. A text instead of a number makes that dimension dynamic.
    """
    text = Text(Network("bert_mini"), SIZES)
    mask = _mask(text, "mask")
    x = text.normalized(text.embedded("ids", "embedded"), "normalized")
    for layer in range(SIZES.layers):
        name, is_last = f"layer{layer}", layer == SIZES.layers - 1
        x = text.normalized(
            text.added(text.attention(x, mask, f"{name}/attention"), x, f"{name}/seen"), f"{name}/norm1"
        )
        thought = text.feed_forward(x, f"{name}/feed_forward")
        x = text.normalized(text.added(thought, x, f"{name}/thought"), "output" if is_last else f"{name}/norm2")
    return text.finish(["ids", "mask"], x, SIZES.width, batch, length)


def _mask(text: Text, mask: str) -> str:
    """The addend of scores, (batch, 1, 1, length): 0 for words, very negative for padding."""
    net = text.net
    first, second = (net.constant(f"mask/axis{axis}", np.array([axis])) for axis in (1, 2))
    one, much = (net.constant(f"mask/{n}", np.array(v, np.float32)) for n, v in (("one", 1.0), ("much", MASKED)))
    net.append("Unsqueeze", [mask, first], "mask/heads")
    net.append("Unsqueeze", ["mask/heads", second], "mask/spread")
    net.append("Cast", ["mask/spread"], "mask/float", to=onnx.TensorProto.FLOAT)
    net.append("Sub", [one, "mask/float"], "mask/rest")
    net.append("Mul", ["mask/rest", much], "mask/scores")
    return "mask/scores"
