"""The shape of the code base: where imports point, how long things may be, what exists once.

docs/architecture.md and CONTRIBUTING.md give the reasons. A limit is lowered when the code allows it, and not raised
without one; exceptions stand here, each with its reason.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from helpers import ROOT

PRODUCT = (
    "main.py",
    "embed.py",
    "mammoth.py",
    "reproduce.py",
    "backbone",
    "datasets",
    "experiments",
    "models",
    "utils",
)
ALL = (*PRODUCT, "benchmarks", "docs", "tests")

# Who may import whom: a module imports only from its own level or below. The longest matching prefix counts.
LEVELS = {
    "reproduce": 6,
    "embed": 6,
    "mammoth": 6,
    "experiments": 5,
    "main": 4,
    "utils.training": 3,
    "utils.run": 3,
    "utils.cli.parse": 3,
    "utils.cli.checks": 3,
    "utils.cli.selection": 3,
    "utils.cli.all_flags": 3,
    "utils.cli.model_flags": 3,
    # Parts of embed.py and its data, which know datasets and networks.
    "backbone.pretrained": 3,
    "datasets.utils.image_source": 3,
    "datasets.embedded.make": 3,
    "models": 2,
    "datasets": 1,
    "backbone": 1,
    "utils": 0,  # the surface and the rest of its rooms
}
# What a method must not know: files, wandb, the measurement of results.
NOT_FOR_METHODS = ("utils.run", "utils.resume.files", "utils.checkpoints", "utils.loggers", "utils.metrics", "wandb")
AUTOLOG = "models/utils/continual_model.py"  # Mammoth's `autolog_wandb` is a method of its base class
NOT_FOR_METHODS += ("json", "os", "pathlib", "shutil", "tempfile")

FUNCTION_LINES, FILE_LINES, TEST_FILE_LINES, METHOD_LINES = 60, 400, 800, 150
SURFACE_FILES, SYS_PATH_LINES, ESTIMATOR_BRANCHES, FLAG_SETS, PRIVATE_USES = 18, 1, 4, 1, 1
PRODUCT_LINES = 24_902

# Longer files, each with its limit and the reason.
LONG_FILES = {
    "models/utils/dgc_mixin.py": (440, "the adapter to every base method"),
    "utils/resume/state.py": (440, "one walk through all kinds of state: saving and restoring are read together"),
}


def files(*places: str) -> list[Path]:
    found = [path for place in places for path in (sorted((ROOT / place).rglob("*.py")) or [ROOT / place])]
    return [path for path in found if path.suffix == ".py"]


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))


def lines_of(path: Path) -> int:
    return len(text_of(path).splitlines())


# -- imports -----------------------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    """The product's modules by their dotted names; `utils` has a second folder (utils/__init__.py)."""
    dotted = {".".join(p.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): p for p in files(*PRODUCT)}
    return {name.replace("utils.mammoth.surface.", "utils."): path for name, path in dotted.items()}


def type_checking(tree: ast.Module) -> set[ast.AST]:
    """What only a type checker runs."""
    guarded = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return {inner for block in guarded for statement in block.body for inner in ast.walk(statement)}


def imports_of(path: Path) -> set[str]:
    """Modules that a file imports, at the top or inside a function, now or later."""
    found, ignored = set(), type_checking(tree_of(path))
    for node in ast.walk(tree_of(path)):
        if node in ignored:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{name_of(path)}:{node.lineno}: import by the full name"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in modules() else node.module for name in full}
    return found


@cache
def graph() -> dict[str, set[str]]:
    """Imports among the product's own modules."""
    return {name: (imports_of(path) & modules().keys()) - {name} for name, path in modules().items()}


def level(module: str) -> int:
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next(LEVELS[prefix] for prefix in prefixes if prefix in LEVELS)


def room(module: str) -> str:
    return module.partition(".")[0]


def reached_from(start: str) -> set[str]:
    """All that a module imports, directly or through others."""
    found: set[str] = set()
    waiting = set(graph()[start])
    while waiting:
        found |= waiting
        waiting = {following for name in waiting for following in graph()[name]} - found
    return found


def test_imports_point_one_way() -> None:
    edges = {(a, b) for a, imported in graph().items() for b in imported}
    wrong = {(a, b) for a, b in edges if level(a) < level(b) or (level(a) == level(b) == 1 and room(a) != room(b))}
    assert not wrong, sorted(f"{a} → {b}" for a, b in wrong)


def test_no_import_cycle_even_of_deferred_imports() -> None:
    assert not [name for name in graph() if name in reached_from(name)]


def test_a_module_for_mammoth_is_imported_by_one_name() -> None:
    """By its place it would be a second module, with classes of its own."""
    named_by_place = re.compile(r"^\s*(from|import) utils\.mammoth(\.| import )surface\b", re.MULTILINE)
    assert not [name_of(path) for path in files(*ALL) if named_by_place.search(text_of(path))]


def test_a_method_knows_neither_files_nor_wandb_nor_metrics() -> None:
    wrong = [
        f"{name_of(path)} → {imported}"
        for path in files("models")
        if name_of(path) != "models/__init__.py"  # which finds the methods and their YAML files
        for imported in imports_of(path) - ({"wandb"} if name_of(path) == AUTOLOG else set())
        if any(imported == name or imported.startswith(f"{name}.") for name in NOT_FOR_METHODS)
    ]
    assert not wrong, wrong


def test_the_search_path_is_left_alone() -> None:
    """Scripts are run as modules, from the project's folder. The one line left is in a script that a test runs."""
    changed = re.compile(r"sys\.path\.(insert|append|extend|remove)\(")
    lines = [f"{name_of(path)}: {line}" for path in files(*ALL) for line in text_of(path).splitlines()]
    assert len([line for line in lines if changed.search(line)]) <= SYS_PATH_LINES


# -- lengths -----------------------------------------------------------------------------------------------------------


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{name_of(path)}:{node.lineno} {node.name}: {length}"
        for path in files(*ALL)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES
    ]
    assert not long, long


def test_files_are_short() -> None:
    long = []
    for path in files(*ALL):
        name, usual = name_of(path), TEST_FILE_LINES if path.is_relative_to(ROOT / "tests") else FILE_LINES
        limit, _ = LONG_FILES.get(name, (usual, ""))
        if lines_of(path) > limit:
            long.append(f"{name}: {lines_of(path)}, at most {limit}")
    assert not long, long


def test_the_product_does_not_grow_unnoticed() -> None:
    """A feature that needs more raises the limit in its own commit, and says what it adds."""
    assert sum(map(lines_of, files(*PRODUCT))) <= PRODUCT_LINES


def test_methods_are_short() -> None:
    lengths = {name_of(path): lines_of(path) for path in (ROOT / "models").glob("*.py")}
    assert max(lengths.values()) <= METHOD_LINES, lengths


def test_the_surface_of_utils_is_small() -> None:
    """What stands directly in utils/ is what a method or dataset may import; the rest has rooms."""
    surface = {path.name for path in (ROOT / "utils").glob("*.py")} - {"__init__.py"}
    assert len(surface) <= SURFACE_FILES, sorted(surface)


def test_few_places_ask_which_estimator_it_is() -> None:
    """The estimators are classes; only flags that exclude each other need their names."""
    branches = [
        f"{name_of(path)}:{node.lineno}"
        for path in files(*PRODUCT)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Compare | ast.match_case)
        and re.search(r"'(sampled|closed|released)'", ast.unparse(node))
    ]
    assert len(branches) <= ESTIMATOR_BRANCHES, branches


def strings_in(node: ast.AST) -> list[str]:
    """The strings that a collection consists of, or the words of a text."""
    if isinstance(node, ast.Set | ast.List | ast.Tuple):
        return [item.value for item in node.elts if isinstance(item, ast.Constant) and isinstance(item.value, str)]
    return node.value.split() if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def test_what_a_flag_is_stands_where_it_is_declared() -> None:
    """Its role is said there (utils/cli/roles.py); a set of flags' names elsewhere would say it once more."""
    constants = [n.value for path in files("utils/cli") for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant)]
    flags = {value[2:] for value in constants if isinstance(value, str) and re.fullmatch(r"--\w+", value)}
    assert len(flags) > 50
    sets = [
        f"{name_of(path)}:{node.lineno}"
        for path in files("main.py", "backbone", "datasets", "models", "utils")
        for statement in tree_of(path).body
        if isinstance(statement, ast.Assign | ast.AnnAssign)
        for node in ast.walk(statement)
        if len(names := strings_in(node)) > 2 and set(names) <= flags
    ]
    assert len(sets) <= FLAG_SETS, sets


# -- tests look from outside -------------------------------------------------------------------------------------------


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names() -> set[str]:
    """Names with an underscore that the product defines."""
    found = set()
    for path in files(*PRODUCT):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.attr if isinstance(node, ast.Attribute) else node.id)
    return set(filter(is_private, found)) - {"_replace"}  # which a named tuple offers to everyone


def names_used(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Attributes of others, imported names, and the names that monkeypatch replaces; with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "setattr":
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            yield from ((node.lineno, text.rpartition(".")[2]) for text in texts)


def test_tests_use_no_private_names_without_a_reason() -> None:
    """A comment on the line or above it says why. What is left of older uses may only become less."""
    private = private_names()
    uses = []
    for path in files("tests"):
        lines = ["", *text_of(path).splitlines()]
        for number, name in names_used(tree_of(path)):
            explained = "#" in lines[number] or lines[number - 1].lstrip().startswith("#")
            if name in private and not explained:
                uses.append(f"{name_of(path)}:{number} {name}")
    assert len(uses) <= PRIVATE_USES, "\n".join(uses)
