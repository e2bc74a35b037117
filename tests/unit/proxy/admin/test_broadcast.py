from unittest.mock import AsyncMock, Mock

import pytest

from baton.proxy.admin.broadcast import fan_out
from tests.unit.proxy.members import node


@pytest.mark.parametrize(
    ("path", "variable"),
    [
        ("/v1/load_lora_adapter", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ("/v1/unload_lora_adapter", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"),
        ("/reset_prefix_cache?reset_external=true", "VLLM_SERVER_DEV_MODE=1"),
    ],
)
async def test_a_node_without_the_route_is_told_from_one_that_did_not_find_it(path: str, variable: str) -> None:
    nodes = [node("decode", routes=["/health"]), node("decode", routes=[path.partition("?")[0]]), node("decode")]

    answer = Mock(status=404, read_all=AsyncMock(return_value=b'{"error":{"message":"Not Found"}}'))

    without, with_it, unknown = await fan_out(Mock(post=AsyncMock(return_value=answer)), nodes, path, b"")

    assert variable in without.answer
    assert with_it.answer == unknown.answer == {"error": {"message": "Not Found"}}
    assert not any(each.ok for each in (without, with_it, unknown))
