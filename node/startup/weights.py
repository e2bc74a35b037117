"""A digest that is equal on two nodes exactly if they serve the same weights.

KV computed with one revision of a model is rubbish to another, and a path says nothing about what it holds.
Reading every byte of a large checkpoint would take minutes, so big files count by name, size, header and samples.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

WHOLE_FILE_BYTES = 16 * 1024 * 1024  # files below this are read entirely
SAMPLE_BYTES = 64 * 1024
SAMPLES = 16
PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
MAX_HEADER_BYTES = 64 * 1024 * 1024
_VOLATILE = ("_name_or_path", "transformers_version")  # differ between copies of the same weights


def digest(model: str, directory: Path | None, revision: str | None) -> str:
    """Return the digest of a model's weights; `directory`: what `model_directory` found."""
    if Path(model).exists():
        return digest_of_files(Path(model))
    if directory is not None:
        return directory.name  # a snapshot's folder is named after its commit
    return f"{model}@{revision or 'main'}"


def model_directory(model: str, revision: str | None) -> Path | None:
    """Return the folder with a model's `config.json`: the path itself, or the hub's snapshot in the local cache."""
    if Path(model).exists():
        return Path(model) if Path(model).is_dir() else None
    from huggingface_hub import hf_hub_download, try_to_load_from_cache  # heavy, and needless for a path

    try:
        return Path(hf_hub_download(model, "config.json", revision=revision)).parent
    except (OSError, ValueError):  # no network, no such model, not an id: vLLM will say it better
        cached = try_to_load_from_cache(model, "config.json", revision=revision) if "/" in model else None
        return Path(cached).parent if isinstance(cached, str) else None


def read_model_config(directory: Path | None) -> dict[str, Any] | None:
    """Return the content of a model's `config.json`, None if there is none that can be read."""
    if directory is None:
        return None
    try:
        content = json.loads((directory / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def digest_of_files(path: Path) -> str:
    """Return the digest of a folder's configuration and weight files, or of one weight file."""
    result = hashlib.blake2b(digest_size=16)
    config = read_model_config(path if path.is_dir() else None) or {}
    kept = {key: value for key, value in config.items() if key not in _VOLATILE}
    result.update(json.dumps(kept, sort_keys=True, separators=(",", ":")).encode())
    files = [path] if path.is_file() else sorted({file for pattern in PATTERNS for file in path.glob(pattern)})
    for file in files:
        result.update(f"\n{file.name}\n{file.stat().st_size}\n".encode())
        result.update(_content_digest(file))
    return result.hexdigest()


def _content_digest(file: Path) -> bytes:
    size = file.stat().st_size
    result = hashlib.blake2b(digest_size=16)
    with file.open("rb") as stream:
        if size < WHOLE_FILE_BYTES:
            result.update(stream.read())
            return result.digest()
        if file.suffix == ".safetensors":
            header_bytes = int.from_bytes(stream.read(8), "little")
            result.update(stream.read(min(header_bytes, MAX_HEADER_BYTES)))
        for index in range(SAMPLES):
            stream.seek(index * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            result.update(stream.read(SAMPLE_BYTES))
    return result.digest()
