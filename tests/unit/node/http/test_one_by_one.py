"""Outputs that vLLM's server has not read yet stay apart."""

import asyncio
from typing import Any, cast

import pytest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.output_processor import RequestOutputCollector

from baton.node.http.one_by_one import merge_nothing


def output(token: int) -> RequestOutput:
    said = CompletionOutput(index=0, text=str(token), token_ids=[token], cumulative_logprob=None, logprobs=None)
    return RequestOutput("r", None, None, None, [said], finished=False)


def ids(found: Any) -> list[int]:
    return list(cast("RequestOutput", found).outputs[0].token_ids)


async def test_each_output_is_handed_out_by_itself() -> None:
    """In order, to those that wait and those that do not; what comes in between stands behind."""
    queue = RequestOutputCollector(RequestOutputKind.DELTA, "r")
    taken: list[Any] = []
    merge_nothing(queue, taken.append)
    merge_nothing(queue, taken.append)  # as for each of several answers
    waiting = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    for token in range(4):
        queue.put(output(token))
    got = [ids(await waiting), ids(queue.get_nowait())]
    queue.put(output(4))
    got += [ids(await queue.get()) for _ in range(3)]

    assert got == list(map(ids, taken)) == [[token] for token in range(5)]
    assert queue.get_nowait() is None
    for late in (
        output(5),
        output(6),
        RuntimeError("the engine is dead"),
    ):  # an error passes what waits, as vLLM's own does
        queue.put(late)
    with pytest.raises(RuntimeError):
        await queue.get()
