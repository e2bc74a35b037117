"""Stands where torchvision is not installed: its modules can be imported, and nothing in them can be used.

vLLM's models of images import it at the top; images themselves are read with Pillow then.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Final

__version__: Final = "0.0"


class _Anything:
    """A name of some module."""

    def __getattr__(self, name: str) -> "_Anything":
        if name.startswith("__"):
            raise AttributeError(name)
        return _Anything()


class _Modules(MetaPathFinder, Loader):
    def find_spec(self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.startswith(f"{__name__}.") else None

    def exec_module(self, module: ModuleType) -> None:
        def find(name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return _Anything()

        vars(module)["__getattr__"] = find


sys.meta_path.append(_Modules())
