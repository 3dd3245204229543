"""A small Qwen3-Next model that trains without special kernels.

Training replaces two functions of transformers by equivalent ones: the gated delta rule combines
chunks by a scan in place of a loop, and all experts are computed and then weighted. The checkpoint
is an ordinary one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next as qwen

from kvproof.suites.tests.lab.probe_model.vocabulary import END, PAD, byte_letters, ids, words

CHUNK = 64
"""Tokens per chunk of the delta rule; lengths of training sequences are multiples of it."""

_POSITIONS = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}

_OUTPUTS = ("o_proj.weight", "out_proj.weight", "down_proj", "down_proj.weight")
"""Weights that write to the residual stream; their initial size falls with the number of layers."""


def configuration(layers: str = "GAGAGA", hidden: int = 192) -> Qwen3NextConfig:
    """Return the shape of the model; G is a recurrent layer (gated delta net), A is attention."""
    kinds = {"G": "linear_attention", "A": "full_attention"}
    return Qwen3NextConfig(
        vocab_size=-(-len(words()) // 64) * 64, hidden_size=hidden, num_hidden_layers=len(layers),
        layer_types=[kinds[each] for each in layers], num_attention_heads=4, num_key_value_heads=2,
        head_dim=64, intermediate_size=2 * hidden, moe_intermediate_size=64, num_experts=8,
        num_experts_per_tok=2, shared_expert_intermediate_size=128, linear_conv_kernel_dim=4,
        linear_key_head_dim=32, linear_value_head_dim=64, linear_num_key_heads=4,
        linear_num_value_heads=4, max_position_embeddings=16384, tie_word_embeddings=True,
        pad_token_id=ids()[PAD], eos_token_id=ids()[END], bos_token_id=None,
        rope_parameters=_POSITIONS,
    )  # fmt: skip


def network(config: Qwen3NextConfig, seed: int) -> Qwen3NextForCausalLM:
    """Build a model with initial weights."""
    torch.manual_seed(seed)
    model = Qwen3NextForCausalLM(config)
    depth = 0.5 * (2 * config.num_hidden_layers) ** -0.5
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and "conv1d" not in name:
            scale = depth if name.endswith(_OUTPUTS) else 1.0
            nn.init.normal_(weight, std=scale * weight.shape[-1] ** -0.5)
    nn.init.normal_(model.model.embed_tokens.weight, std=config.hidden_size**-0.5)
    for module in model.modules():
        if isinstance(module, qwen.Qwen3NextGatedDeltaNet):
            module.A_log.data = torch.linspace(-5.0, 0.0, module.num_v_heads)
    _pair_spellings(model)
    return model


def _pair_spellings(model: Qwen3NextForCausalLM) -> None:
    space = byte_letters()[ord(" ")]
    number = {word: n for n, word in enumerate(words())}
    table = model.model.embed_tokens.weight.data
    for word, n in number.items():
        if word.startswith(space) and word[1:] in number:
            table[n] = 0.8 * table[number[word[1:]]] + 0.6 * table[n]


def make_trainable(model: Qwen3NextForCausalLM) -> None:
    """Install the fast functions in this process."""
    qwen.torch_chunk_gated_delta_rule = gated_delta_rule
    for module in model.modules():
        if isinstance(module, qwen.Qwen3NextExperts):
            module.forward = _dense(module)


def _dense(experts: Any) -> Any:
    """Compute all experts for all tokens; the weights of unselected ones are 0."""

    def forward(hidden: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        count, width = experts.num_experts, experts.intermediate_dim
        share = torch.zeros(len(hidden), count, device=hidden.device, dtype=weights.dtype)
        share = share.scatter(1, chosen, weights)
        both = functional.linear(hidden, experts.gate_up_proj.flatten(0, 1))
        gate, up = both.view(-1, count, 2, width).unbind(2)
        inner = functional.silu(gate) * up * share.unsqueeze(-1).to(up.dtype)
        return functional.linear(inner.flatten(1), experts.down_proj.transpose(0, 1).flatten(1))

    return forward


def gated_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor, **_: Any
) -> tuple[Tensor, None]:
    """Compute the rule from an empty state; arguments [B, T, H, D], T a multiple of the chunk."""
    with torch.autocast(query.device.type, enabled=False):
        return _rule(query, key, value, g, beta), None


def _rule(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    q, k, v = (_chunked(each) for each in (query, key, value))  # [B, H, N, C, D]
    g, beta = (_chunked(each.unsqueeze(-1)) for each in (g, beta))
    q, k = _normed(q) * q.shape[-1] ** -0.5, _normed(k)
    past = g.cumsum(3)  # log of the decay since the chunk began
    upper = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    decay = (past - past.transpose(-1, -2)).masked_fill(upper, -torch.inf).exp()
    system = (k * beta) @ k.transpose(-1, -2) * decay
    both = torch.cat([v * beta, k * beta * past.exp()], dim=-1)
    new, old = torch.linalg.solve_triangular(system, both, upper=False, unitriangular=True).split(
        [v.shape[-1], k.shape[-1]], dim=-1
    )
    kept = (k * (past[..., -1:, :] - past).exp()).transpose(-1, -2)
    eye = torch.eye(k.shape[-1], device=k.device)
    state = _scanned(eye * past[..., -1:, :].exp() - kept @ old, kept @ new)
    values = new - old @ state
    out = (q * past.exp()) @ state + (q @ k.transpose(-1, -2) * decay) @ values
    return out.flatten(2, 3).transpose(1, 2).to(value.dtype)


def _chunked(each: Tensor) -> Tensor:
    return each.transpose(1, 2).float().unflatten(2, (-1, CHUNK))


def _normed(each: Tensor) -> Tensor:
    return each * torch.rsqrt(each.square().sum(-1, keepdim=True) + 1e-6)


def _scanned(factor: Tensor, term: Tensor) -> Tensor:
    """S after chunk n is factor[n] @ S before it + term[n]; return S before each chunk."""
    count, reach = factor.shape[2], 1
    while reach < count:
        ahead, behind = factor[:, :, reach:], term[:, :, :-reach]
        term = torch.cat([term[:, :, :reach], ahead @ behind + term[:, :, reach:]], dim=2)
        joined = ahead @ factor[:, :, :-reach]
        factor = torch.cat([factor[:, :, :reach], joined], dim=2)
        reach *= 2
    return functional.pad(term[:, :, :-1], (0, 0, 0, 0, 1, 0))
