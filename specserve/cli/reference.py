"""`specserve rules`, `schema` and `doctor`: what can be found and written, and this host."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from specserve.cli.options import Format, argument, flag

if TYPE_CHECKING:
    from specserve.checks.doctor import Line

_CODES = "Describe these codes or names, such as SD104 or split-draft; list a group, such as SD1."


def rules(
    codes: Annotated[list[str] | None, argument("CODE…", _CODES)] = None,
) -> None:
    """List everything that lint and check can find, or describe one finding.

    Each rule is listed with its code, its severity, its name, and what it needs besides the
    profile. SD0 rules are about the file itself, SD1 about the profile, SD2 about models and
    tokenizers, SD3 about memory and hardware, SD4 about this host and vLLM's versions. The page of
    a code says why the finding matters, what to write instead, and how to silence it.

    \b
    specserve rules
    specserve rules SD2
    specserve rules SD104 open-bind
    """
    from specserve.report.console import out, say
    from specserve.report.manual import find, listing, manual_text, pages

    asked = [code.upper() for code in codes or ["SD"]]
    groups = tuple(code for code in asked if re.fullmatch(r"SD\d{0,2}", code))
    named = [find(code) for code in codes or () if code.upper() not in groups]
    known = pages().values()
    chosen = dict.fromkeys([*named, *(page for page in known if page.code.startswith(groups))])
    if named:
        out("\n".join(map(manual_text, chosen)))
    else:
        out(listing(chosen))
        say(f"{len(chosen)} of {len(known)} codes; `specserve rules CODE` describes one")


def schema() -> None:
    """Print the JSON Schema of a profile, for editors.

    \b
    specserve schema > profile.schema.json
    # then, as the first line of a profile:
    # yaml-language-server: $schema=./profile.schema.json
    """
    from specserve.profile.validate import SCHEMA
    from specserve.report.console import out

    out(json.dumps(SCHEMA, indent=2))


_ACCELERATORS = "Show only the accelerators here, and the names for --assume."


def doctor(
    *,
    accelerators: Annotated[bool, flag("--accelerators", _ACCELERATORS)] = False,
    format: Format = "text",
) -> None:
    """Examine this host: software, GPUs, limits, cache, servers.

    `bad` means that a launch would fail or serve wrong output; the exit code is then 1. `note`
    means that something is worth fixing. doctor uses no network. It says whether there is a Hub
    token, and never shows it.

    \b
    specserve doctor
    specserve doctor --accelerators
    """
    from specserve.checks.doctor import examine, this
    from specserve.hardware.accelerators import catalogue, gpus, this_cpu
    from specserve.report.check import accelerators_text, doctor_text
    from specserve.report.console import out
    from specserve.report.text import json_document
    from specserve.serve.files import state_folder

    as_json = format == "json"
    if accelerators:
        found, cpu = gpus(), this_cpu()
        known = {"found": found, "cpu": cpu, "catalogue": catalogue()}
        out(json_document(known) if as_json else accelerators_text(found))
        return
    lines = list(examine(this(state=state_folder(), servers=server_lines)))
    out(json_document({"lines": lines}) if as_json else doctor_text(lines))
    if any(line.state == "bad" for line in lines):
        raise typer.Exit(1)


def server_lines() -> Iterator[Line]:
    """A line for each detached server."""
    from specserve.checks.doctor import note, ok
    from specserve.serve.records import observe_all

    servers = observe_all()
    for seen in servers:
        place = f" ({seen.record.url})" if seen.record else ""
        text = f"{seen.name}{place} {seen.state}{f': {seen.detail}' if seen.detail else ''}"
        is_well = seen.state in ("ready", "starting", "stopping")
        yield ok(text) if is_well else note(text, f"`specserve down {seen.name}` ends or clears it")
    if not servers:
        yield ok("none runs detached")
