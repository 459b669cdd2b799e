"""An answer ends with a note where its reader would otherwise be misled, and only there."""

import json
import string
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from local.services import JSONObject, function_call
from research_agent.failures import MAX_REASON_CHARS
from research_agent.items import connector_error_output, message
from research_agent.note import MAX_NOTE_LINKS, NOTE_OPENING, answer_note, unknown_links

LINE = "- Not among this answer's sources, so check them: "


def output(text: str) -> JSONObject:
    """Return what a tool returned, as an item of a run's evidence."""
    return {"type": "function_call_output", "call_id": "c", "output": text}


# --- How links are read


@pytest.mark.parametrize(
    ("text", "links"),
    [
        ("[a](https://a.example/x)", ["https://a.example/x"]),
        ("![a](https://a.example/x.png)", ["https://a.example/x.png"]),
        ("[![a](http://a.example/i)](http://a.example/x)", ["http://a.example/i", "http://a.example/x"]),
        ('[a](https://a.example/x "a title")', ["https://a.example/x"]),
        ("[a](https://a.example/x_(y))", ["https://a.example/x_(y)"]),
        ("[a](https://a.example/x_(y_(z)))", ["https://a.example/x_(y_(z))"]),
        (r"[a](https://a.example/x\)y)", ["https://a.example/x)y"]),
        (r"[a](https://a.example/x\_y)", ["https://a.example/x_y"]),
        ("[a](https://a.example/x>=3)", ["https://a.example/x>=3"]),
        ("[a](https://a.example/x.)", ["https://a.example/x."]),
        ("[a](https://a.example/“x”)", ["https://a.example/“x”"]),
        ("[a](<https://a.example/x y>)", ["https://a.example/x y"]),
        ("[a](<https://a.example/x)y> 'title')", ["https://a.example/x)y"]),
        ("[a][1]\n\n[1]: https://a.example/x 'title'", ["https://a.example/x"]),
        ("[a][1]\n\n[1]: <https://a.example/x y>", ["https://a.example/x y"]),
        ("[https://a.example/x](https://a.example/x)", ["https://a.example/x"]),
        ("[https://a.example/x](https://b.example)", ["https://a.example/x", "https://b.example"]),
        ("<https://a.example/x.>", ["https://a.example/x."]),
        ('<a href="https://a.example/x">x</a>', ["https://a.example/x"]),
        ("<a href='https://a.example/x'>x</a>", ["https://a.example/x"]),
        ("<a href=https://a.example/x>x</a>", ["https://a.example/x"]),
        ("`https://a.example/x`", ["https://a.example/x"]),
        ('```\nget("https://a.example/x")\n```', ["https://a.example/x"]),
        ("@misc{url = {https://a.example/x}}", ["https://a.example/x"]),
        ("**https://a.example/x** and", ["https://a.example/x"]),
        ("_https://a.example/x_", ["https://a.example/x"]),
        ("|https://a.example/x|https://b.example|", ["https://a.example/x", "https://b.example"]),
        ("https://a.example/x.", ["https://a.example/x"]),
        ("https://a.example/x?!", ["https://a.example/x"]),
        ("(https://a.example/x).", ["https://a.example/x"]),
        ("(see https://a.example/x_(y), z)", ["https://a.example/x_(y)"]),
        ("“https://a.example/x”", ["https://a.example/x"]),
        ("https://a.example/x…", ["https://a.example/x"]),
        ("看「https://a.example/x」\uff0chttps://b.example。", ["https://a.example/x", "https://b.example"]),
        ("\uff08https://a.example/x\uff09。", ["https://a.example/x"]),
        ("www.a.example/x, HTTP://B.example", ["www.a.example/x", "HTTP://B.example"]),
        ("https://a.example/x?a[]=1", ["https://a.example/x?a"]),
        ("https://a.example/x?a=1&b=2#c", ["https://a.example/x?a=1&b=2#c"]),
        ("https://me:word@a.example:8080/x", ["https://me:word@a.example:8080/x"]),
        ("https://bücher.example/ü", ["https://bücher.example/ü"]),
        ("https://xn--bcher-kva.example", ["https://xn--bcher-kva.example"]),
        ("https://a.example/x https://a.example/x/", ["https://a.example/x"]),
        ("[a](/x) [b](x.html) [c](#d) [e](mailto:me@a.example) me@www.a.example", []),
        ("https:// http://... https://___ <https://{host}/x> https://<host>/x www.", []),
    ],
)  # fmt: skip
def test_links_are_read_as_markdown_reads_them(text: str, links: list[str]) -> None:
    assert unknown_links(text, []) == links


# --- Which addresses are the same

ADDRESS = "https://a.example/x/y?id=1&b=2"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (ADDRESS, ADDRESS),
        (ADDRESS, "http://a.example/x/y?id=1&b=2"),
        (ADDRESS, "HTTPS://A.Example/x/y?id=1&b=2"),
        (ADDRESS, "https://www.a.example/x/y?id=1&b=2"),
        (ADDRESS, "www.a.example/x/y?id=1&b=2"),
        (ADDRESS, "https://a.example/x/y/?id=1&b=2"),
        (ADDRESS, "https://a.example/x/y?id=1&amp;b=2"),
        (ADDRESS, "https://a.example/x/y?id=1&b=2#part"),
        (ADDRESS, "https://a.example/x/y?id=1&b=2#:~:text=a,-b%20c"),
        (ADDRESS, "https://a.example/x/y?utm_source=s&id=1&utm_medium=m.n&amp;utm_id=3&b=2&utm_x="),
        (ADDRESS, "https://%61.example/x/%79?id=%31&b=2"),
        ("https://a.example", "https://a.example/"),
        ("https://a.example", "https://a.example/?utm_source=a%20b#part"),
        ("https://a.example/x", "https://a.example/x/"),
        ("https://a.example/x_(y)", "https://a.example/x_%28y%29"),
        ("https://a.example/x_(y)", r"https://a.example/x\_\(y\)"),
        ("<https://a.example/x y>", "<https://a.example/x%20y>"),
        ("https://a.example/ü联", "https://a.example/%C3%BC%e8%81%94"),
        ("https://BÜCHER.example", "https://bücher.example"),
        ("https://a.example/50%/x", "https://a.example/50%25/x"),
    ],
)
def test_addresses_that_mean_the_same_are_the_same(one: str, other: str) -> None:
    assert unknown_links(one, [other]) == []
    assert unknown_links(other, [one]) == []


@pytest.mark.parametrize(
    "other",
    [
        "https://b.example/x/y?id=1",
        "https://b.a.example/x/y?id=1",
        "https://example/x/y?id=1",
        "https://a.example.b/x/y?id=1",
        "https://a-b.example/x/y?id=1",
        "https://a.example@b.example/x/y?id=1",
        "https://me@a.example/x/y?id=1",
        "https://a.example:8080/x/y?id=1",
        "https://a.example:443/x/y?id=1",
        "https://a.example/X/y?id=1",
        "https://a.example/x?id=1",
        "https://a.example/x/y.html?id=1",
        "https://a.example/x/y/z?id=1",
        "https://a.example/x/y",
        "https://a.example/x/y?id=2",
        "https://a.example/x/y?id=12",
        "https://a.example/x/y?ID=1",
        "https://a.example/x/y?id=1&b=2",
        "https://a.example/x/y?b=2&id=1",
        "https://a.example/x/y?id=1%26b=2",
        "https://a.example/x/y_(z)?id=1",
        "https://b.example/?q=a.example/x/y?id=1",
    ],
)
def test_any_other_difference_makes_another_address(other: str) -> None:
    address = "https://a.example/x/y?id=1"
    assert unknown_links(address, [other]) == [address]
    assert unknown_links(other, [address]) == [other]


def test_an_address_that_goes_on_in_brackets_is_another() -> None:
    assert unknown_links("https://a.example/x", ["https://a.example/x(y)"])


def test_bytes_that_are_no_text_stay_apart() -> None:
    assert unknown_links("https://a.example/%FC", ["https://a.example/%FD"])


@pytest.mark.parametrize(
    "source",
    [
        "Read a.example/x, please.",
        "https://a.example/x",
        "see//a.example/x",
        "看https://a.example/x。",
        "官网www.a.example/x\uff0c",
        "[a](https://a.example/x)and",
        "**https://a.example/x**and",
        "https://a.example/x,https://b.example",
        "https://b.example/?to=https%3A%2F%2Fa.example%2Fx",
        "&lt;a href=&quot;https://a.example/x&quot;&gt;",
        r"{\"url\":\"https:\/\/a.example\/x\",\"title\":\"x\"}",
        r"Website:\nwww.a.example/x\nNext",
        r"https:\\u002F\\u002fa.example\u002Fx\u0022",
        "https://a.example/x\\",
        r"printf '\e]8;;https://a.example/x\x07x'",
        "[cut: https://a.example/x] https://a.example/xy",
    ],
)
def test_a_source_gives_an_address_in_any_surroundings(source: str) -> None:
    assert unknown_links("https://a.example/x", [source]) == []


CHARACTERS = st.sampled_from(string.ascii_letters + string.digits + "_-~.é联😀 ()")
SEGMENT = st.text(CHARACTERS, max_size=8).map(str.strip).filter(bool)
HOSTS = st.lists(st.text(st.sampled_from("abcyz019ü"), min_size=1, max_size=5), min_size=1)
ADDRESSES = st.tuples(
    HOSTS.map(lambda labels: ".".join([*labels, "example"])),
    st.lists(SEGMENT, max_size=3).map("/".join),
    st.sampled_from(["", "?id=1", "?id=É&Ab=2"]),
)


@st.composite
def spellings(draw: st.DrawFn, address: tuple[str, str, str]) -> str:
    """Return one of the spellings of an address."""
    host, path, query = address
    if draw(st.booleans()):
        host = host.upper()
    if draw(st.booleans()):
        path, query = quote(path), quote(query, safe="?&=")
    if draw(st.booleans()):
        query = f"?utm_source=a.b-C%20d{query.replace('?', '&')}"
    if draw(st.booleans()):
        query = query.replace("&", "&amp;")
    start = draw(st.sampled_from(["https://", "http://", "HTTPS://www.", "www."]))
    slash = draw(st.sampled_from(["", "/"])) if path else "/"
    part = draw(st.sampled_from(["", "#part", "#:~:text=a"]))
    return f"{start}{host}/{path}{slash}{query}{part}"


@given(data=st.data(), address=ADDRESSES)
def test_an_address_of_the_sources_is_never_doubted(
    data: st.DataObject, address: tuple[str, str, str]
) -> None:
    before = data.draw(
        st.sampled_from(["", "see ", "看", "(", "[a](<", "**", '"', "\n", "\t", "|"])
    )
    after = data.draw(
        st.sampled_from(["", ". And", ")and", ">)", "**", '",', "\nNext", "|", "。看"])
    )
    source = before + data.draw(spellings(address)) + after
    for _ in range(data.draw(st.integers(0, 2))):
        source = json.dumps({"content": source}, ensure_ascii=data.draw(st.booleans()))
    if data.draw(st.booleans()):
        source = source.replace("/", "\\/")
    assert unknown_links(f"[a](<{data.draw(spellings(address))}>)", ["other", source]) == []


@given(data=st.data(), addresses=st.lists(ADDRESSES), path=SEGMENT)
def test_an_address_on_a_host_that_nothing_names_is_always_doubted(
    data: st.DataObject, addresses: list[tuple[str, str, str]], path: str
) -> None:
    sources = [data.draw(spellings(address)) for address in addresses]
    link = f"https://{data.draw(st.sampled_from(['unnamed', 'a.b', 'www.c']))}.invalid/{path}"
    assert unknown_links(f"[a](<{link}>)", sources) == [link]


@given(
    text=st.lists(
        st.sampled_from(
            ["https://", "www.", "](", "<", ">", "[", ")", "\\", "%", "&amp;", "a", "/"]
        )
        | st.text(st.characters(exclude_categories=()), max_size=3)
    ).map("".join)
)
def test_no_text_is_too_odd(text: str) -> None:
    assert unknown_links(text, [text]) == unknown_links(text, [text, "https://a.example"])
    assert unknown_links(text, []) == unknown_links(text, [""])


@pytest.mark.parametrize(
    "filling",
    ["(", "https://a.example/(", "[https://a.example/](", "](<https://a.example/", "https://a.example",
     "www.", "a.", "a.b ", "\\", r"\n", "%", "%41a", "&", "?utm_a", "联a", "/", "//A.b "],
)  # fmt: skip
def test_reading_is_quick_whatever_a_text_is_full_of(filling: str) -> None:
    answer = filling * (100_000 // len(filling))
    started = time.process_time()
    unknown_links(f"{answer} https://a.example/x", ["https://a.example/" + answer * 4])
    assert time.process_time() - started < 2


# --- The note


def test_an_answer_that_rests_on_its_sources_has_no_note() -> None:
    messages = [message("user", "What does https://a.example say?")]
    evidence = [output('{"url": "https://b.example/x", "error": null}')]
    answer = "[a](https://a.example) and [b](https://b.example/x)"
    assert answer_note(answer, messages, evidence, []) == ""
    assert answer_note("I found nothing.", [], [], []) == ""


def test_the_note_names_each_unknown_link_and_each_shortfall_once() -> None:
    answer = "[a](https://a.example/x), <https://b.example/>, [c](<https://c.example/x y>)"
    answer += " http://a.example/x"
    assert answer_note(answer, [message("user", "b.example?")], [], ["Late.", "Cut.", "Late."]) == (
        f"{NOTE_OPENING}- Late.\n- Cut.\n{LINE}<https://a.example/x>, <https://c.example/x%20y>"
    )


def test_the_note_is_short_however_many_and_long_the_links() -> None:
    links = [f"https://a.example/{n}" for n in range(20)]
    links[1] += "a" * MAX_REASON_CHARS
    named = ", ".join(f"<{link}>" for link in [links[0], *links[2 : MAX_NOTE_LINKS + 1]])
    expected = f"{NOTE_OPENING}{LINE}{named}, {20 - MAX_NOTE_LINKS} more"
    assert answer_note("\n".join(links), [], [], []) == expected


def test_errors_calls_and_drafts_are_no_sources() -> None:
    link = "https://a.example/x"
    call = function_call("web_fetch", "c", url=link)
    draft = {"type": "message", "role": "assistant", "content": link}
    evidence = [call, draft, connector_error_output(call, ValueError(f"no {link}"))]
    assert answer_note(link, [], evidence, []) == f"{NOTE_OPENING}{LINE}<{link}>"


def test_an_earlier_answer_gives_its_links_but_those_that_its_note_names() -> None:
    answer = "[a](https://a.example/x) [b](https://b.example/)"
    note = answer_note(answer, [message("user", "https://a.example/x")], [], [])
    assert note == f"{NOTE_OPENING}{LINE}<https://b.example/>"
    conversation = [message("assistant", answer + note)]
    assert answer_note(answer, conversation, [], []) == note
    assert answer_note(answer, [*conversation, message("user", "b.example?")], [], []) == ""


def test_a_note_that_the_model_writes_itself_makes_no_link_known() -> None:
    answer = f"Fine.{NOTE_OPENING}{LINE}<https://b.example/>"
    note = answer_note(answer, [], [], [])
    assert note == f"{NOTE_OPENING}{LINE}<https://b.example/>"
    assert answer_note("https://b.example/", [message("assistant", answer)], [], []) == note
    assert answer_note("https://b.example/", [message("assistant", answer + note)], [], []) == note
