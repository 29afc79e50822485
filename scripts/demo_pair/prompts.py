"""Choose the held-out files and write demo/prompts.jsonl from them; run once, before any training.

It knows nothing of tokenizers and models: lengths are in characters.
"""

import ast
import json
import random
import textwrap

from corpus import HELD_OUT, ROOT, is_test, library, python_version

SEED = 20261121
HEAD_CHARS = (150, 600)
MID_CHARS = (300, 650)
Functions = list[ast.FunctionDef | ast.AsyncFunctionDef]


def functions(source: str) -> Functions:
    """All functions of a source, in order."""
    tree = ast.parse(source)
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def heads(source: str) -> list[str]:
    """Function beginnings: decorators, signature, docstring; dedented, and the function goes on after it."""
    lines = source.splitlines()
    found = []
    for node in functions(source):
        if ast.get_docstring(node) is None or len(node.body) < 3:
            continue
        first = min([node.lineno, *(each.lineno for each in node.decorator_list)]) - 1
        text = textwrap.dedent("\n".join(lines[first : node.body[0].end_lineno])).rstrip()
        if HEAD_CHARS[0] <= len(text) <= HEAD_CHARS[1] and text.isascii():
            found.append(text)
    return found


def mids(source: str) -> list[str]:
    """Code from inside a file: whole lines as they stand, ending after a statement in a function's body."""
    lines = source.splitlines()
    found = []
    for node in functions(source):
        for statement in node.body[1:-1]:
            end = statement.end_lineno or 0
            if (node.end_lineno or 0) - end < 4 or end < len(lines) // 4:
                continue
            start = end
            while start > 0 and sum(len(line) + 1 for line in lines[start - 1 : end]) <= MID_CHARS[1]:
                start -= 1
            text = "\n".join(lines[start:end]).strip("\n").rstrip()
            if len(text) >= MID_CHARS[0] and text.isascii():
                found.append(text)
    return found


def prompts_of(sources: dict[str, str], names: list[str], *, seed: int) -> list[dict[str, str]]:
    """One head and one mid-file prompt per file, drawn with a seed."""
    rng = random.Random(seed)
    rows = []
    for kind, find in (("head", heads), ("mid", mids)):
        for number, name in enumerate(names):
            rows.append({"id": f"{kind}-{number:02}", "prompt": rng.choice(find(sources[name]))})
    return rows


def main() -> None:
    """Write the held-out list and the 64 prompts."""
    sources = {n: s for n, s in library().items() if not is_test(n) and 6_000 <= len(s) <= 80_000}
    usable = [name for name, source in sources.items() if heads(source) and mids(source)]
    drawn = random.Random(SEED).sample(usable, 48)
    files = {"evaluation": sorted(drawn[:32]), "validation": sorted(drawn[32:])}
    HELD_OUT.write_text(
        json.dumps({"python": python_version(), "seed": SEED, "files": files}, indent=1) + "\n",
        encoding="utf-8",
    )
    rows = prompts_of(sources, files["evaluation"], seed=SEED)
    with (ROOT / "demo" / "prompts.jsonl").open("w", encoding="utf-8") as out:
        out.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
