"""The space of `builtin:inception`, on a base without its last layer, which computes features for `score_digits.py`."""

import onnx
from onnx.utils import Extractor

import iosched

inception = iosched.find_space("builtin:inception")


def features(pixels: int) -> onnx.ModelProto:
    assert inception.base is not None
    whole = onnx.shape_inference.infer_shapes(inception.base(pixels))
    return Extractor(whole).extract_model(["input"], ["flatten"])


space = iosched.Space("features", inception.mutators, base=features, pixels=32)
