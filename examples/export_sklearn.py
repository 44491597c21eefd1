"""Exports a scikit-learn ensemble that classifies digits to ONNX, and optimizes it.

    pip install '.[cpu,examples]'                 # in the root of the clone
    python export_sklearn.py digits.onnx                       # trains and exports
    python export_sklearn.py digits.onnx --optimize digits.iosched.onnx --budget 20

The ensemble's members are independent, so their layers can run in parallel. The batch has one image.
"""

from __future__ import annotations

import warnings
from argparse import ArgumentParser
from pathlib import Path

import numpy as np
from skl2onnx import to_onnx
from sklearn.datasets import load_digits
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

import iosched


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="path of the exported model")
    parser.add_argument("--optimize", type=Path, metavar="OUT.onnx", help="path of the optimized model")
    parser.add_argument("--budget", type=float, default=20, help="seconds for the optimization")
    parser.add_argument("--width", type=int, default=64, help="neurons of each hidden layer")
    options = parser.parse_args()
    digits = load_digits()
    train, test, labels, wanted = train_test_split(
        digits.data.astype(np.float32) / 16, digits.target, test_size=200, random_state=0
    )
    ensemble = trained(train, labels, options.width)
    exported = to_onnx(ensemble, train[:1], options={"zipmap": False})
    options.model.write_bytes(exported.SerializeToString())
    print(f"{options.model}: {ensemble.score(test, wanted):.1%} of the test images are classified correctly")
    if options.optimize is None:
        return
    result = iosched.optimize(options.model, batch_size=1, budget=options.budget)
    result.save(options.optimize)
    found = np.concatenate([result.run({"X": image[None]})["probabilities"] for image in test])
    np.testing.assert_allclose(found, ensemble.predict_proba(test), atol=1e-4)
    print(f"{options.optimize}: same outputs as scikit-learn; ships {result.shipped}, because {result.reason}")


def trained(images: np.ndarray, labels: np.ndarray, width: int) -> VotingClassifier:
    """Four networks that vote, each trained from another seed."""
    members = [(f"net{seed}", MLPClassifier((width, width), max_iter=10, random_state=seed)) for seed in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a few rounds are enough for an example
        return VotingClassifier(members, voting="soft", flatten_transform=False).fit(images, labels)


if __name__ == "__main__":
    main()
