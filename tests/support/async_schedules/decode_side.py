"""D's scheduler for layouts with windows, groups and states: vLLM's block manager under our own scheduler side.

D reads what the prompt's last token would read, in every layer, when its KV has been received and until it gives the blocks
back: what its attention reads, or the state that all tokens before it have left.
"""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

from vllm.v1.core.kv_cache_utils import KVCacheBlock

from baton.contracts.configuration.schema import TransferConfig
from baton.kv_connector.config import ConnectorConfig
from baton.kv_connector.handoff.metadata import DecodeReport
from baton.kv_connector.scheduler_side.decode import DecodeScheduler
from tests.support.async_schedules.all_ranks import DecodeRanks
from tests.support.async_schedules.layouts import Layout
from tests.support.async_schedules.memory import NodeMemory, content, state
from tests.support.async_schedules.prefill_side import Text, output
from tests.support.ranks import BLOCK_BYTES, BLOCK_TOKENS, SECRET


class DecodeSide:
    """D's scheduler, which reserves at any time. Its blocks are reused as soon as the worker has closed them."""

    def __init__(
        self, chance: random.Random, worker: DecodeRanks, memory: NodeMemory, layout: Layout, texts: Sequence[Text]
    ) -> None:
        self.problem = ""
        self.reserved = 0
        self.seen: Counter[str] = Counter()
        self._random = chance
        self._worker = worker
        self._memory = memory
        self._layout = layout
        self._texts = {text.decode.request_id: text for text in texts}
        # Those that come when others have arrived, so that they hit their prefix.
        self._late = {text.name for text in texts if chance.random() < 0.4}
        self.manager = layout.manager()
        config = ConnectorConfig(
            runtime_dir=Path(), secret_file=Path(), weights="w", transfer=TransferConfig(early_reserve_share=0.0)
        )
        self.side = DecodeScheduler(config, SECRET, layout.block_tokens, layout.grids.decode, groups=layout.groups)
        self.side._outcomes.close()
        self.side._outcomes = SimpleNamespace(send=lambda *_: None)  # type: ignore[assignment]  # there is no node
        self.side._ledger.bind(self.manager.block_pool)

    def act(self) -> None:
        """Go on with one prompt, and take in what the worker has to say."""
        self._poll()
        text = self._random.choice(list(self._texts.values()))
        if text.stage == "unknown" and not (text.name in self._late and self._receives()):
            text.stage = "watched"
            self.side.add_request(text.decode)
            self._told()
        elif text.stage == "watched":
            self._reserve(text)
        elif text.stage == "reserved" and self._random.random() < 0.002:
            text.stage, text.cancelled = "failed", True
            self.side.finish_request(text.decode)
            self._told()
        elif text.stage == "loaded" and text.closed and self._random.random() < 0.2:
            self._end(text)

    def check(self) -> str:
        """Look once more at everything that has been loaded and not been given back; then the pool must be whole."""
        for text in self._texts.values():
            if text.stage == "loaded":
                self._compare(text)
                self._end(text)
        left = self.manager.block_pool.num_gpu_blocks - 1 - self.manager.block_pool.get_num_free_blocks()
        return self.problem or (f"{left} blocks of D have not come back" if left else "")

    def unfinished(self) -> list[str]:
        """Prompts that should have arrived and have not."""
        return [
            f"{name}: {text.stage} {text.reason}"
            for name, text in self._texts.items()
            if text.stage not in ("loaded", "ended") and not text.voided and not text.cancelled
        ]

    def _receives(self) -> bool:
        return any(text.stage in ("watched", "reserved") for text in self._texts.values())

    def _told(self) -> None:
        self._worker.begin_step(self.side.take_step(output()))

    def _reserve(self, text: Text) -> None:
        self.manager.new_step_starts()
        # As vLLM's scheduler asks, by `supports_divergent_local_hybrid_hits`.
        diverge, manager = self.side.hits_may_diverge, self.manager
        look_up = manager.get_computed_blocks_for_connector if diverge else manager.get_computed_blocks
        found, hit, *_ = look_up(text.decode)
        self._compare_cached(text, found.blocks)
        missing, _ = self.side.match(text.decode, hit)
        if missing is None:
            return
        if missing == 0:  # all but the last token is here: D computes that
            text.stage = "ended"
            self.side.finish_request(text.decode)
            self._told()
            return
        if (
            self.manager.allocate_slots(
                text.decode, 0, hit, found, num_external_computed_tokens=missing, delay_cache_blocks=True
            )
            is None
        ):
            return
        text.decode.num_computed_tokens = hit + missing
        text.stage = "reserved"
        self.reserved += 1
        self.seen["hit on D"] += hit > 0
        self.side.allocated(text.decode, self.manager.get_blocks(text.decode.request_id).blocks, missing)
        for reservation in self.side._ledger.reservations().get(text.decode.request_id, ()):
            for layer in range(self._layout.num_layers):
                self._memory.fill(layer, reservation, b"what was here before".ljust(BLOCK_BYTES, b"!"))
        self._told()

    def _poll(self) -> None:
        finished, failed = self._worker.take_results()
        report = self._worker.take_report() or DecodeReport()
        closed = list(report.closed)
        self.side.update(report, finished)
        for name in finished:
            text = self._texts[name]
            if text.cancelled:
                self.manager.free(text.decode)
            elif name in failed:
                text.stage, text.reason = "failed", report.failed.get(name, text.reason)
                self.manager.free(text.decode)
            else:
                text.stage = "loaded"
                self.manager.cache_blocks(text.decode, len(text.tokens) - 1)
                self._compare(text)
        for name, reason in report.failed.items():
            if self._texts[name].stage != "ended":  # it had all of its prompt
                self._texts[name].stage, self._texts[name].reason = "failed", reason
        for name in closed:
            self._texts[name].closed = name not in self.side._ledger.reservations()  # by all ranks
        if report.failed:
            self._told()  # ranks that go on waiting

    def _end(self, text: Text) -> None:
        text.stage = "ended"
        self.side.finish_request(text.decode)
        self.manager.free(text.decode)
        self._told()

    def _compare(self, text: Text) -> None:
        """Read what the attention of the last token reads."""
        tables = self.manager.get_block_ids(text.decode.request_id)
        length = len(text.tokens)
        for layer in range(self._layout.num_layers):
            group = self._layout.group_of(layer)
            if self._layout.is_state(layer):
                self._compare_state(
                    layer, tables[group][(length - 2) // self._layout.tokens_of(group)], text.tokens[:-1]
                )
                continue
            window, last = self._layout.windows[group] or length, length - 1
            first = last - last % -window if window < 0 else max(0, length - window)
            for place in range(first, last):
                block = tables[group][place // self._layout.tokens_of(group)]
                expected = content(text.tokens[place], layer, place)
                if block == 0 or (found := self._memory.read(layer, block, place)) != expected:
                    shown = "the null block" if block == 0 else found
                    self.problem = (
                        self.problem or f"{text.name} layer {layer} token {place}: found {shown!r} for {expected!r}"
                    )
                    return

    def _compare_cached(self, text: Text, found: Sequence[Sequence[KVCacheBlock]]) -> None:
        """Read the states that the prefix cache has for a prompt: the decode node would compute from them."""
        for layer in range(self._layout.num_layers):
            blocks = found[self._layout.group_of(layer)]
            if self._layout.is_state(layer) and blocks:
                self.seen["state cached on D"] += 1
                self._compare_state(layer, blocks[-1].block_id, text.tokens[: len(blocks) * BLOCK_TOKENS])

    def _compare_state(self, layer: int, block: int, tokens: Sequence[int]) -> None:
        expected, found = state(tokens, layer), self._memory.read_state(layer, block)
        if found != expected:
            self.problem = self.problem or f"layer {layer} block {block}: found {found!r} for {expected!r}"
