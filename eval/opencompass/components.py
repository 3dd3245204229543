"""Components of an OpenCompass run: the model, and rows that it has built before.

Imported in OpenCompass's environment only. Requests, retries, classes and resumption are those of
`protocol` and `client`; OpenCompass keeps predictions and scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from datasets import Dataset, DatasetDict
from opencompass.datasets.base import BaseDataset
from opencompass.models.base_api import BaseAPIModel

from kvproof.eval.opencompass.context import context_of, joined


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
