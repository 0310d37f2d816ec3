"""The top-level definitions of a tree of modules, each as a text that says what it does and not where it stands.

Imports are left out, and every name that they bind is replaced by what it stands for: a name of the project by its
definition, one of a library by its full name. So a definition reads the same in whatever module it is, however the
modules around it are called, and differs as soon as one of its names stands for something else.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

PACKAGES = ("protocol", "host", "servers", "client_agent", "harness")
LEFT_OUT = frozenset({"__all__"})
"""Names that only say which others a module hands on."""
_MODULE = re.compile(rf"(?<![\w./])(?:{'|'.join(PACKAGES)})(?:[./][A-Za-z_]\w*)+")
_SHOWN = 60
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, *_COMPREHENSIONS)


@dataclass(frozen=True)
class Definition:
    """``text`` is the normal form; two definitions that do the same under the same name are equal but for ``file``."""

    name: str
    text: str = field(repr=False)
    file: str


@dataclass(frozen=True)
class _Module:
    name: str
    file: str
    statements: tuple[tuple[str, tuple[ast.stmt, ...]], ...] = field(repr=False)
    bound: Mapping[str, tuple[str, str | None]] = field(repr=False)
    """Names that its imports bind: name -> (module, name in it), or (module, None) for a module itself."""

    @property
    def own(self) -> frozenset[str]:
        return frozenset(one for name, _ in self.statements for one in name.split(", "))


class Tree:
    """All modules of the product at one commit; ``sources`` is file -> text."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._modules = {_module_name(file): _parsed(file, text) for file, text in sources.items()}

    @property
    def repeated(self) -> frozenset[str]:
        """Names that several modules define: only their content tells them apart."""
        times = Counter(name for module in self._modules.values() for name in module.own)
        return frozenset(name for name, count in times.items() if count > 1)

    def definitions(self, repeated: frozenset[str]) -> tuple[Definition, ...]:
        """Every definition; ``repeated`` holds the repeated names of all trees that are compared."""
        content = {
            (module.name, one): hashlib.sha256(self._text(module, body, _by_name).encode()).hexdigest()[:12]
            for module in self._modules.values()
            for name, body in module.statements
            for one in name.split(", ")
            if one in repeated
        }

        def told_apart(module: str, name: str) -> str:
            return f"{name}@{content[module, name]}" if name in repeated else name

        return tuple(
            Definition(name, self._text(module, body, told_apart), module.file)
            for module in self._modules.values()
            for name, body in module.statements
        )

    def _text(self, module: _Module, body: tuple[ast.stmt, ...], identity: Callable[[str, str], str]) -> str:
        reader = _Reader(self, module, identity)
        return "\n".join(ast.dump(reader.visit(copy.deepcopy(statement))) for statement in body)

    def stands_for(self, module: str, name: str) -> tuple[str, str | None] | None:
        """The module and name of what a name stands for in a module of the project; None for a builtin or a local."""
        seen = set()
        while module in self._modules and (module, name) not in seen:
            seen.add((module, name))
            here = self._modules[module]
            if name in here.own:
                return module, name
            if name not in here.bound:
                return None
            target, inner = here.bound[name]
            if inner is None:
                return target, None
            if f"{target}.{inner}" in self._modules and self.stands_for(target, inner) is None:
                return f"{target}.{inner}", None
            module, name = target, inner
        return module, name

    def holds(self, module: str) -> bool:
        return module in self._modules


class _Reader(ast.NodeTransformer):
    """Rewrites a statement's names; what a function binds itself stays as it is."""

    def __init__(self, tree: Tree, module: _Module, identity: Callable[[str, str], str]) -> None:
        self._tree, self._module, self._identity = tree, module, identity
        self._local: list[frozenset[str]] = []

    def visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, _SCOPES):
            return super().visit(node)
        self._local.append(frozenset(_bound_in(node)))
        try:
            return super().visit(node)
        finally:
            self._local.pop()

    def visit_Import(self, node: ast.Import) -> None:
        return None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        return None

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.Constant(_MODULE.sub("<module>", node.value)) if isinstance(node.value, str) else node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = self._stands_for(node.id) if isinstance(node.ctx, ast.Load) else None
        if found is None:
            return node
        module, name = found
        if self._tree.holds(module):
            return ast.Name(f"<{module}>" if name is None else self._identity(module, name), node.ctx)
        return ast.Name(f"{module}.{name}" if name else module, node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        chain = _chain(node)
        found = self._stands_for(chain[0]) if chain else None
        if found is None:
            return self.generic_visit(node)
        for place, part in enumerate(chain[1:], 1):
            module, name = found
            if name is not None or not self._tree.holds(module):
                return self._attributes(found, chain[place:], node.ctx)
            inner = self._tree.stands_for(module, part)
            found = inner if inner is not None else (f"{module}.{part}", None)
        return self._attributes(found, [], node.ctx)

    def _attributes(self, found: tuple[str, str | None], rest: list[str], ctx: ast.expr_context) -> ast.AST:
        module, name = found
        if not self._tree.holds(module):
            return ast.Name(".".join([module, *([name] if name else []), *rest]), ctx)
        made: ast.expr = ast.Name(f"<{module}>" if name is None else self._identity(module, name), ctx)
        for part in rest:
            made = ast.Attribute(made, part, ctx)
        return made

    def _stands_for(self, name: str) -> tuple[str, str | None] | None:
        if any(name in local for local in self._local):
            return None
        return self._tree.stands_for(self._module.name, name)


def _by_name(module: str, name: str) -> str:
    return name


def _parsed(file: str, text: str) -> _Module:
    body = ast.parse(text, file).body
    if body and _is_text(body[0]):
        body = body[1:]
    bound: dict[str, tuple[str, str | None]] = {}
    for node in ast.walk(ast.Module(body, [])):
        bound.update(_imported(node))
    statements: list[tuple[str, tuple[ast.stmt, ...]]] = []
    for statement in _without_type_checking(body):
        if _is_text(statement) and statements:  # words about the assignment before
            statements[-1] = (statements[-1][0], (*statements[-1][1], statement))
        elif not isinstance(statement, ast.Import | ast.ImportFrom) and _name(statement) not in LEFT_OUT:
            statements.append((_name(statement), (statement,)))
    return _Module(_module_name(file), file, tuple(statements), bound)


def _without_type_checking(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in body:
        if isinstance(statement, ast.If) and ast.unparse(statement.test).endswith("TYPE_CHECKING"):
            yield from statement.body
        else:
            yield statement


def _imported(node: ast.AST) -> Iterator[tuple[str, tuple[str, str | None]]]:
    if isinstance(node, ast.Import):
        for one in node.names:
            first = one.name.split(".")[0]
            yield (one.asname, (one.name, None)) if one.asname else (first, (first, None))
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        for one in node.names:
            yield one.asname or one.name, (node.module, one.name)


def _name(statement: ast.stmt) -> str:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return statement.name
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    names = [
        node.id
        for target in targets
        if target is not None
        for node in ast.walk(target)
        if isinstance(node, ast.Name) and _stored(node)
    ]
    return ", ".join(names) or ast.unparse(statement).split("\n")[0][:_SHOWN].replace(", ", ",")


def _stored(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _bound_in(scope: ast.AST) -> Iterator[str]:
    for node in ast.walk(scope):
        if isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Name) and _stored(node):
            yield node.id
        elif node is not scope and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


def _chain(node: ast.Attribute) -> list[str]:
    """``a.b.c`` as its parts; empty where it does not begin with a name."""
    parts: list[str] = []
    current: ast.expr = node
    while isinstance(current, ast.Attribute):
        parts.append(current.attr)
        current = current.value
    return [current.id, *reversed(parts)] if isinstance(current, ast.Name) else []


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _module_name(file: str) -> str:
    return ".".join(PurePosixPath(file).with_suffix("").parts).removesuffix(".__init__")
