"""What the model sees of a page that is longer than its limit."""

import json
import re
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from local.services import function_call, response, text_events
from research_agent.agent_app import MAX_OUTPUT_CHARS
from research_agent.pages import readable_output
from research_agent.passages import LEFT_OUT, fitted
from tests.conftest import LONG_PAGE, LONG_PAGE_FACT, Bench
from tests.scripted import ANSWER, page_for, run_scripted

FILLERS = {
    "english": "The committee met again on {n} other matters, and nothing was decided there. ",
    "german": "Der Ausschuss beriet noch {n} andere Fragen, und beschlossen wurde dort nichts. ",
    "chinese": "委员会又讨论了{n}个其他问题。但是没有作出任何决定。",
    "arabic": "ناقشت اللجنة {n} مسائل أخرى ولم تتخذ فيها أي قرار. ",
}
ASKED_AND_FACTS = {
    "english": (
        "What is the population of Zurich?",
        "Zürich's inhabitants: a POPULATION of 443,037 was counted.",
    ),
    "german": (
        "Was entschied das Gericht über die Höhe der Mieten?",
        "Das Bundesverfassungsgericht hob den Mietendeckel auf.",
    ),
    "chinese": ("北京的人口是多少", "据统计北京人口为两千一百八十四万。"),
    "arabic": ("كم عدد سكان القاهرة؟", "بلغ عَدَد السكان في القاهِرة عشرة ملايين نسمة."),
}


def filler(language: str, chars: int, paragraph: int = 9) -> str:
    """Return a text of about this length in which each sentence has a number of its own."""
    sentences: list[str] = []
    for n in range(chars // len(FILLERS[language])):
        sentences.append(FILLERS[language].format(n=n) + "\n\n" * (n % paragraph == 0))
    return "".join(sentences)


def with_facts(text: str, *facts: tuple[float, str]) -> str:
    """Return the text with each fact as a paragraph of its own at its share of the way."""
    for share, fact in sorted(facts, reverse=True):
        at = text.index("\n\n", int(len(text) * share))
        text = f"{text[:at]}\n\n{fact}{text[at:]}"
    return text


def sent(page: object, asked: str) -> Any:
    """Return the value of the output for this page, whose JSON text must use up the limit."""
    output = readable_output(json.dumps(page), asked, MAX_OUTPUT_CHARS)
    assert 15_000 <= len(output) <= MAX_OUTPUT_CHARS
    return json.loads(output)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("language", FILLERS)
def test_the_sentence_that_was_asked_for_is_kept(language: str, share: float) -> None:
    asked, fact = ASKED_AND_FACTS[language]
    text = with_facts(filler(language, 700_000), (share, fact))
    page = {"url": "https://a.example/?q=1", "title": 'A "long" page', "content": text}
    output = sent(page, asked)
    assert fact in output["content"]
    assert output["content"].startswith(text[:1_500])
    assert output["content"].endswith(f"\n[cut: the whole has {len(text)} characters]")
    assert output == page | {"content": output["content"]}


def test_a_kept_sentence_has_its_neighbours_around_it() -> None:
    asked, fact = ASKED_AND_FACTS["english"]
    text = with_facts(filler("english", 700_000), (0.5, fact))
    at = text.index(fact)
    assert text[at - 200 : at + 300] in sent({"content": text}, asked)["content"]


def test_two_facts_far_apart_are_both_kept_in_the_order_of_the_page() -> None:
    (first, census), (second, court) = ASKED_AND_FACTS["english"], ASKED_AND_FACTS["german"]
    text = with_facts(filler("english", 700_000), (0.2, court), (0.9, census))
    content = sent({"content": text}, f"{first} {second}")["content"]
    assert 0 < content.index(court) < content.index(census)
    assert content.count(LEFT_OUT) >= 3


def test_the_words_of_addresses_do_not_drown_the_question() -> None:
    asked, fact = ASKED_AND_FACTS["english"]
    topic = "international organisations environmental protection agreements"
    address = f"https://a.example/{topic.replace(' ', '/')}/list-of-members-and-observers.html"
    text = with_facts(
        filler("english", 400_000), (0.606, fact), *[(n / 80, topic) for n in range(80)]
    )
    assert fact in sent({"content": text}, "\n".join([asked, *[address] * 8]))["content"]


def test_a_question_whose_words_are_everywhere_keeps_the_beginning() -> None:
    text = "The same words stand everywhere. " * 20_000
    content = sent({"content": text}, "Which words stand everywhere?")["content"]
    assert content.startswith(text[:15_000])
    assert content.count(LEFT_OUT) == 1


@pytest.mark.parametrize("asked", ["", "xylophone", "\n\n?!", "联邦学习"])
def test_a_page_that_shares_nothing_with_the_question_keeps_its_beginning(asked: str) -> None:
    text = filler("english", 300_000)
    content = sent({"content": text}, asked)["content"]
    assert content.startswith(text[:15_000])
    assert content.count(LEFT_OUT) == 1


def test_accents_and_case_do_not_matter() -> None:
    text = with_facts(filler("english", 700_000), (0.5, "Un CAFÉ crème."))
    assert "CAFÉ" in sent({"content": text}, "cafe Creme")["content"]


def test_no_word_is_cut() -> None:
    asked, fact = ASKED_AND_FACTS["english"]
    text = with_facts(filler("english", 300_000, paragraph=10_000) + "\n\n", (0, fact)) * 3
    text = text.replace("decided", "d" * 350)
    content = sent({"content": text}, f"{asked} d{'d' * 99}")["content"]
    assert set(re.findall(r"\w+", content.rpartition(LEFT_OUT)[0])) <= set(re.findall(r"\w+", text))


@pytest.mark.parametrize("character", ["p", "\t", '"', "联"])
def test_one_line_without_spaces_is_cut_at_the_limit(character: str) -> None:
    text = character * 899_999 + "x"
    content = sent({"title": "t", "content": text}, "p")["content"]
    assert content.startswith(text[:7_000])
    assert content.endswith("[cut: the whole has 900000 characters]")


def test_other_fields_that_are_too_long_count_as_text_of_the_page() -> None:
    page = {"links": ["https://a.example/"] * 9_000, "content": "word " * 9_000}
    output = readable_output(json.dumps(page), "word", MAX_OUTPUT_CHARS)
    assert 15_000 <= len(output) <= MAX_OUTPUT_CHARS
    assert output.endswith(" characters]")


def test_of_long_search_results_those_that_fit_are_kept() -> None:
    asked, fact = ASKED_AND_FACTS["english"]
    results = [{"title": f"Result {n}", "snippet": FILLERS["english"]} for n in range(900)]
    results[700]["snippet"] = fact
    output = readable_output(json.dumps({"results": results}), asked, MAX_OUTPUT_CHARS)
    assert 15_000 <= len(output) <= MAX_OUTPUT_CHARS
    assert fact in output
    assert output.startswith('{"results": [{"title": "Result 0"')


def test_long_plain_text_is_treated_as_a_page() -> None:
    asked, fact = ASKED_AND_FACTS["english"]
    text = with_facts(filler("english", 300_000), (0.5, fact))
    output = readable_output(text, asked, MAX_OUTPUT_CHARS)
    assert 15_000 <= len(output) <= MAX_OUTPUT_CHARS
    assert fact in output


@pytest.mark.parametrize("place", [0, 120])
def test_of_what_was_asked_in_many_lines_the_first_and_the_last_count(place: int) -> None:
    asked, fact = ASKED_AND_FACTS["english"]
    text = with_facts(filler("english", 300_000), (0.5, fact))
    lines = [FILLERS["english"].format(n=n) for n in range(1_000, 1_120)]
    lines.insert(place, asked)
    assert fact in readable_output(text, "\n".join(lines), MAX_OUTPUT_CHARS)


def test_the_question_and_the_calls_of_a_turn_choose_the_passages() -> None:
    (question, census), (query, court) = ASKED_AND_FACTS["english"], ASKED_AND_FACTS["german"]
    slug = "北京市人口统计在此。"
    often = [(n / 90, census) for n in range(90)]
    text = with_facts(filler("english", 300_000), (0.5, court), (0.7, slug), *often)
    calls = [
        function_call("web_search", "0", query=query),
        function_call("web_fetch", "1", url=f"https://a.example/{quote(slug)}"),
    ]
    session = run_scripted(
        response(*calls),
        response(),
        ANSWER,
        connector=lambda call: {**page_for(call), "output": json.dumps({"content": text})},
        config={"agent.input": question},
    )
    for output in session.outputs():
        assert all(fact in output["content"] for fact in (census, court, slug))


WORD = st.text(max_size=12) | st.sampled_from(["census", "Zürich", "人口", "x" * 500, "\n\n", ". "])
LONG_TEXT = st.builds(
    lambda words, times, gap: gap.join(words * times),
    st.lists(WORD, min_size=1, max_size=30),
    st.integers(1, 400),
    st.sampled_from(["", " ", "\n", ". ", "。", "\n\n"]),
)
FIELDS = st.dictionaries(
    st.sampled_from(["url", "title", "n"]),
    st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=40) | st.integers(),
)


@settings(max_examples=150, deadline=None)
@given(
    text=LONG_TEXT, asked=st.text(max_size=60) | st.just("census of Zurich\n人口"), fields=FIELDS
)
def test_what_is_kept_is_the_beginning_and_pieces_of_the_page_in_its_order(
    text: str, asked: str, fields: dict[str, Any]
) -> None:
    text = text.encode("utf-8", "ignore").decode().replace("\0", "")
    assume(LEFT_OUT not in text)
    limit = 3_000
    output = fitted(json.dumps({**fields, "content": text}, ensure_ascii=False), asked, limit)
    assert len(output) <= limit
    value = json.loads(output)
    kept = value["content"]
    assert value == {**fields, "content": kept}
    if kept == text:
        return
    mark = f"\n[cut: the whole has {len(text)} characters]"
    assert kept.endswith(mark)
    pieces = kept.removesuffix(mark).split(LEFT_OUT)
    assert text.startswith(pieces[0])
    assert len(json.dumps(pieces[0], ensure_ascii=False)) >= 250
    at = 0
    for piece in pieces:
        at = text.index(piece, at) + len(piece)


def test_a_fetch_of_500000_characters_shows_the_model_the_one_fitting_sentence(
    bench: Bench,
) -> None:
    fetch = function_call("web_fetch", "long", url="https://long.example/page")
    seen = bench.run("long", response(fetch), response(), text_events(["Answer."]))
    assert seen.answers() == ["Answer."]
    output = bench.requests["long"][1]["input"][-1]["output"]
    assert len(LONG_PAGE) > 500_000
    assert LONG_PAGE_FACT in json.loads(output)["content"]
    assert len(output) <= MAX_OUTPUT_CHARS
