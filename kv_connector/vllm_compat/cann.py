"""Which CANN, Ascend's toolkit, a process runs on: before 8.5 a thread that waits for an event may hang."""

import re
from importlib import import_module
from typing import Final

EVENTS_COMPLETE_FROM: Final = (8, 5)  # as vllm-ascend's layerwise connector has it: 8.5.RC1 mends a bug of ADXL
_MODULES: Final = ("torch_npu.npu.utils", "torch_npu.utils")  # where versions of torch_npu have `get_cann_version`


def version() -> str:
    """Return CANN's version, such as `8.5.0` or `8.3.RC1`; "" if torch_npu cannot tell, or is not there."""
    for name in _MODULES:
        try:
            found = import_module(name).get_cann_version()
        except (ImportError, AttributeError, RuntimeError):
            continue
        if found:
            return str(found)
    return ""


def events_complete(cann: str) -> bool:
    """Whether a wait for an event ends on this version; an unknown one is taken for an old one."""
    found = re.match(r"(\d+)\.(\d+)", cann)
    return found is not None and tuple(map(int, found.groups())) >= EVENTS_COMPLETE_FROM
