"""The sides of one rank, over one KV cache: a prefill worker, a decode worker, or both."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from baton.contracts.kv_transfer import Role
from baton.kv_connector.handoff.metadata import DecodeReport, Step
from baton.kv_connector.telemetry.both_sides import join
from baton.kv_connector.vllm_compat.versions import TransferResults
from baton.kv_connector.worker_side.decode import DecodeWorker
from baton.kv_connector.worker_side.prefill import PrefillWorker

if TYPE_CHECKING:
    from vllm.v1.outputs import ModelRunnerOutput


class WorkerSides:
    """What the facade calls; without a side the hooks do nothing."""

    def __init__(
        self,
        role: Role,
        prefill: PrefillWorker | None,
        decode: DecodeWorker | None,
        *,
        pushes_layers: bool,
        rank: int = 0,
        described: Mapping[str, Any] | None = None,
    ) -> None:
        """`role`: the node's own. `pushes_layers`: layers are pushed as they are written, else after the step.

        `rank`: our number in the engine's grid. `described`: what a snapshot says of it.
        """
        self.prefill = prefill
        self.decode = decode
        self._layers = prefill if pushes_layers else None
        sides: list[PrefillWorker | DecodeWorker] = [side for side in (prefill, decode) if side is not None]
        self._sides = sides if role == "prefill" else sides[::-1]
        self.rank, self.address = rank, prefill.address if prefill else ""
        self._described = described or {}

    def start(self) -> None:
        for side in self._sides:
            side.start()

    def stop(self) -> None:
        for side in self._sides:
            side.stop()

    # --- model thread ---

    def void(self, step: Step) -> None:
        if self.prefill and step.prefill:
            self.prefill.void(step.prefill)

    def begin_step(self, step: Step) -> None:
        if self.prefill and step.prefill:
            self.prefill.begin_step(step.prefill)
        if self.decode and step.decode:
            self.decode.begin_step(step.decode)

    def attention_begins(self, layer_name: str) -> None:
        if self._layers:
            self._layers.attention_begins(layer_name)

    def kv_issued(self, layer_name: str) -> None:
        if self._layers:
            self._layers.kv_issued(layer_name)

    def finish_forward(self) -> None:
        if self.prefill:
            self.prefill.finish_forward()

    def end_step(self) -> None:
        if self.prefill:
            self.prefill.end_step()

    def tokens_sampled(self, output: "ModelRunnerOutput") -> None:
        if self.prefill:
            self.prefill.tokens_sampled(output)

    def take_results(self) -> Any:
        """Return vLLM's record of which sends and receives have ended since it was asked last."""
        released = self.prefill.take_released() if self.prefill else set()
        received, failed = self.decode.take_results() if self.decode else (set(), set())
        return TransferResults(finished_sending=released, finished_recving=received, failed_recving=failed)

    def take_report(self) -> DecodeReport | None:
        return self.decode.take_report() if self.decode else None

    # --- any thread ---

    def cancel(self, transfer_ids: list[str]) -> int:
        return sum(side.cancel(transfer_ids) for side in self._sides)

    def timeline(self, transfer_id: str) -> dict[str, Any]:
        return self.prefill.timeline(transfer_id) if self.prefill else {"flows": []}

    def snapshot(self) -> dict[str, Any]:
        return {**self._described, **join([side.snapshot() for side in self._sides])}
