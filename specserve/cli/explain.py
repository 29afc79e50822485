"""`specserve explain`: the manual page of a finding."""

from __future__ import annotations

from typing import Annotated

import typer


def explain(
    codes: Annotated[
        list[str], typer.Argument(metavar="CODE…", help="Codes such as SD104, or names such as split-draft.")
    ],
) -> None:
    """Explain a finding: what it means and what to do.

    The page says why the finding matters, shows an example and what to write instead, names the source, and says how to
    silence the finding.

    \b
    specserve explain SD104
    specserve explain split-draft open-bind
    """
    from specserve.report.console import out
    from specserve.report.manual import find, manual

    pages = list(dict.fromkeys(find(code) for code in codes))
    out("\n\n".join(manual(page) for page in pages))
