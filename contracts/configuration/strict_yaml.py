"""YAML as people are to write it: plain values, and a key that is written twice is a mistake and not an override."""

from typing import Any

import yaml

YamlError = yaml.YAMLError


class StrictLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML ships no types
    """Plain YAML without repeated keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        written = [key.value for key, _ in node.value]
        twice = next((key for key in written if written.count(key) > 1), None)
        if twice is not None:
            raise yaml.constructor.ConstructorError(None, None, f"{twice!r} is written twice", node.start_mark)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]  # PyYAML ships no types


def parse(text: str) -> object:
    """Return what a YAML text says; JSON is YAML too. Raises `YamlError` if it is none."""
    return yaml.load(text, Loader=StrictLoader)  # noqa: S506  # derived from SafeLoader
