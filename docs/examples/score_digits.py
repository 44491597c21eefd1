"""Scores a network by how well digits can be told apart by what it computes: a score command for `iosched explore`.

    python score_digits.py MODEL.onnx [CHOICES.json] [--images 800] [--splits 5] [--seed 0]

The network is not trained: its weights are as they are in the file. What it computes of an image, its first output, are
features, and a linear read-out of them is trained on some of scikit-learn's digits (1,797 images of 8 x 8 pixels, which
come with scikit-learn) and tested on all others, for several splits. Printed is one JSON object: the mean `accuracy`,
with the ends of its 95 % interval over the splits.

A model with several networks in it, as `--score-batch` makes them, gets an object of such objects by their names.

It is a toy: it takes seconds, and says how much random features of a network tell, not how well it would be trained.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser

import numpy as np
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

STRENGTH = 100.0  # of the read-out's regularisation: there are more features than images to train on


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("choices", nargs="?", help="what was chosen, as JSON; not looked at here")
    parser.add_argument("--images", type=int, default=800, help="how many images the read-out is trained on")
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    digits = load_digits()
    found = {
        name: accuracy(features, digits.target, options.images, options.splits, options.seed)
        for name, features in features_by_network(options.model, digits.images / 16.0).items()
    }
    print(json.dumps(found if len(found) > 1 else found.popitem()[1]))


def features_by_network(path: str, images: np.ndarray) -> dict[str, np.ndarray]:
    """What each network in the model computes of the images, (images, features); see `first_outputs` for the names."""
    settings = onnxruntime.SessionOptions()
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    inputs, outputs = session.get_inputs(), first_outputs([output.name for output in session.get_outputs()])
    features: dict[str, list[np.ndarray]] = {network: [] for network in outputs}
    for image in images:
        fed = {each.name: shown(image, each.shape) for each in inputs}
        for network, value in zip(outputs, session.run(list(outputs.values()), fed), strict=True):
            features[network].append(value.reshape(-1))
    return {network: np.stack(found) for network, found in features.items()}


def first_outputs(names: list[str]) -> dict[str, str]:
    """The first output of each network: "a/y" is one of the network "a", if all outputs are called like that."""
    if len(names) == 1 or not all("/" in name for name in names):
        return {"": names[0]}
    found: dict[str, str] = {}
    for name in names:
        found.setdefault(name.partition("/")[0], name)
    return found


def shown(image: np.ndarray, shape: list[int]) -> np.ndarray:
    """A grey image of 8 x 8 pixels as the network's input, (1, channels, height, width): enlarged."""
    _, channels, height, width = shape
    rows, columns = (np.arange(size) * 8 // size for size in (height, width))
    enlarged = image[np.ix_(rows, columns)].astype(np.float32) * 2 - 1
    return np.broadcast_to(enlarged, (1, channels, height, width)).copy()


def accuracy(features: np.ndarray, labels: np.ndarray, images: int, splits: int, seed: int) -> dict[str, float]:
    """The share of digits told rightly by a linear read-out: its mean over splits, and the ends of its interval."""
    readout = make_pipeline(StandardScaler(), RidgeClassifier(alpha=STRENGTH))
    division = StratifiedShuffleSplit(splits, train_size=images, random_state=seed)
    right = [
        readout.fit(features[train], labels[train]).score(features[test], labels[test])
        for train, test in division.split(features, labels)
    ]
    error = 1.96 * float(np.std(right, ddof=1)) / math.sqrt(len(right))
    mean = float(np.mean(right))
    return {"accuracy": mean, "accuracy_low": mean - error, "accuracy_high": mean + error}


if __name__ == "__main__":
    main()
