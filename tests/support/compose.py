"""Compose files as docker-compose itself reads them: merged, interpolated, checked."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from tests.support.pinned_venv import pinned_venv, site_packages

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "deploy" / "compose"
NOTHING: Mapping[str, str] = MappingProxyType({})
OVERLAYS: Final = ("cuda", "npu", "secrets")
DEMANDED: Final = {"CLUSTER_SECRET_FILE": "/elsewhere/cluster", "ADMIN_TOKEN_FILE": "/elsewhere/admin"}  # by overlays


def compose_files(*overlays: str) -> list[Path]:
    return [FOLDER / "compose.yaml", *(FOLDER / f"compose.{overlay}.yaml" for overlay in overlays)]


def rendered(files: Sequence[Path], environ: Mapping[str, str] = NOTHING) -> dict[str, Any]:
    """Return what docker-compose makes of files. Raises `ValueError`: it refuses them, or warns."""
    program = site_packages(pinned_venv("image-tools")) / "bin" / "docker-compose"
    named = [word for file in files for word in ("--file", str(file))]
    done = subprocess.run(
        [program, *named, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], "HOME": "/nowhere", **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode or done.stderr:
        raise ValueError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def seconds(duration: str) -> float:
    """Read a duration as compose writes it: `1m10s`."""
    total, number = 0.0, ""
    for letter in duration:
        if letter in "hms":
            total += float(number) * {"h": 3600, "m": 60, "s": 1}[letter]
            number = ""
        else:
            number += letter
    return total
