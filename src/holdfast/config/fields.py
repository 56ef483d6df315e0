"""The settings as a list: name, kind, default and the paragraph that explains each.

The paragraphs are the strings under the fields in `settings.py`, read from its source, so that there is one text for
the person reading the code, the reference page and `holdfast serve --help`.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from typing import Annotated, NamedTuple, get_args, get_origin, get_type_hints

import msgspec

from holdfast.config import settings
from holdfast.config.kinds import Kind


class Field(NamedTuple):
    """One setting."""

    section: str
    name: str
    kind: Kind
    default: object
    doc: str

    @property
    def dotted(self) -> str:
        """As files, messages and `config show` call it: `limits.max_wait`."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"HOLDFAST_{self.section}_{self.name}".upper()


def sections() -> dict[str, type[msgspec.Struct]]:
    """The sections in their order, with the class of each."""
    hints = get_type_hints(settings.Config)
    return {name: hint for name, hint in hints.items() if isinstance(hint, type) and issubclass(hint, msgspec.Struct)}


@cache
def all_fields() -> tuple[Field, ...]:
    """Every setting, in the order of the file."""
    return tuple(field for section, kind in sections().items() for field in _fields_of(section, kind))


def _fields_of(section: str, owner: type[msgspec.Struct]) -> list[Field]:
    hints = get_type_hints(owner, include_extras=True)
    docs = _docs_of(owner)
    return [
        Field(section, field.name, _kind_of(hints[field.name]), field.default, docs[field.name])
        for field in msgspec.structs.fields(owner)
    ]


def _kind_of(hint: object) -> Kind:
    if get_origin(hint) is not Annotated:
        raise TypeError(f"{hint} is not annotated with the kind of setting it is")
    kind: Kind = get_args(hint)[1]
    return kind


def _docs_of(owner: type[msgspec.Struct]) -> dict[str, str]:
    """The string literal that follows each field of a class."""
    tree = ast.parse(inspect.getsource(owner)).body[0]
    assert isinstance(tree, ast.ClassDef)
    docs: dict[str, str] = {}
    for field, text in zip(tree.body, tree.body[1:], strict=False):
        match field, text:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = inspect.cleandoc(doc)
    return docs
