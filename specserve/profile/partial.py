"""A profile without its bad values: reading one of them raises an error."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, NoReturn, TypeVar

from specserve.errors import ProfileError
from specserve.profile.schema import Profile, Speculation

T = TypeVar("T")
_ALWAYS_THERE = frozenset({"name", "schema"})
"""Keys that change nothing of what is judged: a bad one has a default in its place."""


class UnreadableValue(ProfileError):
    """A value was needed that a finding has already called bad."""

    def __init__(self, path: str) -> None:
        super().__init__(f"the value of `{path}` in the profile is not valid")


class _Unreadable:
    """Stands in the place of a value of the profile; reading it raises UnreadableValue."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _stop(self, *_: object) -> NoReturn:
        raise UnreadableValue(self._path)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._stop()

    __bool__ = __iter__ = __len__ = __contains__ = __getitem__ = __str__ = __eq__ = __hash__ = _stop


class _PartialMapping(dict[str, Any]):
    """A mapping without its bad values; asking for one of them raises UnreadableValue."""

    def __init__(self, values: Mapping[str, Any], unread: frozenset[str], path: str) -> None:
        super().__init__({name: value for name, value in values.items() if name not in unread})
        self._unread, self._path = unread, path

    def _checked(self, key: object) -> Any:
        if key in self._unread:
            raise UnreadableValue(f"{self._path}.{key}")
        return key

    def get(self, key: str, default: Any = None) -> Any:
        return super().get(self._checked(key), default)

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(self._checked(key))

    def __contains__(self, key: object) -> bool:
        return super().__contains__(self._checked(key))


def _without(section: T, names: frozenset[str], *, path: str) -> T:
    """A copy of a section that raises UnreadableValue for these of its fields."""
    kind: Any = type(section)

    class Partial(kind):  # type: ignore[misc]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in names:
                raise UnreadableValue(f"{path}.{name}")
            return super().__getattribute__(name)

    copy: T = object.__new__(Partial)
    for field in fields(kind):
        object.__setattr__(copy, field.name, getattr(section, field.name))
    return copy


def readable(profile: Profile, paths: Iterable[str]) -> Profile:
    """The profile without what stands at these dotted paths: the rules that need none of it can still run."""
    unread: dict[str, set[str]] = {}
    for path in paths:
        head, _, rest = re.sub(r"\[.*", "", path).partition(".")
        unread.setdefault(head, set()).add(rest)
    changes = {
        head: _part(getattr(profile, head), head, rests)
        for head, rests in unread.items()
        if head not in _ALWAYS_THERE and head in Profile.__dataclass_fields__
    }
    return replace(profile, **changes)


def _part(value: Any, path: str, rests: set[str]) -> Any:
    """What is left of a value of the profile without these paths below it."""
    if "" in rests or value is None or path in ("expect", "vllm"):
        return _Unreadable(path)
    names = frozenset(rest.partition(".")[0] for rest in rests)
    if path == "alternatives":  # a block that cannot be read at all is not there
        kept = {name: block for name, block in value.items() if name not in rests}
        for name in names & kept.keys():
            keys = {rest.partition(".")[2] for rest in rests if rest.startswith(f"{name}.")}
            kept[name] = _part(kept[name], f"{path}.{name}", keys)
        return kept
    if isinstance(value, Speculation):
        return replace(value, keys=_PartialMapping(value.keys, names, path))
    if isinstance(value, Mapping):
        return _PartialMapping(value, names, path)
    return _without(value, names, path=path)
