"""Methods of speculative decoding that this machine cannot run are refused before vLLM begins."""

from contextlib import nullcontext

import pytest

from baton.node.errors import StartRefusedError
from baton.node.startup import checks
from baton.node.startup.checks import check_speculation, speculative_method


@pytest.mark.parametrize(
    ("arguments", "method"),
    [
        ([], ""),
        (["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}'], "ngram"),
        (["-sc", '{"method": "suffix"}'], "suffix"),
        (['--speculative_config={"method": "suffix"}'], "suffix"),
        (["--spec-method", "suffix", "--spec-tokens", "3"], "suffix"),
        (["--speculative-config.method", "suffix", "--speculative-config.num_speculative_tokens", "3"], "suffix"),
        (["--speculative_config.num_speculative_tokens=3", "--speculative_config.method=ngram_gpu"], "ngram_gpu"),
        (["--speculative-config", '{"model": "a draft model"}'], ""),
        (["--speculative-config", "{"], ""),
        (["--speculative-config", "[]"], ""),
        (["--speculative-config"], ""),
    ],
)
def test_the_method_is_read_off_every_spelling(arguments: list[str], method: str) -> None:
    """What is not understood is for vLLM to refuse."""
    assert speculative_method(["--dtype", "float32", *arguments]) == method


@pytest.mark.parametrize(
    ("method", "device", "package", "words"),
    [
        ("suffix", "cuda", None, "'suffix' needs the package arctic-inference: install it, or use 'ngram'"),
        ("suffix", "cuda", "there", ""),
        ("ngram_gpu", "cpu", None, "'ngram_gpu' needs an accelerator: use 'ngram'"),  # it takes pinned memory
        ("ngram_gpu", "cuda", None, ""),
        ("ngram", "cpu", None, ""),
    ],
)
def test_a_method_needs_its_package_or_an_accelerator(
    monkeypatch: pytest.MonkeyPatch, method: str, device: str, package: str | None, words: str
) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda _: package)
    with pytest.raises(StartRefusedError, match=words) if words else nullcontext():
        check_speculation(["--spec-method", method], device)
