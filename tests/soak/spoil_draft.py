"""Makes the draft of a running server worthless: a worker extension for tests, never for service."""

from __future__ import annotations

from typing import Any


class SpoilDraft:
    """vLLM adds its methods to the worker: `engine: {worker_extension_cls: spoil_draft.SpoilDraft}`."""

    model_runner: Any

    def spoil_draft(self) -> int:
        """Fill the draft's weights with noise while it serves; the number of tensors."""
        runner = self.model_runner
        holder = getattr(runner, "speculator", None) or runner.drafter
        tensors = list(holder.model.parameters())
        for tensor in tensors:
            tensor.data.normal_(0.0, 0.02)
        return len(tensors)
