"""Exports networks of Keras for `cpu_networks.py` and others; needs the extra `[bench]`.

    python benchmarks/keras_models.py FOLDER [--networks EfficientNetB0,DenseNet121,...]

The batch size stays dynamic, and images have the network's default size. Weights are random, also those of batch
normalizations: Keras's initial values would have no effect, and the normalizations would be removed. Existing files are
kept.

Options:
    --networks: comma-separated names from keras.applications
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from command_line import read_options

SIZES = {
    "EfficientNetB0": 224, "DenseNet121": 224, "NASNetMobile": 224, "MobileNetV2": 224, "InceptionV3": 299,
    "Xception": 299, "InceptionResNetV2": 299,
}  # fmt: skip
"""The height of the square images of each network."""

OPSET = 17


def main() -> None:
    options = read_options(__file__, None, {"folder": Path}, networks=tuple(SIZES))
    for name in options.networks:
        path = options.folder / f"keras_{name.lower()}.onnx"
        if not path.exists():
            export(name, path)
        print(path, flush=True)


def export(name: str, path: Path) -> None:
    """Writes the network of that name, one of `SIZES`."""
    import keras  # heavy, and not installed with the project
    import tensorflow as tf
    import tf2onnx

    keras.utils.set_random_seed(1)
    shape = (SIZES[name], SIZES[name], 3)
    model = getattr(keras.applications, name)(weights=None, input_shape=shape)
    _as_if_trained(keras, model)
    spec = (tf.TensorSpec((None, *shape), tf.float32, name="x"),)
    run = tf.function(lambda x: model(x, training=False))
    proto, _ = tf2onnx.convert.from_function(run, input_signature=spec, opset=OPSET)
    captures = run.get_concrete_function(*spec).graph.captures
    _hold(proto, {place.name: value.numpy() for value, place in captures if value.dtype != tf.resource})
    onnx.save(proto, path)


def _hold(proto: onnx.ModelProto, constants: Mapping[str, np.ndarray]) -> None:
    """Makes initializers of inputs with a constant value, such as the mean of images that Keras subtracts."""
    inputs = [value for value in proto.graph.input if value.name not in constants]
    used = {name for node in proto.graph.node for name in node.input}
    del proto.graph.input[:]
    proto.graph.input.extend(inputs)
    held = (onnx.numpy_helper.from_array(value, name) for name, value in constants.items() if name in used)
    proto.graph.initializer.extend(held)


def _as_if_trained(keras: Any, model: Any) -> None:
    rng = np.random.default_rng(0)
    for layer in model.layers:
        if isinstance(layer, keras.layers.BatchNormalization):
            *rest, variance = [values + 0.2 * rng.standard_normal(values.shape) for values in layer.get_weights()]
            layer.set_weights([*rest, np.abs(variance) + 0.1])


if __name__ == "__main__":
    main()
