"""Tries one pair: the control port from D's machine, the engines that serve and a push of its own from P's."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from baton.contracts.probe import Dial, Greet, Push, Pushed, Question, Reached, Receive, Receiving, Release
from baton.deploy.doctor.asking import AskError, ProbeClient
from baton.deploy.doctor.fit import Known, control_addresses
from baton.deploy.doctor.links import Tried

RECEIVE_S: Final = 120.0  # besides the pause


async def try_pair(client: ProbeClient, prefill: Known, decode: Known, idle_s: float) -> Tried:
    """Try everything between two nodes that describe themselves."""
    assert prefill.info is not None  # it is usable
    dials = [Dial(address=address) for address in control_addresses(prefill.info)]
    greetings = [Greet(session=session) for session in decode.engines]
    control, data = await asyncio.gather(
        _first_problem(client, decode, dials), _first_problem(client, prefill, greetings)
    )
    try:
        push = await _push(client, prefill, decode, idle_s)
        problem = ""
    except AskError as exc:
        push, problem = None, str(exc)
    return Tried(prefill=prefill, decode=decode, control=control, data=data, push=push, problem=problem, idle_s=idle_s)


async def _first_problem(client: ProbeClient, node: Known, questions: Sequence[Question]) -> Reached | None:
    """Whether everything is reached; the first that is not, if something is not. None if it could not be asked."""
    try:
        answers: list[Reached] = await asyncio.gather(*(client.ask(node.url, each) for each in questions))
    except AskError:
        return None  # which the push says too
    return next((answer for answer in answers if answer.problem), Reached())


async def _push(client: ProbeClient, prefill: Known, decode: Known, idle_s: float) -> Pushed:
    target: Receiving = await client.ask(decode.url, Receive(seconds=RECEIVE_S + idle_s))
    try:
        order = Push(session=target.session, address=target.address, size_bytes=target.size_bytes, idle_s=idle_s)
        pushed: Pushed = await client.ask(prefill.url, order)
        return pushed
    finally:
        with suppress(AskError):  # it ends by itself, and says nothing of the push
            await client.ask(decode.url, Release(session=target.session))
