"""What Baton overrides, calls and reads of vLLM, as facts about each version: names and parameters, never code.

    python -m tests.support.vllm_signatures FOLDER     # with `vllm/` and `vllm*.dist-info/` in it, as pip unpacks a wheel

writes `versions/<version>.json`, which `tests/unit/test_vllm_signatures.py` compares our code with. Without FOLDER it reads
the installed vLLM. To be run for a new version of vLLM, and when our code begins to use another name of it.
"""
