"""The official client, unmodified; whole and streamed answers of real nodes: `tests/e2e/test_clients.py`, `test_api.py`."""

import openai
import pytest

from tests.support.cluster import cluster
from tests.support.fake_answers import MODEL


async def test_the_openai_client_understands_errors() -> None:
    """An unknown model is an exception of its own; a broken stream raises, it does not end the loop."""
    async with (
        cluster() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == [MODEL]
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="unheard of", prompt="a")
        running.decode[0].fault, running.decode[0].token_delay_s = "cut", 0.02
        with pytest.raises(openai.APIError, match="the decode node failed while it was answering"):
            async for _ in await client.completions.create(model=MODEL, prompt="a", stream=True):
                pass
        await running.until_ready()
        with pytest.raises(openai.APIError, match="the decode node failed while it was answering"):
            async for _ in await client.responses.create(model=MODEL, input="a", stream=True):
                pass
