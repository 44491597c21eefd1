"""The two launches of the analytic model: networks of the zoo and of files, and schedules for either."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path

import onnx
import pytest
from small_models import branches


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A network that is not in the zoo."""
    onnx.save(branches(batch="n"), tmp_path / "mine.onnx")
    return tmp_path / "mine.onnx"


def test_a_published_network_is_loaded_from_its_file_and_left_out_without_one(
    script, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = script("launches")
    targets = (("v100", "fp32"), ("t4", "fp16"))
    published = launches.Published("mine", 2, ((2.0, 1.0), (None, 3.0)), targets, "a page")
    monkeypatch.setattr(launches, "PUBLISHED", (published,))
    assert launches.in_graphs(launches.Networks({})) == []
    found = launches.in_graphs(launches.Networks({"mine": file}))
    assert [(each["network"], each["batch"], each["gpu"]) for each in found] == [("mine", 2, "v100"), ("mine", 2, "t4")]
    assert [each["published_ratio"] for each in found] == [[2.0, None], [2.0, None]]
    for each in found:
        nodes = [each[f"node of {node} us"]["sequential"] for node in ("0.5", "1", "2")]
        assert nodes == sorted(nodes)
        assert nodes[-1] < each["streams"]["sequential"]


def test_graphs_have_the_batch_size_and_only_networks_from_files_are_described(script, file: Path) -> None:
    networks = script("launches").Networks({"mine": file})
    assert networks.graph("mine", 4).inputs[0].shape[0] == 4
    assert networks.graph("squeezenet").inputs[0].shape[0] == 1
    assert set(networks.described()) == {"mine"}
    assert networks.described()["mine"]["operators"] == len(networks.graph("mine").operators)


def test_a_schedule_is_no_slower_than_the_other_and_the_baselines_under_the_launch_it_was_made_for(
    script, file: Path
) -> None:
    launches = script("launches")
    for network in ("mine", "squeezenet"):
        found = launches.crossed(launches.Networks({"mine": file}).graph(network))
        for own, other in (("graph", "streams"), ("streams", "graph")):
            least = found["ms"][f"launched by {own}, made for {own}"]
            assert least <= min(
                found["ms"][f"launched by {own}, made for {other}"], *found["baselines_ms"][own].values()
            )


def test_a_missing_file_is_refused(script, file: Path) -> None:
    named_file = script("launches").named_file
    assert named_file(f"mine={file}") == ("mine", file)
    for text in (str(file), f"mine={file}x", f"={file}"):
        with pytest.raises(ArgumentTypeError, match="is not NAME=FILE"):
            named_file(text)
