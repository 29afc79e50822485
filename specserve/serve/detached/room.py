"""What a server declares to take of each device, and whether that goes beside the others. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from specserve.serve.detached.record import Record


@dataclass(frozen=True, slots=True)
class Room:
    """Devices, and of each a share of its memory (`gpu_memory_utilization`) or at least so many bytes."""

    devices: tuple[str, ...]
    share: float | None
    least_bytes: int | None


@dataclass(frozen=True, slots=True)
class Clash:
    """Servers that share a device. `is_too_much`: what they declare is more than it has."""

    device: str
    names: tuple[str, ...]
    declared: float
    """Share of the device's memory, 0 to 1 and above; of all of them together, as far as it is known."""

    @property
    def is_too_much(self) -> bool:
        """Whether the device cannot hold what is declared."""
        return self.declared > 1.0


def of_record(record: Record) -> Room:
    """What a running server takes."""
    return Room(record.devices, record.device_share, record.device_bytes)


def clashes(mine: Room, others: Iterable[Record], *, total_bytes: Mapping[str, int]) -> list[Clash]:
    """The devices that others use too. `total_bytes`: memory of each device, where it is known."""
    rooms = [(record.name, of_record(record)) for record in others]
    found = []
    for device in mine.devices:
        beside = [(name, room) for name, room in rooms if device in room.devices]
        if beside:
            parts = [_share(room, total_bytes.get(device)) for room in (mine, *(room for _, room in beside))]
            found.append(Clash(device, tuple(name for name, _ in beside), sum(parts)))
    return found


def _share(room: Room, total_bytes: int | None) -> float:
    if room.share is not None:
        return room.share
    return room.least_bytes / total_bytes if room.least_bytes and total_bytes else 0.0
