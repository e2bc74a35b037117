"""A PATH for shell scripts: stubs that write down how they were called, beside the few real tools that a script needs."""

import shutil
import subprocess
from pathlib import Path

WAIT_S = 60.0


class StubCommands:
    """See the head of this file."""

    def __init__(self, folder: Path, *tools: str) -> None:
        self.folder = folder / "bin"
        self.environ = {"PATH": str(self.folder)}
        self._log = folder / "log"
        self._log.touch()
        self.folder.mkdir()
        for tool in tools:
            (self.folder / tool).symlink_to(shutil.which(tool) or "")

    def stub(self, name: str, script: str = "") -> None:
        """Put a command there, or another one in its place."""
        path = self.folder / name
        path.write_text(f'#!{shutil.which("bash")}\necho {name} "$@" >>{self._log}\n{script}\n')
        path.chmod(0o755)

    def start(self, script: Path, *arguments: str) -> "subprocess.Popen[str]":
        command = [str(self.folder / "bash"), str(script), *arguments]
        return subprocess.Popen(command, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, script: Path, *arguments: str) -> tuple[int, str]:
        """Run a script to its end; return its status and what it said."""
        with self.start(script, *arguments) as process:
            said, _ = process.communicate(timeout=WAIT_S)
        return process.returncode, said

    def calls(self, name: str = "") -> list[str]:
        """Return the calls of a stub, or of all, in their order."""
        return [line for line in self._log.read_text().splitlines() if line.startswith(name)]
