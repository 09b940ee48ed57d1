"""The sentences of the schema, for --help: one fact in one place."""

import ast
import textwrap
from dataclasses import fields, is_dataclass
from pathlib import Path

from experiment.config import schema

WIDTH = 110
INDENT = 32


def described(class_name: str) -> str:
    """Every setting of a dataclass of the schema, nested ones by dotted keys, with its sentence.

    Settings that a class inherits are left out: they are described where they belong.
    """
    cls = getattr(schema, class_name)
    inherited = {f.name for base in cls.__bases__ if is_dataclass(base) for f in fields(base)}
    return "\n".join(_lines(cls, "", inherited))


def _lines(cls: type, prefix: str, without: set[str]) -> list[str]:
    sentences = _sentences()
    lines = []
    for f in fields(cls):
        if f.name in without:
            continue
        if is_dataclass(f.type):
            lines += _lines(f.type, f"{prefix}{f.name}.", set())
            continue
        key = f"  {prefix}{f.name}"
        text = textwrap.wrap(sentences[cls.__name__, f.name], WIDTH - INDENT)
        lines.append(f"{key:{INDENT}}{text[0]}" if len(key) < INDENT else f"{key}\n{'':{INDENT}}{text[0]}")
        lines += [f"{'':{INDENT}}{line}" for line in text[1:]]
    return lines


def _sentences() -> dict[tuple[str, str], str]:
    """(class, field) -> the string that stands under the field."""
    found = {}
    for node in ast.parse(Path(schema.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for field, below in zip(node.body, node.body[1:], strict=False):
                if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr):
                    found[node.name, field.target.id] = below.value.value
    return found
