"""The connector that pushes a prompt's KV cache, layer by layer, from a prefill node into a decode node.

Read `connector.py` for what vLLM sees, `protocol.py` for what crosses the wire and `handoff/` for the rules.
`layout.py` and `plan.py` turn block ids into byte copies; `engine/` carries those out; `side_channel.py` carries the
control messages. Only `connector.py`, the two `*_side` rooms and `fingerprint.py` know vLLM.
"""
