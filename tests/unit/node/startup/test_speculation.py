"""Methods of speculative decoding that this machine cannot run are refused before vLLM begins."""

import importlib.util

import pytest

from baton.node.errors import StartRefusedError
from baton.node.startup import speculation
from baton.node.startup.speculation import method_of, refuse_unrunnable


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
    assert method_of(["--dtype", "float32", *arguments]) == method


def test_suffixes_need_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not come with vLLM; where it is, the method may be used."""
    flags = ["--spec-method", "suffix"]
    monkeypatch.setattr(speculation, "find_spec", lambda _: None)
    with pytest.raises(
        StartRefusedError, match="'suffix' needs the package arctic-inference: install it, or use 'ngram'"
    ):
        refuse_unrunnable(flags, "cuda")

    monkeypatch.setattr(speculation, "find_spec", lambda _: importlib.util.find_spec("json"))
    refuse_unrunnable(flags, "cuda")


def test_ngrams_on_a_gpu_need_one() -> None:
    """The kernel takes pinned memory, which a CPU has not."""
    flags = ["--spec-method", "ngram_gpu"]
    with pytest.raises(StartRefusedError, match="'ngram_gpu' needs an accelerator: use 'ngram'"):
        refuse_unrunnable(flags, "cpu")

    refuse_unrunnable(flags, "cuda")
    refuse_unrunnable(["--spec-method", "ngram"], "cpu")
