"""The arguments of the score command, and the score read from its output."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from iosched.jobs.exploring.running import run_command
from iosched.jobs.exploring.score import ScoreCommand, ScoreError, parse_command, parsed_output, values_of
from iosched.models.errors import UsageError

MODEL = Path("/some folder/it's {params}.onnx")


def _command(code: str, *keys: str, timeout_s: float = 30) -> ScoreCommand:
    words = (sys.executable, "-I", "-S", "-c", code, "{model}", "{params}")
    return ScoreCommand(words, timeout_s, keys or ("accuracy",))


def score(command: ScoreCommand, choices: dict[str, object] | None = None) -> Mapping[str, float]:
    ran = run_command(command.filled(MODEL, choices or {}), timeout_s=command.timeout_s)
    return values_of(parsed_output(ran, command.timeout_s), command.keys)


def test_the_path_and_the_choices_are_one_argument_each() -> None:
    command = parse_command("echo {model} '--choices={params}' $HOME", None, ())
    assert command.filled(MODEL, {"paths": 3, "op": "{model}"}) == [
        "echo",
        "/some folder/it's {params}.onnx",
        '--choices={"paths": 3, "op": "{model}"}',
        "$HOME",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("echo 'a", "quotation"),
        ("echo 1", "neither {model} nor {params}"),
        ("./no-such-program {model}", "program './no-such-program' does not exist"),
    ],
)
def test_an_invalid_score_command_is_refused(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_command(text, None, ())


@pytest.mark.parametrize(
    ("printed", "found"),
    [
        ("0.5", {"accuracy": 0.5}),
        ("epoch 1 of 2\nepoch 2 of 2\n 97 \n\n", {"accuracy": 97.0}),
        ('{"accuracy": 0.5, "loss": 2, "note": "fine", "best": true}', {"accuracy": 0.5, "loss": 2.0}),
        ('{\n  "accuracy": 0.5\n}\n', {"accuracy": 0.5}),
        ('{"accuracy": 1}\n{"accuracy": 2}', {"accuracy": 2.0}),
    ],
)
def test_the_score_is_a_number_or_json_in_the_last_line_or_all_of_the_output(
    printed: str, found: dict[str, float]
) -> None:
    assert score(_command(f"print({printed!r})")) == found


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("pass", "printed nothing"),
        ("print('fine!')", "neither a number nor JSON: fine!"),
        ("print('nan')", "neither a number nor JSON"),
        ("print('NaN')", "not a number: NaN"),
        ("print('true')", "not a number: true"),
        ("print(10**400)", "not a number: 1000"),
        ("print('[' * 100000)", "neither a number nor JSON"),
        ("print('{\"loss\": 1}')", "did not print 'accuracy'; it printed loss"),
        ('print(\'{"accuracy": "high"}\')', "'accuracy' of the score command is not a number"),
        ("import sys; sys.stderr.write('a\\nno GPU\\n'); sys.exit(3)", "exit code 3: no GPU"),
        ("import os; os.abort()", "exit code 134"),
    ],
)
def test_the_reason_for_a_missing_score_is_reported(code: str, said: str) -> None:
    with pytest.raises(ScoreError, match=said):
        score(_command(code))


def test_a_hanging_score_command_times_out() -> None:
    with pytest.raises(ScoreError, match=r"longer than 0\.5 s"):
        score(_command("import time; time.sleep(600)", timeout_s=0.5))


def test_one_number_is_refused_for_two_scores() -> None:
    with pytest.raises(ScoreError, match="print JSON"):
        values_of(0.5, ("accuracy", "loss"))


def test_choices_reach_the_command_unchanged() -> None:
    choices: dict[str, object] = {"block/paths{2,3}": 3, "op": "ä'\"$x"}
    code = "import json, sys; print(len(json.loads(sys.argv[2])['op']), file=sys.stderr); print(sys.argv[2])"
    command = ScoreCommand((sys.executable, "-c", code, "{model}", "{params}"), 30, ("block/paths{2,3}",))
    assert score(command, choices) == {"block/paths{2,3}": 3.0}
    assert json.loads(command.filled(MODEL, choices)[-1]) == choices
