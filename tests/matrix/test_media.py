"""Prompts with images and sound are handed over exactly, and the decode node runs no encoder for them."""

import threading
import time
from collections.abc import Iterator

import pytest

from baton.contracts.http import DISAGGREGATED, RECOMPUTED
from baton.contracts.kv_transfer import new_transfer_id
from tests.e2e.stack import Stack
from tests.e2e.waiting import leftovers
from tests.matrix.media import (
    CELLS,
    MediaPair,
    Question,
    Said,
    ask,
    body_of,
    difference,
    image_of,
    node_of,
    pair_of,
    plain_of,
)
from tests.matrix.media_models import MEDIA_MODELS
from tests.matrix.pictures import serve

EXACT = [name for name, recipe in MEDIA_MODELS.items() if recipe.is_repeatable]
pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(400)]

MISMATCH = "the two nodes see different prompts"
REPRESENTATIVE = ("several items", "prefix hit")
POOL: tuple[str, ...] = ("--num-gpu-blocks-override", "13", "--max-model-len", "1536")  # twelve blocks of 128 tokens


@pytest.fixture(scope="module")
def pair(stack: Stack, request: pytest.FixtureRequest) -> Iterator[MediaPair]:
    """A prefill node, a decode node and a proxy with one model, and what one plain server said."""
    with pair_of(stack, request.param) as running:
        yield running


def test_a_representative_model_is_exact(stack: Stack) -> None:
    """Its positions follow from the sizes of images; another image gives other tokens."""
    with pair_of(stack, "qwen2-vl", REPRESENTATIVE) as pair:
        assert pair.looks(), "a model that does not look proves nothing"
        assert [problem for cell in REPRESENTATIVE for problem in pair.run(cell)] == []
        assert pair.encoder_runs("prefill")


@pytest.mark.exhaustive
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("pair", MEDIA_MODELS, indirect=True)
def test_every_model_is_exact(pair: MediaPair, cell: str) -> None:
    """In each way in which a prompt can come."""
    assert pair.looks(), "a model that does not look proves nothing"
    assert pair.run(cell) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", EXACT, indirect=True)
def test_another_item_with_the_same_text_is_another_prompt(pair: MediaPair) -> None:
    """Two legs of one transfer that disagree on the item: the decode node answers for the one that it was given."""
    given, other = Question([1]), Question([1 + 12])  # of the same size, so that token ids are equal
    peer = ",".join(pair.prefill.transfers()["scheduler"]["control_addresses"])
    transfer_id, before = new_transfer_id(), pair.decode.transfers()["scheduler"]["totals"]

    legs = [
        pair.stack.leg("prefill", transfer_id=transfer_id, first_token=True),
        pair.stack.leg("decode", peer, transfer_id=transfer_id, first_token=True),
    ]
    computed = ask(pair.prefill, body_of(pair.name, other, max_tokens=1, **legs[0]))
    got = ask(pair.decode, body_of(pair.name, given, **legs[1]))

    after = pair.decode.transfers()["scheduler"]["totals"]
    assert computed.prompt_tokens == got.prompt_tokens
    assert difference(pair.expected["one item"][0], got) == ""
    assert after["recomputed"] == before["recomputed"] + 1
    assert leftovers(pair.prefill, pair.decode) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llava", "qwen2-vl"])
def test_a_preempted_request_computes_its_item_again(stack: Stack, name: str) -> None:
    """On the decode node its KV came from the prefill node, and other requests have taken its blocks."""
    long, short = body_of(name, Question([], 12), max_tokens=1100), body_of(name, Question([31]), max_tokens=600)
    with stack.stopping():
        plain = plain_of(stack, name)
        plain.wait_ready()
        expected = [ask(plain, body) for body in (long, short)]
        stack.stop(plain)
        runs = stack.folder / f"runs-{name}-preempted"
        prefill = node_of(stack, "prefill", name, "--max-model-len", "1536", runs=runs.with_suffix(".prefill"))
        decode = node_of(stack, "decode", name, *POOL, runs=runs)
        proxy = stack.proxy([prefill], [decode])
        first: list[Said] = []
        beside = threading.Thread(target=lambda: first.append(ask(proxy, long)))
        beside.start()
        while not decode.metrics()["vllm:num_requests_running"]:
            time.sleep(0.01)
        second = ask(proxy, short)
        beside.join()

        assert decode.metrics()["vllm:num_preemptions_total"] >= 1
        assert [difference(wanted, got) for wanted, got in zip(expected, (first[0], second), strict=True)] == ["", ""]
        assert second.path == DISAGGREGATED
        assert runs.read_text().splitlines() == ["1"], "after the preemption, and not before"
        assert leftovers(prefill, decode) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", EXACT, indirect=True)
def test_an_answer_goes_on_with_the_tokens_that_a_client_has(pair: MediaPair) -> None:
    """A prefill or decode node died: the one that is asked next computes prompt and tokens, and goes on."""
    wanted = pair.expected["several items"][0]
    has = tuple(wanted.tokens[:5])

    body = body_of(pair.name, Question([1, 2]), **pair.stack.leg("decode", start=(has,)))
    got = ask(pair.decode, body)

    assert got.tokens == wanted.tokens
    assert difference(wanted, got._replace(logprobs=[*wanted.logprobs[:5], *got.logprobs[5:]])) == ""


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", EXACT, indirect=True)
def test_several_answers_share_the_items(pair: MediaPair) -> None:
    """Each has a transfer, and none an encoder on the decode node."""
    body = body_of(pair.name, Question([41, 42]), n=2, temperature=0.8, seed=7)
    wanted = ask(pair.decode, body)  # alone
    encoded = pair.encoder_runs("decode")

    for streamed in (False, True):
        got = ask(pair.proxy, body, streamed=streamed)
        assert got.tokens == wanted.tokens
        assert got.path == DISAGGREGATED
    assert pair.encoder_runs("decode") == encoded
    assert leftovers(pair.prefill, pair.decode) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("pair", ["llava", "qwen2-vl"], indirect=True)
@pytest.mark.parametrize("changes", [False, True], ids=["always the same", "another one each time"])
def test_an_image_at_an_address_is_fetched_by_both_nodes(pair: MediaPair, changes: bool) -> None:
    """Where they get different ones, the whole answer is about the decode node's: its first token is not the prefill node's."""
    numbers = [51, 51 + 12] if changes else [51, 51]  # of the same size
    expected = [ask(pair.decode, body_of(pair.name, Question([number]))) for number in numbers]

    for _ in range(3):
        with serve([image_of(number) for number in numbers]) as pictures:
            got = ask(pair.proxy, body_of(pair.name, Question([51]), address=pictures.address), streamed=True)

        assert len(pictures.fetched) == 2
        assert "" in [difference(wanted, got) for wanted in expected]
        assert (got.path, got.reason) == ((RECOMPUTED, MISMATCH) if changes else (DISAGGREGATED, ""))
    assert pair.proxy.metrics()['baton_first_tokens_total{source="fetched"}'] >= 3
    assert leftovers(pair.prefill, pair.decode) == []
