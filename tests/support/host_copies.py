"""Copies between a CPU "device" and the host for vLLM's OffloadingConnector, in place of its CUDA copies.

Everything else is vLLM's: connector, scheduler, manager. A copy happens late, in a thread, as on a device's own stream: what
it reads or writes by then is what it copies. A thread that waits for a copy has it made at once.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from vllm.v1.kv_offload.base import GPULoadStoreSpec, LoadStoreSpec, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

if TYPE_CHECKING:
    from vllm.v1.kv_offload.base import CanonicalKVCaches
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

LOOK_EVERY_S = 0.005


class _Copy(NamedTuple):
    due_s: float  # monotonic
    size_bytes: int
    make: Callable[[], None]


class LateCopies(OffloadingWorker):
    """Copies whole blocks between vLLM's KV cache and a buffer of the same shape, a while after they were asked for."""

    def __init__(
        self, kv_caches: "CanonicalKVCaches", chunks: int, *, store_after_s: float, load_after_s: float
    ) -> None:
        self._device = [cache.tensor for cache in kv_caches.tensors]
        self._host = [torch.zeros((chunks, tensor.shape[1]), dtype=torch.int8) for tensor in self._device]
        self._store_after_s, self._load_after_s = store_after_s, load_after_s
        self._lock = threading.Lock()
        self._due: dict[int, _Copy] = {}
        self._done: list[TransferResult] = []
        threading.Thread(target=self._run, daemon=True).start()

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec) -> bool:
        """Device to host."""
        blocks, chunks = _rows(src_spec, dst_spec)

        def copy() -> None:
            for device, host in zip(self._device, self._host, strict=True):
                host[chunks] = device[blocks]

        return self._later(job_id, self._store_after_s, len(blocks), copy)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Host to device."""
        blocks, chunks = _rows(dst_spec, src_spec)

        def copy() -> None:
            for device, host in zip(self._device, self._host, strict=True):
                device[blocks] = host[chunks]

        return self._later(job_id, self._load_after_s, len(blocks), copy)

    def get_finished(self) -> list[TransferResult]:
        with self._lock:
            done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        with self._lock:
            for job_id in sorted(job_ids & self._due.keys()):
                self._make(job_id)

    def _later(self, job_id: int, after_s: float, blocks: int, make: Callable[[], None]) -> bool:
        size = blocks * sum(tensor.shape[1] for tensor in self._device)
        with self._lock:
            self._due[job_id] = _Copy(time.monotonic() + after_s, size, make)
        return True

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_EVERY_S)
            with self._lock:
                now = time.monotonic()
                for job_id in [job_id for job_id, copy in self._due.items() if copy.due_s <= now]:
                    self._make(job_id)

    def _make(self, job_id: int) -> None:
        copy = self._due.pop(job_id)
        begun_s = time.monotonic()
        copy.make()
        took_s = time.monotonic() - begun_s
        self._done.append(TransferResult(job_id, success=True, transfer_size=copy.size_bytes, transfer_time=took_s))


def copy_late(*, store_after_s: float, load_after_s: float) -> None:
    """Have vLLM offload from a CPU, in this process and those that it forks."""

    def get_worker(spec: CPUOffloadingSpec, kv_caches: "CanonicalKVCaches") -> LateCopies:
        return LateCopies(kv_caches, spec.num_chunks, store_after_s=store_after_s, load_after_s=load_after_s)

    CPUOffloadingSpec.get_worker = get_worker


def _rows(device: GPULoadStoreSpec, host: "LoadStoreSpec | CPULoadStoreSpec") -> tuple[torch.Tensor, torch.Tensor]:
    chunks = host.block_ids  # of the CPU's own kind, with one block a chunk
    assert len(device.block_ids) == len(chunks)
    return torch.from_numpy(device.block_ids.astype(np.int64)), torch.from_numpy(chunks.astype(np.int64))
