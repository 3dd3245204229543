"""Builds the rows of RULER or MRCR with the data sets and templates that OpenCompass ships.

Imported in OpenCompass's environment only. Every configuration is asked these rows, so that a data
set is generated once and all prompts are equal.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import opencompass
from mmengine.config import Config
from opencompass.models.base_api import APITemplateParser
from opencompass.openicl.icl_raw_prompt_template import RawPromptTemplate
from opencompass.registry import ICL_PROMPT_TEMPLATES
from opencompass.utils.build import build_dataset_from_cfg
from pyarrow import parquet

from kvproof.eval.long_context.grade import Copy
from kvproof.eval.long_context.recipe import REFUSED, WORDS, Recipe
from kvproof.eval.long_context.rows import Row, encode
from kvproof.harness.errors import UsageError

_CONFIGS = Path(opencompass.__path__[0]) / "configs" / "datasets"

_ROLES = {"HUMAN": "user", "SYSTEM": "system", "BOT": "assistant"}

_MRCR = "opencompass.datasets.mrcr.MRCREvaluator"


def build(job: str, target: str) -> None:
    """Write the rows of a recipe to a file."""
    recipe = msgspec.json.decode(Path(job).read_bytes(), type=Recipe)
    folder = Path(target).parent
    try:
        with Path(target).open("wb") as file:
            for row in _rows(recipe, folder):
                file.write(encode(row) + b"\n")
    except UsageError as error:
        Path(job).with_suffix(".refused").write_text(f"{error}\n{error.hint}\n")
        sys.exit(REFUSED)


def _rows(recipe: Recipe, folder: Path) -> Iterator[Row]:
    if recipe.benchmark == "ruler":
        for config in _ruler(recipe, folder):
            yield from _built(config, config["num_samples"])
    elif Path(recipe.data).is_dir():
        for config in _mrcr(recipe):
            yield from _built(config, recipe.samples)
    else:
        yield from _public(recipe)


def _ruler(recipe: Recipe, folder: Path) -> Iterator[Any]:
    """Configurations of `ruler_4k_gen`, at the wanted length and with local files."""
    tokenizer = recipe.tokenizer if recipe.tokenizer != WORDS else _word_counter(folder)
    shipped = Config.fromfile(str(_CONFIGS / "ruler" / "ruler_4k_gen.py"))["ruler_datasets"]
    by = {each["abbr"].removeprefix("ruler_").removesuffix("_4k"): each for each in shipped}
    for task in recipe.sets:
        config = by[task]
        config["abbr"] = f"ruler_{task}_{recipe.length}"
        config["num_samples"] = recipe.samples
        config["max_seq_length"] = recipe.length
        config["tokenizer_model"] = tokenizer
        if "base_path" in config:
            config["base_path"] = recipe.data
        if "path" in config:
            config["path"] = str(Path(recipe.data) / Path(config["path"]).name)
        yield config


def _word_counter(folder: Path) -> str:
    """Write a tokenizer that splits at words and signs."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))  # noqa: S106 - an unknown word
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = str(folder / "word_counter")
    PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?").save_pretrained(path)  # noqa: S106 - as above
    return path


def _mrcr(recipe: Recipe) -> Iterator[Any]:
    """Configurations of `mrcr_v2_8k`, with other data sets of the same folder."""
    config = Config.fromfile(str(_CONFIGS / "mrcr" / "mrcr_v2_8k_rawprompt_gen.py"))
    one = config["mrcr_8k_datasets"][0]
    for name in recipe.sets:
        yield {**one, "abbr": f"mrcr_v2_{name}", "path": recipe.data, "subset": name}


def _built(config: Any, most: int) -> Iterator[Row]:
    """Rows of a data set, rendered by its template."""
    inference = config["infer_cfg"]
    template = ICL_PROMPT_TEMPLATES.build(inference["prompt_template"])
    data = build_dataset_from_cfg(config)
    output = config["reader_cfg"]["output_column"]
    for entry in data.test.select(range(min(most, len(data.test)))):
        reference = entry[output]
        yield Row(
            data_set=config["abbr"],
            messages=_messages(template.generate_item(entry, output_field=output)),
            reference=reference if isinstance(reference, str) else tuple(reference),
            evaluator=_name(config["eval_cfg"]["evaluator"]["type"]),
            max_tokens=_tokens(config),
        )


def _tokens(config: Any) -> int:
    """Tokens of an answer, in RULER a setting of its data sets."""
    given = config.get("tokens_to_generate")
    return given or {"ruler_vt": 30}.get(config["abbr"].rpartition("_")[0], 0)


def _name(kind: Any) -> str:
    return kind if isinstance(kind, str) else f"{kind.__module__}.{kind.__name__}"


def _messages(item: Any) -> tuple[dict[str, str], ...]:
    """Return the messages of a rendered template, up to the answer."""
    turns = item if isinstance(item, list) and item and "content" in item[0] else None
    if turns is None:
        roles = [{"role": "HUMAN", "api_role": "HUMAN"},
                 {"role": "BOT", "api_role": "BOT", "generate": True}]  # fmt: skip
        parsed = APITemplateParser({"round": roles}).parse_template(item, mode="gen")
        turns = [{"role": _ROLES[e["role"]], "content": e["prompt"]} for e in parsed]
    return tuple({"role": each["role"], "content": each["content"]} for each in turns)


class _PublicRow(msgspec.Struct, frozen=True):
    """A row of openai/mrcr; further fields are ignored."""

    prompt: str
    """Messages in JSON."""
    answer: str
    random_string_to_prepend: str
    n_needles: int


def _public(recipe: Recipe) -> Iterator[Row]:
    """Rows of the public files of MRCR: conversations, one row for each number of needles."""
    template = RawPromptTemplate([{"expand_column": "messages"}])
    names = [f"{row.n_needles}needle" for _, row in _public_rows(recipe.data)]
    unknown = [each for each in recipe.sets if each not in names]
    if unknown or not names:
        there = ", ".join(sorted(set(names))) or "no rows"
        raise UsageError(f"{recipe.data!r} has no set {unknown}", f"it has {there}")
    for name in recipe.sets or sorted(set(names)):
        chosen = (
            each for each in _public_rows(recipe.data) if f"{each[1].n_needles}needle" == name
        )
        for number, row in itertools.islice(chosen, recipe.samples):
            gold = Copy(row.answer, row.random_string_to_prepend)
            messages = _conversation(recipe.data, number, row.prompt)
            yield Row(
                data_set=f"{'synthetic_' if recipe.synthetic else ''}mrcr_{name}",
                messages=_messages(template.generate_item({"messages": messages})),
                reference=msgspec.json.encode(gold).decode(),
                evaluator=_MRCR,
            )


def _public_rows(path: str) -> Iterator[tuple[int, _PublicRow]]:
    """Rows with their numbers, from 1. Raises UsageError with the row and the field."""
    number = 0
    try:
        for number, found in enumerate(_read(path), 1):
            yield number, found
    except (OSError, ValueError, msgspec.MsgspecError) as error:  # pyarrow's errors are ValueErrors
        reason = str(error).splitlines()[0]
        raise UsageError(f"{path!r}, row {number + 1}: {reason}", _COLUMNS) from error


_COLUMNS = (
    "a row of openai/mrcr has prompt (messages in JSON), answer, random_string_to_prepend and "
    "n_needles"
)


def _read(path: str) -> Iterator[_PublicRow]:
    if not path.endswith(".parquet"):
        with Path(path).open("rb") as file:
            yield from (msgspec.json.decode(line, type=_PublicRow) for line in file if line.strip())
        return
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=16):
            yield from (msgspec.convert(row, _PublicRow) for row in batch.to_pylist())


class _Message(msgspec.Struct, frozen=True):
    role: str
    content: str


def _conversation(path: str, number: int, prompt: str) -> list[dict[str, str]]:
    try:
        found = msgspec.json.decode(prompt, type=list[_Message])
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path!r}, row {number}: prompt: {error}", _COLUMNS) from error
    return [{"role": each.role, "content": each.content} for each in found]
