import json
from pathlib import Path

import pytest
import yaml

from baton.contracts.configuration.load import HINTS, load
from baton.contracts.configuration.schema import BatonConfig
from baton.contracts.configuration.show import effective, reference


def test_the_effective_configuration_names_each_origin(tmp_path: Path) -> None:
    shown = effective(load({"proxy.port": "9"}, {"BATON_SERVE_DECODE": "2"}, None))

    lines = [line.split() for line in shown.splitlines()]
    assert ["port:", "9", "#", "flag", "--port"] in lines
    assert ["decode:", "2", "#", "environment", "BATON_SERVE_DECODE"] in lines
    assert ["prefill:", "1", "#", "default"] in lines


BESIDE = {"kv_connector": "X", "kv_connector_extra_config": {"n": 1}}
WITH_MAPPINGS = load({"decode_node.beside": json.dumps([BESIDE])}, {}, None)


@pytest.mark.parametrize(
    ("text", "config"),
    [
        (effective(load({}, {}, None)), BatonConfig()),
        (reference(), BatonConfig()),
        (effective(WITH_MAPPINGS), WITH_MAPPINGS.config),
    ],
)
def test_what_is_shown_can_be_used_as_a_file(tmp_path: Path, text: str, config: BatonConfig) -> None:
    """Both outputs are valid `baton.yaml` files with every setting in them, be it a list of mappings."""
    file = tmp_path / "baton.yaml"
    file.write_text(text)

    assert load({}, {}, file).config == config
    assert sum(len(section) for section in yaml.safe_load(text).values()) == len(HINTS)


def test_the_reference_explains_settings() -> None:
    """The schema's comments are the explanations."""
    line = next(line for line in reference().splitlines() if line.strip().startswith("peer_timeout_s:"))

    assert line.endswith("# a peer silent for so long is taken for dead")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (["--api-key", "abc"], '["--api-key", "***"]'),
        (["--api-key", "abc", "def", "--port", "1"], '["--api-key", "***", "***", "--port", "1"]'),
        (["--api-key=abc"], '["--api-key=***"]'),
        (["--hf-token", "abc"], '["--hf-token", "***"]'),
        (["--dtype", "float32"], '["--dtype", "float32"]'),
        (["--tokenizer", "abc"], '["--tokenizer", "abc"]'),
    ],
)
def test_secrets_among_vllms_flags_are_masked(given: list[str], shown: str) -> None:
    text = effective(load({"prefill_node.vllm_args": given}, {}, None))

    assert f"vllm_args: {shown}" in text
    assert "abc" not in text or "abc" in shown
