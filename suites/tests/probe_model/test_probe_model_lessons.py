"""What the probe model is taught: the text as it will be asked, with targets that are true."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from kvproof.eval.benchmark.extract import extract
from kvproof.eval.benchmark.fact_base import draw_facts
from kvproof.eval.benchmark.prompts import own_prompts
from kvproof.eval.benchmark.shapes import SHAPES
from kvproof.eval.run.generator import GeneratorOptions, generate
from kvproof.suites.tests.evaluation.eval_reader import read
from kvproof.suites.tests.lab.probe_model.sequence_writer import (
    CHOICE,
    DRILL,
    EASY,
    EASY_VALUE,
    HARD,
    HARD_VALUE,
    KEEPER,
    LIST,
    NONE,
    NOTE,
    RECITAL,
    Lesson,
    SequenceWriter,
)
from kvproof.suites.tests.lab.probe_model.synthetic_tasks import FOUND, choices_task, keepers_task
from kvproof.suites.tests.lab.probe_model.training_data import LEVELS, lesson
from kvproof.suites.tests.lab.probe_model.vocabulary import (
    SPECIAL,
    byte_letters,
    encode,
    ids,
    pieces,
    words,
)

TEXT = {number: text for text, number in ids().items()}
SAMPLES = generate(GeneratorOptions(samples=48, max_tokens=2000, seed=3)).samples


def text_of(tokens: list[int]) -> str:
    return "".join(TEXT[token] for token in tokens)


def test_the_vocabulary_has_every_byte_and_no_word_twice() -> None:
    assert len(set(words())) == len(words()) < 2**15
    assert words()[: len(SPECIAL)] == SPECIAL
    assert set(byte_letters()) <= set(words())


def test_every_prompt_of_other_seeds_is_of_words_that_are_known() -> None:
    for sample in SAMPLES:
        prompt = own_prompts().render(sample)
        assert "".join(pieces(prompt)) == prompt
        assert text_of(encode(prompt)) == prompt


def test_names_are_one_token_each() -> None:
    assert len(encode("The amber badger is kept by Banor.")) == 8


@pytest.fixture(scope="module", params=range(16))
def drawn(request: pytest.FixtureRequest) -> Lesson:
    rng = random.Random(request.param)
    return lesson(rng, LEVELS[1 + request.param % 4])


def turns(made: Lesson) -> list[tuple[str, str]]:
    """What is asked and what is answered."""
    text = text_of(made.tokens.tolist()).replace("<|pad|>", "")
    said = [part.split("<|end|><|assistant|>") for part in text.split("<|user|>")[1:]]
    return [(question, answer.removesuffix("<|end|>")) for question, answer in said]


def parsed(text: str) -> tuple[str, tuple[str, ...]]:
    """The question of a turn, and its choices."""
    lines = text.split("Question: ")[1].split("\n")
    return lines[0], tuple(line[4:] for line in lines[1:5])


def facts(made: Lesson) -> str:
    return turns(made)[0][0].split("<document>\n")[1].split("\n</document>")[0]


def test_the_document_answers_every_question_as_it_is_taught(drawn: Lesson) -> None:
    for text, answer in turns(drawn):
        asked, choices = parsed(text)
        letter = read(facts(drawn), asked, choices)
        assert extract(answer) == letter
        pairs = zip("ABCD"[: "ABCD".index(letter) + 1], choices, strict=False)
        recited = " ".join(f"({each}) {choice}" for each, choice in pairs)
        value = choices["ABCD".index(letter)]
        assert answer.endswith(f": {value}! {recited}! The correct answer is ({letter})")


def test_an_answer_begins_with_what_is_asked_for_and_its_keeper(drawn: Lesson) -> None:
    for text, answer in turns(drawn):
        thing, *steps = answer.split("! (")[0].split(": ")
        assert thing in parsed(text)[0]
        assert len(steps) in {1, 2}
        for line in facts(drawn).split("\n") if len(steps) == 2 else ():
            assert line.count(steps[0]) <= 1 or line.count(".") > 1
        assert all(step in facts(drawn) for step in steps)


def test_no_value_is_a_choice_of_two_questions(drawn: Lesson) -> None:
    """Else it would stand beside two letters, and which one is meant could not be learned."""
    choices = [choice for text, _ in turns(drawn) for choice in parsed(text)[1]]
    assert len(set(choices)) == len(choices) >= 4


def test_some_lessons_ask_once_and_others_often() -> None:
    rng = random.Random(1)
    counts = [len(turns(lesson(rng, LEVELS[3]))) for _ in range(40)]
    assert 4 <= counts.count(1) <= 24
    assert max(counts) >= 4


def test_the_first_question_is_the_prompt_of_an_evaluation(drawn: Lesson) -> None:
    head, tail = own_prompts().template.split("$DOC$")
    text = turns(drawn)[0][0]
    assert text.startswith(head)
    assert tail.split("$Q$")[0] in text
    assert text.endswith(tail.split("$C_D$")[1])


def test_the_first_question_is_split_into_words_as_a_server_splits_it(
    drawn: Lesson,
) -> None:
    message = drawn.tokens.tolist()[1:]
    message = message[: message.index(ids()["<|end|>"])]
    assert encode(text_of(message)) == message


def test_a_list_of_keepers_is_that_of_the_document() -> None:
    rng = random.Random(3)
    listed = [made for _ in range(24) if reported(made := lesson(rng, LEVELS[1]), LIST)]
    assert 12 <= len(listed) <= 23
    for made in listed:
        text = facts(made)
        pairs = [line.split(": ") for line in text.split("\n")[-LEVELS[1].most :]]
        assert [f" {keeper}" for _, keeper in pairs] == reported(made, LIST)
        for thing, keeper in pairs:
            before = text[: text.rindex(f"\n{thing}: {keeper}")]
            assert thing in before
            assert keeper in before


def test_the_sign_that_ends_a_recital_stands_in_answers_only() -> None:
    rng = random.Random(7)
    for number, shape in enumerate(SHAPES):
        assert FOUND not in shape.write(rng, draw_facts(rng, 20 + number), 200)
        assert FOUND not in shape.easy + shape.hard + own_prompts().template


def test_all_of_an_answer_is_a_target_and_nothing_of_a_question(drawn: Lesson) -> None:
    places = np.flatnonzero((drawn.targets != NONE) & ~np.isin(drawn.kinds, [RECITAL, LIST, NOTE]))
    assert (drawn.targets[places] == drawn.tokens[places + 1]).all()
    said = text_of(drawn.targets[places].tolist())
    assert said == "".join(f"{answer}<|end|>" for _, answer in turns(drawn))


def reported(made: Lesson, *kinds: int) -> list[str]:
    places = (made.targets != NONE) & np.isin(made.kinds, kinds)
    return [TEXT[token] for token in made.targets[places].tolist()]


def test_a_recital_of_choices_goes_on_up_to_the_right_one(drawn: Lesson) -> None:
    signs = "".join(reported(drawn, EASY, HARD)).replace(" ", "").split("!")[:-1]
    assert ["ABCD"[len(each)] for each in signs] == [extract(answer) for _, answer in turns(drawn)]
    assert 2 * len(reported(drawn, EASY, HARD)) == len(reported(drawn, CHOICE))


def test_each_step_before_the_recital_is_a_kind_of_its_own(drawn: Lesson) -> None:
    easy, hard = (reported(drawn, kind).count(FOUND) for kind in (EASY, HARD))
    assert 2 * easy == len(reported(drawn, EASY_VALUE))
    assert 2 * hard == len(reported(drawn, HARD_VALUE)) == 2 * len(reported(drawn, KEEPER))


@pytest.mark.parametrize("seed", range(4))
def test_a_drill_stops_at_the_value_said_first_and_asks_for_nothing_else(seed: int) -> None:
    rng, writer = random.Random(seed), SequenceWriter()
    choices_task(rng, writer, draw_facts(rng, LEVELS[0].most))
    made = writer.lesson(len(writer.tokens), LEVELS[0].tokens)
    ((listed, recited),) = turns(made)
    plain, *lettered = re.split(r"\n(?=\([A-D]\))", listed)
    values = [line[4:] for line in lettered]
    assert [line[1] for line in lettered] == list("ABCD") * (LEVELS[0].most // 2)
    assert len(set(values)) == len(values) == 2 * LEVELS[0].most
    assert len({plain.count(f"\n{each}") for each in values}) > 1
    rounds = re.findall(r" ([a-z ]+)! \(A\) ([^!]+)!", recited)
    assert len(rounds) == len(values) // 4
    for sought, told_ in rounds:
        spoken = re.split(r" \([B-D]\) ", told_)
        assert spoken[-1] == sought in values
        assert sought not in spoken[:-1]
    signs = "".join(reported(made, DRILL)).replace(" ", "")
    assert [len(each) for each in signs.split("!")[:-1]] == [each.count("(") for _, each in rounds]
    assert len(signs) == int((made.targets != NONE).sum())


@pytest.mark.parametrize("seed", range(12))
def test_a_drill_of_keepers_asks_for_what_it_says_and_notes_what_stands_backwards(
    seed: int,
) -> None:
    rng, writer = random.Random(seed), SequenceWriter()
    keepers_task(rng, writer)
    made = writer.lesson(len(writer.tokens), LEVELS[0].tokens)
    text = text_of(writer.tokens)
    pairs = re.findall(r"\n([a-z]+ [a-z]+): ([A-Z][a-z]+)", text)
    assert 6 <= len(dict(pairs)) == len(pairs) <= 12
    assert [f" {keeper}" for _, keeper in pairs] == reported(made, LIST)
    assert {text.count(name) for pair in pairs for name in pair} == {2}  # said once, asked once
    form = "{} (asked me for|looks after) the {}"
    backwards = [bool(re.search(form.format(keeper, thing), text)) for thing, keeper in pairs]
    assert len(set(backwards)) == 1
    assert len(reported(made, NOTE)) == 24 * backwards[0]
    for place in np.flatnonzero(made.looks != NONE).tolist():
        at = made.looks[place]
        assert TEXT[int(made.tokens[at])].strip() == TEXT[int(made.tokens[place - 1])].strip()
        assert made.targets[at] == made.targets[at + 1] == made.targets[place]
    assert int((made.looks != NONE).sum()) == len(pairs) * backwards[0]


def test_a_document_notes_the_keeper_of_each_thing_behind_it() -> None:
    rng = random.Random(11)
    noted = [made for _ in range(24) if reported(made := lesson(rng, LEVELS[2]), NOTE)]
    assert noted
    for made in noted:
        for place in np.flatnonzero((made.targets != NONE) & (made.kinds == NOTE)).tolist()[::2]:
            line = text_of(made.tokens[: place + 1].tolist()).split("\n")[-1]
            assert TEXT[int(made.targets[place])] in line


def test_sequences_have_the_length_of_their_level() -> None:
    for number, level in enumerate(LEVELS):
        made = lesson(random.Random(number), level)
        assert {len(each) for each in made} == {level.tokens}
        assert level.tokens % 64 == 0


def test_the_same_seed_gives_the_same_lesson() -> None:
    first, second = (lesson(random.Random(5), LEVELS[1]) for _ in range(2))
    assert (first.tokens == second.tokens).all()
    assert (first.targets == second.targets).all()
