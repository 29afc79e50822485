"""`specserve gpus`: the accelerators here, and the names that `--assume` takes."""

from __future__ import annotations

from specserve.cli.options import Format, TextOrJson


def gpus(*, format: Format = TextOrJson.TEXT) -> None:
    """Show this machine's accelerators, and the names for --assume.

    `specserve tune --estimate` takes the same names.

    \b
    specserve gpus
    specserve check my.yaml --assume 4xH100-80GB
    """
    from specserve.hardware.accelerators import gpus as found_here
    from specserve.hardware.accelerators import this_cpu
    from specserve.report.check import accelerators_json, accelerators_text
    from specserve.report.console import out

    show = accelerators_json if format is TextOrJson.JSON else accelerators_text
    out(show(found_here(), cpu=this_cpu()))
