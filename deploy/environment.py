"""The environment of a fork server that is going to import vLLM: what must be set before the first import."""

from collections.abc import Mapping, Sequence

from baton.node.startup.flags import given

COMPILES = ("--compilation-config", "-cc", "--optimization-level", "-O")

QUIET = {
    "GLOG_minloglevel": "2",
    "PYTHONWARNINGS": "ignore",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
}
REMOVED = ("VLLM_CPU_KVCACHE_SPACE",)  # whole GiB that would override --kv-cache-memory-bytes


def zygote_environment(current: Mapping[str, str], *, offline: bool, vllm_args: Sequence[str] = ()) -> dict[str, str]:
    """Return `current` with what a zygote of vLLM servers on a CPU needs; what the user has set stays.

    Args:
        current: the environment as it is.
        offline: the model is a folder of this machine, so the hub must not be asked.
        vllm_args: flags of the servers to come.
    """
    wanted = QUIET | {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if not given(vllm_args, *COMPILES):
        wanted["TORCHDYNAMO_DISABLE"] = "1"  # eager: otherwise the first requests trace for seconds
    if offline:
        wanted["HF_HUB_OFFLINE"] = "1"
    return wanted | {name: value for name, value in current.items() if name not in REMOVED}
