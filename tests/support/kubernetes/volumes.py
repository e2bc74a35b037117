"""What kubelet mounts into a container, made in a folder: owners and modes as it sets them, files behind its links.

A Secret or ConfigMap is a folder of links to `..data/…`, itself a link that is swung when the object changes.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.kubernetes.render import Object

VERSION: Final = "..2026_11_22_11_00_00.1"
_UNITS: Final = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}
Secrets = Mapping[str, Mapping[str, str]]  # name → file → content


def mounts(template: Object, objects: Sequence[Object], secrets: Secrets, folder: Path) -> dict[str, tuple[str, bool]]:
    """Make a container's volumes on disk; return path in it → folder here, and whether it may be written."""
    spec = template["spec"]
    group = spec["securityContext"]["fsGroup"]
    found = {}
    for path, volume, writable in _mounted(spec):
        if not _in_memory(volume):
            place = folder / volume["name"]
            _fill(place, volume, objects, secrets, group)
            found[path] = (str(place), writable)
    return found


def memory_bytes(template: Object) -> dict[str, int]:
    """Return a container's volumes in memory: path → size."""
    return {
        path: quantity_bytes(volume["emptyDir"]["sizeLimit"])
        for path, volume, _ in _mounted(template["spec"])
        if _in_memory(volume)
    }


def quantity_bytes(quantity: str) -> int:
    """Read a size as Kubernetes writes it: `8Gi`."""
    number, unit = re.fullmatch(r"(\d+)([KMG]i)?", quantity).groups("")  # type: ignore[union-attr]
    return int(number) * _UNITS[unit]


def _mounted(spec: Object) -> list[tuple[str, Object, bool]]:
    volumes = {each["name"]: each for each in spec["volumes"]}
    (container,) = spec["containers"]
    return [(at["mountPath"], volumes[at["name"]], not at.get("readOnly", False)) for at in container["volumeMounts"]]


def _in_memory(volume: Object) -> bool:
    return bool(volume.get("emptyDir", {}).get("medium") == "Memory")


def _fill(place: Path, volume: Object, objects: Sequence[Object], secrets: Secrets, group: int) -> None:
    place.mkdir(parents=True)
    if "emptyDir" in volume:
        os.chown(place, 0, group)
        place.chmod(0o2777)
        return
    if "secret" in volume:
        files, mode = secrets[volume["secret"]["secretName"]], volume["secret"]["defaultMode"]
    else:
        files, mode = _config(objects, volume["configMap"]["name"]), 0o644
    place.chmod(0o755)
    (place / VERSION).mkdir(mode=0o755)
    (place / "..data").symlink_to(VERSION)
    for name, content in files.items():
        file = place / VERSION / name
        file.write_text(content)
        os.chown(file, 0, group)
        file.chmod(mode)
        (place / name).symlink_to(f"..data/{name}")


def _config(objects: Sequence[Object], name: str) -> Mapping[str, Any]:
    """Return the files of a ConfigMap; its name holds the hash of what is in it."""
    (found,) = [each for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name]
    return found["data"]  # type: ignore[no-any-return]
