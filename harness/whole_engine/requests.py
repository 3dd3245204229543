"""Requests as JSON: prompts that share prefixes, spelled by family and length.

A prompt is `shared` tokens of a family's endless text, then `own` tokens of the request's own. A
later turn is all of an earlier request, its answers included, and `own` new tokens. Prompts and
answers of a recording are spelled out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from kvproof.harness.contract.whole_engine import EngineRequest
from kvproof.harness.model.chain import FIRST_TOKEN, VOCABULARY, Chain
from kvproof.harness.model.fingerprints import mix, number
from kvproof.harness.model.records import GroupKind, Span

PLACEHOLDER = 4
"""Token id of every position of an image."""


def text(name: str, length: int) -> list[int]:
    """Return the first tokens of the text that a name stands for."""
    seed = number(name)
    return [FIRST_TOKEN + mix(seed + i) % (VOCABULARY - FIRST_TOKEN) for i in range(length)]


def prompt_of(keywords: Mapping[str, Any], before: Sequence[int] | None) -> list[int]:
    """Spell the prompt of a request; `before` is the turn that it follows, with its answers."""
    if "prompt" in keywords:
        return list(keywords["prompt"])
    own = text(f"own {keywords['id']}", keywords.get("own", 0))
    if before is not None:
        return [*before, *own]
    tokens = text(f"family {keywords.get('family', 0)}", keywords.get("shared", 0)) + own
    for start, length, _ in keywords.get("media", ()):
        stop = min(start + length, len(tokens))
        tokens[start:stop] = [PLACEHOLDER] * max(0, stop - start)
    return tokens


def wanted(request: EngineRequest, chain: Chain, max_length: int) -> int:
    """Return how many tokens a request has to answer: it ends at its stop token, and when full."""
    most = min(request.answers, max_length - chain.prompt)
    if request.stop < 0:
        return most
    chain.ensure(chain.prompt + most)
    answers = chain.tokens[chain.prompt : chain.prompt + most]
    return answers.index(request.stop) + 1 if request.stop in answers else most


def with_stop(request: EngineRequest, chain: Chain, after: int) -> EngineRequest:
    """Return the request with a stop token: its answer number `after`, counted from 0."""
    chain.ensure(chain.prompt + after + 1)
    return replace(request, stop=chain.tokens[chain.prompt + after])


def request_of(keywords: Mapping[str, Any], prompt: Sequence[int]) -> EngineRequest:
    """Return the record of a request."""
    media = tuple(
        Span("image", start, length, str(content))
        for start, length, content in sorted(keywords.get("media", ()))
        if start + length <= len(prompt)
    )
    return EngineRequest(
        id=keywords["id"],
        prompt=tuple(prompt),
        answers=keywords.get("answers", 4),
        priority=keywords.get("priority", 0),
        salt=keywords.get("salt", ""),
        adapter=keywords.get("adapter", ""),
        adapter_version=keywords.get("version", 0),
        media=media,
        embeds=bool(keywords.get("embeds")),
        accepts=tuple(keywords.get("accepts", ())),
        reads_cache=keywords.get("reads_cache", True),
    )


def chain_of(
    request: EngineRequest, groups: Sequence[GroupKind], *, given: Sequence[int] = ()
) -> Chain:
    """Return the engine-free chain of a request: its namespace and media are part of it.

    `given`: its first answers, as they were recorded.
    """
    return Chain(
        request.prompt,
        groups,
        namespace=request.namespace,
        spans=request.media,
        embedded=request.embedded,
        given=given,
    )
