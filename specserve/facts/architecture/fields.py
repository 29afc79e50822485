"""Fields of a config.json, typed: a wrong type is an error that names the key. Knows no architecture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from specserve.errors import FactError

_LARGEST = 1 << 40


@dataclass(frozen=True, slots=True)
class Fields:
    """One mapping of a config.json; `where` is its dotted path, for messages."""

    model: str
    values: Mapping[str, Any]
    where: str = ""

    def has(self, key: str) -> bool:
        """Whether the key is there, and is not null."""
        return self.values.get(key) is not None

    def integer(self, *keys: str, default: int | None = None, least: int = 1) -> int:
        """The first of these keys that is there. Raises FactError for a wrong type, or none without a default."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._wrong(key, value, "a whole number")
            if not least <= value < _LARGEST:
                raise self._wrong(key, value, f"a number from {least} up")
            return value
        if default is None:
            raise self.missing(keys[0])
        return default

    def optional(self, *keys: str, least: int = 1) -> int | None:
        """As `integer`; None where none of the keys is there."""
        return self.integer(*keys, least=least) if any(self.has(key) for key in keys) else None

    def flag(self, key: str, *, default: bool) -> bool:
        """A boolean. Raises FactError for anything else."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def text(self, *keys: str, default: str) -> str:
        """The first of these keys that is there. Raises FactError where it is no text."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if not isinstance(value, str):
                raise self._wrong(key, value, "text")
            return value
        return default

    def texts(self, key: str) -> tuple[str, ...] | None:
        """A list of names; None where it is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of names")
        return tuple(value)

    def integers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers; None where it is not there."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise self._wrong(key, value, "a list of whole numbers")
        return tuple(value)

    def section(self, key: str) -> Fields | None:
        """A mapping inside of this one; None where it is not there. Raises FactError for another type."""
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self._wrong(key, value, "a mapping")
        return Fields(self.model, value, f"{self.where}{key}.")

    def missing(self, key: str) -> FactError:
        """The error for a key without which nothing can be computed."""
        return FactError(f"`{self.where}{key}` is missing in config.json of `{self.model}`")

    def _wrong(self, key: str, value: object, wanted: str) -> FactError:
        shown = repr(value)
        shown = shown if len(shown) <= 40 else shown[:37] + "..."
        return FactError(
            f"`{self.where}{key}` in config.json of `{self.model}` is {shown}: expected {wanted}"
        )
