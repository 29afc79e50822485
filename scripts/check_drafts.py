"""Checks the catalogue of published drafts: its form, repeats, and what the rules say of each for its own target.

    python scripts/check_drafts.py [--online]

With --online, the Hub is asked, and the rules about models and tokenizers judge what it gives. Exits with 1 for a
repeat, an entry without a source, or a draft that a rule refuses.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from specserve.measure.drafts import DraftOptions, JudgedDraft, find_drafts
from specserve.models.drafts import Draft, catalogue


def problems(drafts: list[Draft]) -> list[str]:
    """What is wrong with the entries themselves."""
    found = []
    for (target, model, method), times in Counter((d.target, d.model, d.method) for d in drafts).items():
        if times > 1:
            found.append(f"{target}: {model or method} stands there {times} times")
    for draft in drafts:
        if not any(source.url.startswith("https://") for source in draft.sources):
            found.append(f"{draft.target}: {draft.model or draft.method} has no public source")
    return found


def judged(drafts: list[Draft], *, online: bool) -> list[JudgedDraft]:
    """The entries as the rules judge them, each for its own target."""
    wanted = DraftOptions(online=online)
    return [
        each
        for target in sorted({draft.target for draft in drafts})
        for each in find_drafts(target, wanted=wanted).drafts
        if each.draft in drafts and each.draft.target == target
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--online", action="store_true")
    drafts, is_online = list(catalogue()), parser.parse_args().online
    wrong = problems(drafts)
    rows = judged(drafts, online=is_online)
    refused = [each for each in rows if each.is_refused]
    wrong += [
        f"{each.draft.target}: {each.draft.model or each.draft.method} is refused by "
        + ", ".join(found.code for found in each.findings)
        for each in refused
    ]
    for line in wrong:
        print(line)
    named = sum(bool(draft.num_speculative_tokens) for draft in drafts)
    reported = sum(bool(draft.reported) for draft in drafts)
    with_models = sum(each.has_models for each in rows)
    size = len(drafts)
    print(f"{size} drafts for {len({draft.target for draft in drafts})} targets, each with a source")
    print(f"K is named for {named}, acceptance or speedup reported for {reported}")
    print(f"rules that need no model judged {_share(len(rows), size)}, refused {len(refused) or 'none'}")
    print(
        f"rules about models judged {_share(with_models, size)}"
        + ("" if is_online else "; --online asks the Hub")
    )
    return 1 if wrong else 0


def _share(part: int, whole: int) -> str:
    return f"{part} ({100 * part / whole:.0f} %)"


if __name__ == "__main__":
    sys.exit(main())
