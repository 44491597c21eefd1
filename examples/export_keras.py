"""Exports a network of `keras.applications` to ONNX, and optimizes it.

    pip install '.[cpu]' tensorflow-cpu tf2onnx      # in the root of the clone
    python export_keras.py mobile.onnx --optimize mobile.iosched.onnx --budget 20

The weights are random, so nothing is downloaded. `--network NASNetMobile` has many branches; its export takes a minute.
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import keras
import numpy as np

import iosched


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="path of the exported model")
    parser.add_argument("--network", default="MobileNetV2", help="a name in keras.applications")
    parser.add_argument("--optimize", type=Path, metavar="OUT.onnx", help="path of the optimized model")
    parser.add_argument("--budget", type=float, default=20, help="seconds for the optimization")
    options = parser.parse_args()
    keras.utils.set_random_seed(0)
    network = getattr(keras.applications, options.network)(weights=None)
    x = np.random.default_rng(0).random((1, *network.input_shape[1:]), np.float32)
    wanted = network(x, training=False).numpy()
    network.export(options.model, format="onnx", verbose=False)
    if options.optimize is None:
        return
    result = iosched.optimize(options.model, batch_size=1, budget=options.budget)
    result.save(options.optimize)
    with iosched.load(options.optimize) as model:
        (found,) = model.run({model.inputs[0].name: x}).values()
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-5)
    print(f"{options.optimize}: same outputs as Keras; ships {result.shipped}, because {result.reason}")


if __name__ == "__main__":
    main()
