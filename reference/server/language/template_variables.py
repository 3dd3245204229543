"""Variables of a chat template that a request may set, read from the template itself."""

from __future__ import annotations

from typing import Any

RESERVED = frozenset(
    {"messages", "documents", "add_generation_prompt", "continue_final_message", "raise_exception",
     "strftime_now", "bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token",
     "mask_token", "image_token", "video_token", "audio_token", "boi_token", "eoi_token"}
)  # fmt: skip
"""Set by the server or by transformers."""


def settable(template: object) -> frozenset[str]:
    """Return the free variables of a Jinja template; none if it is no single template."""
    if not isinstance(template, str):
        return frozenset()
    import jinja2
    from jinja2 import meta

    language = jinja2.Environment(  # noqa: S701 - it is parsed, and never rendered
        extensions=["jinja2.ext.loopcontrols", _generation()]
    )
    try:
        names = meta.find_undeclared_variables(language.parse(template))
    except jinja2.TemplateError:
        return frozenset()
    return frozenset(names) - RESERVED


def _generation() -> Any:
    """Return the extension for the tag `generation`, which transformers adds to Jinja."""
    from jinja2.ext import Extension

    class Generation(Extension):
        tags = {"generation"}  # noqa: RUF012 - the form that Jinja asks for

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return Generation
