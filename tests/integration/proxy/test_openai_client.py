"""The official client, unmodified."""

import openai
import pytest

from tests.support.cluster import cluster
from tests.support.fake_answers import MODEL

TEXT = " wörd0 wörd1 wörd2"


async def test_the_openai_client_works_unmodified() -> None:
    """Chat and completions, whole and streamed, the list of models, and an error."""
    async with cluster() as running, openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="k") as client:
        assert [model.id async for model in client.models.list()] == [MODEL]
        assert (await client.models.retrieve(MODEL)).id == MODEL
        completion = await client.completions.create(model=MODEL, prompt="a", max_tokens=3)
        assert completion.choices[0].text == TEXT
        chat = await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": "a"}])
        assert chat.choices[0].message.content == TEXT
        completion_stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
        assert "".join([chunk.choices[0].text async for chunk in completion_stream]) == TEXT
        chat_stream = await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "a"}], stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in chat_stream]) == TEXT
        with pytest.raises(openai.NotFoundError, match="does not exist"):
            await client.completions.create(model="unheard of", prompt="a")


async def test_the_openai_client_sees_a_broken_stream_as_an_error() -> None:
    """The error event raises, it does not end the loop."""
    async with (
        cluster() as running,
        openai.AsyncOpenAI(base_url=f"{running.url}/v1", api_key="k", max_retries=0) as client,
    ):
        running.decode[0].fault, running.decode[0].token_delay_s = "cut", 0.02
        stream = await client.completions.create(model=MODEL, prompt="a", stream=True)
        with pytest.raises(openai.APIError, match="the decode node failed while it was answering"):
            async for _ in stream:
                pass
