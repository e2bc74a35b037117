"""The connector that pushes a prompt's KV cache, layer by layer, from a prefill node into a decode node.

Read `connector.py` for what vLLM sees, `protocol/messages.py` for what crosses the wire and `handoff/` for the rules.
`layout/regions.py` and `layout/copy_plan.py` turn block ids into byte copies; `engine/` carries those out;
`control/loop.py` carries the control messages. Only `connector.py`, the two `*_side` rooms and
`vllm_compat/fingerprint.py` know vLLM.
"""
