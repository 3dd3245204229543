"""Fields of a `config.json`, read with a message for each that is missing or makes no sense."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, TypeVar

from kvproof.reference.planner.layer_spec import DTYPES, Part, PlanError

_ALIASES = {"float8_e4m3fn": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "half": "float16"}

SCALED = {"fp8_per_token_head": 8, "int8_per_token_head": 8, "int4_per_token_head": 4}
"""Dtype with a float32 scale for each token and head -> bits of a value."""
KV_DTYPES = ("auto", "bfloat16", "float16", "float32", "fp8", "fp8_ds_mla", *SCALED)
"""`fp8_ds_mla`: fp8 values of a DeepSeek latent, their scales, and 64 bfloat16 values."""

LARGEST = (1 << 31) - 1
"""Largest value of any field; the longest context today is below a hundredth of it."""
MOST_LAYERS = 1_000
"""The deepest published model has a tenth of it; a plan for this many took 20 CPU seconds."""

_DS_MLA_BYTES = 656
_V4_BYTES = 584
"""448 fp8 values, 64 bfloat16 ones, 7 scales and a byte of zero."""
_SCALE_BYTES = 4


_Listed = TypeVar("_Listed", bound=Sized)


class Fields:
    """One text model's configuration. Numbers must be whole and not negative."""

    def __init__(self, family: str, config: Mapping[str, Any], kv_dtype: str = "auto") -> None:
        self.family = family
        self._config = config
        self.dtype = self._model_dtype()
        self.notes: list[str] = []
        if kv_dtype not in KV_DTYPES:
            raise PlanError(f"kv dtype {kv_dtype!r} is not known", f"one of {', '.join(KV_DTYPES)}")
        self.kv_dtype = self.dtype if kv_dtype == "auto" else kv_dtype

    def _model_dtype(self) -> str:
        """Return the dtype of the weights, which is the default of the cache."""
        name = self._config.get("dtype") or self._config.get("torch_dtype") or "bfloat16"
        dtype = _ALIASES.get(str(name), str(name)).removeprefix("torch.")
        return self._known(dtype)

    def _known(self, dtype: str) -> str:
        if dtype not in DTYPES:
            raise PlanError(f"dtype {dtype!r} is not known", f"one of {', '.join(DTYPES)}")
        return dtype

    def whole(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return a whole number; `default` where the field is missing or null."""
        value: Any = self._config.get(name)
        if value is None and default is not None:
            return default
        most = MOST_LAYERS if name.endswith("layers") else LARGEST
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (whole and least <= value <= most):
            rule = f"a whole number, at least {least}" + (f" and at most {most}" if whole else "")
            raise self.wrong(name, value, rule)
        return int(value)

    def count(self, name: str, default: int | None = None) -> int:
        """Return a whole number of at least 1."""
        return self.whole(name, default, least=1)

    def text(self, name: str, default: str) -> str:
        """Return a string."""
        value = self._config.get(name)
        return self._short(name, value) if isinstance(value, str) else default

    def given(self, name: str) -> bool:
        """Return whether a field is present and true."""
        return bool(self._config.get(name))

    def names(self, name: str) -> list[str] | None:
        """Return a list of strings, None where it is missing."""
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, value, "a list of names")
        return self._short(name, value)

    def numbers(self, name: str) -> list[int] | None:
        """Return a list of whole numbers, None where it is missing."""
        value = self._config.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int) for item in value):
            raise self.wrong(name, value, "a list of whole numbers")
        return self._short(name, value)

    def _short(self, name: str, value: _Listed) -> _Listed:
        """Return a list or text with one item per layer."""
        if len(value) > MOST_LAYERS:
            raise PlanError(
                f"{name} of {self.family!r} has {len(value):,} entries, at most {MOST_LAYERS:,}",
                "correct the file",
            )
        return value

    def inner(self, name: str) -> Fields:
        """Return the fields of an object inside; empty where it is missing."""
        value = self._config.get(name)
        return Fields(self.family, value if isinstance(value, dict) else {}, self.kv_dtype)

    def wrong(self, name: str, value: object, rule: str) -> PlanError:
        """Return the error for one field."""
        if value is None:
            return PlanError(f"config of {self.family!r} has no {name!r}", f"{name} must be {rule}")
        return PlanError(f"{name} {value!r} of {self.family!r} must be {rule}", "correct the file")

    # --- parts ---

    def heads(self) -> tuple[int, int]:
        """Return key-value heads and the elements of one head."""
        query = self.count("num_attention_heads")
        heads = self.divisor("num_key_value_heads", of="num_attention_heads", default=query)
        if width := self.count("head_dim", 0):
            return heads, width
        self.divisor("num_attention_heads", of="hidden_size")
        return heads, self.count("hidden_size") // query

    def divisor(self, name: str, *, of: str, default: int | None = None) -> int:
        """Return a whole number that divides another field."""
        found, whole = self.count(name, default), self.count(of)
        if whole % found:
            raise self.wrong(name, found, f"a divisor of {of}, {whole}")
        return found

    def keys_and_values(self, heads: int, width: int, values: int = 0) -> tuple[Part, ...]:
        """Return the parts of ordinary attention; `values`: elements of a value head."""
        widths = {"k": width, "v": values or width}
        if bits := SCALED.get(self.kv_dtype):
            packed = {name: self._packed(each, bits) for name, each in widths.items()}
            own = tuple(Part(name, heads, each, "uint8") for name, each in packed.items())
            return (*own, *(Part(f"{name}_scale", heads, 1, "float32") for name in widths))
        dtype = self._attention_dtype()
        return tuple(Part(name, heads, each, dtype) for name, each in widths.items())

    def _packed(self, width: int, bits: int) -> int:
        """Return the bytes of one head's values."""
        if width * bits % 8:
            raise PlanError(
                f"{self.kv_dtype} packs two values a byte, and a head has {width}",
                "choose --kv-dtype int8_per_token_head or fp8_per_token_head",
            )
        return width * bits // 8

    def latent(self) -> Part:
        """Return the part of latent attention, the same on every rank."""
        rank, rope = self.count("kv_lora_rank"), self.count("qk_rope_head_dim")
        self._refuse_scaled()
        if self.kv_dtype == "fp8_ds_mla":
            if (rank, rope) != (512, 64):
                raise PlanError(
                    f"fp8_ds_mla holds a latent of 512 + 64 values, not {rank} + {rope}",
                    "choose --kv-dtype fp8 or bfloat16",
                )
            return Part("latent", 1, _DS_MLA_BYTES, "uint8", replicated=True)
        return Part("latent", 1, rank + rope, self.kv_dtype, replicated=True)

    def compressed(self) -> Part:
        """Return one entry of DeepSeek V4, the same on every rank."""
        width = self.count("head_dim", 512)
        self._refuse_scaled()
        if self.kv_dtype != "fp8_ds_mla":
            return Part("latent", 1, width, self.kv_dtype, replicated=True)
        if width != 512:
            raise PlanError(
                f"fp8_ds_mla holds entries of 512 values, not {width}",
                "choose --kv-dtype fp8 or bfloat16",
            )
        return Part("latent", 1, _V4_BYTES, "uint8", replicated=True)

    def _refuse_scaled(self) -> None:
        if self.kv_dtype in SCALED:
            raise PlanError(
                f"{self.kv_dtype} is for key and value heads, {self.family!r} has a latent",
                "choose --kv-dtype fp8_ds_mla, fp8 or bfloat16",
            )

    def indexer(self) -> Part:
        """Return the side cache of the indexer: fp8 keys with one scale."""
        width = self.count("index_head_dim", 128) + _SCALE_BYTES
        return Part("indexer", 1, width, "uint8", replicated=True)

    def _attention_dtype(self) -> str:
        if self.kv_dtype == "fp8_ds_mla":
            raise PlanError(
                f"fp8_ds_mla is for latent attention, {self.family!r} has key and value heads",
                "choose --kv-dtype fp8 or bfloat16",
            )
        return self.kv_dtype
