"""What the images of services are, by their Dockerfiles: variables and entry point."""

from collections.abc import Iterator, Mapping
from typing import Any

from tests.support.compose import ROOT
from tests.support.images.dockerfile import Instruction, assignments, stages


def image_environment(definition: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a service's image sets, but for PATH: the programs here are this machine's."""
    environ: dict[str, str] = {}
    for instruction in _instructions(definition):
        if instruction.name == "ENV":
            environ = assignments(instruction, {}) | environ
    return {name: value for name, value in environ.items() if name != "PATH"}


def image_entrypoint(definition: Mapping[str, Any]) -> list[str]:
    """Return the command that a service's image puts before its arguments."""
    return next(each.words for each in _instructions(definition) if each.name == "ENTRYPOINT")


def image_folder(definition: Mapping[str, Any]) -> str:
    """Return the folder that a service's image starts in."""
    return next(each.text for each in _instructions(definition) if each.name == "WORKDIR")


def _instructions(definition: Mapping[str, Any]) -> Iterator[Instruction]:
    """The last one first, through the stages that the image is made of."""
    build = definition["build"]
    found = {stage.name: stage for stage in stages((ROOT / build["dockerfile"]).read_text())}
    name = build["target"]
    while name in found:
        yield from reversed(found[name].instructions)
        name = found[name].base
