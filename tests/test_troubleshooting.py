"""docs/troubleshooting.md quotes the program: below a command, its output; elsewhere, messages of its code."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner
from onnx import helper
from small_models import branches

from iosched.cli.main import cli

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "troubleshooting.md").read_text().partition("## When outputs differ\n")[0]
QUOTED = re.findall(r"```text\n(.*?)\n```", PAGE, re.DOTALL)
PROVOKED = [block.removeprefix("$ ").split("\n", 1) for block in QUOTED if block.startswith("$ ")]
OTHERS = [block for block in QUOTED if not block.startswith("$ ")]
_LEAST_LETTERS = 12  # of a message in the code without its values: fewer could match anything


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the page's commands name."""
    folder = tmp_path_factory.mktemp("troubles")
    model = branches()
    onnx.save(model, folder / "model.onnx")
    onnx.save(branches(batch="N"), folder / "dynamic.onnx")
    onnx.save(branches(channels=4), folder / "other.onnx")
    (folder / "half.onnx").write_bytes(model.SerializeToString()[: model.ByteSize() // 2])
    (folder / "page.onnx").write_text("<html><body>not found</body></html>")
    (folder / "notes.txt").write_text("hello")
    (folder / "settings.json").write_text("{}")
    np.save(folder / "small.npy", np.zeros((1, 8, 3, 3), np.float32))
    np.save(folder / "double.npy", np.zeros((1, 8, 6, 6), np.float64))
    onnx.save(
        branches(), folder / "external.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    (folder / "weights.bin").unlink()
    for name, changed in (("lost", _without_a_weight), ("custom", _with_a_custom_operator), ("changed", _changed)):
        onnx.save(changed(), folder / f"{name}.onnx")
    for name in ("model", "other", "changed"):
        words = ["optimize", f"{name}.onnx", "--device", "v100", "-o", f"{name}.iosched.onnx"]
        assert _called([*words, "--schedule", f"{name}.schedule.json"], folder) == ""
    return folder


@pytest.mark.parametrize(("command", "printed"), PROVOKED, ids=[command for command, _ in PROVOKED])
def test_commands_print_the_quoted_output(command: str, printed: str, folder: Path) -> None:
    expected = ".*".join(map(re.escape, printed.split("…")))
    said = _called(shlex.split(command)[1:], folder)
    assert re.fullmatch(expected, said), f"{said!r} is not {printed!r}"


def test_messages_without_a_command_are_in_the_code() -> None:
    code = _lines_of_the_code()
    lines = [line for message in OTHERS for line in message.removeprefix("Error: ").splitlines()]
    assert [line for line in lines if not any(each.fullmatch(line) for each in code)] == []


def _called(words: list[str], folder: Path) -> str:
    """The stderr of a command from the word "Error" on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(cli, words, prog_name="iosched")
    return "Error: " * ("Error: " in result.stderr) + result.stderr.partition("Error: ")[2].rstrip()


def _without_a_weight() -> onnx.ModelProto:
    model = branches()
    del model.graph.initializer[0]
    return model


def _with_a_custom_operator() -> onnx.ModelProto:
    model = branches()
    model.graph.node[2].op_type, model.graph.node[2].domain = "MyRelu", "com.example"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    return model


def _changed() -> onnx.ModelProto:
    model = branches()
    model.graph.node[2].op_type = "Sigmoid"
    return model


def _lines_of_the_code() -> tuple[re.Pattern[str], ...]:
    """Each line that a string of the code can print, with anything for values and before the line."""
    folders = ("cli", "jobs", "models", "profiler", "runtime", "scheduler")
    trees = (ast.parse(path.read_text()) for folder in folders for path in (ROOT / folder).rglob("*.py"))
    texts = (text for tree in trees for node in ast.walk(tree) for text in _text(node))
    lines = {line for text in texts for line in text.split("\n") if len(line.replace("\0", "")) >= _LEAST_LETTERS}
    quoted = (line for line in lines if max(line.split("\0"), key=len) in PAGE)
    return tuple(re.compile(".*".join(map(re.escape, f"\0{line}".split("\0")))) for line in quoted)


def _text(node: ast.AST) -> Iterator[str]:
    """A string of the code, with a null character for each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
