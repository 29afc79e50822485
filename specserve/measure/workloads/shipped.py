"""The workloads that ship: texts from files, and texts made from patterns, the same on every machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar

from specserve.measure.workloads.workload import Message, ShippedPrompt

T = TypeVar("T")
PROMPTS = 25
_LONG_ENTRIES = 68
"""About 6,000 tokens with a usual vocabulary."""
_LONG_MODULES = 8
Content = str | tuple[Message, ...]


def pick(items: Sequence[T], *key: object) -> T:
    """One of the items; the same key always picks the same one."""
    return items[number(len(items), *key)]


def picked(items: Sequence[T], count: int, *key: object) -> list[T]:
    """So many different items (all of them at most), in an order of their own."""
    ordered = sorted(range(len(items)), key=lambda index: _hash(*key, index))
    return [items[index] for index in ordered[:count]]


def number(limit: int, *key: object) -> int:
    """A number from 0 to below `limit`."""
    return _hash(*key) % limit


def _hash(*key: object) -> int:
    return int.from_bytes(hashlib.sha256(repr(key).encode()).digest()[:8], "big")


_CODE = "Complete this code. Answer with the code alone.\n\n```{language}\n{text}```"
_JSON = "Write the facts of this text as JSON with the keys {keys}. Answer with the JSON alone.\n\n{text}"
_JSON_BEGUN = "{text}\n\nThe same as JSON with the keys {keys}:\n\n{{\n"
_TEXTS: Mapping[str, tuple[int, Callable[[dict[str, Any]], Content], Callable[[dict[str, Any]], str]]] = {
    "chat": (256, lambda row: _turns(row["turns"]), lambda row: _dialogue(row["turns"])),
    "code": (256, lambda row: _user(_CODE.format(**row)), lambda row: str(row["text"])),
    "json": (256, lambda row: _user(_JSON.format(**row)), lambda row: _JSON_BEGUN.format(**row)),
    "creative": (384, lambda row: _user(row["ask"]), lambda row: str(row["opening"])),
    "warmup": (64, lambda row: _user(row["chat"]), lambda row: str(row["completion"])),
}
"""By file of rows: the longest answer, a row as a chat and as a completion."""


def texts(name: str, *, as_chat: bool) -> list[ShippedPrompt]:
    """Return the prompts of a file of rows."""
    max_tokens, chat, completion = _TEXTS[name]
    form = chat if as_chat else completion
    return [ShippedPrompt(row["id"], max_tokens, 1, partial(_same, form(row))) for row in _rows(name)]


def _same(content: Content, _kept: int) -> Content:
    return content


def summarise(*, as_chat: bool) -> list[ShippedPrompt]:
    """Return texts that are given back with small changes: most of the answer is a copy of the prompt."""
    prose = [
        [f"{row['title']}\n", *(f"{part}\n" for part in row["paragraphs"])] for row in _rows("documents")
    ]
    modules = [module_blocks(index) for index in range(len(prose), PROMPTS)]
    return [_edit(at, blocks, at < len(prose), as_chat) for at, blocks in enumerate([*prose, *modules])]


def long(*, as_chat: bool) -> list[ShippedPrompt]:
    """Return long documents with a question behind them: 17 logbooks, 8 programs."""
    return [(_program if index % 3 == 2 else _logbook)(index, as_chat) for index in range(PROMPTS)]


SHIPPED: Mapping[str, Callable[..., list[ShippedPrompt]]] = {
    "chat": partial(texts, "chat"),
    "code": partial(texts, "code"),
    "summarise": summarise,
    "json": partial(texts, "json"),
    "creative": partial(texts, "creative"),
    "long": long,
}


def _logbook(index: int, as_chat: bool) -> ShippedPrompt:
    head, ask = title(index), question(index)
    days = [entry(index, day) for day in range(1, _LONG_ENTRIES + 1)]

    def text(kept: Sequence[str]) -> str:
        document = "\n\n".join([head, *kept])
        return f"{document}\n\n---\n\n{ask}" if as_chat else f"{document}\n\nQuestion: {ask}\nAnswer:"

    return _cuttable(f"long-{index + 1:02d}", 256, days, text, as_chat)


def _program(index: int, as_chat: bool) -> ShippedPrompt:
    blocks = [block for step in range(_LONG_MODULES) for block in module_blocks(index + step * 5)]

    def text(kept: Sequence[str]) -> str:
        program = "\n".join(kept)
        if as_chat:
            return f"```python\n{program}```\n\nWrite unit tests for the last class of this program."
        return f"{program}\n    def __repr__(self):\n"

    return _cuttable(f"long-{index + 1:02d}", 256, blocks, text, as_chat)


def _edit(index: int, blocks: list[str], is_prose: bool, as_chat: bool) -> ShippedPrompt:
    """The text, and as a completion its first third once more: what follows is the rest of it."""
    ask, heading = _EDITS[is_prose]

    def text(kept: Sequence[str]) -> str:
        body = "\n".join(kept)
        if as_chat:
            return f"{ask}\n\n{body}"
        lines = body.splitlines(keepends=True)
        return f"{body}\n\n{heading}\n\n{''.join(lines[: max(1, len(lines) // 3)])}"

    return _cuttable(f"summarise-{index + 1:02d}", 384, blocks, text, as_chat)


_EDITS = {
    True: (
        "Proofread this text. Return the whole text, with nothing changed but mistakes.",
        "The same text, proofread:",
    ),
    False: (
        "Add type hints to this module. Return the whole module, with nothing else changed.",
        "# the same module, with type hints",
    ),
}
"""By whether it is prose: what is asked in a chat, and what stands before the copy in a completion."""


_SYLLABLES = (
    "ba", "ko", "ri", "ten", "mu", "sol", "fe", "dar", "li", "on", "gra", "vi", "pe", "uth", "nem", "zo",
)  # fmt: skip


def random_words(count: int, *, as_chat: bool) -> list[ShippedPrompt]:
    """Return prompts of made-up words, which no draft can predict."""
    return [_random(index, count, as_chat) for index in range(PROMPTS)]


def _random(index: int, count: int, as_chat: bool) -> ShippedPrompt:
    words = [
        "".join(pick(_SYLLABLES, index, word, at) for at in range(1 + (index + word) % 3))
        for word in range(count)
    ]
    return _cuttable(f"random-{index + 1:02d}", 256, words, " ".join, as_chat)


def _cuttable(
    identity: str, max_tokens: int, blocks: list[str], text: Callable[[Sequence[str]], str], as_chat: bool
) -> ShippedPrompt:
    """A prompt that is shortened by leaving out its last blocks."""

    def render(kept: int) -> Content:
        return _user(text(blocks[:kept])) if as_chat else text(blocks[:kept])

    return ShippedPrompt(identity, max_tokens, len(blocks), render)


def _user(text: str) -> tuple[Message, ...]:
    return ({"role": "user", "content": text},)


def _turns(texts: list[str]) -> tuple[Message, ...]:
    return tuple({"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts))


def _dialogue(texts: list[str]) -> str:
    parts = [f"{('Question', 'Answer')[at % 2]}: {text}" for at, text in enumerate(texts)]
    return "\n\n".join([*parts, "Answer:"])


def _rows(name: str) -> list[dict[str, Any]]:
    text = (files("specserve.measure.workloads") / "texts" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


_NAMES = (
    "Mara Lind", "Tomas Weil", "Aino Rask", "Pavel Horn", "Sefa Demir", "Ida Brook", "Luc Ferrand",
    "Noor Vane",
)  # fmt: skip
_THINGS = """
Invoice invoices number customer amount currency issued_on paid_on note
Sensor sensors serial location unit lowest highest interval calibrated_on
Booking bookings room guest arrival nights breakfast price comment
Shipment shipments tracking_code sender receiver weight height width insured
Recipe recipes title servings minutes ingredients steps author source
Patient patients record name born_on insurance doctor allergies phone
Track tracks title artist album position seconds genre bitrate
Ticket tickets subject reporter priority state assignee created_at labels
Vehicle vehicles plate maker model year mileage fuel inspected_on
Course courses code teacher hall seats credits language term
Parcel parcels owner street area zone value register_page sold_on
Route routes origin destination stops distance duration fare operator
""".strip().splitlines()
"""Class, plural and fields of what a program keeps."""


def module_blocks(seed: int) -> list[str]:
    """The head of a module, then its classes, one method or class head a block; joined by blank lines they are code."""
    thing, plural, *known = _THINGS[seed % len(_THINGS)].split()
    fields = picked(known, 4 + seed % 3, "fields", seed)
    blocks = [f'"""Keeps {plural} and finds them again."""\n\nimport json\n', *_record(thing, fields)]
    blocks += _store(thing, plural, fields)
    return blocks


def _record(thing: str, fields: Sequence[str]) -> list[str]:
    small = thing.lower()
    values = ", ".join(fields)
    sets = "\n".join(f"        self.{field} = {field}" for field in fields)
    entries = "\n".join(f'            "{field}": self.{field},' for field in fields)
    return [
        f'class {thing}:\n    """One {small}, as it is stored."""\n\n'
        f"    def __init__(self, {values}):\n{sets}\n",
        f'    def as_dict(self):\n        """Return the {small} as a dictionary."""\n'
        f"        return {{\n{entries}\n        }}\n",
        f'    def describe(self):\n        """Return one line of text about the {small}."""\n'
        f'        parts = [str(self.{fields[0]}), str(self.{fields[1]})]\n        return " / ".join(parts)\n',
    ]


def _store(thing: str, plural: str, fields: Sequence[str]) -> list[str]:
    small = thing.lower()
    head = (
        f'class {thing}Store:\n    """All {plural}, in the order in which they were added."""\n\n'
        f"    def __init__(self):\n        self._{plural} = []\n"
    )
    add = (
        f'    def add(self, {small}):\n        """Add one {small} and return its index."""\n'
        f"        self._{plural}.append({small})\n        return len(self._{plural}) - 1\n"
    )
    finders = [
        f'    def find_by_{field}(self, {field}):\n        """Return the {plural} with this {field}."""\n'
        f"        return [{small} for {small} in self._{plural} if {small}.{field} == {field}]\n"
        for field in fields
    ]
    save = (
        f'    def save(self, path):\n        """Write all {plural} to a file."""\n'
        f"        rows = [{small}.as_dict() for {small} in self._{plural}]\n"
        '        with open(path, "w") as file:\n            json.dump(rows, file)\n'
    )
    return [head, add, *finders, save]


_PLACES = ("Norvik waterworks", "Ostra paper mill", "Velden greenhouse", "Karst cable car", "Lindau brewery")
_UNITS = (
    "pump P-17", "valve V-03", "boiler B-2", "belt C-11", "fan F-08", "filter S-21", "motor M-5",
    "tank T-9",
)  # fmt: skip
_FAULTS = (
    "a worn seal that lets a few drops through every hour",
    "a bearing that is warmer than those beside it",
    "a reading that jumps by three per cent and comes back",
    "a noise at low speed that goes away under load",
    "dust on the contacts of the control box",
    "a screw that had worked loose since the last check",
    "no fault; the alarm had been set too low",
)
_DEEDS = (
    "replaced the part from stock and noted the new serial number",
    "cleaned it, ran it for an hour and found the values normal again",
    "tightened the mounting and marked it for a second look",
    "ordered a spare, which should arrive within the week",
    "lowered the load to 60 per cent until the part is here",
    "switched to the reserve and left a note for the next shift",
)
_WEATHER = (
    "fog until noon", "steady rain", "a clear, cold morning", "strong wind from the west", "heat all day",
    "snow",
)  # fmt: skip


def title(seed: int) -> str:
    """What the document is called; no two of one workload are alike."""
    return f"Logbook of the {_PLACES[seed % len(_PLACES)]}, volume {seed + 1}"


def entry(seed: int, day: int) -> str:
    """What happened on one day, in a few sentences."""
    key = (seed, day)
    who, other = picked(_NAMES, 2, "who", *key)
    unit = pick(_UNITS, "unit", *key)
    hours, load = 2 + number(9, "hours", *key), 40 + number(55, "load", *key)
    stock = f"{12 + number(70, 'oil', *key)} litres of oil, {number(40, 'seals', *key)} seals"
    bar, heat = 18 + number(60, "bar", *key), 310 + number(2800, "heat", *key)
    return (
        f"Day {day}. {pick(_WEATHER, 'weather', *key).capitalize()}. {who} had the early shift and {other} "
        f"the late one. The {unit} ran for {hours} hours at {load} per cent load. At the inspection "
        f"{who.split()[0]} found {pick(_FAULTS, 'fault', *key)} and {pick(_DEEDS, 'deed', *key)}. "
        f"Stock: {stock}, {3 + number(17, 'filters', *key)} filters. Readings at midnight: {bar / 10:.1f} bar, "
        f"{heat / 100:.1f} degrees, {number(9000, 'meter', *key) + 1000} on the meter."
    )


def question(seed: int) -> str:
    """What is asked about it; the answer must be looked up and copied together."""
    who, unit = pick(_NAMES, "ask", seed), pick(_UNITS, "ask", seed)
    return pick(
        (
            f"List every day on which {who} had the early shift, with the unit that ran and what was found.",
            f"Write a report on the {unit}: the days on which it ran, hours and load, each fault, what was done.",
            "Summarise the logbook: which units had faults, how they were repaired, and what is still open.",
            f"Which faults did {who} find? Quote each entry's sentence about it, with its day.",
        ),
        "question",
        seed,
    )
