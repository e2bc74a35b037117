"""Faults that no author of a test chose: drawn by a seed, from the functions that move KV, requests and streams.

Constants of modules and classes are left out: a test of such a number would only say it again.
"""

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Final

FOLDERS: Final = (
    *("kv_connector/handoff", "kv_connector/layout", "kv_connector/scheduler_side", "kv_connector/worker_side"),
    *("kv_connector/engine", "kv_connector/control", "kv_connector/protocol", "kv_connector/vllm_compat"),
    *("proxy/planning", "proxy/handler", "proxy/resume", "proxy/http", "proxy/admission", "proxy/request"),
    *("proxy/nodes", "proxy/routing", "proxy/response", "proxy/auth", "proxy/http_server", "proxy/workers"),
    *("node", "node/http", "node/connector", "model_runner/tokens", "model_runner/runner", "model_runner/pipeline"),
    "contracts",
)
OPPOSITES: Final[dict[type[ast.cmpop], str]] = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_Node = ast.stmt | ast.expr
LOG_METHODS: Final = ("debug", "info", "warning", "error", "exception", "log")


@dataclass(frozen=True, slots=True)
class Drawn:
    """One fault; `begin` and `end` are offsets in the file's bytes."""

    file: str
    line: int
    begin: int
    end: int
    old: str
    new: str

    def applied_to(self, text: str) -> str:
        data = text.encode()
        return (data[: self.begin] + self.new.encode() + data[self.end :]).decode()

    @property
    def stages(self) -> tuple[tuple[str, ...], ...]:
        """The unit tests of its folder, then all that may notice it."""
        folder, room = str(Path(self.file).parent), self.file.partition("/")[0]
        own = f"tests/unit/{folder}"
        if room == "contracts":
            return (own,), ("tests/unit",)
        explorer = ("tests/explorer",) if room == "kv_connector" else ()
        return (own,), (f"tests/unit/{room}", *explorer, f"tests/integration/{room}")


def draw(root: Path, count: int, seed: int, words: list[str]) -> list[Drawn]:
    """Draw statements, each as likely as any other, and one fault for each; `words`: of files with one of these only."""
    chance = random.Random(seed)
    by_statement: list[list[Drawn]] = []
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.py")):
            file = str(path.relative_to(root))
            if not words or any(word in file for word in words):
                by_statement += faults_of(file, path.read_text())
    return [chance.choice(faults) for faults in chance.sample(by_statement, min(count, len(by_statement)))]


def faults_of(file: str, text: str) -> Iterator[list[Drawn]]:
    """For each statement in which something can be wrong, all that can."""
    source = _Source(file, text)
    for statement in _statements(ast.parse(text)):
        found = [*source.of_statement(statement), *source.of_expressions(statement)]
        if changing := [fault for fault in found if fault.old != fault.new]:
            yield changing


class _Source:
    def __init__(self, file: str, text: str) -> None:
        self._file = file
        self._data = text.encode()
        self._begins = [0, *accumulate(map(len, self._data.splitlines(keepends=True)))]  # of lines

    def of_statement(self, statement: ast.stmt) -> Iterator[Drawn]:
        match statement:
            case ast.If(test=test) | ast.While(test=test):
                yield self._fault(statement, test, f"not ({self._of(test)})")
            case ast.Expr(value=ast.Call() | ast.Await()) | ast.Delete():
                yield self._fault(statement, statement, "pass")
            case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign():
                yield self._fault(statement, statement, "pass")
            case ast.Return(value=ast.expr() as value) if (
                not isinstance(value, ast.Constant) or value.value is not None
            ):
                yield self._fault(statement, value, "None")
            case ast.Raise():
                yield self._fault(statement, statement, "pass")

    def of_expressions(self, statement: ast.stmt) -> Iterator[Drawn]:
        for node in _expressions(statement):
            match node:
                case ast.Compare(left=left, ops=[operator], comparators=[right]):
                    yield self._fault(
                        statement, node, f"({self._of(left)} {OPPOSITES[type(operator)]} {self._of(right)})"
                    )
                case ast.BoolOp(op=operator, values=values):
                    other = " or " if isinstance(operator, ast.And) else " and "
                    yield self._fault(statement, node, f"({other.join(f'({self._of(value)})' for value in values)})")
                    yield self._fault(statement, node, f"({self._of(values[0])})")
                    yield self._fault(statement, node, f"({self._of(values[-1])})")
                case ast.UnaryOp(op=ast.Not(), operand=operand):
                    yield self._fault(statement, node, f"bool({self._of(operand)})")
                case ast.IfExp(test=test):
                    yield self._fault(statement, test, f"(not ({self._of(test)}))")
                case ast.Constant(value=int() as value) if not isinstance(value, bool):
                    yield self._fault(statement, node, f"({self._of(node)} + 1)")
                case ast.Call(func=ast.Name(id="len")):
                    yield self._fault(statement, node, f"({self._of(node)} + 1)")
                case ast.Call(func=ast.Attribute() | ast.Name(id="replace"), args=[first, second, *_]) if not {
                    ast.Starred
                } & {type(first), type(second)}:
                    yield self._fault(statement, (first, second), f"{self._of(second)}, {self._of(first)}")

    def _of(self, node: _Node) -> str:
        begin, end = self._span(node)
        return self._data[begin:end].decode()

    def _fault(self, statement: ast.stmt, where: _Node | tuple[_Node, _Node], new: str) -> Drawn:
        first, last = where if isinstance(where, tuple) else (where, where)
        begin, end = self._span(first)[0], self._span(last)[1]
        return Drawn(self._file, statement.lineno, begin, end, self._data[begin:end].decode(), new)

    def _span(self, node: _Node) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self._begins[node.lineno - 1] + node.col_offset, self._begins[node.end_lineno - 1] + node.end_col_offset


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """All statements of functions in which a fault can be seen from outside."""
    functions = (node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    for function in functions:
        pending: list[ast.AST] = [*function.body]
        while pending:
            node = pending.pop(0)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue  # its own statements come with it
            pending += [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
            if isinstance(node, ast.stmt) and not isinstance(node, ast.Assert) and not _is_log(node):
                yield node


def _expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, without those of statements in it, and without types."""
    if isinstance(statement, ast.Raise):
        return  # its words
    for name, value in ast.iter_fields(statement):
        for field in value if isinstance(value, list) else [value]:
            inside = field.context_expr if isinstance(field, ast.withitem) else field
            if isinstance(inside, ast.expr) and name not in ("annotation", "target", "targets"):
                yield from (node for node in ast.walk(inside) if isinstance(node, ast.expr))


def _is_log(node: ast.stmt) -> bool:
    call = node.value if isinstance(node, ast.Expr) else None
    return (
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in LOG_METHODS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == "logger"
    )
