"""Read a wheel of SGLang, or an unpacked one: write `specserve/sglang/arguments.json`, and say what came and went.

    python scripts/update_sglang.py [--check] sglang-0.5.23-….whl

With --check nothing is written: exit code 1 if the shipped table is not what the wheel says. Reads source text by
`ast`: SGLang is neither imported nor installed. What a flag is stands in `sglang/srt/arg_groups/fields/*.py`: each
field of `ServerArgs` is `name: A[type, Arg(…)] = default`. How that becomes an option stands in
`arg_groups/arg_utils.py` (`add_cli_args_from_dataclass`); the few options with lists that are made at run time, in
`ServerArgs.add_cli_args`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TABLE = Path(__file__).resolve().parents[1] / "specserve" / "sglang" / "arguments.json"
MAPPING = TABLE.with_name("mapping.json")
_FIELDS = "sglang/srt/arg_groups/fields/"
_LISTS = (
    "sglang/srt/arg_groups/choices.py",
    "sglang/srt/function_call/parser_names.py",
    "sglang/srt/parser/reasoning_parser_names.py",
)
"""Where the lists of admitted values stand."""
_SERVER_ARGS = "sglang/srt/server_args.py"
_RUN_TIME = {"reasoning_parser": "REASONING_PARSER_NAMES", "tool_call_parser": "TOOL_CALL_PARSER_NAMES"}
"""Options whose list of values is made when SGLang starts: `auto` and the names of this list."""
_PARSERS = {
    "json.loads": ("dict", "json"),
    "json_list_type": ("list", "json"),
    "nullable_str": ("str", "value"),
}
_SWITCHES = ("'store_true'", "DeprecatedStoreTrueAction")
_UNKNOWN: Any = object()


def sources(wheel: Path) -> dict[str, str]:
    """The Python files of a wheel, or of the folder that holds the package, by their path in it."""
    wanted = re.compile(rf"{_FIELDS}\w+\.py|{_SERVER_ARGS}|" + "|".join(_LISTS))
    if wheel.is_dir():
        files = {file.relative_to(wheel).as_posix(): file for file in wheel.rglob("*.py")}
        return {name: file.read_text("utf-8") for name, file in files.items() if wanted.fullmatch(name)}
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist() if wanted.fullmatch(name)}


def version_of(wheel: Path) -> str:
    """`0.5.23` of a wheel's file name, or of the `dist-info` beside an unpacked one. Raises SystemExit."""
    names = [wheel.name, *(folder.name for folder in wheel.glob("sglang-*.dist-info"))]
    found = next(
        (match for name in names if (match := re.match(r"sglang-([\d.]+?)(?:\.dist-info|-)", name))), None
    )
    if found is None:
        raise SystemExit(f"{wheel} is no wheel of SGLang, and no folder with one")
    return found[1]


def arguments_of(files: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Each option by the name of its field: flag, aliases, kind, form, choices and default."""
    lists: dict[str, Any] = {}
    for file in _LISTS:
        for node in ast.parse(files[file]).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                lists[node.targets[0].id] = _value(node.value, lists)
    found: dict[str, dict[str, Any]] = {}
    for file in sorted(name for name in files if name.startswith(_FIELDS)):
        for name, field in _annotated(files[file]):
            if option := _field(field, lists):
                found[name] = option
    defaults = dict(_bare_defaults(files))
    for call in ast.walk(ast.parse(files[_SERVER_ARGS])):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "parser.add_argument":
            name, option = _added(call, lists)
            found[name] = {
                **option,
                **({"default": defaults[name]} if defaults.get(name) is not None else {}),
            }
    return dict(sorted(found.items()))


def _annotated(text: str) -> Iterator[tuple[str, ast.AnnAssign]]:
    """The annotated names of a module's classes."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id, node


def _bare_defaults(files: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    """The defaults of the fields that have no option of their own, such as `reasoning_parser: Optional[str] = None`."""
    for file in files:
        for name, field in _annotated(files[file]) if file.startswith(_FIELDS) else ():
            value = _value(field.value, {})
            yield name, None if value is _UNKNOWN else value


def _field(field: ast.AnnAssign, lists: Mapping[str, Any]) -> dict[str, Any] | None:
    """The option of one field; None for a field that has none."""
    hint = field.annotation
    if not (
        isinstance(hint, ast.Subscript)
        and ast.unparse(hint.value) == "A"
        and isinstance(hint.slice, ast.Tuple)
    ):
        return None
    typed, about = hint.slice.elts[0], hint.slice.elts[1]
    said = {key.arg: key.value for key in about.keywords} if isinstance(about, ast.Call) else {}
    if "no_cli" in said:
        return None
    plain = ast.unparse(typed)
    inner = re.fullmatch(r"Optional\[(.*)\]", plain)
    kind, form = _shape(inner[1] if inner else plain, said)
    option: dict[str, Any] = {"kind": kind}
    if form != "value":
        option["form"] = form
    if "action" in said and ast.unparse(said["action"]).endswith("BooleanOptionalAction"):
        option |= {"kind": "bool", "form": "flag", "negatable": True}
    if flag := _text(said.get("cli_name")):
        option["flag"] = flag
    if aliases := _value(said.get("aliases"), lists) if "aliases" in said else ():
        option["aliases"] = aliases
    if "human_readable_int" in ast.unparse(said.get("type_parser", ast.Constant(""))):
        option |= {"kind": "int", "human_int": True}
    literal = re.fullmatch(r"Literal(\[.*\])", inner[1] if inner else plain, re.S)
    choices = _value(said["choices"], lists) if "choices" in said else _UNKNOWN
    if choices is _UNKNOWN and literal:
        choices = ast.literal_eval(literal[1])
    if choices is not _UNKNOWN:
        option["choices"] = sorted(choices, key=str) if isinstance(choices, set) else list(choices)
    default = _value(field.value, lists) if field.value else _UNKNOWN
    if default is not _UNKNOWN and default is not None:
        option["default"] = default
    return option


def _shape(plain: str, said: Mapping[str | None, ast.expr]) -> tuple[str, str]:
    """Kind and form of an option by the type of its field, in the words of specserve's tables of vLLM."""
    parser = ast.unparse(said["type_parser"]) if "type_parser" in said else ""
    if parser in _PARSERS:
        return _PARSERS[parser]
    if parser.endswith("_config_arg"):
        return "dict", "json"
    nargs = _text(said.get("nargs"))
    if nargs == "?":
        return "str", "optional_value"
    if (
        nargs
        or plain.startswith("List[")
        or "LoRAPathAction" in ast.unparse(said.get("action", ast.Constant("")))
    ):
        return "list", "many"
    if plain == "bool":
        return "bool", "flag"
    return (plain if plain in ("int", "float") else "str"), "value"


def _added(call: ast.Call, lists: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the option of a `parser.add_argument` call."""
    flag = _text(call.args[0]) or ""
    said = {key.arg: key.value for key in call.keywords}
    name = flag.removeprefix("--").replace("-", "_")
    option: dict[str, Any] = {"kind": "str"}
    if "action" in said and ast.unparse(said["action"]) in _SWITCHES:
        option = {"kind": "bool", "form": "flag"}
    if name in _RUN_TIME:
        option["choices"] = ["auto", *lists[_RUN_TIME[name]]]
    help_text = _text(said.get("help")) or ""
    if "eprecated" in help_text:
        option["deprecated"] = help_text
    return name, option


def _text(node: ast.expr | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _value(node: ast.expr | None, lists: Mapping[str, Any]) -> Any:
    """What an expression is: literals, sums and products of them, and the lists by name; else _UNKNOWN."""
    if node is None:
        return None
    if isinstance(node, ast.Name):
        return lists.get(node.id, _UNKNOWN)
    if (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("set", "list", "frozenset")
        and len(node.args) == 1
    ):
        return _value(node.args[0], lists)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, lists), _value(node.right, lists)
        if left is _UNKNOWN or right is _UNKNOWN:
            return _UNKNOWN
        return left * right if isinstance(node.op, ast.Mult) else left + right
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _UNKNOWN


def thinned(arguments: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The options that a profile has a word for, without their defaults: what `convert` and `render` ask for."""
    mapping = json.loads(MAPPING.read_text("utf-8"))
    return {
        name: {key: value for key, value in option.items() if key != "default"}
        for name, option in arguments.items()
        if name in mapping["options"] or name in mapping["same"]
    }


def dumps(version: str, arguments: Mapping[str, Mapping[str, Any]]) -> str:
    """The table as JSON: an option a line, so that `diff` compares versions."""
    lines = [f"  {json.dumps(name)}: {json.dumps(option)}" for name, option in arguments.items()]
    return f' "version": {json.dumps(version)},\n "arguments": {{\n' + ",\n".join(lines) + "\n }"


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or compares the table; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0] if __doc__ else None)
    parser.add_argument("wheel", type=Path, help="a wheel, or the folder that holds the package `sglang`")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit with 1 if the table differs"
    )
    given = parser.parse_args(argv)
    arguments = thinned(arguments_of(sources(given.wheel)))
    text = "{\n" + dumps(version_of(given.wheel), arguments) + "\n}\n"
    before = TABLE.read_text("utf-8") if TABLE.is_file() else '{"arguments": {}}'
    old, new = (json.loads(one)["arguments"] for one in (before, text))
    for name in sorted(old.keys() | new.keys()):
        if old.get(name) != new.get(name):
            print(f"{'gone' if name not in new else 'new' if name not in old else 'changed'}: {name}")
    if not given.check:
        TABLE.write_text(text, "utf-8")
    return int(given.check and before != text)


if __name__ == "__main__":
    sys.exit(main())
