"""How much of the KV transfer disappears behind the prefill, next to vLLM's own connector in the same run.

`figures` says what is computed from the samples, `subjects` how one sample is taken, `session` in which order, `report`
how it is shown. What is measured is started by `baton.deploy.overlap`: `python -m baton.deploy.overlap --help`.
"""
