import pytest

from baton.node.errors import StartRefusedError
from baton.node.startup.flags import OWNED, count_of, given, ranks_of, refuse_owned, value_of


@pytest.mark.parametrize(
    "spelling",
    [
        *sorted(OWNED),
        *("--kv_transfer_config", "--kv-transfer-config={}", "--kv-transfer-config.kv_role", "--kv-transfer"),
        *("--disable_log_stats", "--por"),
    ],
)
def test_an_owned_flag_is_refused_in_every_spelling(spelling: str) -> None:
    """The parser of vLLM also takes underscores, `=`, dotted keys and prefixes."""
    with pytest.raises(StartRefusedError, match=spelling.partition("=")[0]):
        refuse_owned(["--dtype", "float32", spelling, "x"])


@pytest.mark.parametrize(
    "flag", ["--model-impl", "--kv-cache-dtype", "--portable", "-tp", "--hosted", "--config-format"]
)
def test_flags_that_only_look_alike_pass(flag: str) -> None:
    refuse_owned([flag, "x"])


def test_sizes_of_engines_pass() -> None:
    """Though the flag of something that is refused begins with one of them."""
    refuse_owned(["--data-parallel-size", "2", "-dp", "2", "-tp=2"])
    refuse_owned([])

    assert ranks_of(["-tp", "2", "--pipeline-parallel-size=3", "-dp", "4"]) == (6, 4)
    assert ranks_of([]) == (1, 1)


def test_a_word_without_a_flag_is_refused() -> None:
    """It would be taken for a second model."""
    with pytest.raises(StartRefusedError, match="'some/model'"):
        refuse_owned(["some/model", "--dtype", "float32"])


@pytest.mark.parametrize(
    ("argument", "flag"),
    [
        *((each, "--enforce-eager") for each in ("--no-enforce-eager", "--enforce_eager", "--enforce-eager=1")),
        ("-O3", "-O"),  # the level may be glued on
        ("-cc.mode=3", "-cc"),
    ],
)
def test_a_flag_is_found_in_any_spelling(argument: str, flag: str) -> None:
    """`given` also counts the negated form: either way the user has decided."""
    assert given(["--dtype", "float32", argument], flag)
    assert not given(["-o"], flag)


def test_the_last_value_wins() -> None:
    assert value_of(["--dtype", "auto", "--dtype=float32"], "--dtype") == "float32"
    assert value_of(["--dtype=float32", "--dtype", "auto"], "--dtype") == "auto"
    assert value_of(["--dtype"], "--dtype") is None
    assert value_of([], "--dtype") is None


def test_counts_default_to_one_and_must_be_positive() -> None:
    assert count_of([], "--tensor-parallel-size", "-tp") == 1
    assert count_of(["-tp", "2"], "--tensor-parallel-size", "-tp") == 2
    for text in ("two", "0", "-1"):
        with pytest.raises(StartRefusedError, match="--tensor-parallel-size"):
            count_of(["-tp", text], "--tensor-parallel-size", "-tp")
