"""Writes docs/rules.md from the rules' docstrings; with --check, says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from specserve.report.manual import document, pages

FILE = Path(__file__).parents[1] / "docs" / "rules.md"


def main() -> int:
    """Exit code 1 with --check where the file is stale."""
    text = document(pages().values())
    if "--check" in sys.argv[1:]:
        fresh = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        print(f"{FILE.name} is {'up to date' if fresh else 'stale: run scripts/gen_rules.py'}")
        return 0 if fresh else 1
    FILE.write_text(text, encoding="utf-8")
    print(f"{FILE.name}: {len(pages())} codes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
