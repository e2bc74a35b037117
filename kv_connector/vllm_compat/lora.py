"""Which LoRA adapter a prompt's KV was computed with: its name, what was in its files when the engine loaded them, and how.

Two nodes may have loaded different files under one name. Then their prompts are not the same (I7), and the decode node
computes them itself. What counts is what is in the engine's memory, so files are read when they are loaded, and looked
at again with each prompt. Of an adapter nothing is known, and its prompts are like no others,

- whose files have changed since: vLLM reads one again after it had to make room, so they may be in memory or not,
- that was loaded again with other files from the same place: vLLM's prefix cache goes on with the former's KV,
- whose files cannot be found.

Named with `--lora-modules`, sent to `/v1/load_lora_adapter` or found by a resolver, an adapter reaches the workers by
`Executor.add_lora`, in the process of the scheduler and on its thread. There is no hook for that: `watch` wraps it.
"""

import hashlib
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from vllm.v1.executor.abstract import Executor

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.lora.request import LoRARequest

logger = logging.getLogger(__name__)

_FILES: Final = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin", "adapter_model.pt")
# What of vLLM's `LoRAConfig` decides what an adapter does to the KV; older versions do not have all of it.
_SETTINGS: Final = (
    "lora_dtype",
    "target_modules",
    "enable_tower_connector_lora",
    "enable_mixed_moe_lora_format",
    "enable_moe_shared_loras",
)


class _State(NamedTuple):
    """A file as it looks from outside: another one if any of this is."""

    path: str
    size: int
    inode: int
    written_ns: int
    changed_ns: int


_States = tuple[_State, ...]


class _Loaded(NamedTuple):
    states: _States
    digest: str  # empty: it is not known what was read


class Adapters:
    """The adapters that this engine has loaded. For the thread of vLLM's scheduler."""

    def __init__(self, settings: str = "", *, keeps_kv: bool = True) -> None:
        """`settings`: how this engine applies them (`settings_of`); `keeps_kv`: it has a prefix cache."""
        self._settings = settings
        self._keeps_kv = keeps_kv
        self._loaded: dict[int, _Loaded] = {}
        self._digests: dict[tuple[str, str], str] = {}  # by name and place; empty: there were several
        self._unlike_others = secrets.token_hex(16)

    @contextmanager
    def loading(self, adapter: "LoRARequest") -> Iterator[None]:
        """While the engine loads an adapter. If it fails, what was loaded before stays; likewise if it need not be read."""
        before = _look_at(adapter)
        yield
        if adapter.lora_int_id in self._loaded and not adapter.load_inplace:
            return
        after = _look_at(adapter)  # an adapter of the hub has files only now
        digest = _digest(after) if after == before or not before else ""
        place = adapter.lora_name, adapter.lora_path
        if self._keeps_kv and self._digests.setdefault(place, digest) != digest:
            digest = self._digests[place] = ""
        self._loaded[adapter.lora_int_id] = _Loaded(after, digest)

    def name_of(self, adapter: "LoRARequest") -> str:
        """Name an adapter, the same on two nodes only if both have loaded the same files and apply them alike."""
        found = _look_at(adapter)
        loaded = self._loaded.get(adapter.lora_int_id)
        if loaded is None:  # its load was not reported: it will be loaded, for this prompt
            loaded = self._loaded[adapter.lora_int_id] = _Loaded(found, _digest(found))
        if not loaded.digest or (found != loaded.states and _digest(found) != loaded.digest):
            _warn(adapter.lora_name, adapter.lora_path)
            return f"{adapter.lora_name} {self._unlike_others}"
        packing = getattr(adapter, "is_3d_lora_weight", False)  # of experts; younger than our oldest vLLM
        return f"{adapter.lora_name} {loaded.digest} {packing} {self._settings}"


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


def settings_of(vllm_config: "VllmConfig") -> str:
    """Return what two engines must have in common to apply one adapter alike; "" if they do not know any."""
    config = vllm_config.lora_config
    return "" if config is None else " ".join(f"{name}={_plain(getattr(config, name, None))}" for name in _SETTINGS)


def _plain(value: Any) -> str:
    """Write a setting down: one that is off like one that this version does not have, and modules in any order."""
    return str(sorted(value) if isinstance(value, list | tuple | set) else value or None)


def _look_at(adapter: "LoRARequest") -> _States:
    folder = _folder_of(adapter.lora_path)
    if folder is None:
        return ()
    states = []
    for name in _FILES:
        try:
            states.append(_state_of(folder / name))
        except OSError:
            continue  # each format has one of them
    return tuple(states)


def _state_of(path: Path) -> _State:
    found = path.stat()
    return _State(str(path), found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns)


def _folder_of(path: str) -> Path | None:
    """Return where vLLM finds an adapter's files; `None` if it has not fetched them from the hub.

    Source:
        `get_adapter_absolute_path` of vLLM's `lora/utils.py`.
    """
    local = Path(path).expanduser()
    if local.is_absolute() or local.exists():
        return local
    from huggingface_hub import try_to_load_from_cache  # heavy, and needless for a folder

    try:
        cached = try_to_load_from_cache(path, _FILES[0])
    except ValueError:  # no id of the hub
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _digest(states: _States) -> str:
    """Return what stands in these files; "" if there are none, or they are no longer those that were looked at."""
    try:
        return _read(states) if states else ""
    except OSError:
        return ""


@lru_cache(maxsize=256)
def _read(states: _States) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for state in states:
        path = Path(state.path)
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, hashlib.blake2b).digest())
        digest.update(f"|{path.name} {state.size}|".encode())
        if _state_of(path) != state:
            raise OSError(f"{path} has changed")
    return digest.hexdigest()


@lru_cache(maxsize=256)  # once for each
def _warn(name: str, path: str) -> None:
    logger.warning(
        "adapter %s: its files in %s have changed since they were first loaded, or cannot be found; its prompts are not "
        "handed over until it is loaded from a new place",
        name,
        path,
    )
