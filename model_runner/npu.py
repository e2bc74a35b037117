"""The workers on an Ascend NPU: that of vllm-ascend, with its model runner or with ours."""

from typing import Any

from vllm_ascend.worker import worker as ascend_worker  # type: ignore[import-not-found,unused-ignore]  # absent elsewhere
from vllm_ascend.worker.worker import NPUWorker  # type: ignore[import-not-found,unused-ignore]

from baton.model_runner.choose import refuse_ascend
from baton.model_runner.multi_host import MultiHostWorker
from baton.model_runner.parent_death import end_with_parent
from baton.model_runner.reports import Reports
from baton.model_runner.start_tokens import StartTokens
from baton.model_runner.voids_first import VoidsFirst, refuse_v2
from baton.model_runner.watched import Watched


class EngineWorker(MultiHostWorker, Watched, Reports, VoidsFirst, StartTokens, NPUWorker):
    """vllm-ascend's worker for a Baton node, with its model runner, V1 or V2."""

    def __init__(self, vllm_config: Any, *args: Any, **kwargs: Any) -> None:
        refuse_ascend(vllm_config.additional_config, _device_name())
        end_with_parent()
        super().__init__(vllm_config, *args, **kwargs)


class Worker(EngineWorker):
    """The same, with vllm-ascend's V1 runner and ids by `TokenTransfer`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_v2(self)

    def init_device(self) -> None:
        """Make our runner where vllm-ascend's code makes its own."""
        from baton.model_runner.runner.attribute_patch import in_place_of
        from baton.model_runner.runner.npu import NpuRunner

        with in_place_of(ascend_worker, "NPUModelRunner", NpuRunner):
            super().init_device()


def _device_name() -> str:
    """Return vllm-ascend's name for what it was built for, such as `A3` or `_310P`."""
    from vllm_ascend import utils  # type: ignore[import-not-found,unused-ignore]

    return str(utils.get_ascend_device_type().name)
