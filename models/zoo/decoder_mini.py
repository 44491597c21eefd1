"""A decoder like GPT-2 (Radford et al., 2019), with BERT-Mini's sizes and seeded weights, for whole texts.

It keeps no keys and values between calls, so it reads prompts rather than generating word by word.
"""

from __future__ import annotations

import numpy as np
import onnx

from iosched.models.zoo.network import Network
from iosched.models.zoo.transformer import MASKED, Sizes, Text

SIZES = Sizes(layers=4, width=256, heads=4, words=8192, longest=512)


def build(batch: int | str = 1, length: int | str = 128) -> onnx.ModelProto:
    """Input `ids` (batch, length) int64, output (batch, length, 8192) float32: scores of the next word.

    A text instead of a number makes that dimension dynamic.
    """
    text = Text(Network("decoder_mini"), SIZES)
    x, mask = text.embedded("ids", "embedded"), _causal(text, "ids")
    for layer in range(SIZES.layers):
        name = f"layer{layer}"
        seen = text.attention(text.normalized(x, f"{name}/norm1"), mask, f"{name}/attention")
        x = text.added(seen, x, f"{name}/seen")
        thought = text.feed_forward(text.normalized(x, f"{name}/norm2"), f"{name}/feed_forward")
        x = text.added(thought, x, f"{name}/thought")
    scores = text.product(text.normalized(x, "normalized"), SIZES.words, "output")
    return text.finish(["ids"], scores, SIZES.words, batch, length)


def _causal(text: Text, ids: str) -> str:
    """The addend of scores, (length, length): 0 up to the word itself, very negative after it."""
    net = text.net
    whole = np.triu(np.full((SIZES.longest, SIZES.longest), MASKED, np.float32), 1)
    net.append("Concat", [text.length(ids, "causal"), "causal/length"], "causal/size", axis=0)
    zeros = net.constant("causal/from", np.array([0, 0]))
    net.append("Slice", [net.constant("causal/whole", whole), zeros, "causal/size"], "causal")
    return "causal"
