"""How much of the transfer the prefill hides, on a throttled link, beside vLLM's MooncakeConnector.

`session` takes the samples over HTTP, `figures` computes (pure), `report` shows; `rig`, `network`, `servers` and `processes` start, join
and stop what is measured. Run it with `python -m benchmarks.overlap`.
"""
