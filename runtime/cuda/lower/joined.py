"""Joins small kernels of several operators, where the tensors between them have one reader and are no graph outputs.

`joined` holds for every schedule, like `hoist`: a kernel moves to an operator that always runs after all its operands.
Moves that depend on the order of operators are left to `sums_in_separables`, for each group of a stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import reduce
from math import prod
from operator import or_
from typing import TypeVar

from iosched.models.graph import ComputationGraph
from iosched.runtime.cuda.builder import Builder, KernelCall
from iosched.runtime.cuda.kernels.add import AddN
from iosched.runtime.cuda.kernels.conv import Conv
from iosched.runtime.cuda.kernels.pool import Pool
from iosched.runtime.cuda.kernels.separable import Separable
from iosched.runtime.cuda.lower.hoist import Calls
from iosched.runtime.cuda.source.activation import IDENTITY

T = TypeVar("T")
Owned = Sequence[tuple[KernelCall, T]]
"""Calls in an order in which they may run, each with its owner."""


def joined(builder: Builder, calls: Calls) -> dict[str, list[KernelCall]]:
    """`calls` by operator with fewer or smaller kernels; may add tensors and constants to `builder`.

    An average moves after the 1x1 convolution that reads it, unless that has more output than input channels. A pool
    moves into the sum that reads it, and a sum into a separable convolution if the other terms are known by then.
    """
    graph, private = builder.model.graph, private_tensors(builder.model.graph, calls)
    found = [(call, operator) for operator, own in calls.items() for call in own]
    found = _pools_in_sums(builder, _pools_last(builder, found, private), private)
    makers = {name: operator for call, operator in found for name in call.writes}
    upto: dict[str, int] = {}  # bits of each operator and of those that run before it
    for number, operator in enumerate(graph.operators):
        upto[operator.name] = reduce(or_, (upto[name] for name in graph.predecessors[operator.name]), 1 << number)

    def is_before(name: str, at: int) -> bool:
        maker, owner = makers.get(name), found[at][1]
        return maker is None or (maker != owner and upto[maker] | upto[owner] == upto[owner])

    result: dict[str, list[KernelCall]] = {operator: [] for operator in calls}
    for call, owner in sums_in_separables(found, private, is_before):
        result[owner].append(call)
    return result


def private_tensors(graph: ComputationGraph, calls: Calls) -> frozenset[str]:
    """Tensors with one reader that are no graph outputs."""
    counts = Counter(name for own in calls.values() for call in own for name in call.reads)
    return frozenset(name for name, count in counts.items() if count == 1).difference(graph.outputs)


def sums_in_separables(
    calls: Owned[T], private: frozenset[str], is_before: Callable[[str, int], bool] | None = None
) -> list[tuple[KernelCall, T]]:
    """`calls` with sums in the separable convolutions that write one of their terms.

    Args:
        private: see `private_tensors`.
        is_before: whether a tensor is known before the call of this index; by default, if no later call writes it.
    """
    writer = {name: index for index, (call, _) in enumerate(calls) for name in call.writes}
    known = is_before or (lambda name, index: writer.get(name, -1) < index)
    found: dict[int, tuple[KernelCall, T]] = dict(enumerate(calls))
    for index, (call, _) in enumerate(calls):
        if not isinstance(call.kernel, AddN):
            continue
        for term in private.intersection(call.reads):  # of several separable convolutions, only the last one fits
            others = tuple(name for name in call.reads if name != term)
            at = writer.get(term, index)
            first, owner = found.get(at, calls[index])
            kernel = first.kernel
            if not isinstance(kernel, Separable) or not kernel.activation.is_identity:
                continue
            if all(known(name, at) for name in others):
                made = replace(kernel, activation=call.kernel.activation)
                found[at] = KernelCall(made, (*first.reads, *others), call.writes), owner
                del found[index]
                break
    return list(found.values())


def _plain_pools(calls: Owned[str], private: Collection[str]) -> dict[str, tuple[int, Pool]]:
    """Pools without terms, with their index among the calls, by their private results."""
    return {
        call.writes[0]: (index, call.kernel)
        for index, (call, _) in enumerate(calls)
        if isinstance(call.kernel, Pool) and len(call.reads) == 1 and call.kernel.activation.is_identity
        if call.writes[0] in private
    }


def _pools_in_sums(builder: Builder, calls: Owned[str], private: Collection[str]) -> list[tuple[KernelCall, str]]:
    pools, found = _plain_pools(calls, private), dict(enumerate(calls))
    x_of = {name: calls[index][0].reads[0] for name, (index, _) in pools.items()}
    for index, (call, operator) in enumerate(calls):
        inside = [name for name in call.reads if name in pools]
        if not isinstance(call.kernel, AddN) or not inside:
            continue
        windows = {name: (pools[name][1], builder.shape(x_of[name])) for name in inside}
        kernel, _ = first = windows[inside[0]]
        taken = [name for name in inside if windows[name] == first] if kernel.average else inside[:1]
        reads = *(x_of[name] for name in taken), *(name for name in call.reads if name not in taken)
        made = replace(kernel, pooled=len(taken), activation=call.kernel.activation)
        found[index] = KernelCall(made, reads, call.writes), operator
        for name in taken:
            del found[pools[name][0]]
    return list(found.values())


def _pools_last(builder: Builder, calls: Owned[str], private: Collection[str]) -> list[tuple[KernelCall, str]]:
    pools, found = _plain_pools(calls, private), list(calls)
    for index, (call, operator) in enumerate(calls):
        kernel = call.kernel
        if not isinstance(kernel, Conv) or call.reads[0] not in pools:
            continue
        at, pool = pools[call.reads[0]]
        (x,), y = calls[at][0].reads, call.writes[0]
        if not _commutes(pool, builder.shape(x), kernel, builder.shape(y), builder.shape(call.reads[1])):
            continue
        linear, weight = builder.temporary(f"{y}/linear", builder.shape(y)), call.reads[1]
        product = replace(kernel, bias=False, activation=IDENTITY)
        found[at] = KernelCall(product, (x, weight), (linear,)), calls[at][1]
        last, reads = replace(pool, activation=kernel.activation), [linear]
        if kernel.bias:
            bias = builder.weights[call.reads[2]].reshape(1, -1, *(1,) * len(kernel.strides))
            reads.append(builder.float32_weight(f"{y}/pixels", bias))
        found[index] = KernelCall(last, tuple(reads), (y,)), operator
    return found


def _commutes(pool: Pool, x: Sequence[int], kernel: Conv, y: Sequence[int], weight: Sequence[int]) -> bool:
    """Whether the pool is an average whose windows begin at each pixel, and `kernel` a 1x1 convolution for it.

    Other groups or padding change the size of the convolution's weights or result.

    Args:
        x, y: shapes of what the pool reads and the convolution writes.
    """
    still = prod(weight) == x[1] * y[1] and x[2:] == y[2:] and {*pool.window.strides, *kernel.strides} == {1}
    return pool.average and still and y[1] <= x[1] and not (kernel.leading_relu or kernel.residual)
