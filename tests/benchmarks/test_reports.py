"""The generated parts of the reports and the README match the committed results."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = (
    "README.md",
    *sorted(f"benchmarks/reports/{path.name}" for path in (ROOT / "benchmarks" / "reports").glob("*.md")),
)


@pytest.fixture
def report(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("report")


@pytest.mark.parametrize("page", PAGES)
def test_generated_parts_match_the_results(report: ModuleType, page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert text == report.generated(text), "stale: run  python benchmarks/report.py"


def test_tables_and_numbers_are_generated(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "results", lambda name: {"x y": [0.5, 1234], "name": name})
    tables = report.import_module("result_tables")
    monkeypatch.setattr(tables, "table_of", lambda *cells: (["a"], [cells[:1]]), raising=False)
    page = (
        "%s<!--=@f[x y][0]:.0%%--> (%s<!--=@f[x y][1]:,-->).\n\n"
        "<!--=result_tables.table_of(@f[name], b)-->\n%s\n<!--=-->\n"
    )
    old, new = page % ("3 %", 9, "- old\n\nold"), page % ("50 %", "1,234", "| a |\n|---|\n| f |")
    assert report.generated(old) == new
    assert report.generated(new) == new


def test_the_results_of_each_page_are_listed_with_their_origin(report: ModuleType) -> None:
    rows = {(page, name): rest for page, name, *rest in report.files_table()[1]}
    assert rows["README.md", "cpu_networks"] == rows["cpu-networks.md", "cpu_networks"]
    assert [len(each) for each in rows["README.md", "cpu_networks"][:2]] == [8, 8]
    assert ("serving.md", "serving-load") in rows
    assert {page for page, _ in rows} <= {path.name for path in report.PAGES}


def test_no_foreign_model_has_wrong_outputs() -> None:
    models = json.loads((ROOT / "benchmarks" / "results" / "foreign-models.json").read_text())["models"]
    plans = [(row["file"], plan) for row in models for plan in row.get("plans", {}).values()]
    assert len(plans) > 200
    differing = [(file, plan) for file, plan in plans if not plan.get("passed", True)]
    assert [file for file, plan in differing if plan.get("cause") != "rounding"] == []


def test_comments_and_docstrings_do_not_change_the_product_digest(
    script: Callable[[str], ModuleType], tmp_path: Path
) -> None:
    code = script("results_files")._code
    texts = ('"""A."""\nx = 1\n', '"""B."""\n\nx = 1  # why\n"""C."""\n', "x = 2\n", '"""A."""\nx = "1"\n')
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.py").write_text(text, encoding="utf-8")
    one, same, *others = (code(tmp_path / f"{number}.py") for number in range(len(texts)))
    assert one == same
    assert one not in others
