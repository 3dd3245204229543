"""`kvproof eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

eval_app = App(
    name="eval",
    help="Does reuse cost answers? Per token, LongBench v2, SCBench; paired, with error rates.",
)

SEVERAL = Parameter(consume_multiple=True, negative="")
ScbenchTask = Literal["kv", "prefix_suffix", "vt", "choice_eng"]
ScbenchMode = Literal["turns", "requests"]
RulerTask = Literal[
    "niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2",
    "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_squad",
    "qa_hotpotqa",
]  # fmt: skip
Urls = Annotated[
    list[str] | None, Parameter(("--url", "--urls"), consume_multiple=True, negative="")
]


@eval_app.command(name="longbench-v2")
def longbench_v2(
    *,
    config: Path,
    data: Path | None = None,
    shared: Path | None = None,
    prompts: Path | None = None,
    cot: bool = False,
    runner: Literal["kvproof", "opencompass"] = "kvproof",
    model: str = "",
    url: Urls = None,
    output: Path | None = None,
    quick: Annotated[bool, Parameter(negative="")] = False,
    skip_bad_rows: Annotated[bool, Parameter(negative="")] = False,
) -> int:
    """Ask every configuration the same questions, cold and from the cache, and compare.

    Parameters
    ----------
    config
        TOML file of configurations; ready-made ones are in eval/configs.
    data
        The data.json of LongBench v2, or JSON Lines with its fields; 48 synthetic samples
        by default.
    shared
        One more question about each document of --data; its choices rotated by default.
    prompts
        A checkout of THUDM/LongBench, whose 0-shot prompt is used, or a word: kvproof for our own
        prompt, opencompass for that of OpenCompass. Default: the runner's.
    cot
        The checkout's chain of thought, in two turns.
    runner
        kvproof: its own client; opencompass: data set, template, inferencer and evaluator of
        OpenCompass, after kvproof eval install.
    model
        Name in requests and launch commands; the server's own by default.
    url
        A running server instead of a launch command, for example "off=http://127.0.0.1:8000/v1".
    output
        Directory of the run's records and reports; the same command resumes it.
    quick
        32 short synthetic samples instead of 48: 4 minutes with the probe model.
    skip_bad_rows
        Leave out rows of --data that are not as published, with a note in the report.

    """
    from kvproof.harness.cli.actions import eval as action

    return action.longbench_v2(
        config=config,
        data=data,
        shared=shared,
        prompts=prompts,
        cot=cot,
        runner=runner,
        model=model,
        url=url,
        output=output,
        quick=quick,
        skip_bad_rows=skip_bad_rows,
    )


@eval_app.command
def divergence(
    *,
    url: str = "",
    recompute_url: str = "",
    control_url: Annotated[list[str] | None, Parameter(consume_multiple=True, negative="")] = None,
    config: Path | None = None,
    model: str = "",
    reset: str = "",
    api_key_env: str = "",
    documents: int = 24,
    tokens: int = 16,
    length: int = 1000,
    at_once: int = 8,
    seed: int = 0,
    alpha: float = 0.01,
    detect: float = 0.05,
    exact: bool = False,
    output: Path | None = None,
) -> int:
    """Compare answers from hits with recomputed ones, token by token, and judge the cache.

    Parameters
    ----------
    url
        The server whose hits are judged, with /v1/completions and log-probabilities. Without
        --recompute-url it also recomputes, by a cache_salt of its own for every request.
    recompute_url
        A server of the same model without prefix cache.
    control_url
        Further correct servers without prefix cache, with other chunk sizes or batches: their
        differences are noise.
    config
        Instead of URLs, a TOML file of configurations: the first recomputes, the control and all
        others without prefix cache are noise, the rest is judged.
    model
        Name in requests and launch commands; the server's own by default.
    reset
        Path of a POST that empties the cache, for servers without cache_salt, or whose answers
        depend on it.
    api_key_env
        Environment variable with the servers' key.
    documents
        Number of documents; each gives five hits.
    tokens
        Tokens of each answer.
    length
        Tokens of the longest prompt, or four times as many characters without token ids.
    at_once
        Requests beside each other in the passes with company.
    seed
        The same seed gives the same documents.
    alpha
        Probability that a correct server fails, at most.
    detect
        Share of wrong hits that a pass must exclude with 95 % confidence.
    exact
        The engine promises equal bits with and without a hit: every difference fails. Recomputed
        answers must repeat, which is checked first; else the run is inconclusive and names why.
    output
        Directory of the run's records and reports.

    """
    from kvproof.eval.divergence.records import Options
    from kvproof.harness.cli.actions import divergence as action

    return action.divergence(
        config=config,
        url=url,
        recompute_url=recompute_url,
        control_url=control_url or (),
        reset=reset,
        api_key_env=api_key_env,
        model=model,
        options=Options(
            documents=documents,
            tokens=tokens,
            most_tokens=length,
            at_once=at_once,
            seed=seed,
            alpha=alpha,
            detect=detect,
            exact=exact,
        ),
        output=output,
    )


@eval_app.command
def scbench(
    *,
    config: Path,
    data: Path | None = None,
    tasks: Annotated[
        list[ScbenchTask] | None, Parameter(consume_multiple=True, negative="")
    ] = None,
    modes: Annotated[
        list[ScbenchMode] | None, Parameter(consume_multiple=True, negative="")
    ] = None,
    sessions: int = 16,
    margin: float = 0.1,
    model: str = "",
    url: Urls = None,
    output: Path | None = None,
) -> int:
    """Ask several turns and requests about shared contexts, from the cache and recomputed.

    Parameters
    ----------
    config
        TOML file of configurations, for example eval/configs/scbench.toml; the first one
        recomputes.
    data
        Folder with the files of microsoft/SCBench; a generated miniature by default.
    tasks
        kv, prefix_suffix, vt, choice_eng; all by default.
    modes
        turns: one conversation with the server's own answers; requests: separate requests about one
        context; both by default.
    sessions
        Contexts of each task.
    margin
        Largest share of right answers, or with the rule texts of texts, whose loss a pass allows.
    model
        Name in requests and launch commands; the server's own by default.
    url
        A running server instead of a launch command, for example "off=http://127.0.0.1:8000/v1".
    output
        Directory of the run's records and reports.

    """
    from kvproof.eval.scbench.data import TASKS
    from kvproof.eval.scbench.records import MODES
    from kvproof.harness.cli.actions import eval as action

    return action.scbench(
        config=config,
        data=data,
        tasks=tasks or TASKS,
        modes=modes or MODES,
        sessions=sessions,
        margin=margin,
        model=model,
        url=url,
        output=output,
    )


@eval_app.command
def ruler(
    *,
    config: Path,
    data: Path | None = None,
    tasks: Annotated[list[RulerTask] | None, Parameter(consume_multiple=True, negative="")] = None,
    length: int = 4096,
    samples: int = 100,
    tokenizer: str = "",
    model: str = "",
    url: Urls = None,
    output: Path | None = None,
) -> int:
    """Run RULER through OpenCompass, cold and from the cache, and compare.

    OpenCompass generates the data sets, after kvproof eval install, once for all configurations.

    Parameters
    ----------
    config
        TOML file of configurations, for example eval/configs/ruler.toml.
    data
        Folder with the files of OpenCompass's ruler.zip: PaulGrahamEssays.jsonl, dev-v2.0.json,
        hotpotqa.json.
    tasks
        Tasks of RULER; by default all with --data, else the six that read no file.
    length
        Tokens of a prompt with its answer, at least 1024.
    samples
        Prompts of each task.
    tokenizer
        Folder of a Hugging Face tokenizer, or words; default: the model's folder, else words.
    model
        Name in requests and launch commands; the server's own by default.
    url
        A running server instead of a launch command, for example "off=http://127.0.0.1:8000/v1".
    output
        Directory of the run's records and reports; the same command resumes it.

    """
    from kvproof.harness.cli.actions import long_context as action

    return action.ruler(
        config=config,
        data=data,
        tasks=tasks or (),
        length=length,
        samples=samples,
        tokenizer=tokenizer,
        model=model,
        url=url,
        output=output,
    )


@eval_app.command
def mrcr(
    *,
    config: Path,
    data: Path | None = None,
    sets: Annotated[list[str] | None, SEVERAL] = None,
    samples: int = 50,
    model: str = "",
    url: Urls = None,
    output: Path | None = None,
) -> int:
    """Run MRCR through OpenCompass, cold and from the cache, and compare.

    Parameters
    ----------
    config
        TOML file of configurations, for example eval/configs/mrcr.toml.
    data
        A .parquet or .jsonl file of openai/mrcr, or a folder of giulio98/MRCR_v2_common, which
        OpenCompass's own data set reads; a synthetic miniature by default.
    sets
        Of a file 2needle, 4needle, 8needle, all by default; of a folder its data sets, by default
        those of OpenCompass's mrcr_v2_8k.
    samples
        Prompts of each set, at most.
    model
        Name in requests and launch commands; the server's own by default.
    url
        A running server instead of a launch command, for example "off=http://127.0.0.1:8000/v1".
    output
        Directory of the run's records and reports; the same command resumes it.

    """
    from kvproof.harness.cli.actions import long_context as action

    return action.mrcr(
        config=config,
        data=data,
        sets=sets or (),
        samples=samples,
        model=model,
        url=url,
        output=output,
    )


@eval_app.command
def install() -> None:
    """Build a separate environment for OpenCompass; immediate if it exists."""
    from kvproof.harness.cli.actions import eval as action

    action.install()


@eval_app.command
def compare(before: Path, after: Path, /, *, output: Path | None = None) -> int:
    """Compare the configurations of a run with the first one of an earlier run.

    Parameters
    ----------
    before
        Directory of the earlier run, for example of an older version; its control pair counts.
    after
        Directory of the later run, which must have the same questions.
    output
        Directory for comparison.json, report.md and report.html.

    """
    from kvproof.harness.cli.actions import eval as action

    return action.compare(before, after, output=output)


@eval_app.command
def generate(
    directory: Path, /, *, samples: int = 48, max_tokens: int = 8000, seed: int = 0
) -> None:
    """Write synthetic samples, data.json and shared.json, to a directory.

    Parameters
    ----------
    directory
        Directory of the two files.
    samples
        Number of samples; domains, lengths, difficulties and letters get equal shares.
    max_tokens
        Tokens of the longest document.
    seed
        The same seed gives the same bytes.

    """
    from kvproof.eval.run.generator import GeneratorOptions
    from kvproof.harness.cli.actions import eval as action

    options = GeneratorOptions(samples=samples, max_tokens=max_tokens, seed=seed)
    action.generate(directory, options)
