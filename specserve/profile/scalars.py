"""What a plain scalar means to a person, where YAML 1.1 would make something else of it. Knows no schema."""

from __future__ import annotations

import re

from specserve.profile.tree import Ambiguous, Scalar

_NULLS = {"", "~", "null", "Null", "NULL"}
_TRUE = {"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"}
_FALSE = {"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"}
_INT = re.compile(r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F][0-9a-fA-F_]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9_]+")
_FLOAT = re.compile(r"[-+]?([0-9][0-9_]*(\.[0-9_]*)?|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "+.inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_LONGEST_NUMBER = 30  # no number of a profile is longer; digits of a hash may be


def meaning(text: str) -> Scalar:
    """`1e-3` is a number, `yes` is true, `12:30:45` and dates are text, `010` is Ambiguous."""
    if text in _NULLS:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _SPECIAL:
        return _SPECIAL[text.lower()]
    if len(text) > _LONGEST_NUMBER:
        return text
    digits = text.replace("_", "")
    if _INT.fullmatch(text):
        return int(digits, 16) if "x" in digits else int(digits)
    if _LEADING_ZERO.fullmatch(text):
        return Ambiguous(text)
    return float(digits) if _FLOAT.fullmatch(text) else text
