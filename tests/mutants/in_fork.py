"""What runs in a fork of `python -m tests.mutants`: the tests of one fault, in a process that has imported vLLM already."""

import importlib
import os
import sys

LIBRARIES = (
    "vllm.entrypoints.openai.api_server",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
    "openai",
    "httpx",
)
OURS = ("baton", "tests")
# No test may start with more of pytest than it would have by itself.
OPTIONS = ("-x", "-q", "--timeout=60", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def import_libraries() -> None:
    for name in LIBRARIES:
        importlib.import_module(name)


def run_tests(tree: str, tests: list[str]) -> int:
    """Run these tests of `tree`, with its product code; return pytest's exit status."""
    import pytest

    for name in [name for name in sys.modules if name.partition(".")[0] in OURS]:
        del sys.modules[name]
    os.chdir(tree)
    sys.path.insert(0, tree)
    sys.dont_write_bytecode = True
    return int(pytest.main([*OPTIONS, *tests]))
