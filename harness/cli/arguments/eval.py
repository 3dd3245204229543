"""Options of the verbs of `kvproof eval`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from cyclopts import Parameter

from kvproof.harness.cli.options import Output

Flag: TypeAlias = Annotated[bool, Parameter(negative="")]
Several = Parameter(consume_multiple=True, negative="")
ScbenchTask = Literal["kv", "prefix_suffix", "vt", "choice_eng"]
ScbenchMode = Literal["turns", "requests"]
RulerTask = Literal[
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
    "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_squad",
    "qa_hotpotqa",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class EvalArguments:
    """Options of every benchmark; each attribute docstring is the help text."""

    config: Path
    """TOML file of configurations; ready-made ones are in eval/configs."""
    model: str = ""
    """Name in requests and launch commands; the server's own by default."""
    url: Annotated[list[str] | None, Parameter(("--url", "--urls")), Several] = None
    """A running server instead of a launch command, for example "off=http://127.0.0.1:8000/v1"."""
    output: Output = None
    """Directory of the run's records and reports; the same command resumes it."""


@dataclass(frozen=True, kw_only=True)
class LongBenchArguments(EvalArguments):
    """Options of LongBench v2."""

    data: Path | None = None
    """The data.json of LongBench v2, or JSON Lines with its fields; 48 synthetic samples by
    default."""
    shared: Path | None = None
    """One more question about each document of --data; its choices rotated by default."""
    prompts: Path | None = None
    """A checkout of THUDM/LongBench, whose 0-shot prompt is used, or a word: kvproof for our own
    prompt, opencompass for that of OpenCompass. Default: the runner's."""
    cot: bool = False
    """The checkout's chain of thought, in two turns."""
    runner: Literal["kvproof", "opencompass"] = "kvproof"
    """kvproof: its own client; opencompass: data set, template, inferencer and evaluator of
    OpenCompass, after kvproof eval install."""
    quick: Flag = False
    """32 short synthetic samples instead of 48: 4 minutes with the probe model."""
    skip_bad_rows: Flag = False
    """Leave out rows of --data that are not as published, with a note in the report."""


@dataclass(frozen=True, kw_only=True)
class ScbenchArguments(EvalArguments):
    """Options of SCBench."""

    config: Path
    """TOML file of configurations, for example eval/configs/scbench.toml; the first one
    recomputes."""
    data: Path | None = None
    """Folder with the files of microsoft/SCBench; a generated miniature by default."""
    tasks: Annotated[list[ScbenchTask] | None, Several] = None
    """kv, prefix_suffix, vt, choice_eng; all by default."""
    modes: Annotated[list[ScbenchMode] | None, Several] = None
    """turns: one conversation with the server's own answers; requests: separate requests about one
    context; both by default."""
    sessions: int = 16
    """Contexts of each task."""
    margin: float = 0.1
    """Largest share of right answers, or with the rule texts of texts, whose loss a pass allows."""
    output: Output = None
    """Directory of the run's records and reports."""


@dataclass(frozen=True, kw_only=True)
class RulerArguments(EvalArguments):
    """Options of RULER."""

    config: Path
    """TOML file of configurations, for example eval/configs/ruler.toml."""
    data: Path | None = None
    """Folder with the files of OpenCompass's ruler.zip: PaulGrahamEssays.jsonl, dev-v2.0.json,
    hotpotqa.json."""
    tasks: Annotated[list[RulerTask] | None, Several] = None
    """Tasks of RULER; by default all with --data, else the six that read no file."""
    length: int = 4096
    """Tokens of a prompt with its answer, at least 1024."""
    samples: int = 100
    """Prompts of each task."""
    tokenizer: str = ""
    """Folder of a Hugging Face tokenizer, or words; default: the model's folder, else words."""


@dataclass(frozen=True, kw_only=True)
class MrcrArguments(EvalArguments):
    """Options of MRCR."""

    config: Path
    """TOML file of configurations, for example eval/configs/mrcr.toml."""
    data: Path | None = None
    """A .parquet or .jsonl file of openai/mrcr, or a folder of giulio98/MRCR_v2_common, which
    OpenCompass's own data set reads; a synthetic miniature by default."""
    sets: Annotated[list[str] | None, Several] = None
    """Sets of a file: 2needle, 4needle, 8needle, all by default. Data sets of a folder: by default
    those of OpenCompass's mrcr_v2_8k."""
    samples: int = 50
    """Prompts of each set, at most."""


@dataclass(frozen=True, kw_only=True)
class DivergenceArguments:
    """Options of the divergence per token."""

    url: str = ""
    """The server whose hits are judged, with /v1/completions and log-probabilities. Without
    --recompute-url it also recomputes, by a cache_salt of its own for every request."""
    recompute_url: str = ""
    """A server of the same model without prefix cache."""
    control_url: Annotated[list[str] | None, Several] = None
    """Further correct servers without prefix cache, with other chunk sizes or batches: their
    differences are noise."""
    config: Path | None = None
    """Instead of URLs, a TOML file of configurations: the first recomputes, the control and all
    others without prefix cache are noise, the rest is judged."""
    model: str = ""
    """Name in requests and launch commands; the server's own by default."""
    reset: str = ""
    """Path of a POST that empties the cache, for servers without cache_salt, or whose answers
    depend on it."""
    sleep: list[str] | None = None
    """Paths of POSTs, in order, that put the server to sleep and wake it up. A body follows after
    a blank."""
    other_weights: list[str] | None = None
    """POSTs that load other weights; prompts fill the cache while they are loaded."""
    own_weights: list[str] | None = None
    """POSTs that load the served weights again."""
    restart: str = ""
    """Command that restarts the server; an answer at /v1/models ends the wait."""
    api_key_env: str = ""
    """Environment variable with the servers' key."""
    documents: int = 24
    """Number of documents; each gives five hits."""
    tokens: int = 16
    """Tokens of each answer."""
    length: int = 1000
    """Tokens of the longest prompt, or four times as many characters without token ids."""
    at_once: int = 8
    """Requests sent at the same time in the passes with company."""
    seed: int = 0
    """The same seed gives the same documents."""
    alpha: float = 0.01
    """Probability that a correct server fails, at most."""
    detect: float = 0.05
    """Share of wrong hits that a pass must exclude with 95 % confidence."""
    require: Annotated[list[str] | None, Several] = None
    """Situations without which there is no pass: names as in the report, families such as length
    or company, none, or all that the server can do, which is the default. They are brought about
    until --max-time."""
    max_time: str = "5m"
    """After this time no further situation is brought about: 300s, 5m, 2h."""
    exact: bool = False
    """The engine promises equal bits with and without a hit: every difference fails. Recomputed
    answers must repeat, which is checked first; else the run is inconclusive and names why."""
    output: Output = None
    """Directory of the run's records and reports; the same command resumes it."""
