"""Bad outputs are refused early, and files are written completely or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from iosched.cli.common import output
from iosched.cli.common.output import Destination, check_destinations, emit_json, write
from iosched.models.errors import ExecutionError, UsageError


def to(text: str | Path, option: str = "-o") -> Destination:
    return Destination(option, None if str(text) == "-" else Path(text))


def test_two_things_on_stdout_are_refused() -> None:
    with pytest.raises(UsageError, match=r"-o - and --json both write to stdout"):
        check_destinations([to("-")], as_json=True)
    with pytest.raises(UsageError, match="-o - and --schedule -"):
        check_destinations([to("-"), to("-", "--schedule")])


def test_one_thing_on_stdout_is_fine(tmp_path: Path) -> None:
    check_destinations([to("-"), to(tmp_path / "a"), None])
    check_destinations([to(tmp_path / "a")], as_json=True)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"there is no folder {tmp_path / 'nowhere'}"):
        check_destinations([to(tmp_path / "nowhere" / "a.onnx")])


def test_a_folder_is_refused_as_an_output_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        check_destinations([to(tmp_path)])


@pytest.mark.parametrize("link", [False, True], ids=["same path", "by another name"])
def test_the_input_is_not_overwritten(tmp_path: Path, link: bool) -> None:
    source = tmp_path / "model.onnx"
    source.write_bytes(b"precious")
    target = tmp_path / "sub" / ".." / "model.onnx" if not link else tmp_path / "link.onnx"
    (tmp_path / "sub").mkdir()
    if link:
        target.hardlink_to(source)
    with pytest.raises(UsageError, match="would overwrite the input"):
        check_destinations([to(target)], inputs=[None, source])


def test_a_link_that_leads_back_to_itself_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link.onnx"
    link.symlink_to("link.onnx")
    check_destinations([to(link)], inputs=[tmp_path / "model.onnx"])
    write(to(link), b"new")
    assert link.read_bytes() == b"new"


def test_two_outputs_in_one_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="written twice"):
        check_destinations([to(tmp_path / "a"), to(tmp_path / "a", "--schedule")])


def test_a_device_file_needs_no_permission_for_its_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output.os, "access", lambda path, mode: Path(path) == Path("/dev/null"))
    check_destinations([to("/dev/null")])
    with pytest.raises(UsageError, match="-o /dev/full: no permission to write to it"):
        check_destinations([to("/dev/full")])


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old and long")
    write(to(path), b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def fail(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(ExecutionError, match=r"a: cannot write: No space left on device"):
        write(to(path), b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write(to(tmp_path / "a"), b"new")
    assert list(tmp_path.iterdir()) == []


def test_a_device_file_is_written_in_place() -> None:
    write(to("/dev/null"), b"anything")
    assert not Path("/dev/null").is_file()


def test_json_has_exact_integers_and_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"n": 10**30, "bound": float("inf"), "rows": [{"x": float("nan")}], "µ": 1.5})
    assert capsys.readouterr().out == '{"n": 1' + "0" * 30 + ', "bound": null, "rows": [{"x": null}], "µ": 1.5}\n'


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit_json({"a": [1, 2], "b": {"c": "line\nbreak"}})
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line) == {"a": [1, 2], "b": {"c": "line\nbreak"}}
