"""P: computes one prompt and pushes it. Its memory is full of `SENT`."""

import time
from pathlib import Path

from baton.kv_connector.engine.mooncake import MooncakeFactory
from baton.kv_connector.handoff.metadata import PrefillStep, StartedPrompt
from baton.kv_connector.handoff.outgoing import Progress, Prompt
from baton.kv_connector.worker_side.prefill import PrefillWorker
from baton.kv_connector.worker_side.sync import HOST_STREAM
from tests.support.late_writes.node import (
    BLOCK_TOKENS,
    LAYERS,
    PROMPT_BLOCKS,
    SECRET,
    SENT,
    Memory,
    config,
    introduction,
    no_digests,
)


def main(*, folder: str, host: str) -> int:
    """Run until killed; `address` in the folder says where."""
    memory = Memory(SENT)
    worker = PrefillWorker(
        config=config(Path(folder), host),
        secret=SECRET,
        introduction=introduction("P", "prefill", memory),
        engines=MooncakeFactory(host=host, push_timeout_s=60),
        incarnation=11,
        stream=HOST_STREAM,
        digests=no_digests,
    )
    worker.start()
    prompt = Prompt(PROMPT_BLOCKS * BLOCK_TOKENS, PROMPT_BLOCKS, b"prompt")
    blocks = [2 * i + 1 for i in range(PROMPT_BLOCKS)]  # no two next to each other: one descriptor each
    worker.begin_step(
        PrefillStep(
            started=[StartedPrompt("t", "p-t", prompt)],
            progress=[Progress("p-t", [blocks], ready_blocks=PROMPT_BLOCKS)],
        )
    )
    for layer in range(LAYERS):
        worker.kv_issued(f"layer.{layer}")
    worker.end_step()
    written = Path(folder) / "address.new"
    written.write_text(worker.address)
    written.rename(Path(folder) / "address")
    time.sleep(120)
    return 0
