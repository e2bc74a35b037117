"""Which LoRA adapter a prompt's KV was computed with: its name, and what is in its files.

Two nodes may have loaded different files under one name. Then their prompts are not the same (I7), and the decode node
computes it itself. Large files count by size, head and samples, as the weights do.
"""

import hashlib
from functools import lru_cache
from pathlib import Path
from typing import Final, Protocol

_FILES: Final = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
_SAMPLE_BYTES: Final = 64 * 1024
_SAMPLES: Final = 32

_State = tuple[str, int, int]  # a file's path, size and time of change, ns


class Adapter(Protocol):
    """What is read of vLLM's `LoRARequest`."""

    @property
    def lora_name(self) -> str:
        """As requests name it."""
        ...

    @property
    def lora_path(self) -> str:
        """A folder, or an id of the hub."""
        ...


def adapter_name(adapter: Adapter) -> str:
    """Name an adapter, the same on two nodes only if its files are. One of the hub goes by its id."""
    folder = Path(adapter.lora_path)
    states: list[_State] = []
    for name in _FILES:
        try:
            found = (folder / name).stat()
        except OSError:
            continue  # each format has one of them; an id of the hub has none
        states.append((str(folder / name), found.st_size, found.st_mtime_ns))
    return f"{adapter.lora_name} {_digest(tuple(states)) if states else adapter.lora_path}"


@lru_cache(maxsize=256)
def _digest(states: tuple[_State, ...]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for path, size, _ in states:
        digest.update(f"|{Path(path).name} {size}|".encode())
        try:
            with Path(path).open("rb") as file:
                for index in range(_SAMPLES if size > _SAMPLES * _SAMPLE_BYTES else 1):
                    file.seek(index * max(0, size - _SAMPLE_BYTES) // (_SAMPLES - 1))
                    digest.update(file.read(_SAMPLE_BYTES if size > _SAMPLES * _SAMPLE_BYTES else size))
        except OSError:
            return ""  # gone since it was looked at: by its name alone
    return digest.hexdigest()
