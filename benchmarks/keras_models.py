"""Exports networks of Keras as people do, for `cpu_sequential.py`; needs tensorflow-cpu and tf2onnx.

    python benchmarks/keras_models.py FOLDER [--networks EfficientNetB0,DenseNet121,NASNetMobile,MobileNetV2]

Weights are random, also those of batch normalizations, which as Keras makes them would add nothing and be dropped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

NETWORKS = "EfficientNetB0,DenseNet121,NASNetMobile,MobileNetV2"
SIZE, OPSET = 224, 17


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--networks", default=NETWORKS, help="comma-separated names from keras.applications")
    options = parser.parse_args()
    for name in options.networks.split(","):
        path = options.folder / f"keras_{name.lower()}.onnx"
        export(name, path)
        print(path)


def export(name: str, path: Path) -> None:
    """Writes the network of that name for one image of 224 x 224."""
    import keras  # heavy, and not installed with the project
    import tensorflow as tf
    import tf2onnx

    keras.utils.set_random_seed(1)
    model = getattr(keras.applications, name)(weights=None, input_shape=(SIZE, SIZE, 3))
    _as_if_trained(keras, model)
    spec = (tf.TensorSpec((1, SIZE, SIZE, 3), tf.float32, name="x"),)
    run = tf.function(lambda x: model(x, training=False))
    tf2onnx.convert.from_function(run, input_signature=spec, opset=OPSET, output_path=str(path))


def _as_if_trained(keras: Any, model: Any) -> None:
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            *rest, variance = [values + 0.2 * rng.standard_normal(values.shape) for values in layer.get_weights()]
            layer.set_weights([*rest, np.abs(variance) + 0.1])


if __name__ == "__main__":
    main()
