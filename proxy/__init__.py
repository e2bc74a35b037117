"""The HTTP front door: one OpenAI API over many prefill and decode nodes.

Start at `handler/request_handler.py`. This room never imports torch, vLLM or the connector: it talks to nodes over HTTP
only.
"""
