"""What the probe model is taught: the text as it will be asked, with targets that are true."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kvproof.eval.data import LETTERS
from kvproof.eval.generator import GeneratorOptions, generate
from kvproof.eval.probe_model import lessons
from kvproof.eval.probe_model.lessons import EASY, HARD, KEEPER, LEVELS, NONE, WORDING, lesson
from kvproof.eval.probe_model.vocabulary import SPECIAL, byte_letters, encode, ids, pieces, words
from kvproof.eval.prompts import own_prompts
from kvproof.suites.tests.eval_reader import read

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


@pytest.fixture(scope="module", params=range(12))
def drawn(request: pytest.FixtureRequest) -> lessons.Lesson:
    rng = random.Random(request.param)
    return lesson(rng, LEVELS[request.param % 3])


def turns(made: lessons.Lesson) -> list[tuple[str, str]]:
    """What is asked and what is answered."""
    text = text_of(made.tokens.tolist()).replace("<|pad|>", "")
    said = [part.split("<|end|><|assistant|>") for part in text.split("<|user|>")[1:]]
    return [(question, answer.removesuffix("<|end|>")) for question, answer in said]


def test_the_document_answers_every_question_as_it_is_taught(drawn: lessons.Lesson) -> None:
    asked = turns(drawn)
    document = asked[0][0].split("<document>\n")[1].split("\n</document>")[0]
    for text, answer in asked:
        lines = text.split("Question: ")[1].split("\n")
        choices = tuple(line[4:] for line in lines[1:5])
        letter = read(document, lines[0], choices)
        assert answer == f"The correct answer is ({letter})"


def test_no_question_is_asked_twice(drawn: lessons.Lesson) -> None:
    questions = [text.split("Question: ")[1].split("\n")[0] for text, _ in turns(drawn)]
    assert len(set(questions)) == len(questions) >= 3


def test_the_first_question_is_the_prompt_of_an_evaluation(drawn: lessons.Lesson) -> None:
    head, tail = own_prompts().template.split("$DOC$")
    text = turns(drawn)[0][0]
    assert text.startswith(head)
    assert tail.split("$Q$")[0] in text
    assert text.endswith(tail.split("$C_D$")[1])


def test_what_is_said_in_answers_is_the_target_there(drawn: lessons.Lesson) -> None:
    places = np.flatnonzero((drawn.targets != NONE) & np.isin(drawn.kinds, (EASY, HARD, WORDING)))
    assert len(places) == 8 * len(turns(drawn))
    assert (drawn.targets[places] == drawn.tokens[places + 1]).all()


def test_hints_are_what_the_document_says(drawn: lessons.Lesson) -> None:
    document = turns(drawn)[0][0]
    for place in np.flatnonzero((drawn.targets != NONE) & (drawn.kinds == KEEPER)):
        keeper = TEXT[int(drawn.targets[place])].strip()
        assert document.count(keeper) == 2


def test_exactly_one_choice_of_each_question_is_marked(drawn: lessons.Lesson) -> None:
    marked = drawn.targets[(drawn.targets != NONE) & (drawn.kinds == lessons.CHOICE)].tolist()
    letters = [
        {ids()[letter] for letter in LETTERS} & set(marked[n : n + 4])
        for n in range(0, len(marked), 4)
    ]
    right = [answer[-2] for _, answer in turns(drawn)]
    assert letters == [{ids()[letter]} for letter in right]


def test_sequences_have_the_length_of_their_level() -> None:
    for number, level in enumerate(LEVELS):
        made = lesson(random.Random(number), level)
        assert len(made.tokens) == len(made.targets) == len(made.kinds) == level.tokens
        assert level.tokens % 64 == 0


def test_the_same_seed_gives_the_same_lesson() -> None:
    first, second = (lesson(random.Random(5), LEVELS[1]) for _ in range(2))
    assert (first.tokens == second.tokens).all()
    assert (first.targets == second.targets).all()
