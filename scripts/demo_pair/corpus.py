"""The text the demo pair learns from: the standard library of the running Python, less the held-out files.

It knows nothing of models or tokenizers.
"""

import hashlib
import json
import random
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELD_OUT = Path(__file__).with_name("held_out.json")
SKIPPED = {"site-packages", "__pycache__", "encodings", "pydoc_data", "bad_coding", "bad_coding2"}
TEST_PARTS = {"test", "tests", "idle_test", "lib2to3", "turtledemo"}


def library() -> dict[str, str]:
    """Sources by their path inside the standard library, sorted; byte-identical copies appear once."""
    root = Path(sysconfig.get_path("stdlib"))
    sources: dict[str, str] = {}
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        if SKIPPED & set(path.relative_to(root).parts):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # a test fixture in another encoding
        digest = hashlib.sha256(text.encode()).hexdigest()
        if text.strip() and digest not in seen:
            seen.add(digest)
            sources[path.relative_to(root).as_posix()] = text
    return sources


def is_test(name: str) -> bool:
    """Whether a source belongs to a test suite (or to tables and demos that read unlike a module)."""
    return bool(TEST_PARTS & set(name.split("/")))


def held_out() -> dict[str, list[str]]:
    """File names kept from training: `evaluation` made demo/prompts.jsonl, `validation` steers training."""
    names: dict[str, list[str]] = json.loads(HELD_OUT.read_text(encoding="utf-8"))["files"]
    return names


def training_texts(*, seed: int, tests: bool = True) -> list[str]:
    """Training sources in a seeded order: every module twice, every test once (or not)."""
    kept_out = {name for names in held_out().values() for name in names}
    sources = {name: text for name, text in library().items() if name not in kept_out}
    modules = [name for name in sources if not is_test(name)]
    names = [*(sources if tests else modules), *modules]
    random.Random(seed).shuffle(names)
    return [sources[name] for name in names]


def validation_texts() -> list[str]:
    """The sources that progress is judged on; neither trained on nor in demo/prompts.jsonl."""
    sources = library()
    return [sources[name] for name in held_out()["validation"] if name in sources]


def python_version() -> str:
    """The interpreter whose library this is, as 3.11.7."""
    return ".".join(map(str, sys.version_info[:3]))
