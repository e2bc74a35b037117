"""The workers on an Ascend NPU: that of vllm-ascend, with its model runner or with ours."""

from typing import Any, ClassVar

from vllm_ascend import utils  # type: ignore[import-not-found,unused-ignore]  # absent elsewhere
from vllm_ascend.worker import model_runner_v1  # type: ignore[import-not-found,unused-ignore]
from vllm_ascend.worker import worker as ascend_worker  # type: ignore[import-not-found,unused-ignore]
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner  # type: ignore[import-not-found,unused-ignore]
from vllm_ascend.worker.worker import NPUWorker  # type: ignore[import-not-found,unused-ignore]

from baton.model_runner.choose import refuse_ascend
from baton.model_runner.runner.attribute_patch import in_place_of
from baton.model_runner.runner.event_synced import ListsEventSynced
from baton.model_runner.worker import NodeWorker, TransferWorker


class EngineWorker(NodeWorker, NPUWorker):
    """vllm-ascend's worker for a Baton node, with its model runner, V1 or V2."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        device = str(utils.get_ascend_device_type().name)  # what vllm-ascend was built for, such as `A3` or `_310P`
        refuse_ascend(vllm_config.additional_config, device)
        super().__init__(vllm_config, *args, **kwargs)


class NpuRunner(ListsEventSynced, NPUModelRunner):
    """vllm-ascend's V1 runner, with ids by `TokenTransfer`."""

    output_module: ClassVar = model_runner_v1


class Worker(TransferWorker, EngineWorker):
    """The same with `NpuRunner`."""

    def init_device(self) -> None:
        with in_place_of(ascend_worker, "NPUModelRunner", NpuRunner):
            super().init_device()
