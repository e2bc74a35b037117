"""One of two pipeline stages in processes of their own: vLLM's group over gloo, no model. Files tell how far it is."""

import json
import time
from pathlib import Path
from typing import Any, Literal

from tests.support.waiting import eventually

How = Literal["async", "sync"]
TOKENS, HIDDEN = 64, 256
STEPS = 6
DEADLINE_S = 60.0
GO = "go"  # the second stage begins to receive when this file is there
READY, DONE = "ready", "done"  # written by each stage, with its rank
SENT = "sent"  # with a step's number: that step's send has returned


def stage(rank: int, folder: str, how: How, timeout_s: float) -> int:
    """Send or receive `STEPS` messages; write what was received, or what went wrong, to `done`."""
    here = Path(folder)
    group = _group(rank, here, how, timeout_s)
    (here / f"{READY}-{rank}").touch()
    try:
        result: Any = _send(group, here) if rank == 0 else _receive(group, here)
    except Exception as exc:  # noqa: BLE001  # the test looks at what it was
        result = f"{type(exc).__name__}: {exc}"
    partial = here / f"partial-{rank}"
    partial.write_text(json.dumps(result))
    partial.rename(here / f"{DONE}-{rank}")
    time.sleep(DEADLINE_S)  # the parent process ends this one: its connections stay open
    return 0


def wait_for_file(path: Path) -> Path:
    eventually(path.exists, DEADLINE_S, found=lambda: f"{path.name} did not come")
    return path


def _group(rank: int, folder: Path, how: How, timeout_s: float) -> Any:
    import torch.distributed
    from vllm.distributed.parallel_state import GroupCoordinator

    from baton.model_runner.pipeline.lane import install

    torch.distributed.init_process_group("gloo", init_method=f"file://{folder / 'store'}", rank=rank, world_size=2)
    group = GroupCoordinator([[0, 1]], rank, "gloo", use_device_communicator=False, group_name="pp")
    install(group, how, timeout_s)
    return group


def _send(group: Any, folder: Path) -> str:
    import torch

    output = torch.empty(TOKENS, HIDDEN)  # each step writes it again, as a captured graph does
    for step in range(STEPS):
        output.fill_(step)
        group.isend_tensor_dict({"hidden_states": output})
        (folder / f"{SENT}-{step}").touch()
    return "sent"


def _receive(group: Any, folder: Path) -> list[float]:
    from vllm.v1.worker.gpu_worker import AsyncIntermediateTensors

    wait_for_file(folder / GO)
    seen = []
    for _ in range(STEPS):
        received = AsyncIntermediateTensors(*group.irecv_tensor_dict())
        values = received["hidden_states"]
        assert values.min() == values.max()
        seen.append(float(values[0, 0]))
    return seen
