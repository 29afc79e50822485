"""Long documents made from patterns: logs of an imaginary plant, and a question. No real names."""

from __future__ import annotations

from specserve.measure.workloads.pick import number, pick, picked

_PLACES = ("Norvik waterworks", "Ostra paper mill", "Velden greenhouse", "Karst cable car", "Lindau brewery")
_PEOPLE = (
    "Mara Lind",
    "Tomas Weil",
    "Aino Rask",
    "Pavel Horn",
    "Sefa Demir",
    "Ida Brook",
    "Luc Ferrand",
    "Noor Vane",
)
_UNITS = (
    "pump P-17",
    "valve V-03",
    "boiler B-2",
    "belt C-11",
    "fan F-08",
    "filter S-21",
    "motor M-5",
    "tank T-9",
)
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
    "fog until noon",
    "steady rain",
    "a clear, cold morning",
    "strong wind from the west",
    "heat all day",
    "snow",
)


def title(seed: int) -> str:
    """What the document is called; no two of one workload are alike."""
    return f"Logbook of the {_PLACES[seed % len(_PLACES)]}, volume {seed + 1}"


def entry(seed: int, day: int) -> str:
    """What happened on one day, in a few sentences."""
    key = (seed, day)
    who, other = picked(_PEOPLE, 2, "who", *key)
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
    who, unit = pick(_PEOPLE, "ask", seed), pick(_UNITS, "ask", seed)
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
