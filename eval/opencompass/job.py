"""Input and messages of the process in OpenCompass's environment."""

from __future__ import annotations

import pprint
from pathlib import Path
from typing import Any

import msgspec

from kvproof.eval.benchmark.prompts import PromptSet, with_fields
from kvproof.eval.long_context.rows import DataSetRows
from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.protocol import Job as Requests
from kvproof.eval.run.protocol import Request
from kvproof.eval.run.records import Phase, SampleRecord

PARTS = "kvproof.eval.opencompass.components"


class CommonJob(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat of one configuration. Paths are absolute."""

    config: EvalConfig
    configuration: str
    repeat: int
    url: str
    model: str
    fresh: bool
    """The server's cache is empty."""
    samples: int
    earlier: str
    """Records of requests that are done."""
    answers: str
    """File for new records."""

    @property
    def abbr(self) -> str:
        """Name of the model in OpenCompass: its folder and its column."""
        return self.configuration.replace(" ", "_")

    @property
    def stages(self) -> list[list[Requests]]:
        """Requests of each data set of OpenCompass, in order."""
        return [
            [(Request(phase, n),) for n in range(first, first + count)]
            for phase, first, count in self.parts
        ]

    @property
    def parts(self) -> list[tuple[Phase, int, int]]:
        """Pass, first sample and number of samples of each data set of OpenCompass."""
        raise NotImplementedError  # a record has no abstract methods: each kind has its own

    def sent(self, stage: int) -> list[Requests]:
        """Return the requests of a stage; with `samples` all passes of a sample at its first one.

        OpenCompass has no order in which all passes of a sample come before the next sample.
        """
        found, protocol = self.stages[stage], self.config.protocol
        if protocol.order == "passes":
            return found
        first = found[0][0].phase == protocol.phases[0]
        rows = [job[0].number for job in found] if first else []
        return [tuple(Request(phase, n) for phase in protocol.phases) for n in rows]


class RowsJob(CommonJob, frozen=True, kw_only=True, tag="rows", tag_field="kind"):
    """RULER or MRCR: rows that OpenCompass has built."""

    rows: str
    sets: tuple[DataSetRows, ...]

    @property
    def _sets(self) -> list[tuple[DataSetRows, Phase]]:
        """One data set of OpenCompass for each pass; with `samples` all passes of one in turn."""
        phases = self.config.protocol.phases
        if self.config.protocol.order == "samples":
            return [(each, phase) for each in self.sets for phase in phases]
        return [(each, phase) for phase in phases for each in self.sets]

    @property
    def names(self) -> list[str]:
        """Names of the data sets of OpenCompass."""
        return [f"{each.name}_{phase}" for each, phase in self._sets]

    @property
    def evaluators(self) -> list[str]:
        """Classes of their evaluators."""
        return [each.evaluator for each, _ in self._sets]

    @property
    def parts(self) -> list[tuple[Phase, int, int]]:
        """See `CommonJob`."""
        return [(phase, each.first, each.count) for each, phase in self._sets]


class Job(CommonJob, frozen=True, kw_only=True, tag="letters", tag_field="kind"):
    """LongBench v2."""

    data: str
    shared: str
    """Other questions about the same documents; empty: choices are rotated."""
    label: str
    """Name of the data in the tables of OpenCompass."""
    prompts: PromptSet
    left_out: dict[int, str]
    """Rows of both files that are skipped."""

    @property
    def parts(self) -> list[tuple[Phase, int, int]]:
        """See `CommonJob`."""
        return [(phase, 0, self.samples) for phase in self.config.protocol.phases]

    @property
    def names(self) -> list[str]:
        """Names of the data sets of OpenCompass, one for each pass."""
        return [f"{self.label}_{phase}" for phase in self.config.protocol.phases]


AnyJob = Job | RowsJob


class StageDone(msgspec.Struct, frozen=True, kw_only=True, tag="stage", tag_field="record"):
    """A data set is answered."""

    stage: int
    warmed: int
    """Prompts of all data sets so far that were repeated to warm a cache."""
    edited: int
    """Prompts in which OpenCompass's template has replaced text of a document."""
    right: int
    """Right answers by OpenCompass's rule, to compare with its result."""


Message = SampleRecord | StageDone

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Message).decode


def read_job(path: str) -> AnyJob:
    """Read a job from its file."""
    found: AnyJob = msgspec.json.decode(Path(path).read_bytes(), type=AnyJob)
    return found


def written_config(job: AnyJob, path: Path, passes: list[Path]) -> str:
    """Return the configuration of OpenCompass for a job.

    `path`: file of the job; `passes`: files of each pass, for OpenCompass's data set.
    """
    count = len(job.names)
    datasets = _data_sets(job, path, passes)
    lines = [
        "# Written by kvproof eval.",
        "",
        *datasets,
        _assigned("models", [_model(job, str(path))]),
        _assigned("infer", _stage("OpenICLInferTask", count)),
        _assigned("eval", _stage("OpenICLEvalTask", count)),
    ]
    return "\n".join([*lines, ""])


def _data_sets(job: AnyJob, path: Path, passes: list[Path]) -> list[str]:
    if isinstance(job, RowsJob):
        found = zip(job.names, job.evaluators, strict=True)
        sets = [_rows(name, str(path), n, evaluator) for n, (name, evaluator) in enumerate(found)]
        return [_assigned("datasets", sets)]
    return _shipped(job, passes)


def _rows(name: str, job: str, stage: int, evaluator: str) -> dict[str, Any]:
    """Rows that OpenCompass has built, with its template for messages, inferencer and evaluator."""
    template = "opencompass.openicl.icl_raw_prompt_template.RawPromptTemplate"
    return {
        "type": f"{PARTS}.StoredRows",
        "abbr": name,
        "job": job,
        "stage": stage,
        "reader_cfg": {"input_columns": ["messages"], "output_column": "reference"},
        "infer_cfg": {
            "prompt_template": {"type": template, "messages": [{"expand_column": "messages"}]},
            "retriever": {"type": "opencompass.openicl.icl_retriever.ZeroRetriever"},
            "inferencer": {"type": "opencompass.openicl.icl_inferencer.GenInferencer"},
        },
        "eval_cfg": {"evaluator": {"type": evaluator}, "pred_role": "BOT"},
    }


def _shipped(job: Job, passes: list[Path]) -> list[str]:
    """Import data set, inferencer and evaluator; the template only gets another text."""
    prompt = _assigned("prompt", {} if job.prompts.shipped else _template(job.prompts))
    return [
        "from mmengine.config import read_base",
        "",
        "with read_base():",
        "    from opencompass.configs.datasets.longbenchv2.longbenchv2_gen import (",
        "        LongBenchv2_datasets as shipped,",
        "    )",
        "",
        prompt,
        "datasets = [",
        *(
            f"    dict(shipped[0], abbr={name!r}, path={str(each)!r},\n"
            "         infer_cfg=dict(shipped[0]['infer_cfg'], **prompt)),"
            for name, each in zip(job.names, passes, strict=True)
        ),
        "]",
    ]


def _template(prompts: PromptSet) -> dict[str, Any]:
    turn = {"role": "HUMAN", "prompt": with_fields(prompts.template)}
    kind = "opencompass.openicl.icl_prompt_template.PromptTemplate"
    return {"prompt_template": {"type": kind, "template": {"round": [turn]}}}


def _assigned(name: str, value: Any) -> str:
    return f"{name} = {pprint.pformat(value, sort_dicts=False, width=100)}"


def _model(job: AnyJob, path: str) -> dict[str, Any]:
    roles = [
        {"role": "HUMAN", "api_role": "HUMAN"},
        {"role": "BOT", "api_role": "BOT", "generate": True},
    ]
    return {
        "type": f"{PARTS}.Api",
        "abbr": job.abbr,
        "path": job.model or "default",
        "job": path,
        "meta_template": {"round": roles},
        "max_seq_len": job.config.protocol.max_prompt_tokens or None,
        "max_out_len": job.config.protocol.max_tokens,
        "batch_size": job.samples,
    }


def _stage(task: str, count: int) -> dict[str, Any]:
    return {
        "partitioner": {"type": "opencompass.partitioners.NaivePartitioner", "n": count},
        "runner": {
            "type": "opencompass.runners.LocalRunner",
            "max_num_workers": 1,
            "task": {"type": f"opencompass.tasks.{task}"},
        },
    }
