"""Functions of the installed vLLM, taken from its sources one by one: they judge ours, and nothing is imported."""

from __future__ import annotations

import ast
from functools import cache
from typing import Any

from specserve.vllm.versions import installed


@cache
def _lines(file: str, name: str) -> str:
    vllm = installed()
    assert vllm is not None
    tree = ast.parse((vllm.package / file).read_text(encoding="utf-8"))
    node = next(item for item in ast.walk(tree) if isinstance(item, ast.FunctionDef) and item.name == name)
    node.decorator_list = []
    return "from __future__ import annotations\n" + ast.unparse(node)


def function(file: str, name: str, **names: Any) -> Any:
    """The function or method of this name as a callable; `names` are the globals that it needs."""
    scope: dict[str, Any] = {"__name__": "vllmlines", **names}
    exec(_lines(file, name), scope)
    return scope[name]


def minor() -> str:
    """`0.32` of the installed vLLM."""
    vllm = installed()
    assert vllm is not None
    return ".".join(vllm.version.split(".")[:2])
