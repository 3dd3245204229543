"""`kvproof eval ruler` and `mrcr`: OpenCompass's long-context data sets, from a cache."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec.structs import replace

from kvproof.eval.benchmark.data import DataFacts
from kvproof.eval.long_context import recipe as recipes
from kvproof.eval.long_context.grade import EXTRACTION
from kvproof.eval.long_context.miniature import write_miniature
from kvproof.eval.long_context.recipe import Recipe
from kvproof.eval.long_context.rows import RowFile, Rows
from kvproof.eval.opencompass import environment
from kvproof.eval.opencompass.row_process import built_rows
from kvproof.eval.opencompass.runner import Runner
from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.records import Conditions
from kvproof.eval.run.runner import conditions_of
from kvproof.harness.cli.actions.eval import answered, configured
from kvproof.harness.cli.arguments.eval import EvalArguments, MrcrArguments, RulerArguments
from kvproof.harness.cli.output import standard_output
from kvproof.harness.cli.progress import progress
from kvproof.harness.cli.runs import new_directory
from kvproof.harness.decoding import read_bounded
from kvproof.harness.errors import UsageError


def ruler(given: RulerArguments) -> int:
    """Run RULER and judge; returns the exit code. Raises UsageError."""
    asked = _asked(given)
    counted = _tokenizer(given.tokenizer or asked.model, named=bool(given.tokenizer))
    recipe = recipes.ruler(
        given.tasks or (), data=given.data, length=given.length, samples=given.samples,
        tokenizer=counted,
    )  # fmt: skip
    return _run(asked, recipe, given.output)


def mrcr(given: MrcrArguments) -> int:
    """Run MRCR, or its miniature, and judge; returns the exit code. Raises UsageError."""
    asked = _asked(given)
    directory, data, samples = given.output or new_directory("eval"), given.data, given.samples
    synthetic = data is None
    if data is None:
        data = write_miniature(directory / "data" / "synthetic_mrcr.jsonl", max(samples, 1))
    recipe = recipes.mrcr(given.sets or (), data=data, samples=samples, synthetic=synthetic)
    return _run(asked, recipe, directory)


def _asked(given: EvalArguments) -> EvalConfig:
    """Return the configurations, without the shared pass."""
    asked = configured(given)
    phases = tuple(each for each in asked.protocol.phases if each != "shared")
    if "warm" not in phases:
        raise UsageError(
            f"{str(given.config)!r} has no warm pass, so that nothing hits",
            'for example phases = ["cold", "warm"]',
        )
    return replace(asked, protocol=replace(asked.protocol, phases=phases))


def _tokenizer(folder: str, *, named: bool) -> str:
    """Return a tokenizer's folder; without one words are counted. Raises UsageError."""
    if folder and (Path(folder) / "tokenizer_config.json").is_file():
        _check_code(Path(folder))
        return str(Path(folder).absolute())
    if named and folder != recipes.WORDS:
        raise UsageError(
            f"there is no tokenizer_config.json in {folder!r}",
            "give the folder of a Hugging Face tokenizer, or --tokenizer words",
        )
    return recipes.WORDS


def _check_code(folder: Path) -> None:
    """OpenCompass would run code of a tokenizer's folder. Raises UsageError if there is some."""
    for name in ("tokenizer_config.json", "config.json"):
        path = folder / name
        try:
            found = (
                msgspec.json.decode(read_bounded(path, what="the tokenizer", hint=_PLAIN))
                if path.is_file()
                else {}
            )
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"cannot read {str(path)!r}: {error}", _PLAIN) from error
        if isinstance(found, dict) and "auto_map" in found:
            raise UsageError(f"{str(path)!r} names code of its own (auto_map)", _PLAIN)


_PLAIN = "give a folder with a plain tokenizer.json, or --tokenizer words"


def _run(asked: EvalConfig, recipe: Recipe, output: Path | None) -> int:
    place, directory = environment.require(), output or new_directory("eval")
    with progress(standard_output()) as shown:
        folder = directory / "data"
        path = built_rows(recipe, folder, place, lambda line: shown(line, 0, 0))
    with RowFile(path) as file:
        if not file.cards:
            raise UsageError(f"{recipe.data!r} has no rows of {recipe.sets}", "give other sets")
        return answered(
            asked,
            Rows(file),
            _conditions(asked, recipe, file),
            directory,
            Runner(place, directory / "opencompass"),
            recipe.benchmark,
        )


def _conditions(asked: EvalConfig, recipe: Recipe, file: RowFile) -> Conditions:
    place = str(environment.OpenCompass())
    sets = ", ".join(dict.fromkeys(card.domain for card in file.cards))
    facts = DataFacts(
        name=sets, sha256=file.sha256, samples=len(file.cards), notes=recipe.notes,
        kind="synthetic" if recipe.synthetic else "custom", heading=recipe.title,
    )  # fmt: skip
    return conditions_of(
        asked, facts, shared="none", prompt=f"as {place} renders it", prompt_sha256=file.sha256,
        truncation="none", extraction=EXTRACTION, runner=place,
    )  # fmt: skip
