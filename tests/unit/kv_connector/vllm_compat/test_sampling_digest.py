"""What two nodes must have in common so that one goes on from the other's tokens."""

from types import SimpleNamespace
from typing import Any

from baton.contracts.node_info import RELAYS_AND_STARTS
from baton.kv_connector.vllm_compat.sampling_digest import sampling_digest


def config(**more: Any) -> Any:
    """A configuration of vLLM's, as far as it is looked at."""
    model = SimpleNamespace(get_diff_sampling_param=dict, **more)
    return SimpleNamespace(model_config=model)


def test_it_says_what_a_node_can_do_and_how_it_samples() -> None:
    """An earlier release would not know of streams that begin on the prefill node."""
    assert sampling_digest(config()).startswith(RELAYS_AND_STARTS)
    assert sampling_digest(config()) != sampling_digest(config(logprobs_mode="raw_logits"))
    assert sampling_digest(config(return_sampling_mask=True)) == ""
