"""A client request: parsing, fields, headers that name it, the bodies of its prefill and decode legs, and what decides which nodes may serve it.

Anthropic's messages and OpenAI's responses are disaggregated as chats are: vLLM takes `kv_transfer_params` in either.
What differs is told here, one module for each question: `leg_bodies`, `single_node` (what one node has to serve),
`error_format` (errors).
"""
