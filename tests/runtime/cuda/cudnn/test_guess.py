"""Which plan is chosen without timing: it depends on the sizes of workspaces and on the engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import desk_cudnn
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scripted import fire

from iosched.runtime.cuda.cudnn.guess import Copied, CudnnPlanGuess, copied_in, is_generic
from iosched.runtime.cuda.cudnn.plans import BuiltCudnnPlan, build_cudnn_plans
from iosched.runtime.cuda.kernel import H100, CudnnKernel, Precision
from iosched.runtime.cuda.layout import Layout, preferred_layout
from iosched.runtime.cuda.lower.lowered_model import LoweredModel
from iosched.runtime.cuda.lower.lowering import lower
from iosched.runtime.plan import View
from iosched.scheduler.baselines import sequential
from iosched.scheduler.precision import PrecisionName

NOTHING, SLICES, TENSORS = Copied
FLOAT = 4


def image(channels: int, size: int, *, batch: int = 1, of: int = 0, layout: Layout = Layout.NHWC) -> View:
    """`channels` channels of a (batch, of or channels, size, size) tensor."""
    shape, whole = (batch, channels, size, size), batch * size * size * (of or channels) * FLOAT
    rows = batch if layout is Layout.NCHW else batch * size * size
    strides = layout.strides_of(shape, FLOAT, rows, whole // rows)
    return View("t", "float32", shape, strides=strides)


def nbytes(channels: int, size: int, batch: int = 1) -> int:
    return batch * channels * size * size * FLOAT


# Purposes of workspaces: sizes as reported by cuDNN 9.10 and 9.19.

X, Y, WEIGHT = nbytes(32, 149), nbytes(32, 147), 32 * 32 * 9 * FLOAT
SQUEEZE, EXPAND = nbytes(16, 55), nbytes(64, 55)


@pytest.mark.parametrize(
    ("images", "workspace_nbytes", "copied"),
    [
        ((image(32, 149), image(32, 147)), 0, NOTHING),
        ((image(32, 149), image(32, 147)), 131, NOTHING),
        ((image(288, 35), image(48, 35)), 1152, NOTHING),
        ((image(32, 149), image(32, 147)), X + Y + WEIGHT + 16, TENSORS),
        ((image(32, 149), image(32, 147)), X + WEIGHT + 16, TENSORS),
        ((image(16, 55), image(64, 55, of=128)), EXPAND + 16, SLICES),
        ((image(16, 55), image(64, 55, of=128)), EXPAND + 18176, SLICES),
        ((image(16, 55), image(64, 55, of=128)), SQUEEZE + EXPAND + 16, TENSORS),
        ((image(16, 55), image(64, 55)), EXPAND + 16, TENSORS),
        ((image(16, 55, of=48), image(64, 55, of=128)), SQUEEZE + EXPAND + 32, SLICES),
    ],
)
def test_the_size_of_a_workspace_shows_which_tensors_are_copied(
    images: tuple[View, View], workspace_nbytes: int, copied: Copied
) -> None:
    assert copied_in(workspace_nbytes, images) is copied


def test_slices_of_channels_have_gaps_but_not_all_in_nchw() -> None:
    """There, those of one image are contiguous."""
    for batch, layout, copied in (
        (1, Layout.NHWC, SLICES), (1, Layout.NCHW, TENSORS), (8, Layout.NHWC, SLICES), (8, Layout.NCHW, SLICES),
    ):  # fmt: skip
        images = image(16, 55, batch=batch, layout=layout), image(64, 55, batch=batch, of=128, layout=layout)
        assert copied_in(batch * EXPAND + 16, images) is copied


def test_transformed_images_do_not_count_as_copies() -> None:
    assert copied_in(10 * X, (image(32, 149), image(32, 147)), transforms=True) is NOTHING


@given(
    channels=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    gaps=st.tuples(st.booleans(), st.booleans()),
    copied=st.sets(st.integers(0, 1)),
    share=st.floats(0, 0.99),
)
def test_copies_are_distinguished_from_tables(
    channels: tuple[int, int], gaps: tuple[bool, bool], copied: set[int], share: float
) -> None:
    images = [image(count, 8, of=2 * count if gap else 0) for count, gap in zip(channels, gaps, strict=True)]
    sizes = [nbytes(count, 8) for count in channels]
    least = min(sizes)
    workspace_nbytes = sum(sizes[index] for index in copied) + int(share * least)
    of_slices = all(gaps[index] for index in copied)
    sums_of_slices = {sum(size for size, some in zip(sizes, each, strict=True) if some) for each in _subsets(gaps)}
    assume(of_slices or not any(0 <= workspace_nbytes - each < least for each in sums_of_slices))
    expected = NOTHING if not copied else SLICES if of_slices else TENSORS
    assert copied_in(workspace_nbytes, images) is expected


def _subsets(gaps: tuple[bool, bool]) -> list[tuple[bool, bool]]:
    return [(a, b) for a in {False, gaps[0]} for b in {False, gaps[1]} if a or b]


def test_engines_are_known_by_number() -> None:
    assert all(map(is_generic, ["eng0", "eng11", "eng11_k2=4_k3=0"]))
    assert not any(map(is_generic, ["eng1", "eng10_k2=8_k13=1", "eng110", "eng44_k2=12_k18=0"]))


# Which plan is the best guess.


@dataclass(frozen=True)
class Facts:
    """A plan as it is offered."""

    name: str
    copied: Copied = NOTHING
    tensor_cores: bool = False
    transforms: bool = False


IMAGES = image(16, 55), image(64, 55, of=128)
WORKSPACE_NBYTES = {NOTHING: 0, SLICES: EXPAND + 16, TENSORS: SQUEEZE + EXPAND + 16}


def offered(facts: Sequence[Facts]) -> list[BuiltCudnnPlan]:
    return [BuiltCudnnPlan(each.name, WORKSPACE_NBYTES[each.copied], 0.0, each, 0) for each in facts]


def guess(has_tensor_cores: bool = True) -> CudnnPlanGuess:
    def fact(name: str) -> Callable[[BuiltCudnnPlan], bool]:
        return lambda plan: bool(getattr(plan._graph, name))

    return CudnnPlanGuess(IMAGES, fact("transforms"), fact("tensor_cores") if has_tensor_cores else None)


GENERIC, DIRECT, SLICING, COPYING = (
    Facts("eng11"), Facts("eng44_k2=4"), Facts("eng44_k2=2", SLICES), Facts("eng44_k2=12", TENSORS),
)  # fmt: skip
FAST, FAST_SLICING, FAST_COPYING = (
    Facts("eng51_k2=0", tensor_cores=True), Facts("eng51_k2=1", SLICES, True), Facts("eng51_k2=2", TENSORS, True),
)  # fmt: skip
WINOGRAD = Facts("eng15", TENSORS, transforms=True)


@pytest.mark.parametrize(
    ("facts", "index"),
    [
        ([DIRECT, GENERIC, COPYING], 0),
        ([GENERIC, COPYING, SLICING, DIRECT, DIRECT], 3),
        ([COPYING, WINOGRAD, DIRECT], 1),
        ([GENERIC, COPYING, SLICING], 2),
        ([GENERIC, COPYING], 0),
        ([COPYING, GENERIC], 0),
        ([GENERIC], 0),
    ],
)
def test_strict_float32_chooses_a_tuned_plan_with_the_fewest_copies(facts: list[Facts], index: int) -> None:
    plans = offered(facts)
    assert guess(has_tensor_cores=False).best(plans) is plans[index]


@pytest.mark.parametrize(
    ("facts", "index"),
    [
        ([FAST, DIRECT], 0),
        ([DIRECT, FAST], 0),
        ([FAST_COPYING, DIRECT, FAST_SLICING, FAST], 3),
        ([GENERIC, FAST_COPYING, DIRECT, FAST_SLICING], 3),
        ([FAST_COPYING, GENERIC, DIRECT], 0),
        ([GENERIC, FAST_COPYING, DIRECT], 0),
        ([GENERIC, COPYING, DIRECT], 2),
    ],
)
def test_other_precisions_take_tensor_cores_where_a_plan_has_them(facts: list[Facts], index: int) -> None:
    plans = offered(facts)
    assert guess().best(plans) is plans[index]


names = st.sampled_from(["eng0", "eng11_k2=4", "eng44", "eng51"])
some_facts = st.builds(Facts, names, st.sampled_from(list(Copied)), st.booleans(), st.booleans())


@given(st.lists(some_facts, min_size=1, max_size=8), st.booleans())
def test_no_plan_after_a_settled_choice_is_better(facts: list[Facts], has_tensor_cores: bool) -> None:
    plans, judge = offered(facts), guess(has_tensor_cores)
    settled = [count for count in range(1, len(plans) + 1) if judge.is_settled(plans[:count])]
    if settled:
        assert judge.best(plans[: settled[0]]) is judge.best(plans)
        assert judge.copied(judge.best(plans)) is NOTHING


def test_there_is_a_choice_where_one_tuned_plan_copies_no_tensors() -> None:
    assert guess().has_choice(offered([GENERIC, FAST_COPYING, DIRECT]))
    assert guess().has_choice(offered([FAST_SLICING]))
    assert guess().has_choice(offered([WINOGRAD]))
    assert not guess().has_choice(offered([GENERIC, FAST_COPYING, COPYING]))


# Plans of cuDNN for a simulated H100.


@pytest.mark.skipif(desk_cudnn.missing() is not None, reason=desk_cudnn.missing() or "")
@pytest.mark.parametrize("precision", ["fp32", "tf32", "fp16"])
def test_no_guess_copies_tensors_in_the_preferred_layout(precision: PrecisionName) -> None:
    target, layout = desk_cudnn.described(), preferred_layout(precision, H100)
    for batch in (1, 8):
        lowering = lower(LoweredModel(fire(batch), Precision(precision), layout), sequential(fire(batch).graph))
        for task in (task for lane in lowering.plan.lanes for task in lane):
            kernel = lowering.kernels[task.kernel]
            if isinstance(kernel, CudnnKernel):
                judge = CudnnPlanGuess.of(kernel, task.reads, task.writes, target)
                offer = build_cudnn_plans(kernel, task.reads, task.writes, target, at_most=1, enough=judge.is_settled)
                taken = judge.best(offer.plans)
                assert not is_generic(taken.name)
                assert judge.copied(taken) < TENSORS
                assert judge.uses_tensor_cores is None or judge.uses_tensor_cores(taken) or taken is offer.plans[0]
