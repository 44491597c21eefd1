"""Results files record their provenance: every script of `benchmarks/` writes them through one function."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"
SCRIPTS = sorted(FOLDER.glob("*.py"))

NO_RESULTS = {
    "batch_sizes.py": {"path"},  # a schedule
    "cpu_networks.py": {"path"},  # a schedule
    "faults.py": {"model"},
    "fuzz_children.py": {"os"},  # standard streams
    "fuzz_corpus.py": {"folder / 'space.py'"},
    "gpu.py": {"results.folder / 'report.md'"},
    "rank.py": {"path", "self.document_path(seed)"},  # schedules
    "report.py": {"page"},
    "served.py": {"group / 'cgroup.procs'"},
}
"""Files other than results that scripts write, by the object whose method writes them."""

NO_RESULTS_ASKED = {"four_convolutions.py"}  # a model

SANDBOX = "fuzz.py"  # writes damaged files of all kinds

WRITER = "results_files"


def writes(source: str) -> Iterator[str]:
    """Direct writes of a script: the object of each call that writes a file, or the function's name."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if name in ("write_text", "write_bytes", "dump") or (name in ("open", "fdopen") and _is_for_writing(node)):
            yield ast.unparse(function.value) if isinstance(function, ast.Attribute) else name


def _is_for_writing(call: ast.Call) -> bool:
    words = [*call.args, *(word.value for word in call.keywords if word.arg == "mode")]
    modes = [word.value for word in words if isinstance(word, ast.Constant) and isinstance(word.value, str)]
    return any(set(mode) <= set("rwxabt+") and set(mode) & set("wxa") for mode in modes)


@pytest.mark.parametrize("path", [path for path in SCRIPTS if path.stem != WRITER], ids=lambda path: path.stem)
def test_scripts_write_results_only_through_results_files(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    own = {place for place in writes(source) if not (path.name == SANDBOX and "results" not in place.lower())}
    assert own - NO_RESULTS.get(path.name, set()) == set(), (
        "use keep_results or write_results of results_files.py; NO_RESULTS lists other files"
    )


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_with_an_option_for_results_keeps_them(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    asks = re.search(r"\b(output|results|record)=(Path|False|RESULTS|OUT)|\*\*OUTPUTS", source)
    keeps = re.search(r"\b(keep_results|write_results|ablate)\(", source)
    assert keeps or path.name in NO_RESULTS_ASKED or not asks


def test_no_exception_is_stale() -> None:
    stale = {
        (name, place)
        for name, places in NO_RESULTS.items()
        for place in places - set(writes((FOLDER / name).read_text(encoding="utf-8")))
    }
    assert not stale


@pytest.mark.parametrize(
    "line",
    [
        "options.output.write_text(json.dumps(found))",
        "json.dump(found, file)",
        "with open(path, 'w') as file: print(found, file=file)",
        "path.open(mode='a').write(found)",
    ],
)
def test_direct_writes_are_detected(line: str) -> None:
    assert list(writes(line))


@pytest.mark.parametrize("line", ["path.read_text()", "open(path)", "path.open('rb')", "keep_results(path, found)"])
def test_reads_do_not_count_as_writes(line: str) -> None:
    assert not list(writes(line))


@pytest.fixture
def writer(script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = script(WRITER)
    monkeypatch.setattr(module.sys, "argv", ["/somewhere/benchmarks/wide.py", "--graphs", "2"])
    return module


def kept(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_a_results_file_records_its_provenance(writer: ModuleType, tmp_path: Path) -> None:
    writer.keep_results(tmp_path / "new" / "r.json", {"rows": [1]}, seeds={"graphs": 7}, rivals=["no-such-package"])
    found = kept(tmp_path / "new" / "r.json")
    assert list(found) == ["command", "machine", "versions", "digest", "provenance", "rows"]
    assert found["command"] == "python benchmarks/wide.py --graphs 2"
    assert set(found["machine"]) == {"processor", "cores", "system", "python"}
    assert {"numpy", "onnx"} <= set(found["versions"])
    assert "no-such-package" not in found["versions"]
    assert set(found["provenance"]) == {"machine", "versions", "seeds", "command", "time"}
    assert found["provenance"]["seeds"] == {"graphs": 7}
    assert found["provenance"]["command"] == found["command"].split()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["r.json"]


def test_results_in_lines_have_the_same_content(writer: ModuleType, tmp_path: Path) -> None:
    content = {"about": {"a": 1}, "rows": [[1, 2], [3]], "none": [], "nothing": {}, "number": 2.5}
    for in_lines in (False, True):
        writer.keep_results(tmp_path / f"{in_lines}.json", content, in_lines=in_lines)
    one, other = (kept(tmp_path / f"{in_lines}.json") for in_lines in (False, True))
    assert {key: one[key] for key in content} == {key: other[key] for key in content} == content
    assert "\n [1, 2],\n [3]]" in (tmp_path / "True.json").read_text()


def test_a_resumed_file_lists_each_distinct_earlier_call_once(writer: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    for word in ("a", "a", "b", "c", "c"):
        writer.keep_results(path, {"versions": {"own": "1"}}, command=["python", word], goes_on=True)
    found = kept(path)
    assert found["command"] == "python c"
    assert [each["command"] for each in found["earlier"]] == ["python a", "python b"]
    assert all("provenance" in each for each in found["earlier"])


def test_earlier_results_without_provenance_keep_their_versions(writer: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"versions": {"onnx": "1.0"}, "rows": [1]}))
    for _ in range(2):
        writer.keep_results(path, {"rows": [1, 2]}, goes_on=True)
    assert kept(path)["earlier"] == [{"versions": {"onnx": "1.0"}}]


def test_an_overwritten_file_lists_no_earlier_calls(writer: ModuleType, tmp_path: Path) -> None:
    for word in "ab":
        writer.keep_results(tmp_path / "r.json", {}, command=["python", word])
    assert "earlier" not in kept(tmp_path / "r.json")


def test_results_of_another_machine_version_or_product_are_not_resumed(
    writer: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    assert writer.resumed_results(None) == writer.resumed_results(path) == {}
    writer.keep_results(path, {"rows": [1]})
    kept = json.loads(path.read_text())
    assert writer.resumed_results(path) == kept
    kept["digest"] = "0" * 64
    kept["provenance"]["machine"]["cpu"] = "another one"
    kept["provenance"]["versions"]["onnxruntime"] = "0.1"
    path.write_text(json.dumps(kept))
    with pytest.raises(SystemExit):
        writer.resumed_results(path)
    assert "another product, machine, library: write to another file" in capsys.readouterr().err
