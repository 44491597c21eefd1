"""Classifies digits; changing one line of a script for onnxruntime runs the model by its schedule.

python classify.py digits.onnx              # as before: onnxruntime runs it
python classify.py digits.iosched.onnx      # an optimized model runs by its schedule
"""

from __future__ import annotations

import sys

import numpy as np
from sklearn.datasets import load_digits

from iosched import InferenceSession  # was: from onnxruntime import InferenceSession


def main() -> None:
    session = InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    digits = load_digits()
    images = digits.data.astype(np.float32)[:200] / 16
    found = np.concatenate([session.run(["label"], {name: image[None]})[0] for image in images])
    print(f"{np.mean(found == digits.target[:200]):.1%} right: {' '.join(map(str, found[:10]))} ...")


if __name__ == "__main__":
    main()
