"""Two copies of each bundled network with different weights compute the same batched as alone.

NASNet-A has fewer cells here. VGG-16 is large, and the scores of the decoder are sums that differ by more than others
when rounded in another order.
"""

from __future__ import annotations

import onnx
import pytest
from batches import batch
from networks import zoo_file
from variants import retrained

from iosched.models import zoo


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*zoo.names(), "short_nasnet_a"} - {"nasnet_a", "vgg16", "decoder_mini"}))
def test_two_copies_of_a_network_compute_the_same_batched(name: str) -> None:
    proto = onnx.load(zoo_file(name))
    found = batch([proto, retrained(proto)])
    convolutions = sum(node.op_type == "Conv" for node in proto.graph.node)
    assert found.types["Conv"] == convolutions
    assert found.types["Split"] == 1
