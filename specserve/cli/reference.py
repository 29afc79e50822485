"""`specserve rules` and `schema`: what specserve can find, and what a profile may hold."""

from __future__ import annotations

import json
import re
from typing import Annotated

from specserve.cli.options import argument

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
