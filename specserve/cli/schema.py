"""`specserve schema`: the JSON Schema of a profile."""

from __future__ import annotations

import json


def schema() -> None:
    """Print the JSON Schema of a profile, for editors.

    \b
    specserve schema > profile.schema.json
    # then, as the first line of a profile:
    # yaml-language-server: $schema=./profile.schema.json
    """
    from specserve.profile.schema import json_schema
    from specserve.report.console import out

    out(json.dumps(json_schema(), indent=2))
