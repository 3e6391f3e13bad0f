"""Which parts of `moor` use each operation of the public client: `python -m tools.operations` prints the table.

An operation is a method of `moor.client.Client`; it stands in one file, and commands, dashboard and completion have no other way.
"""

import ast
from collections.abc import Iterator, Mapping
from inspect import getmembers, getsourcefile, isfunction
from pathlib import Path

from moor.client import Client

ROOT = Path(__file__).parent.parent


def operations() -> Mapping[str, Path]:
    """Each operation, and the file in which it is."""
    return {
        name: Path(getsourcefile(method) or "").relative_to(ROOT)
        for name, method in getmembers(Client, isfunction)
        if not name.startswith("_")
    }


def users(names: Mapping[str, Path]) -> dict[str, set[str]]:
    """Of each operation the files outside of the client that use it."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for file in sorted((ROOT / "moor").rglob("*.py")):
        where = file.relative_to(ROOT)
        if where.parts[1] != "client":
            for name in _methods_used(ast.parse(file.read_text())):
                if name in found:
                    found[name].add(str(where.with_suffix("")).removeprefix("moor/"))
    return found


def _methods_used(tree: ast.AST) -> Iterator[str]:
    """The names of what is taken from a client: from `Client`, or from what is called `moor`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            of = node.value
            while isinstance(of, ast.Call) and isinstance(of.func, ast.Attribute):
                of = of.func.value
            name = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
            if name.strip("_") in {"moor", "Client"}:
                yield node.attr


def main() -> None:
    known = operations()
    used = users(known)
    for name, file in sorted(known.items(), key=lambda each: (str(each[1]), each[0])):
        print(f"{name:22} {str(file).removeprefix('moor/client/'):16} {', '.join(sorted(used[name])) or '-'}")


if __name__ == "__main__":
    main()
