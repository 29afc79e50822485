"""Python modules made from a pattern: code to be edited or continued that is nobody's. Runs none of it."""

from __future__ import annotations

from collections.abc import Sequence

from specserve.measure.workloads.pick import picked

_THINGS = (
    ("Invoice", "invoices", ("number", "customer", "amount", "currency", "issued_on", "paid_on", "note")),
    ("Sensor", "sensors", ("serial", "location", "unit", "lowest", "highest", "interval", "calibrated_on")),
    ("Booking", "bookings", ("room", "guest", "arrival", "nights", "breakfast", "price", "comment")),
    (
        "Shipment",
        "shipments",
        ("tracking_code", "sender", "receiver", "weight", "height", "width", "insured"),
    ),
    ("Recipe", "recipes", ("title", "servings", "minutes", "ingredients", "steps", "author", "source")),
    ("Patient", "patients", ("record", "name", "born_on", "insurance", "doctor", "allergies", "phone")),
    ("Track", "tracks", ("title", "artist", "album", "position", "seconds", "genre", "bitrate")),
    ("Ticket", "tickets", ("subject", "reporter", "priority", "state", "assignee", "created_at", "labels")),
    ("Vehicle", "vehicles", ("plate", "maker", "model", "year", "mileage", "fuel", "inspected_on")),
    ("Course", "courses", ("code", "teacher", "hall", "seats", "credits", "language", "term")),
    ("Parcel", "parcels", ("owner", "street", "area", "zone", "value", "register_page", "sold_on")),
    ("Route", "routes", ("origin", "destination", "stops", "distance", "duration", "fare", "operator")),
)


def module_blocks(seed: int) -> list[str]:
    """The head of a module, then its classes, one method or class head a block; joined by blank lines they are code."""
    thing, plural, known = _THINGS[seed % len(_THINGS)]
    fields = picked(known, 4 + seed % 3, "fields", seed)
    blocks = [f'"""Keeps {plural} and finds them again."""\n\nimport json\n', *_record(thing, fields)]
    blocks += _store(thing, plural, fields)
    return blocks


def many_blocks(seed: int, *, modules: int) -> list[str]:
    """Several modules as one long text."""
    return [block for step in range(modules) for block in module_blocks(seed + step * 5)]


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
