"""One container of a compose service, from an image that was built here: confined as the file says, in a network of its own."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from tests.support.images.build import Image
from tests.support.images.root import beside, first_process, in_root

BEGUN_WITHIN_S: Final = 20.0
TICK_S: Final = 0.05


class Container:
    """Runs in `with`; whatever is left of it at the end is killed."""

    def __init__(
        self,
        image: Image,
        service: Mapping[str, Any],
        folder: Path,
        *,
        volumes: Path,
        network: str = "",
        files: Mapping[str, Path] | None = None,
    ) -> None:
        """Take an image and a service as docker-compose renders it.

        Args:
            image: built.
            service: its definition.
            folder: an empty one, for what it writes and its log.
            volumes: holds a folder for each named volume.
            network: name of a network namespace; empty: this machine's.
            files: path in it → file here, for reading: what an engine puts into every container.
        """
        self._image = image
        self.log = folder / "log"
        mounted = {v["target"]: _volume(volumes / v["source"], image, v["target"]) for v in service["volumes"]}
        closed = {v["target"] for v in service["volumes"] if v.get("read_only")}
        self._run = image.run(
            service.get("environment", {}),
            mounted={path: source for path, source in mounted.items() if path not in closed},
            lent={path: mounted[path] for path in closed} | {path: str(file) for path, file in (files or {}).items()},
            temporary=[*service.get("tmpfs", []), "/dev/shm:exec"],
            read_only=service["read_only"],
            confined=service["cap_drop"] == ["ALL"],
            network=network,
        )
        self._argv = [*image.entrypoint, *(service.get("command") or image.command)]
        self._root = image.writable(folder)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                in_root(self._root, self._argv, self._run),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.kill()  # with it goes all in its process namespace
        self._process.wait()

    @property
    def first(self) -> int:
        """The id here of its process 1, once that is the image's own program."""
        assert self._process is not None
        deadline_s = time.monotonic() + BEGUN_WITHIN_S
        while time.monotonic() < deadline_s and self._process.poll() is None:
            with suppress(OSError, IndexError):
                found = first_process(self._process.pid)
                if Path(f"/proc/{found}/comm").read_text().strip() == self._argv[0]:
                    return found
            time.sleep(TICK_S)
        raise RuntimeError(f"it did not begin: {self.tail()}")

    def exec(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command in it, as its user."""
        command = beside(self.first, argv, self._run)
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def wait_healthy(self, check: Sequence[str], timeout_s: float) -> None:
        """Run a health check until it succeeds."""
        deadline_s = time.monotonic() + timeout_s
        while (done := self.exec(*check)).returncode != 0:
            if time.monotonic() > deadline_s:
                raise RuntimeError(f"not healthy: {done.stderr}\n{self.tail()}")
            time.sleep(TICK_S)

    def stop(self, timeout_s: float) -> int:
        """SIGTERM its process 1; return its status."""
        os.kill(self.first, signal.SIGTERM)
        return self.wait(timeout_s)

    def wait(self, timeout_s: float) -> int:
        """Wait for its end and return its status."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def tail(self) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:])


def _volume(folder: Path, image: Image, target: str) -> str:
    """Make a named volume, owned as the image's folder of that path is: an engine copies that for an empty one."""
    if not folder.exists():
        folder.mkdir(parents=True)
        like = next(path for layer in image.root.layers if (path := layer / target.strip("/")).exists())
        status = like.stat()
        os.chown(folder, status.st_uid, status.st_gid)
        folder.chmod(status.st_mode & 0o7777)
    return str(folder)
