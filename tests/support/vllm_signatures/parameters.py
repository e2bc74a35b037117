"""Parameters as text, and whether a call fits them."""

import inspect
from collections.abc import Sequence
from inspect import Parameter
from typing import Any, NamedTuple

from tests.support.vllm_signatures.source import Function


class Call(NamedTuple):
    """How something is called: so many by position, these by name."""

    positional: int
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ", ".join([*("_" for _ in range(self.positional)), *(f"{name}=_" for name in self.names)])


def parameters_of(function: Function) -> list[str]:
    """Say a function's parameters as one would write them, less types and values: `["self", "a", "b=", "*", "c="]`."""
    given = function.args
    plain = [*given.posonlyargs, *given.args]
    first_default = len(plain) - len(given.defaults)
    found = [f"{each.arg}=" if index >= first_default else each.arg for index, each in enumerate(plain)]
    if given.posonlyargs:
        found.insert(len(given.posonlyargs), "/")
    if given.vararg:
        found.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        found.append("*")
    found += [
        f"{each.arg}=" if default is not None else each.arg
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
    ]
    return [*found, f"**{given.kwarg.arg}"] if given.kwarg else found


def signature(parameters: Sequence[str]) -> inspect.Signature:
    """Make a signature of what `parameters_of` says, without `self` or `cls`."""
    found: list[Parameter] = []
    kind: Any = Parameter.POSITIONAL_OR_KEYWORD
    for text in parameters[[*parameters][:1] in (["self"], ["cls"]) :]:
        if text.startswith("**"):
            found.append(Parameter(text[2:], Parameter.VAR_KEYWORD))
        elif text.startswith("*"):
            kind = Parameter.KEYWORD_ONLY
            if len(text) > 1:
                found.append(Parameter(text[1:], Parameter.VAR_POSITIONAL))
        elif text == "/":
            found = [each.replace(kind=Parameter.POSITIONAL_ONLY) for each in found]
        else:
            default = None if text.endswith("=") else Parameter.empty
            found.append(Parameter(text.rstrip("="), kind, default=default))
    return inspect.Signature(found)


def calls_allowed_by(parameters: Sequence[str]) -> list[Call]:
    """The calls that a caller who reads these parameters may make: all by position where possible, and all by name."""
    known = signature(parameters).parameters.values()
    by_position = [each for each in known if each.kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)]
    by_name = tuple(each.name for each in known if each.kind is Parameter.KEYWORD_ONLY)
    must_be_placed = sum(each.kind is Parameter.POSITIONAL_ONLY for each in by_position)
    named = tuple(each.name for each in by_position[must_be_placed:])
    extra = ("anything_else",) if any(each.kind is Parameter.VAR_KEYWORD for each in known) else ()
    return [Call(len(by_position), by_name), Call(must_be_placed, named + by_name + extra)]


def problem(parameters: Sequence[str], call: Call) -> str | None:
    """Say why a call does not fit; None if it does."""
    try:
        signature(parameters).bind(*range(call.positional), **dict.fromkeys(call.names))
    except TypeError as exc:
        return str(exc)
    return None
