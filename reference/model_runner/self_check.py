"""Self-check: whether transformers, and then the runner, computes a family correctly.

A difference has two possible causes. If transformers alone gives another result when a prompt is
cut into chunks, no engine can be right on this family, and the fault is upstream. Otherwise, if the
runner differs from its `DynamicCache` on the same chunks, the fault is here.

On the model itself, results have to be equal bit by bit: rounding is the same on both sides. All
other comparisons need a wide type; they use a short copy of the model in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import transformers

from kvproof.reference.core.identity import Span
from kvproof.reference.core.media_hash import content_hash
from kvproof.reference.model_runner.comparison import (
    BLOCK,
    TOLERANCE,
    Finding,
    Served,
    difference,
    prompt_of,
)
from kvproof.reference.model_runner.images import Images, Pixels, pixels_of
from kvproof.reference.model_runner.oracle import Picture, Schedule, truth
from kvproof.reference.model_runner.short_copy import ShortCopy, short_copy
from kvproof.reference.model_runner.specs import UnsupportedModel, probe

LENGTH, CHUNK, ANSWER = 44, 16, 4
"""Tokens of the prompt, of a chunk, and of the answer."""
CHUNKS: Schedule = [(0, 16), (16, 32), (32, 44)]
ONE_BY_ONE: Schedule = [(0, 32), *((n, n + 1) for n in range(32, LENGTH))]
LONG, SHARED = 76, 69
"""Tokens of the prompt of the copy, and of its beginning that a second prompt has."""
SIDE = 56
"""Side of the images, in pixels, before the processor resizes them."""
BEFORE, AFTER = 20, 2 * BLOCK
"""Tokens of text on both sides of an image."""
_WIDE = (torch.float32, torch.float64)


class SelfCheck(NamedTuple):
    """All comparisons of one model."""

    family: str
    findings: tuple[Finding, ...]
    missed: tuple[str, ...] = ()
    """Parts that were not compared, with the reasons."""
    images: str = ""
    """Why no images can be shown to the model; empty if they can."""
    copied: tuple[int, int] = (0, 0)
    """Layers of the copy in float32, and of the model."""

    @property
    def problem(self) -> str:
        """Return the cause of the first failure; empty if there is none."""
        for finding in self.findings:
            if not finding.passed:
                return self._blame(finding)
        return ""

    def _blame(self, finding: Finding) -> str:
        size = f"{finding.name} changes logits by {finding.difference:.1e}"
        version = f"transformers {transformers.__version__}"
        if finding.ahead:
            return (
                f"family {self.family} is not served: its tokens attend to later ones of the "
                f"prompt (prefix-LM attention), so an entry of one cannot serve another: {size}"
            )
        if finding.upstream:
            return f"family {self.family} is wrong in {version}: {size}"
        return f"the runner does not reproduce family {self.family} of {version}: {size}"


def self_check(model: Any, processor: Any | None = None) -> SelfCheck:
    """Compare transformers with itself, and the runner with transformers.

    `processor`: of a model that takes images. Raises UnsupportedModel if the model cannot run.
    """
    family = model.config.model_type
    try:
        return _checked(family, model, processor)
    except UnsupportedModel:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
        raise UnsupportedModel(
            f"family {family} cannot be run on a cache of transformers: {why}"
        ) from error


def require(check: SelfCheck) -> None:
    """Raise UnsupportedModel if a check has failed."""
    if check.problem:
        raise UnsupportedModel(check.problem)


def _checked(family: str, model: Any, processor: Any | None) -> SelfCheck:
    copied = short_copy(model)
    wide = copied.model if copied.model is not None else model
    missed: list[str] = []
    tokens = prompt_of(model, LENGTH)
    again = truth(model, tokens, CHUNKS).logits
    twice = truth(model, tokens, CHUNKS).logits
    findings = [Finding("the same prompt twice", difference(again, twice), 0, upstream=True)]
    if next(wide.parameters()).dtype in _WIDE:
        findings += _ahead(wide)
    if next(model.parameters()).dtype in _WIDE:
        findings += _upstream(model, tokens, (CHUNKS, ONE_BY_ONE), "")
    findings += _reproduced(model)
    if copied.model is None:
        missed.append(copied.why_not)
        return SelfCheck(family, tuple(findings), tuple(missed))
    if _blind(copied.model):
        missed.append("hits, hardly: earlier tokens change the logits of these weights by nothing")
    findings += _on_copy(copied, missed)
    images, why = image_check(copied.model, processor)
    wrong = [
        f"{each.name} changes logits by {each.difference:.1e}" for each in images if not each.passed
    ]
    if wrong:
        images, why = [], f"the runner computes other logits for images: {wrong[0]}"
    return SelfCheck(family, (*findings, *images), tuple(missed), why, copied[1:3])


def _ahead(model: Any) -> list[Finding]:
    """Compare logits before the last token, for two last tokens: nothing may look ahead."""
    tokens = prompt_of(model, LENGTH)
    left = truth(model, tokens).logits
    right = truth(model, [*tokens[:-1], tokens[0]]).logits
    limit = TOLERANCE * float(left.abs().max())
    name = "the last token of a prompt, before it,"
    return [Finding(name, difference(left[:-1], right[:-1]), limit, ahead=True)]


def _blind(model: Any) -> bool:
    """Return whether the answers do not depend on the content of a hit."""
    tokens = prompt_of(model, LONG)
    left = truth(model, tokens).logits
    right = truth(model, [*reversed(tokens[:32]), *tokens[32:]]).logits
    return difference(left[48:], right[48:]) <= TOLERANCE * float(left.abs().max())


def _upstream(
    model: Any, tokens: Sequence[int], schedules: tuple[Schedule, Schedule], where: str
) -> list[Finding]:
    whole = truth(model, tokens).logits
    limit = TOLERANCE * float(whole.abs().max())
    names = ("a prompt in chunks", "a prompt token by token")
    return [
        Finding(
            name + where, difference(whole, truth(model, tokens, cuts).logits), limit, upstream=True
        )
        for name, cuts in zip(names, schedules, strict=True)
    ]


def _reproduced(model: Any) -> list[Finding]:
    """Run the engine; its logits must be those of a `DynamicCache` bit by bit, also after a hit."""
    tokens = prompt_of(model, LENGTH)
    served = Served(model, chunk=CHUNK, tokens=2 * LENGTH)
    first = served.ask(tokens, answer=ANSWER)
    found = [Finding("paging", difference(*served.equal(first)), 0)]
    second = served.ask([*tokens[:37], *reversed(tokens[:5])], answer=ANSWER)
    if second.hit and (equal := served.equal(second, after=first)):
        found.append(Finding(f"a hit of {second.hit} tokens", difference(*equal), 0))
    return found


def _on_copy(copied: ShortCopy, missed: list[str]) -> list[Finding]:
    """Compare what needs a wide type: chunks and hits with a whole prompt."""
    model, layers = copied.model, probe(copied.model).layers
    window = max((each.size for each in layers), default=0)
    where = f" beyond a window of {window}" if window else ""
    where += f" (float32, {copied.layers} of {copied.of} layers)"
    tokens = prompt_of(model, LONG)
    cuts = [(start, min(start + CHUNK, LONG)) for start in range(0, LONG, CHUNK)]
    singly = [(0, 48), *((n, n + 1) for n in range(48, LONG))]
    findings = _upstream(model, tokens, (cuts, singly), where)
    served = Served(model, chunk=CHUNK, tokens=2 * LONG)
    served.ask(tokens, answer=ANSWER)
    asked = served.ask([*tokens[:SHARED], *reversed(tokens[:7])], answer=ANSWER)
    if not asked.hit:
        missed.append("a hit: nothing was found of a prompt that was sent before")
        return findings
    whole = truth(model, asked.tokens).logits
    limit = TOLERANCE * float(whole.abs().max())
    state = ", its state restored," if any(each.states for each in layers) else ""
    name = f"a hit of {asked.hit} tokens{state}{where}"
    return [*findings, Finding(name, difference(whole[asked.hit :], asked.logits), limit)]


# --- images, found again or not ---


def image_check(model: Any, processor: Any | None) -> tuple[list[Finding], str]:
    """Compare prompts with an image; returns findings, or why no images can be shown."""
    placeholder = getattr(model.config, "image_token_id", None)
    if placeholder is None:
        return [], ""
    if not hasattr(getattr(model, "model", None), "get_image_features"):
        return [], "the model has no encoder of images that can run by itself"
    if processor is None:
        return [], "the folder has no image processor"
    try:
        return _findings(model, processor, placeholder)
    except Exception as error:  # noqa: BLE001 - models of other families raise any error for images
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return [], f"an image cannot be computed by the runner: {why}"


def _findings(model: Any, processor: Any, placeholder: int) -> tuple[list[Finding], str]:
    pixels = [pixels_of(processor, _drawn(seed)) for seed in (1, 2)]
    rows = _rows(model, pixels[0])
    tokens = [*prompt_of(model, BEFORE), *[placeholder] * rows, *prompt_of(model, AFTER)]
    one, two = ((_placed(each, rows),) for each in pixels)
    whole = truth(model, tokens, pictures=one).logits
    limit = TOLERANCE * float(whole.abs().max())
    if difference(whole, truth(model, tokens, pictures=two).logits) <= limit:
        return [], "an image changes no logits of the model"
    served = Served(model, chunk=rows + BLOCK, tokens=2 * (len(tokens) + BLOCK))
    first = served.ask(tokens, answer=1, pictures=one)
    findings = [Finding("an image", difference(whole, first.logits), limit)]
    again = served.ask([*tokens[:-5], *prompt_of(model, 9)], answer=1, pictures=one)
    if again.hit < BEFORE + rows:
        return findings, f"a prompt with an image was found for {again.hit} tokens only"
    right = truth(model, again.tokens, pictures=one).logits[again.hit :]
    name = f"a hit of {again.hit} tokens, over an image,"
    return [*findings, Finding(name, difference(right, again.logits), limit)], ""


def _drawn(seed: int) -> Any:
    from PIL import Image

    noise = torch.Generator().manual_seed(seed)
    values = torch.randint(0, 256, (SIDE, SIDE, 3), generator=noise, dtype=torch.uint8)
    return Image.fromarray(values.numpy())


def _rows(model: Any, pixels: Pixels) -> int:
    """Return how many tokens an image takes."""
    images = Images(model)
    images.add("rows", pixels.values, pixels.grid)
    with torch.no_grad():
        features = images.encode(Span("image", 0, 1, "rows")).pooler_output
    return (
        sum(len(each) for each in features)
        if isinstance(features, list | tuple)
        else (features.reshape(-1, features.shape[-1]).shape[0])
    )


def _placed(pixels: Pixels, rows: int) -> Picture:
    span = Span("image", BEFORE, rows, content_hash(pixels.values))
    return Picture(span, pixels.values, pixels.grid)
