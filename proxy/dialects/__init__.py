"""How the other two ways of asking for text differ from OpenAI's chat and completions: Anthropic's messages, OpenAI's responses.

Both are disaggregated as chats are; vLLM takes `kv_transfer_params` in either. What differs is told here, one module for
each question: `prefill` (the prefill leg's body), `alone` (what one node has to serve), `ending` (how a stream ends),
`shapes` (errors). `typed_stream` joins them to the main path.
"""
