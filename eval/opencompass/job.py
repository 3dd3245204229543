"""Input and messages of the process in OpenCompass's environment."""

from __future__ import annotations

import pprint
from pathlib import Path
from typing import Any

import msgspec

from kvproof.eval.benchmark.prompts import PromptSet
from kvproof.eval.run.config import EvalConfig
from kvproof.eval.run.protocol import Job as Requests
from kvproof.eval.run.protocol import stages
from kvproof.eval.run.records import SampleRecord

PARTS = "kvproof.eval.opencompass.components"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One repeat of one configuration. Paths are absolute."""

    config: EvalConfig
    configuration: str
    repeat: int
    url: str
    model: str
    fresh: bool
    """The server's cache is empty."""
    data: str
    shared: str
    """Other questions about the same documents; empty: choices are rotated."""
    samples: int
    prompts: PromptSet
    stock: bool
    """Data set, prompt, post-processing and evaluator of OpenCompass instead of ours."""
    earlier: str
    """Records of requests that are done."""
    answers: str
    """File for new records."""

    @property
    def stages(self) -> list[list[Requests]]:
        """Stages, one per data set of OpenCompass, in order."""
        return stages(self.config.protocol, self.samples)

    @property
    def names(self) -> list[str]:
        """Names of the data sets: one per pass, or one with all passes of a sample."""
        whole = self.config.protocol.order == "samples"
        return [
            "LongBenchV2" if whole else f"LongBenchV2_{stage[0][0].phase}" for stage in self.stages
        ]

    @property
    def abbr(self) -> str:
        """Name of the model in OpenCompass: its folder and its column."""
        return self.configuration.replace(" ", "_")


class Warmed(msgspec.Struct, frozen=True, tag="warmed", tag_field="record"):
    """Number of prompts that were repeated to warm a cache."""

    count: int


Message = SampleRecord | Warmed

encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Message).decode


def read_job(path: str) -> Job:
    """Read a `Job` from its file."""
    return msgspec.json.decode(Path(path).read_bytes(), type=Job)


def written_config(job: Job, path: Path, passes: list[Path]) -> str:
    """Return a configuration of OpenCompass that is only data, except for the stock data set.

    `path`: file of the job; `passes`: files of each pass, for the stock data set.
    """
    datasets = [_dataset(name, str(path), n) for n, name in enumerate(job.names)]
    lines = ["# Written by kvproof eval.", ""]
    if job.stock:
        lines += [
            "from mmengine.config import read_base",
            "",
            "with read_base():",
            "    from opencompass.configs.datasets.longbenchv2.longbenchv2_gen import (",
            "        LongBenchv2_datasets as stock,",
            "    )",
            "",
            "datasets = [",
            *(
                f"    dict(stock[0], abbr={name!r}, path={str(each)!r}),"
                for name, each in zip(job.names, passes, strict=True)
            ),
            "]",
        ]
    else:
        lines.append(_assigned("datasets", datasets))
    lines += [
        _assigned("models", [_model(job, str(path))]),
        _assigned("infer", _stage("OpenICLInferTask", len(datasets))),
        _assigned("eval", _stage("OpenICLEvalTask", len(datasets))),
    ]
    return "\n".join([*lines, ""])


def _assigned(name: str, value: Any) -> str:
    return f"{name} = {pprint.pformat(value, sort_dicts=False, width=100)}"


def _dataset(name: str, job: str, stage: int) -> dict[str, Any]:
    retriever = {"type": "opencompass.openicl.icl_retriever.ZeroRetriever"}
    return {
        "type": f"{PARTS}.Samples",
        "abbr": name,
        "job": job,
        "stage": stage,
        "reader_cfg": {"input_columns": ["request"], "output_column": "answer"},
        "infer_cfg": {
            "prompt_template": {"type": f"{PARTS}.Template", "job": job},
            "retriever": retriever,
            "inferencer": {"type": f"{PARTS}.Inferencer", "stage": stage},
        },
        "eval_cfg": {"evaluator": {"type": f"{PARTS}.Evaluator"}},
    }


def _model(job: Job, path: str) -> dict[str, Any]:
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
