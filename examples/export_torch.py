"""Exports a PyTorch network with branches to ONNX, and optimizes it.

pip install '.[cpu]' torch onnxscript      # in the root of the clone
python export_torch.py inception.onnx --optimize inception.iosched.onnx --budget 20
"""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import iosched


class Inception(nn.Module):
    """Four branches that read one tensor, as in GoogLeNet: they can run side by side."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        quarter = channels // 4
        self.branches = nn.ModuleList(
            [
                nn.Sequential(nn.Conv2d(channels, quarter, 1), nn.ReLU()),
                nn.Sequential(nn.Conv2d(channels, quarter, 1), nn.ReLU(), nn.Conv2d(quarter, quarter, 3, padding=1)),
                nn.Sequential(nn.Conv2d(channels, quarter, 1), nn.ReLU(), nn.Conv2d(quarter, quarter, 5, padding=2)),
                nn.Sequential(nn.MaxPool2d(3, 1, padding=1), nn.Conv2d(channels, quarter, 1)),
            ]
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], dim=1).relu()


def main() -> None:
    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="path of the exported model")
    parser.add_argument("--optimize", type=Path, metavar="OUT.onnx", help="path of the optimized model")
    parser.add_argument("--budget", type=float, default=20, help="seconds for the optimization")
    options = parser.parse_args()
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 64, 3, stride=2, padding=1),
        *(Inception(64) for _ in range(3)),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).eval()
    x = torch.randn(1, 3, 96, 96)
    # Weights in the same file, so that the model can be piped and copied.
    torch.onnx.export(network, (x,), options.model, input_names=["x"], output_names=["y"], external_data=False)
    if options.optimize is None:
        return
    result = iosched.optimize(options.model, budget=options.budget)
    result.save(options.optimize)
    with torch.inference_mode():
        np.testing.assert_allclose(result.run({"x": x.numpy()})["y"], network(x).numpy(), rtol=1e-3, atol=1e-5)
    print(f"{options.optimize}: same outputs as PyTorch; ships {result.shipped}, because {result.reason}")


if __name__ == "__main__":
    main()
