"""The lines of vLLM that rules quote: `vllm/FILE (VERSIONS), `TEXT``, and whether a version has them.

VERSIONS is `0.33` for that one alone, `from 0.33`, `to 0.32`, or `0.28 to 0.32`; without it, every known version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from specserve.report.manual import pages
from specserve.vllm import facts
from specserve.vllm.facts import minor

_NUMBER = r"\d+\.\d+"
_SINCE = rf"(?:from )?(?P<first>{_NUMBER})?(?: ?to (?P<last>{_NUMBER}))?"
_PLACE = rf"vllm/(?P<file>\S+?)(?: \((?:(?P<only>{_NUMBER})|{_SINCE})\))?"
PLACE = re.compile(_PLACE)
_LINE = re.compile(_PLACE + r", `(?P<text>.+)`")


@dataclass(frozen=True, slots=True)
class Quote:
    """A text that some versions of vLLM have in a file. `by`: the code of a rule."""

    by: str
    file: str
    text: str
    first: str | None = None
    last: str | None = None

    def is_for(self, version: str) -> bool:
        """Whether the text is said to be in this version."""
        above = self.first is None or minor(version) >= minor(self.first)
        return above and (self.last is None or minor(version) <= minor(self.last))

    def is_in(self, package: Path) -> bool:
        """Whether the text is there, in one piece or as Python writes a long one over several lines."""
        path = package / self.file
        source = path.read_text(encoding="utf-8") if path.is_file() else ""
        return self.text in source or self.text in re.sub(r'"\s*\n\s*f?"', "", source)


def _quote(by: str, match: re.Match[str], text: str) -> Quote:
    only = match["only"]
    return Quote(by, match["file"], text, only or match["first"], only or match["last"])


def quotes() -> Iterator[Quote]:
    """Every quote of vLLM in the manual pages of rules."""
    for code, page in pages().items():
        for line in page.doc.splitlines():
            if match := _LINE.fullmatch(line.removeprefix("Source: ")):
                yield _quote(code, match, match["text"])


def is_shown(name: str, version: str, package: Path) -> bool:
    """Whether the sources of a version in a folder `vllm` agree with a fact of `facts.SHOWN`."""
    file, line = facts.SHOWN[name]
    text = (package / file).read_text(encoding="utf-8") if (package / file).is_file() else ""
    is_newest = minor(version) >= minor([*vars(facts)[name]][-1])
    return (" ".join(line.split()) in " ".join(text.split())) is is_newest
