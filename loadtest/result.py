"""What a run leaves behind: `result.json`. Figures can be computed from it again; it holds no prompt and no answer."""

from pathlib import Path
from typing import Any, Final

import msgspec

from baton.contracts.decoding import DECODE_ERRORS
from baton.loadtest import files
from baton.loadtest.errors import UsageError
from baton.loadtest.measures.record import Record

SCHEMA_VERSION: Final = 1
FILE: Final = "result.json"
BUSY_SHARE: Final = 0.85  # of the one core that an event loop can use
LATE_S: Final = 0.02
HISTOGRAMS: Final = {  # of nodes: short name → series; TTIT is what vLLM calls inter-token latency
    "ttft_s": "vllm:time_to_first_token_seconds",
    "ttit_s": "vllm:inter_token_latency_seconds",
    "exposed_push_s": "baton_exposed_push_seconds",
    "exposed_transfer_s": "baton_exposed_transfer_seconds",
    "hidden_share": "baton_hidden_share",
}


class ClientCost(msgspec.Struct, frozen=True, kw_only=True):
    """What measuring cost on this side."""

    cpu_s: float
    wall_s: float
    lag_median_s: float  # by how much the event loop was late, sampled all the time
    lag_p99_s: float
    lag_max_s: float

    def warning(self) -> str:
        """Say why this side may have been the limit; nothing if it was not."""
        share = self.cpu_s / self.wall_s if self.wall_s else 0.0
        if share >= BUSY_SHARE:
            used = f"it used {share:.0%} of a core"
            return f"The client was saturated: {used}, so the figures are its own as much as the server's"
        if self.lag_p99_s >= LATE_S:
            late = f"{self.lag_p99_s * 1000:.0f} ms"
            came = f"1 % of its wake-ups came {late} or more after their time"
            return f"The client was late: {came}, and figures are off by as much"
        return ""


class HistogramMean(msgspec.Struct, frozen=True):
    """What a node's histogram took up during a stage."""

    n: int
    mean: float


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A node's metrics, after a stage minus before it."""

    url: str
    histograms: dict[str, HistogramMean]  # by short name
    transfers: dict[str, int]  # ended ones by outcome
    note: str = ""  # why there are none


class Legs(msgspec.Struct, frozen=True, kw_only=True):
    """What the nodes told of one transfer, and so of one request: from when to when, in s since the stage began."""

    transfer_id: str
    spans: dict[str, tuple[float, float]]  # named as in `/baton/transfers/trace`; as right as machines' clocks agree


class StageResult(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of constant load."""

    label: str
    load: dict[str, Any]
    duration_s: float
    unfinished: int  # requests that were in flight or in line when the run was stopped
    unsent: int = 0  # requests that were due, and could not be sent before the stage's end
    records: list[Record]
    client: ClientCost
    nodes: list[NodeFigures] = []
    legs: list[Legs] = []
    legs_note: str = ""  # why some are missing
    figures: dict[str, Any] = {}


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The stages of one run, and what was measured where."""

    schema_version: int
    began_at: str  # UTC
    interrupted: bool
    arguments: dict[str, Any]
    workload: dict[str, Any]  # what must be equal for two runs to be comparable
    environment: dict[str, Any]
    slos_ms: dict[str, float]
    stages: list[StageResult]


def write_result(result: Result, folder: Path) -> None:
    encoded = msgspec.json.encode(rounded(msgspec.to_builtins(result), 6))
    (folder / FILE).write_bytes(encoded + b"\n")


def read_result(path: Path) -> Result:
    """Read a run from its file, or from its folder. Raises `UsageError`: there is none, or it is of another version."""
    file = path / FILE if path.is_dir() else path
    data = files.read(file)
    try:
        files.refuse_version(file, msgspec.json.decode(data, type=_Version).schema_version, SCHEMA_VERSION)
        return msgspec.json.decode(data, type=Result)
    except DECODE_ERRORS as exc:
        raise UsageError(f"{file} is no result of a load test: {exc}") from exc


class _Version(msgspec.Struct):
    schema_version: int


def rounded(value: Any, digits: int) -> Any:
    """Return JSON-ready containers with every number in them rounded."""
    if isinstance(value, float):
        return round(value, digits)
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each, digits) for each in value]
    return value
