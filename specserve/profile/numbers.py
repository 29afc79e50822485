"""Numbers with a unit letter, by vLLM's rule. Source: `human_readable_int`, vllm/utils/argparse_utils.py, 0.32."""

from __future__ import annotations

import re

_HUMAN = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)([kKmMgGtT])")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def human_int(text: str) -> int | None:
    """`32k` is 32,000 and `32K` is 32,768 (likewise m/M, g/G, t/T); None if the text is no such number.

    A fraction is for the decimal letters only, as in vLLM: `25.6k` is 25,600, `1.5K` is refused.
    """
    match = _HUMAN.fullmatch(text)
    if match is None:
        return None
    number, unit = match.groups()
    if unit in _DECIMAL:
        return int(float(number) * _DECIMAL[unit])
    return None if "." in number else int(number) * _BINARY[unit]
