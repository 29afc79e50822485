"""An EAGLE-3 head of the demo's target that knows nothing yet; the Python of `make heads` runs this.

.venv-heads/bin/python tests/engine/untrained_head.py TARGET HEAD
"""

from __future__ import annotations

import sys
from pathlib import Path

LAYERS = [1, 2, 3]
"""Of the target, whose hidden states the head sees: speculators' own choice needs more than four layers."""


def main() -> int:
    from speculators.models.eagle3 import Eagle3DraftModel
    from transformers import AutoConfig

    target, head = (str(Path(path).resolve()) for path in sys.argv[1:])
    layer = AutoConfig.from_pretrained(target)
    layer.num_hidden_layers, layer.tie_word_embeddings = 1, False
    model = Eagle3DraftModel.from_training_args(
        verifier_config=layer,
        verifier_name_or_path=target,
        draft_vocab_size=layer.vocab_size,
        norm_before_residual=True,
        ttt_steps=4,
        target_layer_ids=LAYERS,
        draft_attn_impl="sdpa",
    )
    model.save_pretrained(head)
    return 0


if __name__ == "__main__":
    sys.exit(main())
