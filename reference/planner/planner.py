"""Layers and memory -> a plan (P1-P8). `make_plan` is the whole interface.

Among the splits that fit, the one is chosen whose request of `max_len` takes the smallest share of
the blocks, where each further group has to earn `GROUP_COST` of it: block tables are built for
every group in every step. Ties go to fewer groups, then to smaller blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from kvproof.reference.core.cache_config import MOST_IDS
from kvproof.reference.core.validation import check_kernel_block_size
from kvproof.reference.planner.capacity import capacity
from kvproof.reference.planner.entries import check_entries
from kvproof.reference.planner.evaluate import Trial, trials
from kvproof.reference.planner.layer_classes import classes
from kvproof.reference.planner.layer_spec import ModelSpec, PlanError
from kvproof.reference.planner.layer_views import views
from kvproof.reference.planner.notes import fallback_note, plan_notes
from kvproof.reference.planner.plan import GIB, MOST_BYTES, Choice, Plan, PlanSettings, Worker

_COUNTS = ("max_len", "block_size", "max_batch_tokens", "max_requests")
_CENT = GIB // 100 - 1
"""Rounds up to hundredths of a GiB, so that a reported amount is enough."""
_GAIN = 1.0005
"""Less is nothing that anybody would pay another group for."""


def make_plan(model: ModelSpec, settings: PlanSettings, *, tensor_parallel: int = 1) -> Plan:
    """Return the plan for one rank of every pipeline stage. Raises PlanError (P3)."""
    _check(settings)
    _require("tensor_parallel", tensor_parallel, least=1)
    model = model.on_rank(tensor_parallel)
    if not settings.drafts:
        model = model.without_drafts()
    if not any(layer.parts for layer in model.layers):
        raise PlanError(f"{model.family!r} caches nothing: no layer has keys or a state")
    _check_rows(model, settings)
    check_entries(model, settings)
    tried = trials(model, settings)
    fitting = [trial for trial in tried if trial.fits]
    if not fitting:
        raise _too_little(model, settings, tried)
    best = min(fitting, key=_score)
    plan = replace(
        best.plan,
        tensor_parallel=tensor_parallel,
        workers=_with_views(model, settings, best),
        choices=_choices(fitting),
    )
    return replace(plan, notes=(*plan_notes(model, plan), *_fallback(model, plan)))


def longest_fitting(model: ModelSpec, settings: PlanSettings) -> int:
    """Return the longest `max_len` with a plan for one rank's `model`; 0 if none (P3)."""
    low, high = 0, 1
    while _any_fits(model, replace(settings, max_len=high)) and high < MOST_IDS:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if _any_fits(model, replace(settings, max_len=middle)):
            low = middle
        else:
            high = middle
    return low


def _any_fits(model: ModelSpec, settings: PlanSettings) -> bool:
    return any(trial.fits for trial in trials(model, settings))


def _check(settings: PlanSettings) -> None:
    """Refuse invalid settings, each with the rule and a legal example."""
    for name in (*_COUNTS, "context_parallel", "interleave"):
        _require(name, getattr(settings, name), least=1)
    for name in ("kernel_block_size", "num_blocks", "drafts", "prefix_cache_state_budget"):
        _require(name, getattr(settings, name), least=0)
    if settings.max_len > MOST_IDS:
        raise PlanError(
            f"max_len {settings.max_len:,} must be at most {MOST_IDS:,}: positions are int32",
            "lower max_len",
        )
    check_kernel_block_size(settings.block_size, settings.kernel_size)
    if not settings.memory or min(settings.memory) < 1:
        raise PlanError("there is no memory to plan", "for example --memory 64GiB")
    if settings.unit_bound < settings.block_size:
        raise PlanError(
            f"max_unit {settings.max_unit} must be at least block_size {settings.block_size}",
            "the unit is a multiple of every block size",
        )
    if settings.num_blocks == 1:
        raise PlanError("num_blocks 1 is the null block alone", "choose at least 2")
    if settings.drafts >= settings.max_batch_tokens:
        raise PlanError(
            f"drafts {settings.drafts} must be less than max_batch_tokens "
            f"{settings.max_batch_tokens}: a step computes them all",
        )
    if settings.state_pool not in ("shared", "separate"):
        raise PlanError(
            f"state_pool {settings.state_pool!r} is not known", "choose shared or separate"
        )


def _check_rows(model: ModelSpec, settings: PlanSettings) -> None:
    rows = settings.state_rows - 1
    stateful = any(layer.kind == "state" for layer in model.layers)
    if stateful and settings.state_pool == "separate" and rows < settings.states:
        raise PlanError(
            f"max_requests {settings.max_requests} and prefix_cache_state_budget "
            f"{settings.prefix_cache_state_budget} give {rows} state rows, but a request with "
            f"{settings.drafts} drafts needs {settings.states}",
            f"raise max_requests to at least {settings.states}",
        )


def _require(name: str, value: int, *, least: int) -> None:
    if value < least:
        raise PlanError(f"{name} {value} must be at least {least}", f"for example {max(16, least)}")


def _with_views(model: ModelSpec, settings: PlanSettings, trial: Trial) -> tuple[Worker, ...]:
    found = classes(model, settings)
    stage_of = {
        layer.name: stage
        for rule in found
        for layer, stage in zip(rule.layers, rule.stages, strict=True)
    }
    return tuple(
        views(model, trial.plan.groups, worker, {n for n, at in stage_of.items() if at == stage})
        for stage, worker in enumerate(trial.plan.workers)
    )


def _choices(fitting: Sequence[Trial]) -> tuple[Choice, ...]:
    """Return the best trial for each number of groups that gains anything over fewer (P4)."""
    found: list[Choice] = []
    shown = sorted(fitting, key=lambda trial: (len(trial.plan.groups), trial.share))
    for trial in shown:
        requests = capacity(trial.plan).requests_exact
        if not found or requests > found[-1].requests * _GAIN:
            sizes = sorted({group.block_size for group in trial.plan.groups})
            found.append(Choice(len(trial.plan.groups), tuple(sizes), requests))
    return tuple(found)


def _fallback(model: ModelSpec, plan: Plan) -> tuple[str, ...]:
    """Return the cost of keeping windows whole (P8)."""
    if plan.settings.hybrid_groups:
        return ()
    hybrid = trials(model, replace(plan.settings, hybrid_groups=True))
    fitting = [trial for trial in hybrid if trial.fits]
    return fallback_note(plan, min(fitting, key=_score).plan) if fitting else ()


def _score(trial: Trial) -> tuple[Fraction, int, int]:
    return trial.score


def _too_little(model: ModelSpec, settings: PlanSettings, tried: Sequence[Trial]) -> PlanError:
    """Return the error with needed and available memory and the longest request (P3)."""
    longest = longest_fitting(model, settings)
    fits = f"the longest length that fits is {longest:,}" if longest else "no length fits"
    fixed, otherwise = settings.num_blocks, _otherwise(model, settings)
    enough = [trial for trial in tried if not fixed or trial.blocks < fixed]
    if not enough:
        least = min(trial.blocks for trial in tried) + 1
        return PlanError(
            f"num_blocks {fixed:,} is too few for one request of "
            f"{settings.max_len:,} tokens, which needs {least:,}; {fits}",
            f"{otherwise}raise num_blocks or leave it out, or lower max_len",
            longest=longest,
        )
    needed, available = min(_shortage(trial) for trial in enough)
    needed = available + _proven(model, settings, needed - available)
    return PlanError(
        f"one request of {settings.max_len:,} tokens needs {_gib(needed + _CENT)} GiB on a "
        f"worker, {_gib(available)} GiB are available; {fits}",
        f"{otherwise}raise memory, lower max_len, max_batch_tokens or max_requests, choose a "
        "smaller kv dtype, or split over more workers",
        needed=needed,
        available=available,
        longest=longest,
    )


def _otherwise(model: ModelSpec, settings: PlanSettings) -> str:
    """Return the way out of a fallback that does not fit, if windows would (P8)."""
    hybrid = replace(settings, hybrid_groups=True)
    if settings.hybrid_groups or not _any_fits(model, hybrid):
        return ""
    return "leave hybrid_groups on, which fits; or "


def _proven(model: ModelSpec, settings: PlanSettings, lack: int) -> int:
    """Return bytes more on each worker for which a plan is found: the estimate, or more.

    For one worker the estimate is exact. For several the search leaves out splits that are not
    among the best, and which those are depends on memory.
    """
    while 0 < lack < MOST_BYTES:
        memory = tuple(have + lack for have in settings.memory)
        if _any_fits(model, replace(settings, memory=memory)):
            break
        lack *= 2
    return lack


def _shortage(trial: Trial) -> tuple[int, int]:
    settings = trial.plan.settings
    blocks = max(trial.blocks + 1, settings.num_blocks)
    worst = max(trial.plan.workers, key=lambda w: _bytes(w, blocks, settings.state_rows) - w.memory)
    return _bytes(worst, blocks, settings.state_rows), worst.memory


def _bytes(worker: Worker, blocks: int, rows: int) -> int:
    return worker.block_bytes * blocks + worker.state_row_bytes * rows


def _gib(nbytes: int) -> str:
    return f"{nbytes // (GIB // 100) / 100:,.2f}"
