"""Items of prompts whose KV has come, in vLLM's own scheduler."""

from pathlib import Path

import pytest
from vllm.multimodal.inputs import MultiModalFeatureSpec, MultiModalKwargsItem, PlaceholderRange

from tests.integration.kv_connector.test_start_tokens import Engine


@pytest.mark.parametrize("receives", [True, False], ids=["with its KV", "without"])
def test_a_worker_gets_every_item_whole(tmp_path: Path, receives: bool) -> None:
    """Version 0.32 of vLLM would leave out its pixels, and end the engine when the request is preempted and computed again."""
    engine = Engine(tmp_path, 20)
    request = engine.ask("a", 40)
    data = MultiModalKwargsItem({})
    request.mm_features = [MultiModalFeatureSpec(data, "image", "i", PlaceholderRange(offset=3, length=5), "i")]
    engine.step()
    ended = {"received": ["a"]} if receives else {"failed": ["a"]}
    engine.step(started=["a"], **ended)

    output = engine.scheduler.schedule()

    assert [new.req_id for new in output.scheduled_new_reqs] == ["a"]
    assert output.scheduled_new_reqs[0].num_computed_tokens == (40 if receives else 0)
    assert [feature.data for feature in output.scheduled_new_reqs[0].mm_features] == [data]
