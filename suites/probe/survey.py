"""Finds out a server's model, the form of its prompts, and the content of its answers."""

from __future__ import annotations

from typing import Any

from kvproof.harness.errors import UsageError
from kvproof.harness.served.documented import UNKNOWN, request_fields
from kvproof.suites.probe.answers import Answer, NoAnswer, decoded, whole
from kvproof.suites.probe.content import HEAD, Form, Turn, fresh, prompt_of
from kvproof.suites.probe.facts import ENGINE_RULES, Facts
from kvproof.suites.probe.server_connection import ServerConnection, ServerUnreachable

_ALTERNATIVES = (5, 1)
"""Numbers of log-probabilities per token to try: some servers allow few."""
_SHOWN = 200
"""Most characters of an unexpected answer in a message."""
_NO_DOCUMENT = (NoAnswer, ServerUnreachable, AttributeError, KeyError, TypeError, ValueError)


def survey(line: ServerConnection, *, url: str, model: str = "") -> Facts:
    """Fetch the model and send a few prompts.

    Raises UsageError, NoAnswer, BudgetExhausted, ServerUnreachable.
    """
    models = _models(line, url, model)
    listed = next(iter(models), {})
    name = model or str(listed.get("id"))
    form, missing = _form(line, name)
    base = {"model": name, "temperature": 0, "max_tokens": 1}
    asking = _Asking(line, form, base)
    owner = str(listed.get("owned_by") or "").lower()
    documented = _documented(line, asking)
    logprobs = asking.first_taken(_logprobs_of(form))
    ids = {"return_token_ids": True} if asking.tells_ids() else {}
    missing |= _missing(logprobs, documented, form)
    longest, reported = _longest(listed)
    missing |= reported
    return Facts(
        model=name,
        form=form,
        engine=owner if owner in ENGINE_RULES else owner or "unknown",
        version=_version(line),
        longest=longest,
        fields=logprobs | ids,
        long_fields={"ignore_eos": True} if "ignore_eos" in documented else {},
        logprobs=bool(logprobs),
        token_ids=bool(ids),
        salts="cache_salt" in documented,
        metrics=_answers(line, "/metrics"),
        adapters=tuple(str(e["id"]) for e in models[1:] if e.get("parent") == name),
        missing=missing,
    )


def served(line: ServerConnection, *, url: str, model: str = "") -> str:
    """Return the name of a server's model. Raises UsageError."""
    return model or str(_models(line, url, "")[0].get("id"))


class _Asking:
    """Tries fields with fresh prompts."""

    def __init__(self, line: ServerConnection, form: Form, base: dict[str, Any]) -> None:
        self._line, self._form, self._base = line, form, base
        self.path = "/chat/completions" if form == "chat" else "/completions"

    def ask(self, fields: dict[str, Any]) -> Answer:
        prompt = prompt_of(self._form, [Turn(fresh(HEAD))])
        return _post(self._line, self.path, self._base | prompt | fields)

    def takes(self, fields: dict[str, Any]) -> bool:
        """Return whether a request with these fields is accepted."""
        try:
            self.ask(fields)
        except NoAnswer as trouble:
            if trouble.trouble != "refused":
                raise
            return False
        return True

    def first_taken(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the first fields whose answer has log-probabilities."""
        for fields in choices:
            try:
                if self.ask(fields).tokens:
                    return fields
            except NoAnswer as trouble:
                if trouble.trouble != "refused":
                    raise
        return {}

    def tells_ids(self) -> bool:
        try:
            return bool(self.ask({"return_token_ids": True}).ids)
        except NoAnswer as trouble:
            if trouble.trouble != "refused":
                raise
            return False


def _logprobs_of(form: Form) -> list[dict[str, Any]]:
    if form == "chat":
        return [{"logprobs": True, "top_logprobs": count} for count in _ALTERNATIVES]
    return [{"logprobs": count} for count in _ALTERNATIVES]


def _longest(listed: dict[str, Any]) -> tuple[int, dict[str, str]]:
    reported = listed.get("max_model_len")
    longest = whole(reported) or 0
    if reported is None or longest > 0:
        return longest, {}
    return 0, {"longest prompt": f"max_model_len is {reported!r}, which is no length"[:_SHOWN]}


def _missing(logprobs: dict[str, Any], documented: set[str], form: Form) -> dict[str, str]:
    found = {}
    if not logprobs:
        found["log-probabilities"] = "the server returns none, so only texts are compared"
    if "cache_salt" not in documented:
        found["salts"] = "neither openapi.json nor a refusal of unknown fields documents cache_salt"
    if form != "ids":
        found["exact lengths"] = "prompts are text, whose tokens only the server can count"
    return found


def _post(
    line: ServerConnection, path: str, body: dict[str, Any], *, optional: bool = False
) -> Answer:
    """Send, and once more after a failure; a refusal is final."""
    try:
        return line.post(path, body, optional=optional)
    except NoAnswer as trouble:
        if trouble.trouble == "refused":
            raise
    return line.post(path, body, optional=optional)


# --- the model ---


def _models(line: ServerConnection, url: str, model: str) -> list[dict[str, Any]]:
    """Return the listed models, the chosen one first; none where a given model needs no list."""
    try:
        data = line.get("/models")
    except (NoAnswer, ServerUnreachable) as trouble:
        if getattr(trouble, "status", 0) not in (0, 401, 403) and model:
            return []  # `transformers serve` fails with 500 where no hub's cache exists
        raise _usage(trouble, url) from None
    try:
        listed = [each for each in decoded(data)["data"] if each["id"]]
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{url}/models lists no models: this is no server of OpenAI's interface",
            "give the address that its clients have, for example http://127.0.0.1:8000/v1",
        ) from None
    chosen = [each for each in listed if not model or each["id"] == model]
    if model and not listed:
        return []  # `transformers serve` lists no local folders, and serves them
    if not chosen:
        names = ", ".join(str(each["id"]) for each in listed) or "none"
        raise UsageError(f"{url} serves no model {model!r}", f"it serves: {names}")
    return [chosen[0], *(each for each in listed if each is not chosen[0])]


def _usage(trouble: Exception, url: str) -> UsageError:
    status = getattr(trouble, "status", 0)
    if status in (401, 403):
        return UsageError(
            f"{url} wants another key: {trouble}",
            "put it into the variable KVPROOF_PROBE_KEY, or use --api-key",
        )
    if status in (404, 405):
        return UsageError(
            f"{url}/models is not there: {trouble}",
            "give the address that its clients have, for example http://127.0.0.1:8000/v1",
        )
    if status:
        return UsageError(f"{url}/models cannot be read: {trouble}", "is the server ready?")
    return UsageError(
        f"no server answers at {url}: {trouble}", "is it running, and the port right?"
    )


# --- the form of prompts ---


def _form(line: ServerConnection, model: str) -> tuple[Form, dict[str, str]]:
    """Return the most exact form that is accepted, and why no more exact one is.

    Ids are accepted if they are counted: LMDeploy answers them with errors under status 200.
    """
    why: dict[str, str] = {}
    turn = Turn(fresh(HEAD))
    for form in ("ids", "text", "chat"):
        path = "/chat/completions" if form == "chat" else "/completions"
        body = {"model": model, "temperature": 0, "max_tokens": 1} | prompt_of(form, [turn])
        try:
            answer = _post(line, path, body, optional=form == "ids")
        except NoAnswer as trouble:
            if trouble.trouble != "refused" or trouble.status in (401, 403):
                raise
            why[f"prompts as {form}"] = str(trouble)
            continue
        if form != "ids" or answer.prompt == HEAD:
            return form, why
        why["prompts as ids"] = f"{HEAD} ids were counted as {answer.prompt} prompt tokens"
    raise UsageError(
        f"the server refuses every form of prompt: {list(why.values())[-1]}",
        "kvproof probe needs /v1/completions or /v1/chat/completions",
    )


# --- documented fields ---


def _documented(line: ServerConnection, asking: _Asking) -> set[str]:
    wanted: dict[str, Any] = {"cache_salt": "kvproof", "ignore_eos": True}
    schema = _schema(line, asking.path)
    if schema:
        return {name for name in wanted if name in schema and asking.takes({name: wanted[name]})}
    if asking.takes({UNKNOWN: True}):
        return set()
    return {name for name, value in wanted.items() if asking.takes({name: value})}


def _schema(line: ServerConnection, path: str) -> frozenset[str]:
    """Return the fields of a request by `openapi.json`; empty without one."""
    try:
        return request_fields(decoded(line.get("/openapi.json", whole=True)), f"/v1{path}")
    except _NO_DOCUMENT:
        return frozenset()


def _version(line: ServerConnection) -> str:
    try:
        return str(decoded(line.get("/version", whole=True))["version"])
    except _NO_DOCUMENT:
        return ""


def _answers(line: ServerConnection, path: str) -> bool:
    try:
        return b"\n" in line.get(path, whole=True)
    except (NoAnswer, ServerUnreachable):
        return False
