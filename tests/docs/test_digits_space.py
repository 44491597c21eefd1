"""The example of a space has the variants of `builtin:inception`, without their last layer."""

from __future__ import annotations

from pathlib import Path
from random import Random

from iosched.models.mutation.edit import Question
from iosched.models.mutation.variant import variant_of
from iosched.models.spaces.space import find_space

SPACE = Path(__file__).parents[2] / "docs" / "examples" / "digits_space.py"


def test_variants_have_no_classifier_and_the_same_questions_as_the_builtin_space() -> None:
    asked: list[list[Question]] = []
    for name in (str(SPACE), "builtin:inception:32"):
        space, draw, questions = find_space(name), Random(0), list[Question]()

        def answer(question: Question, draw: Random = draw, questions: list[Question] = questions) -> int:
            questions.append(question)
            return draw.randrange(len(question.candidates))

        model = variant_of(space.base_model(), space.mutators, answer).model
        asked.append(questions)
        assert [spec.shape for spec in model.graph.inputs] == [(1, 3, 32, 32)]
        layers = {operator.type for operator in model.graph.operators}
        assert ("Gemm" in layers) == name.startswith("builtin:")
    assert asked[0] == asked[1]
