"""Writes docs/rules.md from specserve/checks/pages.md; with --check, says whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the pages of this tree, not of an installed one
from specserve.report.manual import Page, manual, pages  # noqa: E402

FILE = ROOT / "docs" / "rules.md"
_GROUPS = {
    "SD0": "The file itself",
    "SD1": "The profile alone",
    "SD2": "Models, tokenizers and locks",
    "SD3": "Memory and hardware",
    "SD4": "vLLM's versions and downloads",
    "SD5": "What vLLM's own code says",
}


def document(pages: Iterable[Page]) -> str:
    """docs/rules.md: a table of all, then each page."""
    pages = list(pages)
    lines = [
        "# Rules",
        "",
        "Every finding of `specserve lint` and `specserve check`. `specserve rules CODE` shows a page on the",
        "terminal, `specserve rules` the list. An *error* will not start, or serves wrong or crippled output; a",
        "*warning* works, but slower, riskier or not as the profile reads; an *info* is worth knowing. What a rule",
        "*needs* besides the profile decides where it runs: `lint` runs those that need nothing, and what some of the",
        "others see in names alone; `check` runs all that have what they need. A *policy* is an error of",
        "specserve's own, which vLLM does not refuse: for a raw command (`specserve lint -- vllm serve …`) it is a",
        "warning. One finding is silenced by a comment on one of its lines: `# specserve: ignore[SD104] reason`.",
        "",
        "<!-- Written by scripts/gen_rules.py from specserve/checks/pages.md: change that, then run it. -->",
    ]
    for prefix, title in _GROUPS.items():
        of_group = [page for page in pages if page.code.startswith(prefix)]
        if of_group:
            # no heading: the table of contents lists rules only
            lines += ["", f"**{title}**", "", "| code | name | severity | needs | |", "|---|---|---|---|---|"]
            lines += [_row(page) for page in of_group]
    return "\n".join(lines) + "\n\n" + "\n".join(map(manual, pages))


def _row(page: Page) -> str:
    summary = page.summary.replace("|", "\\|")
    return f"| [{page.code}](#{page.anchor}) | {page.name} | {page.severity} | {page.needs} | {summary} |"


def main() -> int:
    """Exit code 1 with --check if the file is stale."""
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
