"""Any local folder in the layout of Hugging Face -> a model, its tokenizer, its chat template."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoConfig, AutoImageProcessor, AutoProcessor, AutoTokenizer

from kvproof.reference.model_runner.families import TESTED, TESTED_WITH, check_family
from kvproof.reference.model_runner.self_check import SelfCheck, require, self_check
from kvproof.reference.model_runner.specs import UnsupportedModel


class Loaded(NamedTuple):
    """A model that is ready to run."""

    model: Any
    tokenizer: Any | None
    """None if the folder holds none: prompts are then token ids."""
    processor: Any | None
    """Turns images into inputs of the model; None for models without."""
    check: SelfCheck | None
    """None if it was not requested."""

    @property
    def family(self) -> str:
        """`model_type` of the model."""
        return str(self.model.config.model_type)

    @property
    def tested(self) -> bool:
        """Return whether the parity suite has a model of this family."""
        return self.family in TESTED

    @property
    def notes(self) -> tuple[str, ...]:
        """Return lines for people: the parts tested for this family, and those that were not."""
        version = f"transformers {transformers.__version__}"
        if self.tested:
            tested = f"parity suite with transformers {' and '.join(TESTED_WITH)}; now {version}"
        else:
            tested = f"not in the parity suite, only the self-check covers it; {version}"
        check = self.check or SelfCheck(self.family, (), ("everything: it was not asked for",))
        missed = [*check.missed, *([f"images: {check.images}"] if check.images else ())]
        lines = [f"family {self.family}: {tested}"]
        if check.findings:
            lines.append(f"self-check: {'; '.join(each.text for each in check.findings)}")
        return (*lines, *(f"not checked: {each}" for each in missed))

    @property
    def chats(self) -> bool:
        """Return whether the folder has a chat template."""
        return bool(self.template)

    @property
    def template(self) -> Any:
        """Return the chat template: a text, several by name, or None."""
        return getattr(self.processor or self.tokenizer, "chat_template", None)

    def chat(self, messages: list[dict[str, Any]], **variables: Any) -> list[int]:
        """Turn messages into token ids, ready for the answer. Raises UnsupportedModel.

        `variables`: `tools` and others that the template reads.
        """
        if not self.chats or self.tokenizer is None:
            raise UnsupportedModel("the folder has no chat template: use plain completions")
        text = self.tokenizer.apply_chat_template(
            messages,
            chat_template=self.template,
            tokenize=False,
            add_generation_prompt=True,
            **variables,
        )
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def load(
    folder: str | Path,
    *,
    dtype: torch.dtype | str = "auto",
    device: str | torch.device = "cpu",
    check: bool = True,
) -> Loaded:
    """Load a folder from the disk; nothing is downloaded and no code in it is run.

    `check` runs the self-check of the family on these weights. Raises UnsupportedModel, with the
    reason and the families that are tested.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise UnsupportedModel(
            f"{path} is no folder of a model: it has no config.json; for example a folder that "
            "save_pretrained has written, or a snapshot of a repository"
        )
    model = _model(path, dtype).to(device).eval()
    tokenizer = _optional(AutoTokenizer, path, "tokenizer_config.json", "tokenizer.json")
    processor, why = _processor(path, tokenizer, model.config)
    found = self_check(model, processor) if check else None
    if found:
        found = found._replace(images=why or found.images)
        require(found)
    return Loaded(model, tokenizer, processor, found)


def _model(path: Path, dtype: torch.dtype | str) -> Any:
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
    except (ValueError, KeyError) as error:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} does not know the model in {path}: {error}; "
            f"tested are {', '.join(TESTED)}"
        ) from error
    except MemoryError:
        raise
    except Exception as error:  # transformers raises any error for a damaged file
        raise UnsupportedModel(
            f"{path}/config.json cannot be used: {_short(error)}; tested are {', '.join(TESTED)}"
        ) from error
    check_family(config)
    name = config.architectures[0]
    make = getattr(transformers, name, None)
    if make is None:
        raise UnsupportedModel(
            f"transformers {transformers.__version__} has no {name}; code that a folder brings "
            f"along is not run; tested are {', '.join(TESTED)}"
        )
    try:
        return make.from_pretrained(path, dtype=dtype, local_files_only=True)
    except Exception as error:
        raise UnsupportedModel(
            f"the weights in {path} cannot be loaded: {_short(error)}; are all files of the folder "
            "there, and whole?"
        ) from error


def _optional(make: Any, path: Path, *names: str) -> Any | None:
    if not any((path / name).is_file() for name in names):
        return None
    return make.from_pretrained(path, local_files_only=True)


def _processor(path: Path, tokenizer: Any | None, config: Any) -> tuple[Any | None, str]:
    """Load the image processor, even if its video part lacks a package; else say why not."""
    names = ("preprocessor_config.json", "processor_config.json")
    placeholder = getattr(config, "image_token_id", None)
    try:
        return _optional(AutoProcessor, path, *names), ""
    except ImportError as error:
        reason = " ".join(str(error).split())
    except Exception as error:  # noqa: BLE001 - processors raise any error for their files
        return None, f"the image processor cannot be loaded: {_short(error)}"
    try:
        return StillImages(str(path), tokenizer, placeholder, reason), ""
    except Exception as error:  # noqa: BLE001 - text is served without its images
        return None, str(error) if isinstance(error, UnsupportedModel) else _short(error)


def _short(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


class StillImages:
    """As much of a processor as a chat with images needs, where there is no torchvision.

    The processors of several families read videos as well, which takes torchvision. Images alone do
    not: their pixels come from the family's image processor, and each one's placeholder in the
    template is repeated once for each of its tokens.
    """

    def __init__(self, folder: str, tokenizer: Any, placeholder: int | None, reason: str) -> None:
        """`placeholder`: token of an image; `reason`: why images are not supported.

        Raises UnsupportedModel if the token count of an image is unknown for the family.
        """
        self.image_processor = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        self._merged = getattr(self.image_processor, "merge_size", 0) ** 2
        if placeholder is None or tokenizer is None or not self._merged:
            raise UnsupportedModel(f"the processor of this model cannot be made: {reason}")
        self._tokenizer, self._placeholder = tokenizer, placeholder

    @property
    def chat_template(self) -> str | None:
        """See the tokenizer's."""
        template: str | None = self._tokenizer.chat_template
        return template

    def apply_chat_template(
        self, turns: Sequence[dict[str, Any]], **options: Any
    ) -> dict[str, list[list[int]]]:
        """Return `input_ids` of one chat, a list in a list; `options` as in transformers."""
        options |= {"tokenize": False, "return_dict": False}
        text = self._tokenizer.apply_chat_template(turns, **options)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        images = [part["image"] for turn in turns for part in turn["content"] if "image" in part]
        return {"input_ids": [list(self._repeated(ids, images))]}

    def _repeated(self, ids: Sequence[int], images: Sequence[Any]) -> Iterator[int]:
        left = iter(images)
        for token in ids:
            image = next(left, None) if token == self._placeholder else None
            yield from [token] * (1 if image is None else self._tokens(image))

    def _tokens(self, image: Any) -> int:
        width, height = image.size
        patches: int = self.image_processor.get_number_of_image_patches(height, width, {})
        return patches // self._merged
