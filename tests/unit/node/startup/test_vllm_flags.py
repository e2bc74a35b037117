import pytest

from baton.node.errors import StartRefusedError
from baton.node.startup.vllm_flags import installed_vllm, read_flags, refuse_unknown
from tests.support.vllm_flags import read_parser

FLAGS = {"1.2": ["--dtype", "--kv-cache-memory-bytes", "--seed", "-tp", "-O", "-cc"]}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--dtype", "float32", "-tp", "2", "--seed", "-1"],
        ["--kv_cache_memory_bytes=5", "-cc.mode=3", "-O3", "--dtype=-x", "-O.level=2"],
        [],
    ],
)
def test_known_flags_pass_in_every_spelling(arguments: list[str]) -> None:
    """As vLLM's parser takes them: underscores, `=`, parts of a JSON value; values are not flags."""
    refuse_unknown(arguments, installed="1.2", flags=FLAGS)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--prefil", "vLLM 1.2 has no flag --prefil: did you mean --prefill?"),
        ("--dtpye=x", "vLLM 1.2 has no flag --dtpye: did you mean --dtype?"),
        ("--no-such-flag", "vLLM 1.2 has no flag --no-such-flag"),
        ("--kv-cache-mem", "vLLM 1.2 has no flag --kv-cache-mem"),
        ("-x", "vLLM 1.2 has no flag -x"),
    ],
)
def test_an_unknown_flag_is_refused_with_the_nearest(argument: str, message: str) -> None:
    """An abbreviation is unknown too: it is not guessed what it stands for."""
    with pytest.raises(StartRefusedError, match=f"^{message.replace('?', '[?]')}"):
        refuse_unknown(["--dtype", "auto", argument, "2"], ["--prefill"], installed="1.2", flags=FLAGS)


def test_a_version_that_is_not_listed_refuses_nothing() -> None:
    refuse_unknown(["--of-a-later-version"], installed="9.9", flags=FLAGS)


def test_the_installed_vllm_has_a_list() -> None:
    """Another version wants one: `python -m tests.support.vllm_flags`."""
    assert installed_vllm() in {"", *read_flags()}


@pytest.mark.exhaustive
def test_the_list_is_that_of_the_installed_vllm() -> None:
    """Read from vLLM's own parser again, which takes ten seconds."""
    pytest.importorskip("vllm")
    version, flags = read_parser()
    assert version == installed_vllm()
    assert read_flags()[version] == flags
