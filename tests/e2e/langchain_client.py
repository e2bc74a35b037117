"""LangChain's ChatOpenAI, as its documentation uses it. Run in an environment of its own: `langchain_client.py URL MODEL`."""

import json
import sys

from langchain_openai import ChatOpenAI


def main(url: str, model: str) -> None:
    """Print what `invoke` and `stream` return, as JSON."""
    chat = ChatOpenAI(
        base_url=f"{url}/v1", api_key="none", model=model, temperature=0, max_tokens=16, stream_usage=True
    )
    whole = chat.invoke("Who keeps the lighthouse in spring?")
    pieces = list(chat.stream("Who keeps the lighthouse in spring?"))
    usage = [piece.usage_metadata for piece in pieces if piece.usage_metadata]
    streamed = "".join(piece.content for piece in pieces)
    print(json.dumps({"invoke": whole.content, "stream": streamed, "usage": usage[-1]["total_tokens"]}))


if __name__ == "__main__":
    main(*sys.argv[1:])
