"""A profile with bad values, as far as it can be read: using one of those values raises, everything else is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, NoReturn, TypeVar

from specserve.diagnostics import Finding, Span
from specserve.errors import ProfileError
from specserve.profile.problems import did_you_mean
from specserve.profile.schema import ELSEWHERE, SECTIONS, Profile, Speculation, keys_of
from specserve.vllm.speculation import METHODS

T = TypeVar("T")
_MAPPINGS = ("engine", "frontend", "env")
_ALWAYS_THERE = frozenset({"name", "schema"})
"""Keys that change nothing of what is judged: a bad one has a default in its place."""


class UnreadableValue(ProfileError):
    """A value was needed that a finding has already called bad."""

    def __init__(self, path: str) -> None:
        super().__init__(f"`{path}` cannot be read")


class _Unreadable:
    """Stands in the place of a value of the profile; whoever looks at it raises UnreadableValue."""

    def __init__(self, path: str) -> None:
        self._path = path

    def _stop(self, *_: object) -> NoReturn:
        raise UnreadableValue(self._path)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):
            raise AttributeError(name)
        self._stop()

    __bool__ = __iter__ = __len__ = __contains__ = __getitem__ = __str__ = _stop
    __eq__ = __hash__ = _stop


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


def without(section: T, names: Iterable[str], *, path: str) -> T:
    """A copy of a dataclass instance that raises UnreadableValue for these of its fields."""
    kind: Any = type(section)
    unread = frozenset(names)

    class Partial(kind):  # type: ignore[misc]
        __slots__ = ()

        def __getattribute__(self, name: str) -> Any:
            if name in unread:
                raise UnreadableValue(f"{path}.{name}" if path else name)
            return super().__getattribute__(name)

    copy: T = object.__new__(Partial)
    for field in fields(kind):
        object.__setattr__(copy, field.name, getattr(section, field.name))
    return copy


def readable(profile: Profile, problems: Iterable[Finding]) -> Profile:
    """The profile without what its problems are about: the rules that need none of it can still run."""
    unread: dict[str, set[str]] = {}
    for path in _paths(profile, problems):
        head, _, rest = path.partition(".")
        unread.setdefault(head.partition("[")[0], set()).add(rest)
    changes = {
        head: _part(profile, head, rests)
        for head, rests in unread.items()
        if head in {field.name for field in fields(Profile)} - _ALWAYS_THERE
    }
    return replace(profile, **changes)


def _part(profile: Profile, head: str, rests: set[str]) -> Any:
    """What is left of one top-level value without these paths below it."""
    value: Any = getattr(profile, head)
    if "" in rests or value is None or head in ("expect", "vllm"):
        return _Unreadable(head)
    if head == "alternatives":
        return _alternatives(value, rests)
    names = frozenset(rest.partition(".")[0].partition("[")[0] for rest in rests)
    if head == "speculation":
        return _block(value, names, head)
    if head in _MAPPINGS:
        return _PartialMapping(value, names, head)
    return without(value, names, path=head)


def _block(block: Speculation, names: frozenset[str], path: str) -> Speculation:
    return replace(block, keys=_PartialMapping(block.keys, names, path))


def _alternatives(blocks: Mapping[str, Speculation], rests: set[str]) -> Mapping[str, Speculation]:
    """The blocks with what can be read of each; one that cannot be read at all is not there."""
    kept = dict(blocks)
    for rest in rests:
        name, _, key = rest.partition(".")
        if not key:
            kept.pop(name, None)
        elif name in kept:
            bad = frozenset({key.partition(".")[0].partition("[")[0]})
            kept[name] = _block(kept[name], bad, f"alternatives.{name}")
    return kept


def _paths(profile: Profile, problems: Iterable[Finding]) -> Iterator[str]:
    """The dotted paths that problems are about, and the known keys that unknown ones were meant to be."""
    at: dict[tuple[str, int, int], list[str]] = {}
    for places in (profile.spans, profile.key_spans):
        for path, span in places.items():
            at.setdefault(_place(span), []).append(path)
    for finding in problems:
        path = finding.span.path
        if path:
            yield path
        else:  # found before keys had paths: by its place
            for span in (finding.span, *(related.span for related in finding.related)):
                yield from at.get(_place(span), ())
        if finding.code == "SD005":
            yield from _meant(profile, path)


def _place(span: Span) -> tuple[str, int, int]:
    return span.file, span.line, span.column


def _meant(profile: Profile, path: str) -> Iterator[str]:
    """The place where an unknown key belongs, or the key that it is a misspelling of."""
    section, _, name = path.rpartition(".")
    elsewhere = ELSEWHERE.get(name.replace("-", "_"))
    if elsewhere:
        yield elsewhere
    guess = did_you_mean(name, _known(profile, section))
    if guess:
        yield f"{section}.{guess}" if section else guess


def _known(profile: Profile, section: str) -> Iterable[str]:
    if section in SECTIONS:
        return keys_of(SECTIONS[section])
    if not section:
        return [field.name for field in fields(Profile)]
    block = profile.speculation if section == "speculation" else None
    if section.startswith("alternatives."):
        block = profile.alternatives.get(section.removeprefix("alternatives."))
    return METHODS[block.method] if block else ()
