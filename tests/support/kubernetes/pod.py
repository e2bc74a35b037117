"""Runs a pod of an overlay as a process of this machine: its arguments, environment, user, mounts and read-only root.

Instead of an image there is this machine's root file system with this tree, read-only under an overlay; instead of a network a
namespace that all pods share, where Services' names stand in /etc/hosts. No seccomp profile, no limits. Root, Linux.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from deploy.embedded_model import WEIGHTS
from tests.support.kubernetes.render import Object

ROOT: Final = Path(__file__).parents[3]
ADDRESS: Final = "192.0.2.10"  # TEST-NET-1
_COMMAND_S: Final = 30
_SCRIPT: Final = r"""
set -euo pipefail
place=$1 user=$2 group=$3 fs_group=$4; shift 4
mount -t tmpfs pod "$place/root"
mkdir "$place/root/"{upper,work,merged}
mount -t overlay pod -o "lowerdir=/,upperdir=$place/root/upper,workdir=$place/root/work" "$place/root/merged"
cd "$place/root/merged"
while read -r path; do # our tree and Python, which may be on other file systems or in root's home
    mkdir -p ".$path"
    for (( parent=${#path}; parent > 0; )); do path=${path%/*}; parent=${#path}; chmod a+x ".$path/"; done
done <"$place/trees"
while read -r from to mode; do mkdir -p ".$to"; done <"$place/mounts"
cat "$place/hosts" >>etc/hosts
[ -e opt/embedded-model ] || ln -s "$(cat "$place/model")" opt/embedded-model # as the Dockerfiles do
mount -o remount,ro "$place/root/merged"
while read -r path; do mountpoint -q ".$path" || mount --rbind "$path" ".$path"; done <"$place/trees"
mount --rbind /proc proc
mount --rbind /sys sys
mount --rbind /dev dev
while read -r from to mode; do mount --bind "$from" ".$to"; mount -o "remount,bind,$mode" ".$to"; done <"$place/mounts"
exec chroot . setpriv --reuid "$user" --regid "$group" --groups "$fs_group" --no-new-privs --bounding-set=-all \
    --inh-caps=-all env -i "$@"
"""


def run(command: Sequence[str]) -> None:
    """Run a command of the machine's."""
    subprocess.run(command, check=True, capture_output=True, timeout=_COMMAND_S)


@contextmanager
def network(name: str) -> Iterator[str]:
    """Make a network namespace with one address."""
    run(["ip", "netns", "add", name])
    try:
        for command in (
            "link set lo up",
            "link add pods type veth peer name nobody",
            f"address add {ADDRESS}/24 dev pods",
            "link set pods up",
            "link set nobody up",
        ):
            run(["ip", "-n", name, *command.split()])
        yield name
    finally:
        run(["ip", "netns", "delete", name])


def start(
    template: Object, objects: Sequence[Object], secrets: Mapping[str, Mapping[str, str]], netns: str, place: Path
) -> "subprocess.Popen[bytes]":
    """Start a pod's container; what it says goes into `place/log`.

    Args:
        template: The pod template.
        objects: Of the overlay: ConfigMaps, and the Services whose names it may use.
        secrets: Secret name → file → content.
        netns: Its network.
        place: A folder for it.
    """
    spec, container = template["spec"], template["spec"]["containers"][0]
    security = spec["securityContext"]
    (place / "root").mkdir(parents=True)
    mounts = []
    volumes = {each["name"]: each for each in spec["volumes"]}
    for mount in container["volumeMounts"]:
        folder = _volume(volumes[mount["name"]], objects, secrets, place, security["fsGroup"])
        mounts.append(f"{folder} {mount['mountPath']} {'ro' if mount.get('readOnly') else 'rw'}\n")
    (place / "mounts").write_text("".join(mounts))
    (place / "trees").write_text("".join(f"{path}\n" for path in _trees()))
    (place / "model").write_text(str(WEIGHTS))
    services = [each["metadata"]["name"] for each in objects if each["kind"] == "Service"]
    (place / "hosts").write_text("".join(f"{ADDRESS} {name}\n" for name in services))
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"} | _environ(
        container
    )
    ids = [str(security[name]) for name in ("runAsUser", "runAsGroup", "fsGroup")]
    baton = [sys.executable, "-m", "deploy.cli", *container["args"]]  # the images' entry point
    variables = [f"{name}={value}" for name, value in environ.items()]
    bash = [
        "ip",
        "netns",
        "exec",
        netns,
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "bash",
        "-c",
        _SCRIPT,
        "pod",
    ]
    with (place / "log").open("wb") as log:
        return subprocess.Popen([*bash, str(place), *ids, *variables, *baton], stdout=log, stderr=log)


def _volume(
    volume: Object, objects: Sequence[Object], secrets: Mapping[str, Mapping[str, str]], place: Path, group: int
) -> Path:
    """Make what kubelet would mount, with its owners and modes."""
    folder: Path = place / "volumes" / volume["name"]
    folder.mkdir(parents=True)
    if "emptyDir" in volume:
        os.chown(folder, 0, group)
        folder.chmod(0o2777)
        return folder
    if "secret" in volume:
        files, mode = secrets[volume["secret"]["secretName"]], volume["secret"]["defaultMode"]
    else:
        name = volume["configMap"]["name"]
        (files,) = [
            each["data"] for each in objects if each["kind"] == "ConfigMap" and each["metadata"]["name"] == name
        ]
        mode = 0o644
    for name, content in files.items():
        file = folder / name
        file.write_text(content)
        os.chown(file, 0, group)
        file.chmod(mode)
    return folder


def _environ(container: Object) -> dict[str, str]:
    return {each["name"]: _value(each, container) for each in container.get("env", ())}


def _value(variable: Object, container: Object) -> str:
    if "value" in variable:
        return str(variable["value"])
    source: Any = variable["valueFrom"]["resourceFieldRef"]["resource"]  # no other is used on CPUs
    return str(container["resources"]["limits"][source.removeprefix("limits.")])


def _trees() -> list[Path]:
    found = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    return [path for path in found if not any(other != path and path.is_relative_to(other) for other in found)]
