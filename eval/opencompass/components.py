"""Components of an OpenCompass run: the model; a data set and inferencer for mixed passes.

Imported in OpenCompass's environment only. Requests, retries, classes and resumption are those of
`protocol` and `client`; OpenCompass decides the order, keeps predictions and scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict
from opencompass.datasets.base import BaseDataset
from opencompass.models.base_api import BaseAPIModel
from opencompass.openicl.icl_inferencer.icl_base_inferencer import BaseInferencer
from opencompass.openicl.icl_prompt_template import PromptTemplate

from kvproof.eval.opencompass.context import OpenCompassContext, context_of, joined
from kvproof.eval.run.protocol import Request
from kvproof.eval.run.records import SampleRecord


class Samples(BaseDataset):  # type: ignore[misc]  # OpenCompass has no types
    """Rows of one data set, in the order of its requests; documents stay in their file."""

    @staticmethod
    def load(job: str, stage: int) -> DatasetDict:
        """Return ids and groups; the template reads the documents later."""
        at = context_of(job)
        rows = [_row(at, request) for each in at.job.stages[stage] for request in each]
        return DatasetDict({"train": Dataset.from_list(rows[:1]), "test": Dataset.from_list(rows)})


def _row(at: OpenCompassContext, request: Request) -> dict[str, Any]:
    sample = at.sample(request)
    return {
        "_id": sample.id,
        "request": f"{request.phase} {request.number}",
        "phase": request.phase,
        "number": request.number,
        "domain": sample.domain,
        "sub_domain": sample.sub_domain,
        "difficulty": sample.difficulty,
        "length": sample.length,
        "answer": sample.answer,
    }


class StoredRows(BaseDataset):  # type: ignore[misc]  # OpenCompass has no types
    """Rows of RULER or MRCR that OpenCompass has built before, the same for every configuration."""

    @staticmethod
    def load(job: str, stage: int) -> DatasetDict:
        """Return messages and references of one data set."""
        at = context_of(job)
        rows = []
        assert at.rows  # the job is one of rows
        for (request,) in at.job.stages[stage]:
            row = at.rows.file.row(request.number)
            words = isinstance(row.reference, tuple)
            reference = list(row.reference) if words else row.reference
            rows.append({"messages": list(row.messages), "reference": reference})
        return DatasetDict({"train": Dataset.from_list(rows[:1]), "test": Dataset.from_list(rows)})


class Template(PromptTemplate):  # type: ignore[misc]  # OpenCompass has no types
    """Renders a row's sample with our prompt set, so that no field edits another one."""

    def __init__(self, job: str) -> None:
        super().__init__("{request}")
        self._at = context_of(job)

    def generate_item(self, entry: Mapping[str, Any], *_: object, **__: object) -> str:
        """Return the whole prompt."""
        request = Request(entry["phase"], entry["number"])
        return self._at.rendered(request)


class Inferencer(BaseInferencer):  # type: ignore[misc]  # OpenCompass has no types
    """Sends the requests of all rows, and writes predictions without the documents."""

    def __init__(self, model: Any, stage: int, **settings: Any) -> None:
        super().__init__(model=model, **settings)
        self._stage = stage

    def inference(
        self,
        retriever: Any,
        ice_template: Any = None,
        prompt_template: Any = None,
        output_json_filepath: str = "",
        output_json_filename: str = "",
    ) -> list[str]:
        """Return the texts of the answers; empty ones for failed requests."""

        def text(place: int) -> str:
            found: str = retriever.generate_prompt_for_generate_task(
                place, "", ice_template=ice_template, prompt_template=prompt_template
            )
            return found

        records = self.model.context.ask(self._stage, text)
        folder = Path(output_json_filepath)
        folder.mkdir(parents=True, exist_ok=True)
        kept = {str(n): _prediction(each) for n, each in enumerate(records)}
        (folder / output_json_filename).write_text(json.dumps(kept, indent=1))
        return [each.text for each in records]


def _prediction(record: SampleRecord) -> dict[str, Any]:
    return {
        "origin_prompt": f"sha256:{record.prompt_sha256}",
        "prediction": record.text,
        "gold": record.expected,
        "outcome": record.outcome,
        "finish_reason": record.finish_reason,
        "seconds": record.seconds,
        "prompt_tokens": record.usage.prompt_tokens,
        "cached_tokens": record.usage.cached_tokens,
    }


class Api(BaseAPIModel):  # type: ignore[misc]  # OpenCompass has no types
    """The server under test. A request that fails for good is one sample without an answer."""

    def __init__(self, path: str, job: str, **settings: Any) -> None:
        super().__init__(path=path, **settings)
        self.context = context_of(job)
        self._stage = 0

    def generate(self, inputs: Sequence[Any], max_out_len: int = 0, **_: object) -> list[str]:
        """Answer all prompts of a data set; each call has one whole set."""
        del max_out_len  # the job has it too
        texts = [_text(each) for each in inputs]
        records = self.context.ask(self._stage, texts.__getitem__)
        self._stage += 1
        return [each.text for each in records]


def _text(prompt: Any) -> str:
    if isinstance(prompt, list) and prompt and "content" in prompt[0]:
        return joined(prompt)
    return prompt if isinstance(prompt, str) else "".join(turn["prompt"] for turn in prompt)
