"""vLLM alone on a card: greedy answers of two requests with one captured graph for all steps.

`python full_graphs.py FULL|NONE|FULL_DECODE_ONLY [plain]` prints them; without FULL they are equal.
The scheduler metadata of FlashAttention 3 are laid out by the longest query of a step, and a graph
of mode FULL was captured with one as long as the step: it reads them at other places. With `plain`
the kernel plans by itself, and FULL answers as the others do. vLLM 0.33.0, both model runners.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

MODEL = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": 1024,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "torch_dtype": "float16",
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
}
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_PLUGINS": "",
    "HF_HUB_OFFLINE": "1",
}


def started(mode: str, folder: str) -> Any:
    from vllm import LLM

    Path(folder, "config.json").write_text(json.dumps(MODEL))
    graphs = {"mode": 0, "cudagraph_mode": mode, "cudagraph_capture_sizes": [1, 2, 4, 8]}
    return LLM(
        model=folder,
        load_format="dummy",
        skip_tokenizer_init=True,
        enforce_eager=mode == "NONE",
        compilation_config={} if mode == "NONE" else graphs,
        gpu_memory_utilization=0.1,
        kv_cache_memory_bytes=1 << 28,
        max_model_len=256,
        max_num_seqs=16,
    )


def draw_weights(llm: Any) -> None:
    import torch

    worker = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker
    model = worker.model_runner.model
    source = torch.Generator("cuda").manual_seed(0)
    for weight in model.parameters():
        if weight.dim() == 2:
            weight.data.normal_(0, weight.shape[1] ** -0.5, generator=source)
        else:
            weight.data.fill_(1)


def planned_by_the_kernel() -> None:
    from vllm.v1.attention.backends.flash_attn import FlashAttentionMetadataBuilder as Builder

    made = Builder.__init__

    def plain(self: Any, *given: Any, **options: Any) -> None:
        made(self, *given, **options)
        self.aot_schedule = False

    Builder.__init__ = plain


def answers(mode: str) -> list[list[int]]:
    from vllm import SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        llm = started(mode, folder)
        draw_weights(llm)
        prompts = [[(at * 7 * k + k) % 900 + 5 for at in range(40)] for k in (1, 2)]
        greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, detokenize=False)
        given = [{"prompt_token_ids": each} for each in prompts]
        return [list(each.outputs[0].token_ids) for each in llm.generate(given, greedy)]


if __name__ == "__main__":
    os.environ |= ENVIRONMENT
    if sys.argv[2:] == ["plain"]:
        planned_by_the_kernel()
    sys.stdout.write(f"answers {json.dumps(answers(sys.argv[1]))}\n")
