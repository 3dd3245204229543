"""Requests and answers in SGLang's words."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from typing import Any

from kvproof.harness.contract.whole_engine import EngineConfig, EngineRequest, Output

_END = "."
"""Ends each id: SGLang aborts every request whose id begins with the one that is named."""


def rid(name: str) -> str:
    """Return the engine's id of a request."""
    return f"{name}{_END}"


def name_of(native: str) -> str:
    """Return the request of an engine's id."""
    return native.removesuffix(_END)


def tokenized(request: EngineRequest, config: EngineConfig) -> Any:
    """Return a request as the tokenizer's process hands it to the scheduler."""
    from sglang.srt.managers.io_struct import SessionParams, TokenizedGenerateReqInput
    from sglang.srt.sampling.sampling_params import SamplingParams

    sampling = SamplingParams(
        max_new_tokens=min(request.answers, config.max_length - len(request.prompt)),
        temperature=0.0,
        ignore_eos=request.stop < 0,  # without a cache such requests are admitted by other code
        stop_token_ids=[request.stop] if request.stop >= 0 else None,
    )
    sampling.normalize(None)
    return TokenizedGenerateReqInput(
        rid=rid(request.id),
        input_text=None,
        input_ids=array("q", request.prompt[request.history :]),
        input_embeds=None,
        mm_inputs=None,
        token_type_ids=None,
        sampling_params=sampling,
        return_logprob=False,
        logprob_start_len=-1,
        top_logprobs_num=0,
        token_ids_logprob=None,
        stream=True,
        cache_salt=request.salt or None,
        priority=request.priority if config.policy == "priority" else None,
        session_params=SessionParams(id=request.session) if request.session else None,
    )


def outputs(message: Any) -> Iterator[Output]:
    """Yield the outputs in a message of the scheduler."""
    if type(message).__name__ == "AbortReq":
        yield Output(name_of(message.rid), (), "abort")
    for index, native in enumerate(getattr(message, "rids", None) or ()):
        reason = message.finished_reasons[index]
        yield Output(
            name_of(native),
            tuple(map(int, message.output_ids[index])),
            "" if reason is None else str(reason["type"]),
            {},
            message.cached_tokens[index],
        )
