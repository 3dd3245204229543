"""The model that LMDeploy runs: no weights, each forward is a launch of the shadow device."""

from __future__ import annotations

from typing import Any

import torch

from kvproof.harness.adapters.lmdeploy_engine.running import RUNNING


class ShadowForCausalLM(torch.nn.Module):  # type: ignore[misc] # torch is untyped here
    """A causal language model for the model agent's eyes."""

    def __init__(self, config: Any, ctx_mgr: Any, dtype: Any = None, device: Any = None) -> None:
        super().__init__()
        del dtype, device
        self.config, self.ctx_mgr = config, ctx_mgr
        self.weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.bfloat16), requires_grad=False)

    def prepare_inputs_for_generation(
        self, past_key_values: Any, inputs_embeds: Any = None, context: Any = None
    ) -> dict[str, Any]:
        """Pass the context on."""
        del past_key_values, inputs_embeds
        return {"context": context}

    def update_model_metas(
        self, past_key_values: Any, inputs_embeds: Any = None, context: Any = None
    ) -> Any:
        """Keep what each row brings: the engine relays it to the row's next step."""
        del past_key_values, inputs_embeds
        return context.model_metas

    def forward(self, context: Any) -> torch.Tensor:
        """Launch the batch; return, for each token, the one that follows it: [1, tokens, 1]."""
        return torch.tensor(RUNNING.launches.launch(context), dtype=torch.int64)[None, :, None]

    def get_logits(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return logits of which the largest is that of the token in the hidden state."""
        rows = hidden_states.shape[1]
        logits = torch.zeros(1, rows, self.config.vocab_size)
        logits[0, torch.arange(rows), hidden_states[0, :, 0]] = 1.0
        return logits

    def load_weights(self, weights: Any) -> None:
        """Load nothing."""
        del weights
