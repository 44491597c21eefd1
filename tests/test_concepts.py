"""The example of docs/concepts.md and docs/reading-schedules.md matches the output of the program."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from iosched.cli.main import cli

ROOT = Path(__file__).parent.parent
CONCEPTS, READING = (ROOT / "docs" / f"{name}.md" for name in ("concepts", "reading-schedules"))


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Output of `iosched show` and counts of `inspect` for the four convolutions."""
    folder = tmp_path_factory.mktemp("concepts")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "benchmarks")
        patch.chdir(folder)
        from four_convolutions import build

        del sys.modules["four_convolutions"]
        onnx.save(build(), "four.onnx")
        said = [
            CliRunner().invoke(cli, words, prog_name="iosched").stdout
            for words in (
                ["optimize", "four.onnx", "--device", "v100"],
                ["show", "four.iosched.onnx"],
                ["inspect", "four.onnx"],
            )
        ]
    return "".join(said)


def test_the_quoted_schedule_is_printed(shown: str) -> None:
    (quoted,) = re.findall(r"```text\n(four on.*?)```", READING.read_text(), re.DOTALL)
    assert quoted in shown


def test_the_picture_has_the_latencies_of_the_schedules(shown: str) -> None:
    picture = (ROOT / "docs" / "images" / "concepts-merge.svg").read_text()
    drawn = set(re.findall(r", (\d{3}\.\d µs)</text>", picture))
    assert len(drawn) == 3
    assert all(latency in shown for latency in drawn)


def test_the_counts_of_states_transitions_and_schedules_match(shown: str) -> None:
    assert re.search(r"^0 +5 +3 +12 +50 +84 ", shown, re.MULTILINE)
    assert "have 12, 50 and 84 (`iosched inspect four.onnx`)" in CONCEPTS.read_text()
