"""What only an accelerator can show: ten stand-alone scripts, E1 to E10, each with its figures written down before the run.

`make test-gpu` (`python -m tests.gpu --json out.json`) runs them on a CUDA device; they need torch, msgspec, pyzmq and, for E3,
Mooncake's CUDA wheel, but not vLLM. `--late` rehearses them on a simulated device, which shows that a script works and no speed.

    harness    expectations, the verdict, what was installed
    device     a CUDA device; `late` stands in for it
    model      layers of Qwen3-8B's shapes
    rank       the real sender thread opposite a link that is a clock
    e1 … e10   `TITLE`, `EXPECTED`, `run(device, scale)`
"""
