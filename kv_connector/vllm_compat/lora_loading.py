"""Has `Adapters` see when vLLM loads an adapter: there is no hook for that.

Named with `--lora-modules`, sent to `/v1/load_lora_adapter` or found by a resolver, an adapter reaches the workers by
`Executor.add_lora`, in the process of the scheduler and on its thread.
"""

from functools import wraps
from typing import TYPE_CHECKING, Any

from vllm.v1.executor.abstract import Executor

from baton.kv_connector.vllm_compat.lora import Adapters, settings_of

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest


def adapters_of(vllm_config: "VllmConfig") -> Adapters:
    """Make the adapters of this engine, which see from now on what is loaded in this process."""
    keeps_kv = bool(vllm_config.cache_config.enable_prefix_caching)
    adapters = Adapters(settings_of(vllm_config), keeps_kv=keeps_kv)
    if vllm_config.lora_config is not None:
        watch(adapters)
    return adapters


def watch(adapters: Adapters, executor: Any = Executor) -> None:
    """Tell `adapters`, in place of those that were told before, of each load."""
    original = getattr(executor.add_lora, "__wrapped__", executor.add_lora)

    @wraps(original)
    def add_lora(self: Any, lora_request: "LoRARequest") -> bool:
        with adapters.loading(lora_request):
            return bool(original(self, lora_request))

    executor.add_lora = add_lora
