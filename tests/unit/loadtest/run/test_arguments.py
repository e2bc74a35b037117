import pytest

from baton.loadtest.errors import UsageError
from baton.loadtest.run.build import parse
from baton.loadtest.run.environment import shown

URL = ("--url", "http://a:1")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "--url"),
        ([*URL, "--frobnicate"], "--frobnicate"),
        ([*URL, "--conc", "2"], "--conc"),
        ([*URL, "--concurrency", "0"], "--concurrency: '0' is no whole number of 1 or more"),
        ([*URL, "--rate", "-1"], "--rate: '-1' is not above 0"),
        ([*URL, "--rates", "1,x"], "--rates: 'x' is no number"),
        ([*URL, "--vocabulary", "9:9"], "empty range"),
        ([*URL, "--header", "no colon"], "--header"),
        ([*URL, "--header", "X: a\nY: b"], "--header"),
        ([*URL, "--api-key", "k\nY: b"], "the API key"),
        ([*URL, "--model", "m\udcff"], "--model"),
        ([*URL, "--rate", "1", "--rates", "1,2"], "--rate and --rates exclude each other"),
        ([*URL, "--trace", "t", "--rate", "1"], "--trace has arrival times of its own"),
        ([*URL, "--trace", "t", "--max-tokens", "1"], "use --max-output"),
        ([*URL, "--trace", "t", "--prompts", "p"], "--prompts"),
        ([*URL, "--time-scale", "2"], "--time-scale needs --trace"),
        ([*URL, "--burstiness", "2"], "--burstiness needs --rate"),
        ([*URL, "--ramp-to", "2", "--requests", "9"], "--ramp-to needs --rate"),
        ([*URL, "--ramp-to", "2", "--rate", "1"], "--ramp-to needs --requests"),
        ([*URL, "--goodput", "itl:5"], "--goodput itl:5"),
        ([*URL, "--extra-body", "{"], "--extra-body is no JSON"),
        ([*URL, "--extra-body", "[" * 100_000], "--extra-body is no JSON"),
        ([*URL, "--extra-body", '{"a": "\\ud800"}'], "--extra-body is no JSON"),
        ([*URL, "--extra-body", '{"a": "\udcff"}'], "--extra-body is no JSON"),
        ([*URL, "--extra-body", "[]"], "--extra-body is no JSON object"),
        ([*URL, "--secret-file", "s"], "--secret-file needs --metrics-url"),
    ],
)
def test_a_wrong_argument_is_one_clear_line(argv: list[str], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(argv)

    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_key_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command line wins, unless it gives nothing."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    assert parse([*URL]).api_key is None
    monkeypatch.setenv("OPENAI_API_KEY", "env")
    assert parse([*URL]).api_key == parse([*URL, "--api-key", ""]).api_key == "env"
    assert parse([*URL, "--api-key", "given"]).api_key == "given"
    monkeypatch.setenv("OPENAI_API_KEY", "from a file\n")
    assert parse([*URL]).api_key == "from a file"


def test_no_secret_is_shown() -> None:
    given = parse([*URL, "--api-key", "s3cret", "--header", "X-Token: s3cret", "--burstiness", "inf", "--rate", "1"])

    assert "s3cret" not in str(shown(given))
    assert (shown(given)["api_key"], shown(given)["header"], shown(given)["burstiness"]) == (True, ["X-Token"], "inf")
