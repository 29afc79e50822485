"""Lists of numbers as people write them on a command line: `1,4,16`. Knows no option by name."""

from __future__ import annotations

from specserve.errors import UsageError


def numbers(text: str | None, option: str, *, least: float, most: float) -> tuple[float, ...]:
    """The numbers, each once, in their order; none of None. Raises UsageError."""
    if text is None:
        return ()
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"`{option}` is no list of numbers: {text!r}", hint=f"such as {_example(least, most)}"
        ) from None
    if not all(least <= value <= most for value in found):
        raise UsageError(f"`{option}` is {text}, and each must be {least:g} to {most:g}")
    return tuple(dict.fromkeys(found))


def _example(least: float, most: float) -> str:
    return "1,4,16" if most >= 16 >= least else "0,0.7"


def whole_numbers(text: str | None, option: str, *, least: int, most: int) -> tuple[int, ...]:
    """The same for whole numbers. Raises UsageError."""
    found = numbers(text, option, least=least, most=most)
    if any(value != int(value) for value in found):
        raise UsageError(f"`{option}` takes whole numbers", hint="such as 1,4,16")
    return tuple(int(value) for value in found)
