"""The order in which vLLM's runners and scheduler call a connector's hooks within one step, read from their source.

Calls of their own methods, and context managers, are followed. A branch that leaves the function is no part of the step that runs a
model, so it is left out; of other branches all count, in the order in which they are written.
"""

import ast
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from tests.support.vllm_signatures.source import Function, Module, Source

# What a step does between hooks, by the name of a call.
MARKS: Mapping[str, str] = MappingProxyType(
    {
        "zero_block_ids": "ZERO",
        "copy_kv_cache_blocks_inplace": "COPY_BLOCKS",
        "_model_forward": "MODEL",
        "run_fullgraph": "MODEL",
        "model": "MODEL",
        "func": "MODEL",  # one layer of it
        "_sample": "SAMPLE",
        "sample": "SAMPLE",
        "_bookkeeping_sync": "TOKENS",
        "propose": "DRAFT",
        "propose_draft_token_ids": "DRAFT",
        "step_fn": "STEP",
        "sleep": "SLEEP",
    }
)
V1, V2 = "vllm.v1.worker.gpu_model_runner:GPUModelRunner", "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
DRIVER = "vllm.v1.worker.gpu.kv_connector:ActiveKVConnector"  # `self.kv_connector` of the second runner
STEPS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "layer": ("vllm.model_executor.layers.attention.kv_transfer_utils.wrapper",),
        "first runner": (f"{V1}.execute_model", f"{V1}.sample_tokens"),
        "second runner": (f"{V2}.execute_model", f"{V2}.sample_tokens"),
        "schedule": ("vllm.v1.core.sched.scheduler:Scheduler.schedule",),
        "update": ("vllm.v1.core.sched.scheduler:Scheduler.update_from_output",),
        "engine": ("vllm.v1.engine.core:EngineCoreProc._process_engine_step",),
    }
)


class Steps:
    """Reads one version."""

    def __init__(self, source: Source, hook: Callable[[ast.expr], str]) -> None:
        """`hook` names the hook that a call is of, "" if none."""
        self._source = source
        self._hook = hook
        self._open: list[str] = []

    def read(self) -> dict[str, list[str]]:
        return {
            name: _without_repetitions([each for entry in entries for each in self._of(entry)])
            for name, entries in STEPS.items()
        }

    def _of(self, entry: str) -> Iterator[str]:
        holder, _, name = entry.rpartition(".")
        module_name, _, class_name = holder.partition(":")
        module = self._source.module(module_name)
        if module is None:
            return
        member = module.member(class_name, name) if class_name else None
        functions = (
            [member.node] if member else [node for node in ast.walk(module.tree) if getattr(node, "name", "") == name]
        )
        for function in functions:
            if isinstance(function, Function):
                yield from self._body(member.module if member else module, class_name, function)

    def _body(self, module: Module, class_name: str, function: Function) -> Iterator[str]:
        if function.name not in self._open:
            self._open.append(function.name)
            yield from self._all(function.body, module, class_name)
            self._open.pop()

    def _all(self, nodes: list[ast.stmt], module: Module, class_name: str) -> Iterator[str]:
        for node in nodes:
            yield from self._visit(node, module, class_name)

    def _visit(self, node: ast.AST, module: Module, class_name: str) -> Iterator[str]:
        match node:
            case ast.FunctionDef() | ast.Lambda():
                return
            case ast.If():
                yield from self._visit(node.test, module, class_name)
                yield from () if _leaves(node.body) else self._all(node.body, module, class_name)
                yield from self._all(node.orelse, module, class_name)
            case ast.With():
                after: list[str] = []
                for item in node.items:
                    before, then = self._manager(item.context_expr, module, class_name)
                    yield from before
                    after = then + after
                yield from self._all(node.body, module, class_name)
                yield from after
            case ast.Expr(value=ast.Yield()):
                yield "YIELD"
            case ast.Call():
                for child in ast.iter_child_nodes(node):
                    yield from self._visit(child, module, class_name)
                yield from self._called(node.func, module, class_name)
            case _:
                for child in ast.iter_child_nodes(node):
                    yield from self._visit(child, module, class_name)

    def _called(self, function: ast.expr, module: Module, class_name: str) -> Iterator[str]:
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        if hook := self._hook(function):
            yield hook
        elif name in MARKS:
            yield MARKS[name]
        elif isinstance(function, ast.Attribute):
            holder = ast.unparse(function.value)
            target = DRIVER if holder == "self.kv_connector" else f"{module.name}:{class_name}"
            if holder in ("self", "self.kv_connector", "KVConnectorModelRunnerMixin"):
                yield from self._of_member(module, target, name)

    def _of_member(self, module: Module, holder: str, name: str) -> Iterator[str]:
        module_name, _, class_name = holder.partition(":")
        owner = self._source.module(module_name) or module
        member = owner.member(class_name, name)
        if member and isinstance(member.node, Function):
            yield from self._body(owner, class_name, member.node)

    def _manager(self, expr: ast.expr, module: Module, class_name: str) -> tuple[list[str], list[str]]:
        found = [*self._visit(expr, module, class_name)]
        at = found.index("YIELD") if "YIELD" in found else len(found)
        return found[:at], found[at + 1 :]


def _leaves(body: list[ast.stmt]) -> bool:
    return isinstance(body[-1], ast.Return | ast.Raise | ast.Continue)


def _without_repetitions(steps: list[str]) -> list[str]:
    return [each for index, each in enumerate(steps) if index == 0 or steps[index - 1] != each]
