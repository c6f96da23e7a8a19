"""The two lines that change in a program of Horovod's: the import and ``compression=``.

Where Horovod's optimizer or tape is made, a compressor is made before it, as a user would write
it: of the parameters that Horovod is given, or of the model that the program trains.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

OPTIMIZERS = ("DistributedOptimizer", "PartialDistributedOptimizer")
TAPES = ("DistributedGradientTape", "PartialDistributedGradientTape")
STATES = ("TorchState", "TensorFlowKerasState")
VARIABLES = {
    **{name: f"{name}.trainable_variables" for name in ("model", "mnist_model", "mp_model")},
    **{name: name for name in ("flatten_variables", "variables", "var")},
    **{name: f"[{name}]" for name in ("variable", "x")},
}
"""What the variables that are trained are called there, and the expression for all of them."""
NAME = "sparse"


@dataclass(frozen=True)
class Compressor:
    """What is asked of the compressors that are put into a program.

    Attributes
    ----------
    framework : "torch" or "tensorflow"
    method : of ``Compression``
    options : as they are written in the call: ``density=0.01``
    takes_optimizer : whether the compressor does the optimizer's work before it selects
    """

    framework: str
    method: str
    options: str
    takes_optimizer: bool = False


@dataclass
class Edits:
    """Changes of a text by position, in bytes as ``ast`` counts them."""

    source: bytes
    found: list[tuple[int, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._starts = [0]
        for line in self.source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Return a position; lines count from 1."""
        return self._starts[line - 1] + column

    def replace(self, node: ast.expr, text: str) -> None:
        """Put a text in the place of a node."""
        end = self.at(node.end_lineno or 0, node.end_col_offset or 0)
        self.found.append((self.at(node.lineno, node.col_offset), end, text.encode()))

    def insert(self, position: int, text: str) -> None:
        """Put a text before a position."""
        self.found.append((position, position, text.encode()))

    def done(self) -> str:
        """Return the changed text."""
        text = self.source
        for start, end, new in sorted(self.found, key=lambda each: each[:2], reverse=True):
            text = text[:start] + new + text[end:]
        return text.decode()


def shorten(source: str, constants: Mapping[int, int]) -> str:
    """Return a program with some of its whole numbers replaced, wherever they stand."""
    edits = Edits(source.encode())
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and type(node.value) is int and node.value in constants:
            edits.replace(node, str(constants[node.value]))
    return edits.done()


def calls_of(tree: ast.AST, names: tuple[str, ...] = OPTIMIZERS + TAPES) -> Iterator[ast.Call]:
    """Yield the calls of what has one of these names, in a module or without one."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _name_of(node.func) in names:
            yield node


def names_of_tests(source: str) -> list[str]:
    """Return the names of the test functions in which an optimizer or a tape of Horovod's is
    made."""
    return [
        node.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test")
        and any(calls_of(node))
    ]


def with_compression(source: str, compressor: Compressor) -> str:
    """Return a program with a compressor wherever it makes an optimizer or a tape of Horovod's.

    Parameters
    ----------
    source : of the program
    compressor : what to put in
    """
    tree, edits = ast.parse(source), Edits(source.encode())
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    calls = sorted(calls_of(tree), key=lambda call: call.lineno)
    for number, call in enumerate(calls):
        name = f"{NAME}_{number}"
        around = _around(call, parents)
        place = _statement_for(call, parents)
        options = ", ".join(_options(source, call, around, compressor))
        made = f"{name} = Sparse.{compressor.method}({options})"
        edits.insert(edits.at(_first_line(place), 0), f"{' ' * place.col_offset}{made}\n")
        _put(edits, call, "compression", name)
        for state in calls_of(tree, STATES) if len(calls) == 1 else ():
            if compressor.framework == "tensorflow":
                edits.replace(state.func, "sparse_elastic.TensorFlowKerasState")
            _put(edits, state, "compressor", name)
    _import(edits, tree, compressor)
    return edits.done()


def _import(edits: Edits, tree: ast.Module, compressor: Compressor) -> None:
    """Put the import behind Horovod's own."""
    imports = [node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))]
    horovods = [node for node in imports if "horovod" in ast.unparse(node)] or imports
    lines = [f"from hvd_sparse.{compressor.framework} import Compression as Sparse"]
    if compressor.framework == "tensorflow" and any(calls_of(tree, STATES)):
        lines.append("from hvd_sparse.tensorflow import elastic as sparse_elastic")
    position = edits.at((horovods[-1].end_lineno or 0) + 1, 0)
    edits.insert(position, "".join(f"{line}\n" for line in lines))


def _put(edits: Edits, call: ast.Call, keyword: str, value: str) -> None:
    """Give a call a keyword, in the place of the one that it has."""
    for each in call.keywords:
        if each.arg == keyword:
            return edits.replace(each.value, value)
    last = max(
        [*call.args, *(each.value for each in call.keywords)],
        key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0),
    )
    position = edits.at(last.end_lineno or 0, last.end_col_offset or 0)
    edits.insert(position, f", {keyword}={value}")


def _options(
    source: str, call: ast.Call, around: list[ast.AST], compressor: Compressor
) -> Iterator[str]:
    """Yield what the compressor is made with, as a user would write it beside this call."""
    given = {each.arg: ast.get_source_segment(source, each.value) for each in call.keywords}
    first = given.get("optimizer") or ast.get_source_segment(source, call.args[0])
    if compressor.framework == "torch":
        everything = f'p for g in {first}.param_groups for p in g["params"]'
        numbered = f'[(f"parameter.{{i}}", p) for i, p in enumerate({everything})]'
        yield given.get("named_parameters") or numbered
    else:
        yield f"lambda: {_variables(around)}"
    yield compressor.options
    if given.get("process_set"):
        yield f"process_set={given['process_set']}"
    if compressor.takes_optimizer and _name_of(call.func) in OPTIMIZERS:
        yield f"optimizer={first}"


def _variables(around: list[ast.AST]) -> str:
    """Return the expression for the variables that a program trains."""
    for scope in around:
        stored = {
            node.id
            for node in _inside(scope)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        for name, expression in VARIABLES.items():
            if name in stored:
                return expression
    return "[]"


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function or a module, without those of what it defines."""
    for node in ast.iter_child_nodes(scope):
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield from _inside(node)


def _around(node: ast.AST, parents: Mapping[ast.AST, ast.AST]) -> list[ast.AST]:
    """Return the functions around a node and its module, the nearest first."""
    around = []
    while node in parents:
        node = parents[node]
        if isinstance(node, (ast.FunctionDef, ast.Module)):
            around.append(node)
    return around


def _statement_for(call: ast.Call, parents: Mapping[ast.AST, ast.AST]) -> ast.stmt:
    """Return the statement before which the compressor is made: outside of what is traced."""
    node: ast.AST = call
    found: ast.stmt | None = None
    while node in parents:
        if isinstance(node, ast.stmt):
            is_traced = isinstance(node, ast.FunctionDef) and any(
                "function" in ast.unparse(each) for each in node.decorator_list
            )
            found = node if found is None or is_traced else found
        node = parents[node]
    assert found is not None
    return found


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(each.lineno for each in decorators)])


def _name_of(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))
