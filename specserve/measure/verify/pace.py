"""How long one more answer takes, by the last ones. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FEWEST_TOKENS = 24
"""Shorter answers cost more for their prompts than they tell."""
_MARGIN = 1.2
_LAST = 8


@dataclass(slots=True)
class Pace:
    """The last 8 requests. There must be one before anything is asked of it.

    One thread may add while others ask: what they read is replaced, never changed.
    """

    _last: tuple[tuple[float, int], ...] = ()

    def add(self, took_s: float, tokens: int) -> None:
        """Add a request that wrote and scored an answer of so many tokens."""
        self._last = (*self._last, (took_s, max(1, tokens)))[-_LAST:]

    @property
    def token_s(self) -> float:
        """Seconds for each token of one more answer, rather more than less."""
        last = self._last
        return _MARGIN * sum(took_s for took_s, _ in last) / sum(tokens for _, tokens in last)

    def tokens(self, most: int, *, within_s: float) -> int:
        """Return the tokens of one more answer that should end within a time: at most `most`, at least 24 of them."""
        return min(most, max(FEWEST_TOKENS, int(within_s / self.token_s)))
