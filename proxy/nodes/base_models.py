"""Base models and their adapters: which base model a name belongs to, and so which nodes an operation is for. Pure.

One base model may have several names, in another order on each node: nodes with a name in common serve the same one.
An adapter belongs to the base model of the node that loaded it. A name under two base models is served by neither.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from baton.proxy.errors import BadRequestError, UnknownModelError
from baton.proxy.nodes.node import Node

FIELD: Final = "base_model_name"  # vLLM's word for it, in `--lora-modules`
# What vLLM replaces in messages to clients: a model's name may be a path.
_FOLDERS: Final = re.compile(r"/(?:home|usr|opt|var|tmp|root|lib|mnt|srv)(?:/[\w.\-]+)+")
_FILES: Final = re.compile(r"(?:/[\w\-]+)+/[\w\-]+\.\w+")


def bases(nodes: Iterable[Node]) -> list[frozenset[str]]:
    """Return the names of each base model that the nodes serve, as far as they have said."""
    found: list[frozenset[str]] = []
    for names in dict.fromkeys(node.base_names for node in nodes if node.base_names):
        alike = [other for other in found if other & names]
        found = [other for other in found if not other & names] + [names.union(*alike)]
    return found


def check_is_one(nodes: Sequence[Node], model: str) -> None:
    """Check that a request for a model ("" if it names none) cannot be answered by two base models.

    `nodes` are all that might serve it, whether they are in use or not.

    Raises:
        BadRequestError: it names none, and there are several; or an adapter that several have.
    """
    if not model:
        if len(bases(nodes)) > 1:
            raise BadRequestError("you must provide a 'model': several are served", param="model")
    elif any(model in node.adapter_names for node in nodes):
        parents = bases(node for node in nodes if node.serves(model))
        if len(parents) > 1:
            message = f"the model '{model}' is ambiguous: it is loaded under the base models {_listed(parents)}"
            raise BadRequestError(message, param="model")


def unknown_model(model: str, nodes: Sequence[Node]) -> UnknownModelError:
    """Return the error of a model that no node serves, in vLLM's words."""
    served = dict.fromkeys(name for node in nodes if node.info for name in node.info.served_models)
    adapters = {name for node in nodes for name in node.adapter_names}
    aliases = ", ".join(name for name in served if name not in adapters)
    message = f"The model `{model}` does not exist. Valid aliases: {aliases}."
    return UnknownModelError(_FILES.sub("<path>", _FOLDERS.sub("<path>", message)), param="model")


def nodes_to_load(nodes: Sequence[Node], adapter: str, base: str) -> list[Node]:
    """Return the nodes that an adapter is to be loaded on; `base` names its base model, "" if the request does not.

    Raises:
        BadRequestError: several base models are served, or another one has that name already.
        UnknownModelError: no node serves that base model.
    """
    chosen = nodes_of(nodes, base)
    taken = bases(node for node in nodes if node.serves(adapter) and node not in chosen)
    if taken:
        raise BadRequestError(
            f"the name '{adapter}' is in use by, or under, another base model: {_listed(taken)}", param="lora_name"
        )
    return chosen


def nodes_to_unload(nodes: Sequence[Node], adapter: str, base: str) -> list[Node]:
    """Return the nodes that an adapter is to be unloaded from: all of its base model's, since one may not have said yet.

    Raises:
        BadRequestError: several base models have an adapter of that name, or several are served and none has.
        UnknownModelError: no node serves that base model.
    """
    parents = bases(node for node in nodes if adapter in node.adapter_names)
    if not base and len(parents) == 1:
        base = min(parents[0])
    return nodes_of(nodes, base)


def nodes_of(nodes: Sequence[Node], base: str) -> list[Node]:
    """Return the nodes of one base model; without a name, of the only one that there is.

    Raises:
        BadRequestError: there are several, and none is named.
        UnknownModelError: no node serves that base model.
    """
    served = bases(nodes)
    if not base:
        if len(served) > 1:
            raise BadRequestError(f"several base models are served: name one of {_listed(served)}", param=FIELD)
        return [node for node in nodes if node.base_names]
    wanted = next((names for names in served if base in names), None)
    if wanted is None:
        raise UnknownModelError(f"no node serves the base model '{base}'", param=FIELD)
    return [node for node in nodes if node.base_names & wanted]


def _listed(found: Iterable[frozenset[str]]) -> str:
    return ", ".join(sorted(f"'{min(names)}'" for names in found))
