"""Carries a Dockerfile out: each stage on a layer of its own, RUN and COPY as they stand there."""

import json
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from tests.support.images import context, machine
from tests.support.images.dockerfile import Instruction, Stage, assignments, expand, stages
from tests.support.images.root import Root, Run, copy, in_root

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BASE: Final = f"debian:{machine.RELEASE}-"


class BuildError(Exception):
    """A step failed; the message holds the end of what it said."""


@dataclass(slots=True, kw_only=True)
class Image:
    """What a stage has become."""

    root: Root
    environ: dict[str, str]
    user: str = "0:0"
    folder: str = "/"
    shell: list[str] = field(default_factory=lambda: ["/bin/sh", "-c"])
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def run(self, environ: Mapping[str, str], **more: Any) -> Run:
        """How the image's own processes run, with more of an environment and other changes."""
        variables = {"HOME": self.home, **self.environ, **environ}
        return Run(**({"environ": variables, "user": self.user, "folder": self.folder} | more))

    def describe(self, instruction: Instruction, variables: Mapping[str, str]) -> None:
        """Take in an instruction that runs nothing."""
        match instruction.name:
            case "ENV":
                self.environ |= assignments(instruction, variables)
            case "USER":
                self.user = instruction.text
            case "SHELL":
                self.shell = instruction.words
            case "ENTRYPOINT":
                self.entrypoint, self.command = instruction.words, []
            case "CMD":
                self.command = instruction.words
            case "HEALTHCHECK":
                self.health = list(json.loads(instruction.text.removeprefix("CMD").strip()))

    @property
    def home(self) -> str:
        """The user's folder, as an engine sets HOME."""
        file = next(file for layer in self.root.layers if (file := layer / "etc/passwd").exists())
        entries = (line.split(":") for line in file.read_text().splitlines())
        return next((entry[5] for entry in entries if entry[2] == self.user.partition(":")[0]), "/")

    def writable(self, folder: Path) -> Root:
        """Return its files below a fresh layer, as one container has them; `folder` is to hold that."""
        top, work = folder / "files", folder / "work"
        for made in (top, work):
            made.mkdir(parents=True)
        return Root(layers=[top, *self.root.layers], work=work)


class Builder:
    """Builds stages of one Dockerfile, with those that they need, below one folder."""

    def __init__(
        self,
        dockerfile: Path,
        repository: Path,
        folder: Path,
        *,
        step_s: float,
        bases: Mapping[str, Image] | None = None,
    ) -> None:
        """Read the file and collect the context; nothing is built yet.

        Args:
            dockerfile: what to build.
            repository: the context.
            folder: an empty one, for layers.
            step_s: how long one RUN may take.
            bases: name before the colon → what stands in for that image.
        """
        self._bases = dict(bases or {})
        self._stages = {stage.name: stage for stage in stages(dockerfile.read_text())}
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._step_s = step_s
        self._images: dict[str, Image] = {}
        self._loan = machine.loan(folder)
        self._context = folder / "context"
        context.send(repository, self._context)
        self.steps: list[tuple[str, float]] = []  # what was run, and how many seconds it took

    def build(self, target: str) -> Image:
        """Return the image of a stage.

        Raises:
            BuildError: a step failed.
            machine.MachineError: there is nothing to build on.
        """
        if target not in self._images:
            stage = self._stages[target]
            image = self._begin(stage)
            arguments: dict[str, str] = {}
            for instruction in stage.instructions:
                self._step(instruction, image, arguments)
            self._images[target] = image
        return self._images[target]

    def _begin(self, stage: Stage) -> Image:
        layer = self._folder / "stages" / (stage.name or "final")
        top, work = layer / "files", layer / "work"
        for folder in (top, work):
            folder.mkdir(parents=True)
        below = self.build(stage.base) if stage.base in self._stages else self._bases.get(stage.base.partition(":")[0])
        if below is not None:
            root = Root(layers=[top, *below.root.layers], work=work)
            return replace(below, root=root, environ=dict(below.environ))
        if not stage.base.startswith(BASE):
            raise BuildError(f"there is no {stage.base} here, only {BASE}…")
        return Image(root=Root(layers=[top, machine.debian()], work=work), environ={"PATH": PATH})

    def _step(self, instruction: Instruction, image: Image, arguments: dict[str, str]) -> None:
        variables = arguments | image.environ
        match instruction.name:
            case "ARG":
                key, _, value = instruction.text.partition("=")
                arguments[key] = expand(value, variables)
            case "RUN":
                self._run(instruction, image, arguments)
            case "COPY":
                self._copy(instruction, image)
            case "WORKDIR":
                image.folder = instruction.text
                made = ["mkdir", "-p", image.folder]
                subprocess.run(in_root(image.root, made, Run(environ={"PATH": PATH})), check=True)
            case _:
                image.describe(instruction, variables)

    def _run(self, instruction: Instruction, image: Image, arguments: Mapping[str, str]) -> None:
        began_s = time.monotonic()
        run = image.run({**arguments, **self._loan.environ}, lent=self._loan.folders, temporary=["/tmp:exec"])
        self._do(in_root(image.root, [*image.shell, instruction.text], run), instruction)
        self.steps.append((f"{instruction.name} {instruction.text[:60]}", time.monotonic() - began_s))

    def _copy(self, instruction: Instruction, image: Image) -> None:
        *sources, target = instruction.words
        if stage := instruction.flags.get("from"):
            for source in sources:
                copy(image.root, source, target, self.build(stage).root)
            return
        for source in sources:
            found = [self._context] if source == "." else list(self._context.glob(source))
            if not found:
                raise BuildError(f"line {instruction.line}: {source} is not in the context")
            for path in found:
                copy(image.root, str(path), target)

    def _do(self, command: Sequence[str], instruction: Instruction) -> None:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=self._step_s,
            check=False,
        )
        if done.returncode != 0:
            tail = "\n".join(done.stdout.splitlines()[-30:])
            raise BuildError(
                f"line {instruction.line}: {instruction.text[:200]}\nended with {done.returncode}:\n{tail}"
            )
