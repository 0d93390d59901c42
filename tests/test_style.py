"""The style that a machine can hold us to: sizes, names, docstrings, and nothing of a developer's own machine."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
BUCKETS = {"util", "helper", "manager", "common", "misc"}

NEWLINE = b"\n"

Function = ast.FunctionDef | ast.AsyncFunctionDef
Documented = ast.Module | ast.ClassDef | Function

# Spelled so that this file doesn't match itself.
FOREIGN = {
    "the host of a package registry": re.compile(rb"python[h]osted|registry[.]npmjs|deb[.]debian"),
    "a path of somebody's machine": re.compile(rb"(?<![\w.$}-])/([w]ork|[r]oot)/"),
}


@cache
def sources() -> dict[str, str]:
    """The text of every Python file of the package, by its path from the root of the repository."""
    return {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "indexer").rglob("*.py"))
    }


def public_names(where: str, tree: Documented) -> Iterator[tuple[str, Documented]]:
    """The module, its public classes and functions, and the public methods of those classes."""
    yield where, tree
    for node in tree.body:
        if isinstance(node, Documented) and not node.name.startswith("_") and not _is_restated(node):
            inner: Iterator[tuple[str, Documented]] = iter([(f"{where}:{node.name}", node)])
            yield from public_names(f"{where}:{node.name}", node) if isinstance(node, ast.ClassDef) else inner


def _is_restated(node: ast.ClassDef | Function) -> bool:
    """An overload or a property's setter: what it does is said at the other definition of the name."""
    marks = [ast.unparse(decorator) for decorator in node.decorator_list]
    return any(mark.endswith(("overload", "override", ".setter", ".deleter")) for mark in marks)


def undocumented(where: str, source: str) -> list[str]:
    """Public names without a docstring."""
    return [name for name, node in public_names(where, ast.parse(source)) if not ast.get_docstring(node)]


def long_functions(where: str, source: str) -> list[str]:
    """Functions of more lines than we allow, decorators left out, nested ones counted in and by themselves."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, Function)]
    lengths = [(node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions]
    return [f"{where}:{name} has {length} lines" for name, length in lengths if length > MOST_LINES_OF_A_FUNCTION]


def bucket_names(where: str, source: str) -> list[str]:
    """Modules, packages and classes with a name that says nothing, such as ``text_utils``."""
    classes = [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    return [f"{where}:{name}" for name in [*Path(where).with_suffix("").parts, *classes] if _says_nothing(name)]


def _says_nothing(name: str) -> bool:
    words = {word.lower().removesuffix("s") for word in re.findall("[A-Z]?[a-z]+|[A-Z]+", name)}
    return not BUCKETS.isdisjoint(words) or words == {"type"}


@cache
def committed_files() -> tuple[Path, ...]:
    """What git holds, or would take with the next ``git add``; skips where this is no checkout (a source archive)."""
    if not (ROOT / ".git").exists():
        pytest.skip("not run: needs a git checkout")
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return tuple(path for path in paths if path.is_file())


def foreign(content: bytes) -> list[str]:
    """What in a file belongs to one machine or one registry: the kind, the line, the words."""
    return [
        f"line {1 + content[: match.start()].count(NEWLINE)}: {kind} ({match.group().decode()})"
        for kind, pattern in FOREIGN.items()
        for match in pattern.finditer(content)
    ]


def nothing(findings: list[str]) -> None:
    """Fails with the whole list, one finding a line."""
    assert not findings, "\n".join(findings)


def test_every_public_name_has_a_docstring() -> None:
    """Who reads a name finds what goes in, what comes out and what is raised."""
    nothing([name for where, source in sources().items() for name in undocumented(where, source)])


def test_files_are_short() -> None:
    """A file is read in one sitting."""
    lengths = [(where, source.count("\n")) for where, source in sources().items()]
    nothing([f"{where} has {length} lines" for where, length in lengths if length > MOST_LINES_OF_A_FILE])


def test_functions_are_short() -> None:
    """A function fits on a screen."""
    nothing([found for where, source in sources().items() for found in long_functions(where, source)])


def test_names_say_something() -> None:
    """No bucket into which anything could be thrown."""
    nothing([found for where, source in sources().items() for found in bucket_names(where, source)])


def test_committed_files_are_nobodys_own() -> None:
    """The repository works on any machine: it names no registry's host and no path of a developer's."""
    files = committed_files()
    assert Path(__file__) in files
    nothing([f"{path.relative_to(ROOT)} {found}" for path in files for found in foreign(path.read_bytes())])


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(): ...", ["m", "m:f"]),
        ('"""d"""\nasync def f(): ...', ["m:f"]),
        ('"""d"""\ndef _f(): ...\nclass _C:\n    def g(self): ...', []),
        ('"""d"""\nclass C:\n    """d"""\n    def g(self): ...\n    def __eq__(self, o): ...', ["m:C:g"]),
        ('"""d"""\n@overload\ndef f(): ...\ndef f():\n    """d"""\n    def inner(): ...', []),
    ],
)
def test_missing_docstrings_are_seen(source: str, names: list[str]) -> None:
    """The check above sees what has no docstring, and asks for none where none is owed."""
    assert undocumented("m", source) == names


def test_long_functions_are_seen() -> None:
    """The check above counts to the line."""
    function = "class C:\n    def f(self):\n" + "        x = 1\n" * (MOST_LINES_OF_A_FUNCTION - 1)
    assert long_functions("m", function) == []
    assert long_functions("m", function + "        x = 1\n") == ["m:f has 61 lines"]


@pytest.mark.parametrize("name", ["utils", "helpers", "text_util", "common", "misc", "types", "connection_managers"])
def test_buckets_are_seen(name: str) -> None:
    """The check above sees buckets however they are spelled."""
    assert bucket_names(f"indexer/{name}.py", "") == [f"indexer/{name}.py:{name}"]
    assert bucket_names("indexer/a.py", "class QueueManager: ...") == ["indexer/a.py:QueueManager"]
    assert bucket_names("indexer/frames.py", "class RecordType: ...\nclass Miscount: ...") == []


@pytest.mark.parametrize(
    "text", ["cd /{}ork/main", "files.python{}hosted.org", "https://registry{}.npmjs.org", "/{}root/x"]
)
def test_foreign_words_are_seen(text: str) -> None:
    """The check above sees each of the words it looks for, and no word that only resembles one."""
    assert foreign(text.format("w" if "ork" in text else "").encode())
    assert foreign(b"the network/worked, $DIR/root/x, homework/") == []
