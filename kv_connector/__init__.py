"""The connector that pushes a prompt's KV cache, layer by layer, from a prefill node into a decode node.

Read `connector.py` for what vLLM sees, `protocol/messages.py` for what crosses the wire, `handoff/` for the rules.
`layout/` turns block ids into byte copies, `engine/` carries those out, `control/loop.py` the control messages.
"""
