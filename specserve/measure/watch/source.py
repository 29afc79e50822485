"""Readings of one server, wherever it is at the moment. Judges nothing, and waits for nobody."""

from __future__ import annotations

import time
from collections.abc import Callable

from specserve.errors import FactError, SpecserveError
from specserve.measure.watch.stretch import Reading
from specserve.metrics.snapshot import read
from specserve.serve.endpoint import Endpoint
from specserve.serve.scrape import scrape


class Source:
    """Where readings come from. `locate` is asked anew after each failure: a server may come back elsewhere."""

    def __init__(
        self, locate: Callable[[], Endpoint], *, model: str | None = None, timeout_s: float = 5.0
    ) -> None:
        self._locate = locate
        self._model = model
        self._timeout_s = timeout_s
        self._endpoint: Endpoint | None = None

    @property
    def endpoint(self) -> Endpoint:
        """Where the server was last looked for."""
        if self._endpoint is None:
            self._endpoint = self._locate()
        return self._endpoint

    def read(self) -> Reading:
        """One reading. Raises TrafficError without an answer, FactError where it cannot be used."""
        try:
            text = scrape(self.endpoint, timeout_s=self._timeout_s)
            at_s = time.monotonic()
            snapshot = read(text)
            if self._model is not None:
                held = snapshot.models
                snapshot = snapshot.of_model(self._model)
                if not snapshot.engines:
                    served = ", ".join(f"`{name}`" for name in held[:5])
                    raise FactError(f"the metrics hold no model `{self._model}`", hint=f"they hold {served}")
            elif len(snapshot.models) > 1:
                names = ", ".join(f"`{name}`" for name in snapshot.models[:5])
                raise FactError(
                    f"the metrics hold {len(snapshot.models)} models: {names}", hint="`--model` names one"
                )
        except SpecserveError:
            self._endpoint = None
            raise
        return Reading(at_s, snapshot)
