"""Short texts whose facts are asked for as JSON. Made from patterns; nobody of this name lives there."""

from __future__ import annotations

from collections.abc import Callable

from specserve.measure.workloads.pick import number, pick, picked

_NAMES = (
    "Mara Lind",
    "Tomas Weil",
    "Aino Rask",
    "Pavel Horn",
    "Sefa Demir",
    "Ida Brook",
    "Luc Ferrand",
    "Noor Vane",
)
_TOWNS = ("Norvik", "Ostra", "Velden", "Karst", "Lindau", "Bellmar")
_GOODS = (
    "desk lamp",
    "oak shelf",
    "water kettle",
    "bicycle pump",
    "rain coat",
    "coffee mill",
    "garden chair",
)
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
