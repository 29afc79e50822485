"""Texts made from patterns, the same on every machine: logs, code, documents, random words."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


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


_NAMES = (
    "Mara Lind", "Tomas Weil", "Aino Rask", "Pavel Horn", "Sefa Demir", "Ida Brook", "Luc Ferrand",
    "Noor Vane",
)  # fmt: skip
_TOWNS = ("Norvik", "Ostra", "Velden", "Karst", "Lindau", "Bellmar")
_GOODS = (
    "desk lamp", "oak shelf", "water kettle", "bicycle pump", "rain coat", "coffee mill", "garden chair",
)  # fmt: skip
_MONTHS = ("January", "March", "April", "June", "August", "October", "November")
_TALKS = ("Soil and roots", "Bridges of wood", "The quiet engine", "Reading old maps", "Bread without yeast")
_LEVELS = ("INFO", "WARNING", "ERROR")
_PARTS = ("billing", "search", "upload", "login", "mailer")


def order(seed: int) -> tuple[str, str]:
    """An order by e-mail, and the keys that are asked for."""
    items = picked(_GOODS, 2 + number(3, "n", seed), "goods", seed)
    lines = [
        f"{1 + number(6, 'count', seed, good)} x {good} at {9 + number(90, 'price', seed, good)}.50"
        for good in items
    ]
    text = (
        f"Hello, this is {pick(_NAMES, 'name', seed)} from {pick(_TOWNS, 'town', seed)}. I would like to order "
        f"{', '.join(lines[:-1])} and {lines[-1]}. My customer number is {10000 + number(89999, 'customer', seed)}; "
        f"deliver it on {1 + number(27, 'day', seed)} {pick(_MONTHS, 'month', seed)} and leave it with the neighbour."
    )
    return (
        text,
        "customer_name, customer_number, town, items (each with name, quantity, unit_price), delivery_date, remark",
    )


def programme(seed: int) -> tuple[str, str]:
    """A day's programme."""
    talks = picked(_TALKS, 3, "talks", seed)
    who = picked(_NAMES, 3, "who", seed)
    times = [f"{9 + index * 2}:{pick(('00', '15', '30'), 'minute', seed, index)}" for index in range(3)]
    parts = [
        f"at {time} {name} speaks about `{talk}` for {20 + 5 * number(8, 'length', seed, talk)} minutes"
        for time, name, talk in zip(times, who, talks, strict=True)
    ]
    text = (
        f"The spring meeting takes place in {pick(_TOWNS, 'town', seed)} on {1 + number(27, 'day', seed)} "
        f"{pick(_MONTHS, 'month', seed)}: {', '.join(parts[:-1])}, and {parts[-1]}."
    )
    return text, "event, town, date, talks (each with time, speaker, title, minutes)"


def log_lines(seed: int) -> tuple[str, str]:
    """A few lines of a log."""
    lines = [
        f"2026-0{1 + number(9, 'month', seed)}-1{index} {8 + index:02d}:{number(60, 'minute', seed, index):02d} "
        f"{pick(_LEVELS, 'level', seed, index)} {pick(_PARTS, 'part', seed, index)}: request "
        f"{number(99999, 'request', seed, index)} took {number(4000, 'took', seed, index)} ms"
        for index in range(5)
    ]
    return "\n".join(
        lines
    ), "entries (each with date, time, level, component, request_id, took_ms), slowest_request_id"


def person(seed: int) -> tuple[str, str]:
    """A person in a few sentences."""
    trade = pick(("carpenter", "nurse", "pilot", "teacher", "baker"), "job", seed)
    spoken = picked(("Finnish", "Czech", "Dutch", "Turkish"), 2, "speaks", seed)
    text = (
        f"{pick(_NAMES, 'name', seed)}, {21 + number(50, 'age', seed)}, lives in {pick(_TOWNS, 'town', seed)} "
        f"and works as a {trade} since {1995 + number(30, 'since', seed)}. The household has "
        f"{2 + number(3, 'children', seed)} children; spoken at home are {' and '.join(spoken)}."
    )
    return text, "name, age, town, profession, working_since, number_of_children, languages"


KINDS: tuple[Callable[[int], tuple[str, str]], ...] = (order, programme, log_lines, person)


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
