"""What does not change while the proxy runs, for `/admin/state`: its version and its settings, without secrets."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from baton.contracts.configuration.schema import ProxyConfig
from baton.contracts.installed import installed_version

DISTRIBUTION: Final = "baton-serve"
MASK: Final = "***"
_CREDENTIALS: Final = re.compile(r"(?<=://)[^/@]*(?=@)")
_QUERY: Final = re.compile(r"(?<=\?).+")


def running_version() -> str:
    """Return the version that is installed; "" where the tree runs uninstalled."""
    return installed_version(DISTRIBUTION)


def settings(config: ProxyConfig) -> dict[str, Any]:
    """Return the settings in force. Of secrets there are files' names alone; what a URL may hold of them is masked."""
    return {name: _shown(value) for name, value in asdict(config).items()}


def _shown(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_shown(each) for each in value]
    if isinstance(value, str) and "://" in value:
        return _QUERY.sub(MASK, _CREDENTIALS.sub(MASK, value))
    return value
