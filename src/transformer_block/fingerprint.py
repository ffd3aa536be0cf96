"""Say in one short text what a piece of code depends on in this package.

It is the book's one rule of staleness: a chapter, a recorded study and trained weights are out of
date when, and only when, the fingerprint of their code has changed.
"""

import ast
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from pathlib import Path
from re import fullmatch

PACKAGE = "transformer_block"
SOURCE = Path(__file__).parents[1]  # the folder that holds the package

# A module and a name that it defines; "" is what the module does besides defining.
Place = tuple[str, str]


@cache
def fingerprint(*names: str, code: str = "", source: Path = SOURCE) -> str:
    r"""Return a digest of definitions of the package and of all they use of it, directly or not.

    `names` are definitions, such as "transformer_block.norm.LayerNorm", or whole modules; `code`
    is Python that uses the package, such as a chapter's cells. The unit is what one statement at
    the top of a module defines. Names are followed through imports, and what a module does besides
    defining counts as soon as anything of it is used. A string that names a file beside its module
    ("block.svg") counts as the content of that file. Where a name could mean two things, both
    count: the digest may change once too often, never once too seldom.

    Comments, docstrings and layout do not count, nor does the version of Python. Each digest is
    made once in a process: code that was loaded does not change with its file.

    Raises:
        ValueError: for a name of the package that does not exist, or an import by `*`.

    >>> fingerprint(code="# a sum\n1 + 1") == fingerprint(code="(1 +  1)")
    True
    """
    package = _Package(source, code)
    waiting = [place for name in names for place in package.find(*name.split("."))]
    waiting += package.all_of("")
    pieces: dict[Place, str] = {}
    while waiting:
        if (place := waiting.pop()) not in pieces:
            pieces[place], used = package.follow(place)
            waiting += used
    total = hashlib.sha256()
    for place in sorted(pieces):
        total.update(f"{place} {len(pieces[place])}:{pieces[place]}".encode())
    return total.hexdigest()[:32]


class _Piece:
    """Hold the statements that make one definition, and what can be read off them."""

    def __init__(self) -> None:
        self.statements: list[ast.stmt] = []

    @cached_property
    def text(self) -> str:
        return "\n".join(map(_written, self.statements))

    @cached_property
    def used(self) -> set[tuple[str, ...]]:
        """Return every name in it, with the attributes asked of it: ("torch", "eye")."""
        return {steps for statement in self.statements for steps in _used(statement)}

    @cached_property
    def files(self) -> list[str]:
        """Return the strings that could name a file."""
        every = [node for statement in self.statements for node in ast.walk(statement)]
        texts = {str(node.value) for node in every if isinstance(node, ast.Constant)}
        return sorted(text for text in texts if fullmatch(r"[\w-]+\.[a-z]+", text))


class _Module:
    """Hold a module's pieces by what they define, and its imports by local name."""

    def __init__(self, code: str, package: str) -> None:
        self.pieces: dict[str, _Piece] = defaultdict(_Piece)
        self.imports: dict[str, list[list[str]]] = defaultdict(list)  # name → steps of full names
        tree = ast.parse(code)
        for node in ast.walk(tree):
            _drop_docstring(node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                for name, steps in _imported(node, package):
                    self.imports[name].append(steps)
        for statement in tree.body:
            if not isinstance(statement, ast.Import | ast.ImportFrom):
                for name in _defined(statement):
                    self.pieces[name].statements.append(statement)


_module = cache(_Module)  # by content: each module is read once, whatever asks for it


class _Package:
    """Find the modules and definitions of the package in a folder; module "" is loose code."""

    def __init__(self, source: Path, code: str) -> None:
        self.source = source
        self.modules: dict[str, _Module | None] = {"": _Module(code, "")}

    def file(self, module: str) -> Path | None:
        place = self.source.joinpath(*module.split("."))
        files = (place.with_suffix(".py"), place / "__init__.py")
        return next((file for file in files if module and file.is_file()), None)

    def module(self, name: str) -> _Module | None:
        if name not in self.modules:
            file = self.file(name)
            package = name if file and file.stem == "__init__" else name.rpartition(".")[0]
            self.modules[name] = _module(file.read_text("utf-8"), package) if file else None
        return self.modules[name]

    def all_of(self, module: str) -> list[Place]:
        found = self.module(module)
        return [(module, ""), *((module, name) for name in found.pieces)] if found else []

    def find(self, *steps: str) -> list[Place]:
        """Follow a full name to the definitions it stands for, or to all of a module."""
        if steps[0] != PACKAGE:
            return []
        module = PACKAGE
        for i, step in enumerate(steps[1:], 1):
            here = self.module(module)
            if found := self.named(module, step, *steps[i + 1 :]):
                return found
            if here and step in here.imports:  # of another package
                return []
            if not self.module(f"{module}.{step}"):
                if fullmatch("__.*__", step):  # __file__, __path__ …
                    return [(module, "")]
                raise ValueError(f"{module} defines no {step!r}; give the name of a definition")
            module = f"{module}.{step}"
        return self.all_of(module)

    def named(self, module: str, name: str, *further: str) -> list[Place]:
        """Return what a name in a module stands for: its definition, imports, or both."""
        here = self.module(module)
        if here is None:
            return []
        found = [(module, name)] if name in here.pieces else []
        imports = here.imports.get(name, ())
        return found + [place for steps in imports for place in self.find(*steps, *further)]

    def follow(self, place: Place) -> tuple[str, list[Place]]:
        """Return a place's code, with the files it names, and the places that this code uses."""
        module, name = place
        steps = module.split(".")
        used: list[Place] = [(".".join(steps[:i]), "") for i in range(1, len(steps) + 1)]
        here, file = self.module(module), self.file(module)
        if here is None or name not in here.pieces:
            return "", used
        piece = here.pieces[name]
        text = piece.text
        for beside in [file.with_name(each) for each in piece.files] if file else []:
            if beside.is_file():
                content = beside.read_bytes().replace(b"\r\n", b"\n")
                text += f"\n{beside.name} {hashlib.sha256(content).hexdigest()}"
        return text, used + [each for steps in piece.used for each in self.named(module, *steps)]


def _imported(node: ast.Import | ast.ImportFrom, package: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each name that an import makes, with the steps of the full name it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            steps = alias.name.split(".")
            yield (alias.asname, steps) if alias.asname else (steps[0], steps[:1])
        return
    above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
    steps = [*above, *(node.module.split(".") if node.module else [])]
    for alias in node.names:
        if alias.name == "*" and steps[0] == PACKAGE:
            raise ValueError(f"import from {'.'.join(steps)} by name; * hides what is used")
        yield alias.asname or alias.name, [*steps, alias.name]


def _defined(statement: ast.stmt) -> set[str]:
    """Return the names that a statement defines, and "" where it may do something besides."""
    targets: Sequence[ast.AST]
    match statement:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return {statement.name}
        case ast.Assign(targets=targets):
            pass
        case ast.AnnAssign(target=target) | ast.AugAssign(target=target):
            targets = [target]
        case _:
            targets = [statement]
    names = {name for target in targets for name in _stored(target)}
    only_names = all(isinstance(target, ast.Name | ast.Tuple) for target in targets)
    return names if only_names else names | {""}


def _stored(node: ast.AST) -> Iterator[str]:
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield inner.name


def _used(node: ast.AST) -> Iterator[tuple[str, ...]]:
    steps: list[str] = []
    while isinstance(node, ast.Attribute):
        steps.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        yield (node.id, *steps)
        return
    for child in ast.iter_child_nodes(node):
        yield from _used(child)


def _drop_docstring(node: ast.AST) -> None:
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
        del node.body[0]


def _written(node: object) -> str:
    """Write a syntax tree as text that is the same in every version of Python."""
    if isinstance(node, ast.AST):
        fields = [
            f"{name}={_written(value)}"
            for name, value in ast.iter_fields(node)
            if value not in (None, []) and name not in ("ctx", "kind", "type_comment")
        ]
        return f"{type(node).__name__}({', '.join(fields)})"
    if isinstance(node, list):
        return f"[{', '.join(map(_written, node))}]"
    return ascii(node)
