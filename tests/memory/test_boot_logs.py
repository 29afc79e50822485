"""The estimate on public boot logs: never wrong, seldom in doubt, and the KV cache inside of the band."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))
from score_memory import held_back, read_logs, score

LOGS, LEFT_OUT = read_logs()


def test_what_served_is_never_refused_and_what_failed_never_fits() -> None:
    assert (len(LOGS), len(LEFT_OUT)) == (59, 8)
    for scores in ([score(log) for log in LOGS], list(held_back(LOGS))):
        wrong = {True: "does_not_fit", False: "fit"}
        assert [each.log["id"] for each in scores if each.found.verdict == wrong[each.log["serves"]]] == []
        assert sum(each.found.verdict == "tight" for each in scores) <= 12
        inside = [each.is_inside for each in scores if each.is_inside is not None]
        assert len(inside) == 50 and sum(inside) >= 0.95 * len(inside)


def test_the_three_of_our_own_lie_inside_of_the_band() -> None:
    ours = [score(log) for log in LOGS if log["id"] in ("g001", "g002", "g004")]
    assert [(each.found.verdict, each.is_inside) for each in ours] == [("fit", True)] * 3
