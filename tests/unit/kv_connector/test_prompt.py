"""What makes two prompts the same."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from kv_connector.prompt import prompt_hash
from tests.unit.kv_connector.scheduler_fakes import FakeRequest

IMAGE = SimpleNamespace(identifier="image-1", mm_position=SimpleNamespace(offset=3, length=5))
PLAIN = FakeRequest("r1", [1, 2, 3])


def test_the_request_id_does_not_matter() -> None:
    """P and D number their requests differently."""
    assert prompt_hash(PLAIN) == prompt_hash(FakeRequest("r2", [1, 2, 3]))


@pytest.mark.parametrize(
    "other",
    [
        FakeRequest("r1", [1, 2, 4]),
        FakeRequest("r1", [1, 2]),
        FakeRequest("r1", [1, 2, 3], mm_features=[IMAGE]),
        FakeRequest("r1", [1, 2, 3], lora_request=SimpleNamespace(lora_name="tuned", lora_path="hub/tuned")),
        FakeRequest("r1", [1, 2, 3], cache_salt="tenant"),
    ],
    ids=["another token", "shorter", "an image", "a LoRA", "a cache salt"],
)
def test_whatever_changes_the_kv_changes_the_hash(other: FakeRequest) -> None:
    """Trap 10: token ids alone match for two images, LoRAs or salts."""
    assert prompt_hash(PLAIN) != prompt_hash(other)


def tuned(folder: Path, weights: bytes) -> FakeRequest:
    """A prompt for an adapter of these weights, which lies in a folder of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").write_bytes(weights)
    return FakeRequest("r1", [1, 2, 3], lora_request=SimpleNamespace(lora_name="tuned", lora_path=str(folder)))


@pytest.mark.parametrize("size", [10, 3_000_000], ids=["small", "sampled"])
def test_an_adapter_is_what_its_files_are(tmp_path: Path, size: int) -> None:
    """Two nodes may keep it in different places, but must not have different ones under one name."""
    ours = prompt_hash(tuned(tmp_path / "a", bytes(size)))

    assert prompt_hash(tuned(tmp_path / "b", bytes(size))) == ours
    assert prompt_hash(tuned(tmp_path / "c", bytes(size - 1) + b"x")) != ours


def test_an_adapter_that_was_replaced_is_another(tmp_path: Path) -> None:
    """An adapter may be loaded again in place."""
    before = prompt_hash(tuned(tmp_path / "a", b"first"))

    assert prompt_hash(tuned(tmp_path / "a", b"other, longer")) != before


def test_an_adapter_of_the_hub_is_known_by_its_id() -> None:
    """Its files lie where we do not look."""
    one, two = (
        FakeRequest("r1", [1], lora_request=SimpleNamespace(lora_name="tuned", lora_path=f"org/{name}"))
        for name in ("one", "two")
    )

    assert prompt_hash(one) != prompt_hash(two)


def test_two_nodes_with_other_files_name_a_prompt_alike(tmp_path: Path) -> None:
    """So that they meet, and find at once that it is not the same."""
    ours, theirs = tuned(tmp_path / "a", b"one"), tuned(tmp_path / "b", b"two")

    assert prompt_hash(ours, with_files=False) == prompt_hash(theirs, with_files=False)
    assert prompt_hash(ours) != prompt_hash(theirs)
