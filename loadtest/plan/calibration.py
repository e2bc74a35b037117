"""What a simulation must know of the nodes: a JSON file, measured by `loadtest calibrate` or written by hand."""

import math
from pathlib import Path
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.loadtest import files
from baton.loadtest.errors import UsageError

SCHEMA_VERSION: Final = 1
DEFAULT_BATCHED_TOKENS: Final = 2048  # as vLLM's server on a CPU or a small GPU
DEFAULT_SEQUENCES: Final = 128


class Prefill(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prefill node.

    A step takes `step_s + prompt_s · prompts begun in it + token_s · tokens + token_context_s · Σ tokens · context`.
    """

    step_s: float
    token_s: float
    prompt_s: float = 0.0
    token_context_s: float = 0.0  # context of a chunk: tokens before it and half of its own
    max_num_batched_tokens: int = DEFAULT_BATCHED_TOKENS
    max_num_seqs: int = DEFAULT_SEQUENCES
    kv_tokens: int = 0  # room in the KV pool; 0: more than is ever needed
    prefix_cache: bool = True  # counts only where a trace says which prompts share what

    def prompt_time_s(self, tokens: float) -> float:
        """Return what a prompt takes that has its steps for itself."""
        steps = math.ceil(tokens / self.max_num_batched_tokens)
        return steps * self.step_s + self.prompt_s + self.token_s * tokens + self.token_context_s * tokens * tokens / 2


class Decode(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decode node.

    A step takes `step_s + sequence_s · sequences + context_token_s · tokens of context of all`, and `several_s` if it
    has more than one sequence: a product of matrices instead of a vector's.
    """

    step_s: float
    sequence_s: float
    several_s: float = 0.0
    context_token_s: float = 0.0
    arrival_s: float = 0.0  # by which each request that arrives delays the next step
    max_num_seqs: int = DEFAULT_SEQUENCES
    kv_tokens: int = 0


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What KV travels over: each node has one such link, in each direction."""

    gbit_s: float = 0.0  # 0: never the limit
    kv_bytes_per_token: float = 0.0
    layers: int = 1  # pieces in which a step's KV leaves

    @property
    def token_s(self) -> float:
        """Time in which a token's KV is sent."""
        return self.kv_bytes_per_token * 8 / (self.gbit_s * 1e9) if self.gbit_s else 0.0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How well coefficients explain what was measured."""

    rows: int
    r_squared: float
    mean_error: float  # mean of |fitted − measured| ÷ measured
    worst_error: float


class Calibration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All fitted times of a model on one kind of node, as `calibrate` writes them."""

    schema_version: int = SCHEMA_VERSION
    prefill: Prefill
    decode: Decode
    link: Link = Link()
    # Of a first token besides steps and transfer; below 0 if it needn't wait for all of P's work.
    overhead_s: float = 0.0
    overhead_queued_s: float = 0.0  # … and if the prefill node has other prompts when it comes
    overhead_busy_s: float = 0.0  # … and if the decode node has other sequences
    fits: dict[str, Fit] = {}
    about: dict[str, Any] = {}  # where it comes from; not read


def read_calibration(path: Path) -> Calibration:
    """Read one. Raises `UsageError`: there is none, or a value in it makes no sense."""
    try:
        found = msgspec.json.decode(files.read(path), type=Calibration)
    except DECODE_ERRORS as exc:
        raise UsageError(f"{path} is no calibration: {exc}") from exc
    files.refuse_version(path, found.schema_version, SCHEMA_VERSION)
    for wrong in _wrong(found):
        raise UsageError(f"{path}: {wrong}")
    return found


def write_calibration(found: Calibration, path: Path) -> None:
    files.write(path, msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")


def _wrong(found: Calibration) -> list[str]:
    """Return what cannot be: a negative or infinite value, a node that does nothing or takes no time."""
    wrong = []
    for section in ("prefill", "decode", "link"):
        for name, value in msgspec.structs.asdict(getattr(found, section)).items():
            least = 1 if name in ("max_num_batched_tokens", "max_num_seqs", "layers") else 0
            if not (value >= least and math.isfinite(value)):
                wrong.append(f"{section}.{name} is {value}, and must be {least} or more")
    if not found.prefill.step_s + found.prefill.token_s > 0:
        wrong.append("prefill: a step would take no time")
    if not found.decode.step_s + found.decode.sequence_s > 0:
        wrong.append("decode: a step would take no time")
    if found.link.gbit_s and not found.link.kv_bytes_per_token:
        wrong.append("link.gbit_s needs link.kv_bytes_per_token")
    return wrong
