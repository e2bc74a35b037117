"""What makes two prompts the same."""

from types import SimpleNamespace

import pytest

from baton.kv_connector.scheduler_side.prompt import prompt_hash
from baton.kv_connector.vllm_compat.lora import Adapters
from baton.kv_connector.vllm_compat.media import Media
from tests.unit.kv_connector.scheduler_fakes import FakeRequest

IMAGE = SimpleNamespace(identifier="image-1", mm_position=SimpleNamespace(offset=3, length=5))
PLAIN = FakeRequest("r1", [1, 2, 3])


def with_item(identifier: str = "image-1", *, offset: int = 3, length: int = 5) -> FakeRequest:
    """The same token ids with an item."""
    place = SimpleNamespace(offset=offset, length=length)
    return FakeRequest("r1", [1, 2, 3], mm_features=[SimpleNamespace(identifier=identifier, mm_position=place)])


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
    """Trap 10: token ids alone match for two images, LoRAs or salts. P and D number their requests differently."""
    assert prompt_hash(PLAIN) == prompt_hash(FakeRequest("r2", [1, 2, 3])) != prompt_hash(other)


def test_the_tokens_of_an_answer_are_part_of_what_is_named() -> None:
    """As if the prompt had them."""
    assert prompt_hash(PLAIN, answer=(4, 5)) == prompt_hash(FakeRequest("r1", [1, 2, 3, 4, 5])) != prompt_hash(PLAIN)


def test_prompts_of_two_tenants_and_of_two_adapters_differ() -> None:
    """Not only from one that has neither."""
    salted = [FakeRequest("r1", [1], cache_salt=name) for name in "ab"]
    tuned = [FakeRequest("r1", [1], lora_request=SimpleNamespace(lora_name=name)) for name in "ab"]

    names = {prompt_hash(each) for each in (*salted, *tuned)}
    assert [len(name) for name in names] == [16] * 4  # bytes


@pytest.mark.parametrize("other", [with_item("image-2"), with_item(offset=2), with_item(length=6)])
def test_another_item_with_the_same_text_is_another_prompt(other: FakeRequest) -> None:
    """By what vLLM calls it, and by where it stands."""
    assert prompt_hash(with_item()) == prompt_hash(with_item())
    assert prompt_hash(with_item()) != prompt_hash(other)


def test_nodes_that_read_items_in_other_ways_see_other_prompts() -> None:
    """But name them alike, and text is not concerned."""
    assert prompt_hash(with_item(), media=Media(b"a")) != prompt_hash(with_item(), media=Media(b"b"))
    assert prompt_hash(PLAIN, media=Media(b"a")) == prompt_hash(PLAIN, media=Media(b"b"))


def test_two_nodes_with_other_adapters_name_a_prompt_alike() -> None:
    """By the adapter's name, until they ask what it is: so that they meet, and find at once that it is not the same."""
    ours, theirs = (
        FakeRequest("r1", [1], lora_request=SimpleNamespace(lora_name="tuned", lora_int_id=1, lora_path=path))
        for path in ("/a", "/b")
    )

    assert prompt_hash(ours) == prompt_hash(theirs)
    assert prompt_hash(ours, Adapters()) != prompt_hash(theirs, Adapters())
