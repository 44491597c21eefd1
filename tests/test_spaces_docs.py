"""`docs/exploring.md` describes the spaces, and its examples make variants that run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from mutations import at_random, check, greatest, least

from iosched.models.mutation.variant import variant_of
from iosched.models.spaces.inception import SPACE
from iosched.models.spaces.redraw import Redraw
from iosched.models.spaces.space import NAMES, Space, builtin_space, find_space

PAGE = (Path(__file__).parent.parent / "docs" / "exploring.md").read_text().partition("## Spaces of networks\n")[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_table_describes_the_space(name: str) -> None:
    (row,) = re.findall(rf"^\| `builtin:{name}` \|.*$", PAGE, re.MULTILINE)
    *_, operators, parameters, choices, networks = [cell.strip() for cell in row.strip("|").split("|")]
    space = builtin_space(name)
    base = space.base_model()
    assert int(operators) == len(base.graph.operators)
    assert parameters == f"{sum(array.size for array in base.weights.values()) / 1e6:.2f} M"
    assert networks == f"{space.size:.1e}".replace("e+0", "e").replace("e+", "e")
    (mutator,) = space.mutators
    assert choices == (str(len(mutator.questions())) if isinstance(mutator, Redraw) else "9 to 18")


@pytest.mark.parametrize("answer", [least, greatest, at_random(0)], ids=["least", "greatest", "random"])
def test_the_example_makes_variants_that_run(answer: object, tmp_path: Path) -> None:
    space = _space_of(0, tmp_path)
    variant = variant_of(SPACE.at(32).base_model(), space.mutators, answer)  # type: ignore[arg-type]
    assert {re.split(r"\[|\]/", name)[0] for name in variant.choices} == {"width", "kernel"}
    check(variant)


@pytest.mark.parametrize(("seed", "base"), [(0, "dense"), (3, "chains")])
def test_the_evolving_example_makes_variants_that_run(seed: int, base: str, tmp_path: Path) -> None:
    space = _space_of(1, tmp_path).at(32)
    variant = variant_of(space.base_models(), space.mutators, at_random(seed), space.max_mutations)
    assert variant.base.name == variant.choices["space/base{chains,dense}"] == base
    assert variant.choices["space/mutations{0,1,2,3,4,5,6,7,8}"] in range(9)
    check(variant)


def _space_of(number: int, folder: Path) -> Space:
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    (folder / "space.py").write_text(code)
    return find_space(str(folder / "space.py"))
