"""Prompts, truncation and extraction: nothing edited, nothing guessed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kvproof.eval.benchmark.data import Sample
from kvproof.eval.benchmark.extract import extract
from kvproof.eval.benchmark.prompts import (
    OWN,
    opencompass_prompts,
    own_prompts,
    read_prompts,
    rotated,
)
from kvproof.eval.benchmark.truncate import Truncation
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.harness.errors import UsageError

TEMPLATE = "Text: $DOC$\nQ: $Q$\n$C_A$|$C_B$|$C_C$|$C_D$"


def sample(**other: str) -> Sample:
    fields = {
        "id": "x",
        "domain": "Code Repository Understanding",
        "sub_domain": "Code repo QA",
        "difficulty": "easy",
        "length": "short",
        "question": "What is $C_A$?",
        "choice_a": "a1",
        "choice_b": "b2 $DOC$",
        "choice_c": "c3",
        "choice_d": "d4",
        "answer": "B",
        "context": "f'{choice_A} {idx} $Q$' \\1 \\g<0>",
    }
    return Sample(**fields | other)


def checkout(folder: Path, text: str = TEMPLATE) -> Path:
    (folder / "prompts").mkdir(parents=True)
    (folder / "prompts" / "0shot.txt").write_text(text)
    return folder


def test_no_field_edits_another(tmp_path: Path) -> None:
    each = sample()
    text = read_prompts(checkout(tmp_path)).render(each)
    assert text == f"Text: {each.context}\nQ: What is $C_A$?\na1|b2 $DOC$|c3|d4"


def test_the_own_prompt_holds_every_field_once() -> None:
    each = generate(GeneratorOptions(samples=1)).samples[0]
    prompts = own_prompts()
    text = prompts.render(each)
    assert prompts.name == OWN
    for part in (each.context, each.question, *(f") {choice}\n" for choice in each.choices)):
        assert text.count(part) == 1
    assert text.index(each.context) < text.index(each.question) < text.index("(A) ")
    assert extract(text) is None


def test_a_prompt_set_is_named_by_the_hash_of_its_file(tmp_path: Path) -> None:
    one = read_prompts(checkout(tmp_path / "a"))
    assert one.sha256 == hashlib.sha256(TEMPLATE.encode()).hexdigest()
    assert one.name == "0shot.txt"
    assert read_prompts(tmp_path / "a" / "prompts") == one
    assert read_prompts(checkout(tmp_path / "b", TEMPLATE + "\n")).sha256 != one.sha256


def test_official_prompts_are_stripped_own_ones_are_not(tmp_path: Path) -> None:
    each = sample(context="  x \n", question=" y ")
    assert read_prompts(checkout(tmp_path)).render(each).startswith("Text: x\nQ: y\n")
    assert "<document>\n  x \n\n</document>" in own_prompts().render(each)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEMPLATE.replace("$Q$", ""), r"has \$Q\$ 0 times, not once"),
        (TEMPLATE + "$DOC$", r"has \$DOC\$ 2 times, not once"),
    ],
)
def test_a_template_needs_every_placeholder_once(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_prompts(checkout(tmp_path, text))


FIRST = TEMPLATE + "\nThink:"
SECOND = "Q: $Q$\n$C_A$|$C_B$|$C_C$|$C_D$\nThought: $COT$\nLetter?"


def pair(folder: Path, second: str = SECOND) -> Path:
    checkout(folder)
    (folder / "prompts" / "0shot_cot.txt").write_text(FIRST)
    (folder / "prompts" / "0shot_cot_ans.txt").write_text(second)
    return folder


def test_a_pair_of_prompts_has_the_first_answer_in_its_second(tmp_path: Path) -> None:
    prompts = read_prompts(pair(tmp_path), cot=True)
    each = sample()
    assert prompts.render(each).endswith("\nThink:")
    text = prompts.render_second(each, "\n so $Q$, \\1 and $DOC$ \n")
    assert text == "Q: What is $C_A$?\na1|b2 $DOC$|c3|d4\nThought: so $Q$, \\1 and $DOC$\nLetter?"
    assert prompts.sha256 not in (read_prompts(tmp_path).sha256, hashlib.sha256(FIRST.encode()))
    changed = read_prompts(pair(tmp_path / "b", SECOND + " "), cot=True)
    assert changed.sha256 != prompts.sha256


def test_a_second_prompt_needs_the_thought(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"ans\.txt' has \$COT\$ 0 times, not once"):
        read_prompts(pair(tmp_path, SECOND.replace("$COT$", "")), cot=True)


CONFIG = """
from somewhere import Template

infer = dict(template=dict(type=Template, round=[dict(role='HUMAN', prompt='T {context} \\n'
    'Q {question} {choice_A} {choice_B} {choice_C} {choice_D} {length}')]))
"""


def test_the_prompt_of_opencompass_is_read_out_of_its_configuration(tmp_path: Path) -> None:
    path = tmp_path / "longbench_gen.py"
    path.write_text(CONFIG)
    prompts = opencompass_prompts(path)
    each = sample(context=" {question} {choice_A} ")
    assert prompts.name == "OpenCompass longbench_gen"
    assert prompts.render(each) == (
        "T  {question} {choice_A}  \nQ What is $C_A$? a1 b2 $DOC$ c3 d4 {length}"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = (", "cannot read"),
        ("x = dict(other='y')", "has 0 prompts, not one"),
        (CONFIG.replace("{choice_B}", ""), r"has \$C_B\$ 0 times"),
    ],
)
def test_another_configuration_of_opencompass_is_refused(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "config.py").write_text(text)
    with pytest.raises(UsageError, match=message):
        opencompass_prompts(tmp_path / "config.py")


def test_a_missing_checkout_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read the prompt '.*0shot\.txt'") as caught:
        read_prompts(tmp_path)
    assert "THUDM/LongBench" in caught.value.hint


def test_rotation_moves_choices_and_answer_together() -> None:
    each = sample()
    assert rotated(each).choices == ("d4", "a1", "b2 $DOC$", "c3")
    for by in range(5):
        turned = rotated(each, by)
        assert turned.choices["ABCD".index(turned.answer)] == "b2 $DOC$"
        assert (turned.context, turned.question) == (each.context, each.question)
    assert rotated(each, 4) == each


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("The correct answer is (C)", "C"),
        ("**The correct answer is (B)**.", "B"),
        ("The correct answer is **(D)**", "D"),
        ("The correct answer is A", "A"),
        ("Not The correct answer is B, but The correct answer is (D)", "D"),
        ("The correct answer is (A) or The correct answer is (B)", "A"),
        ("The correct answer is (insert answer here)", None),
        ("The correct answer is (E)", None),
        ("the correct answer is (A)", None),
        ("Correct answer is B", None),
        ("The correct answer is b", None),
        ("The correct answer is: (A)", None),
        ("Based on the text, it is unclear.", None),
        ("According to the document (A)", None),
        ("Der Text", None),
        ("", None),
        ("The correct answer is\n(A)", None),
    ],
)
def test_only_the_two_official_rules_find_an_answer(text: str, letter: str | None) -> None:
    assert extract(text) == letter


def test_a_long_prompt_loses_its_middle() -> None:
    cut = Truncation("bytes", 10).apply("0123456789abcdef")
    assert cut == ("01234bcdef", True)
    assert Truncation("bytes", 5).apply("0123456789") == ("01789", True)
    assert Truncation("bytes", 16).apply("0123456789abcdef") == ("0123456789abcdef", False)
    assert Truncation("bytes", 1).apply("0123") == ("3", True)
    assert Truncation("bytes", 3).apply("aéüb") == ("a\ufffdb", True)


def test_without_a_limit_nothing_is_cut() -> None:
    assert Truncation().apply("x" * 1000) == ("x" * 1000, False)
    assert Truncation().rule == "none"
    assert Truncation("bytes", 7).rule == "first and last half of 7 tokens of bytes"


@pytest.mark.parametrize(("name", "most"), [("bytes", 0), ("", 9), ("bytes", -1)])
def test_half_a_truncation_is_refused(name: str, most: int) -> None:
    with pytest.raises(UsageError, match="do not fit together"):
        Truncation(name, most)


def test_a_tokenizer_file_is_read_by_tokenizers(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="the extra eval is not installed")
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    cutting = Truncation(str(tmp_path / "tokenizer.json"), 3)
    assert cutting.apply("a b c d e") == ("a d e", True)
    assert cutting.rule.startswith("first and last half of 3 tokens of tokenizer.json ")
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot read the tokenizer"):
        Truncation(str(tmp_path / "broken.json"), 3)
