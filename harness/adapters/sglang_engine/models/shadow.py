"""The model that SGLang runs: no weights, each forward is a launch of the shadow device."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput

from kvproof.harness.adapters.sglang_engine.running import RUNNING


class ShadowForCausalLM(torch.nn.Module):  # type: ignore[misc] # torch is untyped here
    """A causal language model for the model runner's eyes."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__()
        del quant_config, prefix
        self.config = config
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16), requires_grad=False)

    def load_weights(self, weights: Any) -> set[str]:
        """Load nothing."""
        del weights
        return set()

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        """Launch the batch; the largest logit of a row stands for the token that it will have."""
        answers = RUNNING.launches.launch(input_ids, positions, forward_batch)
        logits = torch.zeros(len(answers), self.config.vocab_size)
        logits[torch.arange(len(answers)), torch.tensor(answers, dtype=torch.int64)] = 1.0
        return LogitsProcessorOutput(next_token_logits=logits)


EntryClass = [ShadowForCausalLM]
