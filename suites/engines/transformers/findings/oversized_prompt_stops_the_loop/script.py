# ruff: noqa: T201 - a plain script: it prints its results
# mypy: ignore-errors
# - engines are not typed, and the script is read more than it is checked
"""One prompt that is larger than the pool ends `generate_batch` for all requests.

Needs transformers 5.23.0 and torch; runs on a CPU in seconds.
"""

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

PAGE, PAGES = 16, 8


def served(prompts):
    """Return the answer of `generate_batch` to each prompt."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64,
        intermediate_size=64,
        num_attention_heads=2,
        num_hidden_layers=1,
        vocab_size=64,
    )
    answers = (
        LlamaForCausalLM(config)
        .eval()
        .generate_batch(
            prompts,
            generation_config=GenerationConfig(
                max_new_tokens=4, do_sample=False, eos_token_id=-1, pad_token_id=0
            ),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=PAGE, num_blocks=PAGES, max_batch_tokens=32, use_async_batching=False
            ),
            progress_bar=False,
            warmup=False,
        )
    )
    return [answers[name] for name in sorted(answers, key=lambda name: int(name.split("_")[-1]))]


short = [[token, *range(1, 20)] for token in (1, 2, 3)]
assert all(len(answer.generated_tokens) == 4 for answer in served(short))
for answer in served([*short, [5] * (PAGE * PAGES + 1)]):
    print(answer.request_id, "tokens:", len(answer.generated_tokens), "error:", answer.error)
    assert answer.error
