"""Answers as OpenAI's clients read them: whole ones, and chunks of a stream."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kvproof.reference.server.language.language import Language, Prepared, Score
from kvproof.reference.server.request_options import RequestOptions
from kvproof.reference.server.writer import Piece, joined

Json: TypeAlias = dict[str, Any]


class Format:
    """One response: `chat` or a completion."""

    def __init__(
        self,
        options: RequestOptions,
        prepared: Sequence[Prepared],
        language: Language,
        *,
        model: str,
        chat: bool,
    ) -> None:
        self.options, self._prepared, self._language = options, prepared, language
        self._n = options.n
        """Choices of each prompt, one after the other."""
        self._chat = chat
        self.id = f"{'chatcmpl' if chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._kind = "chat.completion" if chat else "text_completion"
        self._head = {"created": int(time.time()), "model": model}
        self._detokenizers = [language.detokenizer() for _ in range(options.answers)]
        self._offsets = [0] * options.answers
        """Characters of each choice that logprobs have covered."""

    def whole(self, answers: Sequence[Sequence[Piece]]) -> Json:
        """Return the body of an answer that is not streamed."""
        pieces = [joined(answer) for answer in answers]
        choices = [self._choice(index, piece, first=True) for index, piece in enumerate(pieces)]
        body = self._envelope(self._kind, choices) | {"usage": self.usage(pieces)}
        if self._chat and self.options.prompt_logprobs is not None:
            body["prompt_logprobs"] = self._prompt_logprobs(pieces[0])
        return body

    def chunks(self, index: int, piece: Piece, *, first: bool) -> list[Json]:
        """Return the next chunks of a stream; none for a token without complete text."""
        found = []
        if first and self._chat:
            role = {"role": "assistant", "content": ""}
            found.append({"index": index, "delta": role, "logprobs": None, "finish_reason": None})
        silent = not (piece.text or piece.scores or piece.finish or self.options.token_ids)
        if not silent or (first and self.options.echo):
            found.append(self._choice(index, piece, first=first, stream=True))
        kind = "chat.completion.chunk" if self._chat else self._kind
        usage = {"usage": None} if self.options.usage else {}
        return [self._envelope(kind, [choice]) | usage for choice in found]

    def last_chunk(self, pieces: Sequence[Piece]) -> Json:
        """Return the chunk with the usage of the whole stream."""
        kind = "chat.completion.chunk" if self._chat else self._kind
        return self._envelope(kind, []) | {"usage": self.usage(pieces)}

    def _envelope(self, kind: str, choices: Sequence[Json]) -> Json:
        return {"id": self.id, "object": kind, **self._head, "choices": choices}

    def usage(self, pieces: Sequence[Piece]) -> Json:
        """Sum up; each piece holds all tokens of its answer. A prompt counts once, with n too."""
        prompt = sum(len(each.tokens) for each in self._prepared)
        generated = sum(len(piece.tokens) for piece in pieces)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {
                "cached_tokens": sum(piece.cached for piece in pieces[:: self._n])
            },
        }

    # --- one choice ---

    def _choice(self, index: int, piece: Piece, *, first: bool, stream: bool = False) -> Json:
        choice: Json = {"index": index, "finish_reason": piece.finish or None}
        if self._chat and stream:
            choice["delta"] = {"content": piece.text} if piece.text else {}
        elif self._chat:
            choice["message"] = {"role": "assistant", "content": piece.text, "refusal": None}
        else:
            choice["text"] = (self._echo(index) if first else "") + piece.text
        choice["logprobs"] = self._logprobs(index, piece, first=first)
        return choice | self._extras(index, piece, first=first)

    def _extras(self, index: int, piece: Piece, *, first: bool) -> Json:
        extras: Json = {}
        if not self._chat and self.options.prompt_logprobs is not None:
            extras["prompt_logprobs"] = self._prompt_logprobs(piece)
        if self.options.token_ids:
            extras["token_ids"] = piece.tokens
            if first:
                extras["prompt_token_ids"] = self._prepared[index // self._n].tokens
        if self.options.experts and piece.experts is not None:
            rows, missing = piece.experts
            extras["routed_experts"] = {"rows": rows.tolist(), "missing": missing}
        return extras

    def _echo(self, index: int) -> str:
        if not self.options.echo:
            return ""
        prompt = self.options.prompts[index // self._n]
        if isinstance(prompt, str):
            return prompt
        detokenizer = self._language.detokenizer()
        text = "".join(detokenizer.add(token) for token in self._prepared[index // self._n].tokens)
        return text + detokenizer.end()

    # --- log-probabilities ---

    def _logprobs(self, index: int, piece: Piece, *, first: bool) -> Json | None:
        if self.options.sampling.top_logprobs is None:
            return None
        if self._chat:
            return {"content": [self._chat_score(each) for each in piece.scores], "refusal": None}
        scores: list[Score | int] = [*piece.scores]
        if first and self.options.echo and self.options.sampling.prompt_logprobs is not None:
            scores = [self._prepared[index // self._n].tokens[0], *piece.prompt_scores, *scores]
        return self._completion_scores(index, scores)

    def _chat_score(self, score: Score) -> Json:
        top = [self._chance(token, logprob) for token, logprob in score.top]
        return self._chance(score.token, score.logprob) | {"top_logprobs": top}

    def _chance(self, token: int, logprob: float) -> Json:
        data = self._language.token_bytes(token)
        return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}

    def _completion_scores(self, index: int, scores: Sequence[Score | int]) -> Json:
        """Write the four lists; a bare token has no log-probability: the first of a prompt."""
        tokens = [each if isinstance(each, int) else each.token for each in scores]
        texts = [self._name(token) for token in tokens]
        offsets = []
        for token in tokens:
            offsets.append(self._offsets[index])
            self._offsets[index] += len(self._detokenizers[index].add(token))
        return {
            "tokens": texts,
            "token_logprobs": [None if isinstance(each, int) else each.logprob for each in scores],
            "top_logprobs": [None if isinstance(each, int) else self._top(each) for each in scores],
            "text_offset": offsets,
        }

    def _top(self, score: Score) -> Mapping[str, float]:
        top = score.top[: self.options.sampling.top_logprobs]
        return {self._name(token): logprob for token, logprob in top}

    def _prompt_logprobs(self, piece: Piece) -> list[Json | None]:
        """Write vLLM's list: token id -> chance, of the token itself and of its alternatives."""
        return [None, *map(self._alternatives, piece.prompt_scores)]

    def _alternatives(self, score: Score) -> Json:
        top = score.top[: self.options.prompt_logprobs]
        ranked = [(score.token, score.logprob, score.rank)]
        ranked += [(token, logprob, rank) for rank, (token, logprob) in enumerate(top, 1)]
        return {str(token): self._ranked(token, logprob, rank) for token, logprob, rank in ranked}

    def _ranked(self, token: int, logprob: float, rank: int) -> Json:
        text = self._language.token_bytes(token).decode(errors="replace")
        return {"logprob": logprob, "rank": rank, "decoded_token": text}

    def _name(self, token: int) -> str:
        """Write a token without text as OpenAI does, and one without bytes by its id."""
        data = self._language.token_bytes(token)
        if not data:
            return f"token_id:{token}"
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
