"""Questions of a search that runs elsewhere: what is measured to answer them is said as rows."""

from __future__ import annotations

import math
import time

import msgspec

from iosched.jobs.fleet.work.kind import Kind, Order
from iosched.profiler.devices.open_settings import OpenSettings
from iosched.runtime.faults import Faults
from iosched.scheduler.asking import ask
from iosched.scheduler.questions import Question


class Questions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Questions about a model that is opened in this way."""

    opening: OpenSettings
    questions: tuple[Question, ...] = ()


def _do(order: Order[Questions]) -> int:
    """Asks the cost model; returns how many it answered. The model stays open for the next packet."""
    opening = order.station.opening(order.work.opening)
    cost = order.station.cost(order.sent, order.files, opening)
    answered, faults = 0, Faults()
    end = math.inf if order.left_s is None else time.monotonic() + order.left_s
    for question in order.work.questions:
        if order.conversation.came:
            raise KeyboardInterrupt
        if time.monotonic() >= end:
            break
        with faults.contained("a question"):  # the search meets the same when it asks for itself
            ask(cost, question)
            answered += 1
    return answered


KIND = Kind("questions", Questions, int, _do)
