"""Run the tests without vLLM of what changed since main, for at most 40 seconds: `make quick`.

The guards of the house come first, then the tests that changed, those of the folders that changed and those that import
a changed module; what the time does not reach is skipped and counted. On main itself, what is not committed counts as
changed, and the last commit if there is nothing. Without a branch main, origin/main is taken.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ALWAYS = (
    "tests/test_architecture.py",
    "tests/test_words.py",
    "tests/report/test_manual.py",
    "tests/scripts/test_gen_reference.py",
)
LIMIT_S = 40


def git(*arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def changed_files() -> list[str]:
    """What differs from main, with what is not committed."""
    mains = git("for-each-ref", "--format=%(refname)", "refs/heads/main", "refs/remotes/origin/main")
    if not mains:
        message = "there is no branch main or origin/main to compare with"
        sys.exit(f"error: {message}\nhint: git fetch origin main:main")
    base = git("merge-base", "HEAD", mains[0])[0]
    changed = set(git("diff", "--name-only", base)) | set(git("ls-files", "-o", "--exclude-standard"))
    return sorted(changed or git("show", "--name-only", "--format=", "HEAD"))


def tests_of(changed: list[str]) -> list[str]:
    """The guards, and the test files of these files, the nearest first."""
    tests = sorted(file.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py"))
    own = [name for name in tests if name in changed]
    folders = {part[1] for name in changed if len(part := Path(name).parts) > 2 and part[0] != "docs"}
    near = [name for name in tests if folders & {*Path(name).parts[1:-1], *Path(name).stem.split("_")}]
    modules = [
        name[:-3].replace("/", ".").removeprefix("scripts.").removesuffix(".__init__")
        for name in changed
        if name.endswith(".py") and name.startswith(("specserve/", "scripts/"))
    ]
    pattern = re.compile("|".join(rf"\b{re.escape(name)}\b" for name in modules) or r"(?!)")
    users = [name for name in tests if pattern.search((ROOT / name).read_text(encoding="utf-8"))]
    return list(dict.fromkeys([*ALWAYS, *own, *near, *users]))


def main() -> int:
    tests = tests_of(changed_files())
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--within={LIMIT_S}"]
    return subprocess.call([*command, "-m", "not engine and not vllm and not soak", *tests], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
