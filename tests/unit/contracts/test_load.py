import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from baton.contracts.configuration.load import (
    HINTS,
    READ_ELSEWHERE,
    ConfigError,
    choose_file,
    environment_name,
    flag_name,
    load,
)
from baton.contracts.configuration.schema import BatonConfig

SOURCES = ("default", "file", "environment", "flag")


def test_nothing_given_is_the_default(tmp_path: Path) -> None:
    loaded = load({}, {"PATH": "/bin"}, None)

    assert loaded.config == BatonConfig()
    assert loaded.origin == dict.fromkeys(HINTS, "default")


@pytest.mark.parametrize("given", [set(chosen) for n in range(4) for chosen in itertools.combinations(SOURCES[1:], n)])
def test_the_strongest_source_wins(tmp_path: Path, given: set[str]) -> None:
    file = write(tmp_path, {"proxy": {"port": 1}}) if "file" in given else None
    environ = {"BATON_PROXY_PORT": "2"} if "environment" in given else {}
    flags = {"proxy.port": "3"} if "flag" in given else {}

    loaded = load(flags, environ, file)

    expected = {
        "default": (8000, "default"),
        "file": (1, str(file)),
        "environment": (2, "environment BATON_PROXY_PORT"),
        "flag": (3, "flag --port"),
    }
    strongest = max(given | {"default"}, key=SOURCES.index)
    assert (loaded.config.proxy.port, loaded.origin["proxy.port"]) == expected[strongest]


def test_sources_are_merged_field_by_field(tmp_path: Path) -> None:
    file = write(tmp_path, {"proxy": {"port": 1, "host": "10.0.0.1"}, "serve": {"prefill": 3}})

    config = load({"proxy.port": 9}, {"BATON_SERVE_DECODE": "4"}, file).config

    assert (config.proxy.port, config.proxy.host) == (9, "10.0.0.1")
    assert (config.serve.prefill, config.serve.decode) == (3, 4)


def test_every_setting_has_a_variable_of_its_own() -> None:
    assert len({environment_name(key) for key in HINTS}) == len(HINTS)
    assert environment_name("prefill_node.vllm_args") == "BATON_PREFILL_NODE_VLLM_ARGS"
    assert flag_name("cluster.secret_file") == "--secret-file"


def test_an_unknown_key_names_the_nearest_right_one(tmp_path: Path) -> None:
    """A slip in a key, in the file or the environment."""
    slips = {key: f"{key[:-1]}q{key[-1]}" for key in [*HINTS][::6]}  # to seek the nearest takes long
    document: dict[str, dict[str, int]] = {}
    for section, _, name in (slip.partition(".") for slip in slips.values()):
        document.setdefault(section, {})[name] = 1

    in_file = problems(document, tmp_path)
    in_environment = problems({}, tmp_path, {environment_name(slip): "1" for slip in slips.values()})

    assert sorted(in_file) == sorted(
        f"{tmp_path / 'baton.yaml'}: {slip} is not a setting; did you mean {key}?" for key, slip in slips.items()
    )
    assert sorted(said.partition("did you mean ")[2] for said in in_environment) == sorted(
        f"{environment_name(key)}?" for key in slips
    )


def test_an_unknown_section_names_the_nearest_right_one(tmp_path: Path) -> None:
    assert problems({"prefil_node": {"port": 1}}, tmp_path)[0].endswith("did you mean prefill_node?")


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("proxy.port", 65536, "an integer between 0 and 65535"),
        *(("proxy.port", value, "an integer between 0 and 65535") for value in (-1, 80.5, True, "eighty", None)),
        ("proxy.host", 5, "a text"),
        ("proxy.prefill", {"a": 1}, "a list of texts"),
        ("proxy.prefill", 5, "a list of texts"),
        ("proxy.when_no_prefill", "guess", "one of decode_local, refuse"),
        ("proxy.when_no_prefill", ["refuse"], "one of decode_local, refuse"),
        *(("transfer.beat_interval_s", value, "a number above 0") for value in (0, float("inf"), float("nan"))),
        ("transfer.quarantine_max_share", 1.5, "a number between 0 and 1"),
        ("transfer.push_max_bytes", 0, "an integer at least 1"),
        *(
            ("transfer.kv_verify", value, "off, full or sample:N (every N-th transfer)")
            for value in ("sample:0", "sample", True)
        ),
        ("serve.prefill", -1, "an integer at least 0"),
        ("serve.decode", 0, "an integer at least 1"),
        ("serve.pin_cores", "maybe", "true or false"),
        ("serve.pin_cores", 1, "true or false"),
        ("cluster.secret_file", 5, "a path"),
        *(
            ("decode_node.beside", value, "a list of mappings, as text in JSON")
            for value in ({"kv_connector": "X"}, ["X"], "[{")
        ),
        ("prefill_node.vllm_args", "--a 'open", "words as a shell reads them (No closing quotation)"),
    ],
)
def test_a_wrong_value_is_told_with_what_was_expected(tmp_path: Path, key: str, value: object, expected: str) -> None:
    section, _, name = key.partition(".")

    found = problems({section: {name: value}}, tmp_path)

    assert found == [f"{tmp_path / 'baton.yaml'}: {key}: expected {expected}, found {value!r}"]


def test_a_wrong_value_names_its_variable_or_flag(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load({"proxy.port": "x"}, {"BATON_PROXY_PORT": "y"}, None)

    assert caught.value.problems == (
        "environment BATON_PROXY_PORT: expected an integer between 0 and 65535, found 'y'",
        "flag --port: expected an integer between 0 and 65535, found 'x'",
    )


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    """An operator need not start five times to learn of five mistakes."""
    assert len(problems({"proxy": {"port": "x", "hots": "y"}, "serv": {}}, tmp_path, {"BATON_X": "1"})) == 4


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("proxy: [", "is not valid YAML"),
        ("- proxy", "expected sections"),
        ("proxy: 8000", "section 'proxy' must hold `key: value` lines, found 8000"),
        ("proxy: {port: 1, port: 2}", "'port' is written twice"),
        ("proxy: !!python/object/apply:os.getpid []", "is not valid YAML"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(text)

    with pytest.raises(ConfigError, match=r"baton\.yaml") as caught:
        load({}, {}, file)

    assert expected in str(caught.value)


def test_empty_files_and_sections_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "baton.yaml"
    for text in ("", "# nothing", "proxy:\nserve:\n"):
        file.write_text(text)
        assert load({}, {}, file).config == BatonConfig()


def test_a_missing_file_is_refused_only_if_it_was_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--config` must exist; `baton.yaml` of the current folder may."""
    monkeypatch.chdir(tmp_path)
    assert choose_file(None) is None
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.yaml"):
        load({}, {}, choose_file(Path("nowhere.yaml")))

    write(tmp_path, {})
    assert choose_file(None) == Path("baton.yaml")


@pytest.mark.parametrize("word", ["off", "full", "sample:1", "sample:250"])
def test_verification_is_off_full_or_a_sample(tmp_path: Path, word: str) -> None:
    """As written, without quotes: YAML takes a bare `off` for false."""
    file = tmp_path / "baton.yaml"
    file.write_text(f"transfer:\n  kv_verify: {word}\n")

    assert load({}, {}, file).config.transfer.kv_verify == word


@pytest.mark.parametrize(
    ("key", "word"), [("resume", "off"), ("access_log", "off"), ("return_answers", "on"), ("return_answers", "auto")]
)
def test_a_choice_of_off_and_on_is_written_without_quotes(tmp_path: Path, key: str, word: str) -> None:
    file = tmp_path / "baton.yaml"
    file.write_text(f"proxy:\n  {key}: {word}\n")

    assert getattr(load({}, {}, file).config.proxy, key) == word


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        *(("serve.pin_cores", text, True) for text in ("true", "Yes", "1")),
        *(("serve.pin_cores", text, False) for text in ("off", "0")),
        ("proxy.prefill", "http://a:1, http://b:2,", ("http://a:1", "http://b:2")),
        # As a shell separates words, since JSON has commas.
        ("prefill_node.vllm_args", """--override '{"a": 1, "b": 2}'""", ("--override", '{"a": 1, "b": 2}')),
        ("cluster.secret_file", "~/s", Path("/home/ada/s")),
        ("cluster.secret_file", "", None),
        ("serve.start_timeout_s", "0.5", 0.5),
        ("proxy.when_no_prefill", "refuse", "refuse"),
        ("decode_node.beside", '[{"kv_connector": "X", "n": [1, {}]}]', ({"kv_connector": "X", "n": [1, {}]},)),
    ],
)
def test_values_are_read_from_text(monkeypatch: pytest.MonkeyPatch, key: str, text: str, value: object) -> None:
    monkeypatch.setenv("HOME", "/home/ada")

    config = load({}, {environment_name(key): text}, None).config

    section, _, name = key.partition(".")
    assert getattr(getattr(config, section), name) == value


def write(folder: Path, document: Mapping[str, Any]) -> Path:
    file = folder / "baton.yaml"
    file.write_text(yaml.safe_dump(dict(document)))
    return file


def problems(document: Mapping[str, Any], folder: Path, environ: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load({}, environ or {}, write(folder, document))
    return list(caught.value.problems)


@pytest.mark.parametrize("name", READ_ELSEWHERE)
def test_a_variable_that_the_workers_read_is_no_unknown_setting(name: str) -> None:
    """A node with `BATON_PIPELINE_TRANSFER` in its environment was refused as if it were a slip of the pen."""
    assert load({}, {name: "1"}, None).config == BatonConfig()
    room = Path(__file__).parents[3] / "model_runner"
    assert any(f'"{name}"' in file.read_text() for file in room.rglob("*.py")), "the workers do not read it"
