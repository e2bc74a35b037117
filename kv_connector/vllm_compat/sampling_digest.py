"""What, beside the request and the model's KV, decides which token an engine samples: equal on both nodes, or D samples itself."""

from hashlib import blake2b
from typing import TYPE_CHECKING

from vllm import __version__

from baton.contracts.node_info import RELAYS_AND_STARTS
from baton.kv_connector.vllm_compat.media import media_digest

if TYPE_CHECKING:
    from vllm.config import VllmConfig

_OF_MODEL = ("logits_processors", "logprobs_mode", "use_fp64_gumbel")
_OF_ENGINE = ("structured_outputs_config", "reasoning_config", "watermark_config")


def sampling_digest(vllm_config: "VllmConfig") -> str:
    """Return a digest of an engine's version and its settings for sampling, grammars and reasoning.

    The empty text stands for an engine whose outputs hold more of a token than its log probabilities: where a sampling
    mask or routed experts are asked for, they exist on the node alone that has sampled.
    """
    model = vllm_config.model_config
    aux = getattr(vllm_config, "aux_output_config", model)
    if getattr(model, "return_sampling_mask", False) or getattr(aux, "enable_return_routed_experts", False):
        return ""
    said = [__version__, sorted(model.get_diff_sampling_param().items())]
    said += [getattr(model, name, None) for name in _OF_MODEL]
    said += [getattr(vllm_config, name, None) for name in _OF_ENGINE]
    # Nothing for models without: they are like those of earlier releases.
    said += filter(None, [media_digest(vllm_config)])
    return RELAYS_AND_STARTS + blake2b(repr(said).encode(), digest_size=8).hexdigest()
