"""What a worker makes of what is sent to it, in whatever order it arrives; without Ray."""

from __future__ import annotations

import asyncio
import json

import pytest

from iosched.jobs.fleet.ray.actor import WorkerActor
from iosched.jobs.fleet.ray.outbox import Outbox
from iosched.jobs.fleet.ray.wire import encoded, event_in
from iosched.jobs.fleet.transport import Call, Event, Returned, Said, Tell, WorkerUp

STANDIN = "standin_worker:Standin"


def told(text: str) -> bytes:
    return encoded(Tell("w", "c", json.dumps(text).encode()))


async def worker() -> tuple[WorkerActor, Event]:
    actor = WorkerActor("w", "cpu", 1, (), STANDIN)
    return actor, event_in(await actor.up())


async def said_until_returned(actor: WorkerActor) -> list[Event]:
    events: list[Event] = []
    while not any(isinstance(event, Returned) for event in events):
        events += [event_in(line) for line in await actor.said(len(events))]
    return events


def test_it_comes_up_with_its_facts() -> None:
    async def trial() -> Event:
        return (await worker())[1]

    event = asyncio.run(trial())
    assert isinstance(event, WorkerUp)
    assert json.loads(event.facts)["device"] == "cpu"


@pytest.mark.parametrize("order", [(1, 2, 3), (3, 2, 1), (2, 3, 1)])
def test_messages_are_taken_in_the_order_in_which_they_were_sent(order: tuple[int, ...]) -> None:
    sent = {1: encoded(Call("w", "c", b'{"echo": 2}')), 2: told("first"), 3: told("second")}

    async def trial() -> list[Event]:
        actor, _ = await worker()
        for number in order:
            await actor.do(number, sent[number], {})
        return await said_until_returned(actor)

    *said, returned = asyncio.run(trial())
    assert said == [Said("w", "c", b'"first"'), Said("w", "c", b'"second"')]
    assert returned == Returned("w", "c", b'{"heard": ["first", "second"]}')


def test_what_is_told_to_a_call_that_has_ended_does_nothing() -> None:
    async def trial() -> list[bytes]:
        actor, _ = await worker()
        await actor.do(1, encoded(Call("w", "c", b"{}")), {})
        await said_until_returned(actor)
        await actor.do(2, told("late"), {})
        await actor.do(3, encoded(Call("w", "d", b"{}")), {})
        return await actor.said(1)

    assert [event_in(line) for line in asyncio.run(trial())] == [Returned("w", "d", b'{"heard": []}')]


def test_a_failure_comes_after_what_was_said_before_it() -> None:
    async def trial() -> list[bytes]:
        actor, _ = await worker()
        await actor.do(1, encoded(Call("w", "c", b'{"fail": "broken"}')), {})
        lines = await actor.said(0)
        with pytest.raises(RuntimeError, match="broken"):
            await actor.said(len(lines))
        return lines

    assert [event_in(line) for line in asyncio.run(trial())] == [Said("w", "c", b'"failing"')]


def test_an_answer_that_was_lost_on_its_way_is_given_again() -> None:
    async def trial() -> list[list[bytes]]:
        outbox = Outbox()
        outbox.add(b"one")
        outbox.add(b"two")
        first = await outbox.after(0, 1)
        again = await outbox.after(0, 1)
        rest = await outbox.after(1, 1)
        return [first, again, rest, await outbox.after(2, 0.01)]

    assert asyncio.run(trial()) == [[b"one", b"two"], [b"one", b"two"], [b"two"], []]
