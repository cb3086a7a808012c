"""A cell's view: what it shows as text and as HTML, and how it stays live."""

from __future__ import annotations

import contextvars
import io
import re
import threading
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monarch_nb._display import CellView, ErrorInfo, LiveDisplay, StackView, ansi, fold_errors
from monarch_nb._display.bundle import MAX_TEXT_LINES, clipped
from monarch_nb._display.cell_html import LONG_LINES
from monarch_nb._display.errors import errors_text
from monarch_nb._display.live import NotebookPublisher, TerminalPublisher, View, choose_publisher
from monarch_nb._display.outputs import MAX_NATIVES
from monarch_nb._display.progress import CellState, strip_text
from monarch_nb._display.template import Markup, render, source

VOID = {"input", "img", "br"}
WAIT_S = 30


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Balance(HTMLParser):
    """Fail on a tag that is closed wrongly."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def tags_of(html: str) -> list[str]:
    parser = Balance()
    parser.feed(html)
    parser.close()
    assert parser.open == []
    return parser.tags


def make_view(num_ranks: int = 8, **options: object) -> tuple[CellView, Clock]:
    clock = Clock()
    return CellView(range(num_ranks), num_ranks, clock=clock, **options), clock  # type: ignore[arg-type]


def error(rank: int, message: str = "bad", **options: object) -> ErrorInfo:
    return ErrorInfo(rank, "ValueError", message, f"Traceback\n  x = {message}", **options)  # type: ignore[arg-type]


def body_of(html: str) -> str:
    return re.sub(r"<style>.*?</style>", "", html, flags=re.S)


# ansi


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("\x1b[31mred\x1b[0m plain", '<span class="ansi-red-fg">red</span> plain'),
        ("\x1b[1;4;92mx", '<span class="ansi-bold ansi-underline ansi-green-intense-fg">x</span>'),
        ("\x1b[44m\x1b[K<i>\x1b[49m.", '<span class="ansi-blue-bg">&lt;i&gt;</span>.'),
        ("\x1b[38;5;9mx", '<span class="ansi-red-intense-fg">x</span>'),
        ("\x1b[38;5;208mx", '<span style="color: rgb(255, 135, 0)">x</span>'),
        ("\x1b[48;2;1;2;3mx", '<span style="background-color: rgb(1, 2, 3)">x</span>'),
        ("\x1b[7mx\x1b[27my", '<span class="ansi-default-inverse-fg ansi-default-inverse-bg">x</span>y'),
        ("\x1b[2J\x1b[1Ax\x07\x1b]0;title\x07y\x1b(B", "xy"),
        ("\x1b[38;5mx\x1b[999my\x1b[38mz", "xyz"),
        ("\x1b[m\x1b[31m\x1b[39mx\x1b", "x"),
    ],
)
def test_ansi_to_html(text: str, html: str) -> None:
    assert ansi.to_html(text) == html
    assert "\x1b" not in ansi.strip(text)


# template


def test_templates_escape_unless_markup() -> None:
    assert render("note.html", text='<"') == '<span class="mno-note">&lt;&quot;</span>'
    assert render("note.html", text=Markup("<br>")) == '<span class="mno-note"><br></span>'
    with pytest.raises(KeyError):
        render("note.html")


# errors


def test_equal_errors_once_first_in_time_on_top() -> None:
    groups = fold_errors(
        [
            error(5, when=3.0),
            *(error(rank, "worse", when=1.0 + rank) for rank in range(3)),
            error(3, when=9.0),
        ]
    )
    assert [(group.ranks, group.evalue, group.first) for group in groups] == [
        ((0, 1, 2), "worse", True),
        ((3, 5), "bad", False),
    ]
    assert errors_text(groups) == (
        "ranks 0-2: ValueError: worse (first)\nTraceback\n  x = worse\n\n"
        "ranks 3,5: ValueError: bad\nTraceback\n  x = bad\n"
    )


def test_who_was_first_may_be_told() -> None:
    late, early = error(0, when=1.0), error(1, "worse", first=True, when=2.0)
    assert [group.first for group in fold_errors([late, early])] == [True, False]
    assert fold_errors([late, early])[0].ranks == (1,)


def test_errors_in_html() -> None:
    view, _ = make_view()
    view.error(3, error(3, "<script>alert(1)</script>", when=1.0))
    view.error(4, error(4, "\x1b[31mred\x1b[0m", when=2.0))
    html = body_of(view.html())
    assert tags_of(html).count("details") == 2
    assert "<script" not in html
    assert html.count(" open>") == 1
    assert html.count("(first)") == 1
    assert "rank 3: ValueError: &lt;script&gt;" in html
    assert 'x = <span class="ansi-red-fg">red</span>' in html
    assert "\x1b" not in view.text()


# output, results, displays


def test_nothing_to_show_is_empty() -> None:
    view, _ = make_view()
    view.started()
    for rank in range(8):
        view.result(rank, None)
        view.done(rank, 0.01)
    assert not view.visible()
    assert view.outputs() == []


def test_output_is_escaped_and_folded() -> None:
    view, _ = make_view(title="dev <&>")
    for rank in range(8):
        view.output(rank, "stdout", "<script>alert(1)</script>\n")
        view.output(rank, "stderr", f"warn {rank % 2}\n")
    html = body_of(view.html())
    tags_of(html)
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 1
    assert "dev &lt;&amp;&gt;" in html
    assert html.count("mno-stderr") == 2
    assert view.text() == "dev <&>\n[0-7] <script>alert(1)</script>\n[0,2,4,6] warn 0\n[1,3,5,7] warn 1"


def test_html_stands_alone() -> None:
    view, _ = make_view()
    view.output(0, "stdout", "x\n")
    html = view.html()
    assert "script" not in tags_of(html)
    assert not re.search(r"(?:https?:|@import|url\()", html)


def test_colours_in_the_style_are_theme_variables() -> None:
    for file in ("output.css", "card.css"):
        values = re.findall(r"[{;-](?:color|background):([^;}]+)", source(file))
        assert len(values) > 5
        assert all(
            "var(--jp-" in value or value in ("none", "none!important", "inherit") for value in values
        ), values


def test_an_output_brings_the_rules_that_it_needs_and_no_others() -> None:
    """All rules are 5 KB, and a notebook may have hundreds of outputs."""
    view, _ = make_view()
    view.output(0, "stdout", "x\n")
    plain = view.html()
    assert len(plain) < 1400
    assert ".mno-rows{display:grid" in plain
    assert "ansi" not in plain and "mno-tab" not in plain
    view.output(1, "stdout", "\x1b[31mred\x1b[0m\n")
    view.error(2, error(2))
    html = view.html()
    assert ".ansi-red-fg" in html and ".ansi-blue-fg" not in html
    assert ".mno-error{" in html
    used = {name for names in re.findall(r'class="([^"]*)"', html) for name in names.split()}
    styled = set(re.findall(r"\.(mno-[\w-]+)", source("output.css")))
    for name in used & styled:
        assert f".{name}" in "".join(re.findall(r"<style>(.*?)</style>", html, flags=re.S)), name


def test_many_lines_scroll_in_a_box() -> None:
    view, _ = make_view(1)
    view.output(0, "stdout", "x\n" * LONG_LINES)
    assert "mno-long" not in view.html()
    view.output(0, "stdout", "x\n")
    assert 'class="mno-long" tabindex="0"' in view.html()
    assert "max-height:40em" in view.html()


def test_cap_points_to_the_rest() -> None:
    view, _ = make_view(max_rows=10, more_hint="%mesh logs <x>")
    view.output(0, "stdout", "".join(f"{i}\n" for i in range(100)))
    assert "... 90 lines not shown; all of them: %mesh logs <x>" in view.text()
    assert "%mesh logs &lt;x&gt;" in view.html()


def test_one_rank_mesh_has_no_prefix_one_rank_of_many_has() -> None:
    for world_size, expected in ((1, "x\n42"), (8, "[0] x\n[0] 42")):
        view = CellView([0], world_size)
        view.output(0, "stdout", "x\n")
        view.result(0, {"text/plain": "42"})
        assert view.text() == expected
        assert ("mno-ranks" in body_of(view.html())) is (world_size > 1)


def test_partial_lines_show() -> None:
    view, _ = make_view(2)
    view.output(0, "stderr", "\r 50%|#####     |")
    assert view.text() == "[0]  50%|#####     |"
    assert "mno-partial" in body_of(view.html())
    view.close()
    assert "mno-partial" not in body_of(view.html())


def test_equal_results_once() -> None:
    view, _ = make_view()
    for rank in range(8):
        view.result(rank, {"text/plain": "tensor([[1, 2],\n        [3, 4]])" if rank < 7 else "7"})
    assert view.text() == "[0-6] tensor([[1, 2],\n              [3, 4]])\n[7] 7"
    assert "mno-tabs" not in body_of(view.html())


def test_long_result_is_cut() -> None:
    text = "\n".join(map(str, range(MAX_TEXT_LINES + 5)))
    assert clipped(text).splitlines()[MAX_TEXT_LINES] == "... 20 more characters on 5 lines not shown"
    assert clipped("short\n") == "short\n"
    view, _ = make_view(1)
    view.result(0, {"text/plain": "x" * 1_000_000})
    assert len(view.text()) < 25_000
    assert len(view.html()) < 40_000


def test_rich_values_get_one_tab_per_rank_set() -> None:
    view, _ = make_view()
    for rank in range(8):
        view.display(
            rank, {"text/html": f"<b>{rank % 2}</b>", "text/plain": f"bold {rank % 2}"}, {}, None, False
        )
    html = body_of(view.html())
    assert tags_of(html).count("input") == 2
    assert html.count(" checked>") == 1
    assert "<b>0</b>" in html
    assert "ranks 0,2,4,6" in html
    assert view.text() == "[0,2,4,6] bold 0\n[1,3,5,7] bold 1"


def test_one_rank_set_needs_no_tabs() -> None:
    view, _ = make_view(2)
    for rank in range(2):
        view.result(rank, {"text/html": "<table></table>", "text/plain": "table"})
    html = body_of(view.html())
    assert "input" not in tags_of(html)
    assert "ranks 0-1" in html


def test_images() -> None:
    view, _ = make_view(1)
    view.display(0, {"image/png": "iVBO\nRw0=", "text/plain": '<Figure "1">'}, {"image/png": {"width": 64}})
    view.display(0, {"image/jpeg": b"\xff\xd8"})
    html = body_of(view.html())
    assert tags_of(html).count("img") == 2
    assert 'src="data:image/png;base64,iVBORw0=" alt="&lt;Figure &quot;1&quot;&gt;" width="64"' in html
    assert 'src="data:image/jpeg;base64,/9g="' in html
    assert view.text() == '<Figure "1">\n<image/jpeg>'


def test_scripts_and_widgets_fall_back_to_text() -> None:
    view, _ = make_view(1)
    view.display(0, {"application/javascript": "alert(1)", "text/plain": "<js>"})
    assert "alert" not in view.html()
    assert "&lt;js&gt;" in view.html()


def test_display_update_replaces() -> None:
    view, _ = make_view(1)
    for number in range(3):
        view.display(0, {"text/plain": f"step {number}"}, {}, "handle", update=number > 0)
    view.display(0, {"text/plain": "other"}, {}, None, update=True)
    assert view.text() == "step 2\nother"


# the order of lines and displays


def markdown(text: str) -> dict[str, str]:
    """What only the front end draws."""
    return {"text/markdown": text, "text/plain": text}


def page(text: str) -> dict[str, str]:
    return {"text/html": f"<b>{text}</b>", "text/plain": text}


def texts_of(view: View) -> list[str]:
    return [output.data["text/plain"] for output in view.outputs()]


def test_lines_and_displays_stand_in_the_order_in_which_they_came() -> None:
    view, _ = make_view(2)
    for rank in range(2):
        view.output(rank, "stdout", "one\nunfinished")
        view.display(rank, page("two"))
        view.output(rank, "stdout", "three\n")
        view.display(rank, page(f"four {rank}"))
        view.output(rank, "stderr", "five\n")
        view.result(rank, {"text/plain": "six"})
    view.error(0, error(0))
    view.error(1, error(1))
    assert view.text().splitlines() == [
        *("[0-1] one", "[0-1] unfinished", "[0-1] two", "[0-1] three", "[0] four 0", "[1] four 1"),
        *("[0-1] five", "[0-1] six", "ranks 0-1: ValueError: bad", "Traceback", "  x = bad"),
    ]
    assert texts_of(view) == [view.text()]
    html = body_of(view.html())
    tags_of(html)
    words = ["one", "unfinished", "<b>two", "three", "<b>four 0", "<b>four 1", "five", "six", "bad"]
    places = [html.index(word) for word in words]
    assert places == sorted(places)
    assert html.count('type="radio"') == 2  # two ranks differ in one display
    assert html.count("ranks 0-1</div>") == 1


def test_ids_in_one_output_are_different() -> None:
    view, _ = make_view(2)
    for step in range(3):
        for rank in range(2):
            view.output(rank, "stdout", f"{step}\n")
            view.display(rank, page(f"{rank}"))
            view.display(rank, page("same"))
            view.display(rank, page(f"again {rank}"))
    ids = re.findall(r' id="([^"]*)"', view.html())
    assert len(ids) == len(set(ids)) == 12
    assert len(set(re.findall(r' name="([^"]*)"', view.html()))) == 6


@pytest.mark.parametrize("group", ["fold", "order", "rank", "none"])
def test_each_ranks_order_is_kept_however_lines_are_grouped(group: str) -> None:
    view, _ = make_view(3, group=group)
    for step in range(3):
        for rank in range(3):
            view.output(rank, "stdout", f"line {step}\nopen of {rank}")
            view.display(rank, page(f"plot {step} of {rank}"))
    text = view.text()
    for rank in range(3):
        own = [line.removeprefix(f"[{rank}] ") for line in text.splitlines() if line.endswith(f"of {rank}")]
        assert own == [what for step in range(3) for what in (f"open of {rank}", f"plot {step} of {rank}")]
    assert ("[" in text) is (group != "none")
    if group == "rank":
        assert text.index("plot 2 of 0") < text.index("plot 0 of 1")


@pytest.mark.parametrize("group", ["fold", "order", "rank", "none"])
def test_hidden_lines_hide_no_displays(group: str) -> None:
    view, _ = make_view(1, max_rows=10, group=group)
    for number in range(5000):
        view.output(0, "stdout", f"{number}\n")
        if number == 2500:
            view.display(0, page("in the middle"))
    lines = view.text().splitlines()
    assert lines.count("in the middle") == 1 and "... 4,990 lines not shown; all of them: %mesh logs" in lines
    assert lines.index("in the middle") < lines.index("4995") and len(lines) == 12
    assert view.html().count("<b>in the middle</b>") == 1


def test_an_update_stays_in_its_place() -> None:
    view, _ = make_view(2)
    for rank in range(2):
        view.display(rank, page(f"v1 of {rank}"), display_id="status")
        view.output(rank, "stdout", "between\n")
    assert view.text() == "[0] v1 of 0\n[1] v1 of 1\n[0-1] between"
    for rank in range(2):
        view.display(rank, page("v2"), display_id="status", update=True)
    assert view.text() == "[0-1] v2\n[0-1] between"
    view.display(1, markdown("v3"), display_id="status", update=True)
    assert texts_of(view) == ["[0] v2\nrank 1:", "v3", "[0-1] between"]


def test_a_rank_that_is_cleared_leaves_the_others_displays() -> None:
    for group in ("fold", "order", "rank"):
        view, _ = make_view(2, group=group)
        for rank in range(2):
            view.output(rank, "stdout", "a\n")
            view.display(rank, page("b"))
            view.display(rank, page(f"c{rank}"))
        view.clear(1, wait=False)
        assert view.text() == "[0] a\n[0] b\n[0] c0"
        view.display(1, page("b"))
        assert view.text().splitlines()[-1] in ("[0] c0", "[1] b")


def test_what_the_front_end_draws_cuts_the_page() -> None:
    view, _ = make_view(2, title="cell")
    for rank in range(2):
        view.output(rank, "stdout", "one\n")
        view.display(rank, markdown("# Two"))
        view.display(rank, markdown(f"# Three {rank}"))
        view.output(rank, "stdout", "four\n")
        view.display(rank, page("five"))
        view.result(rank, markdown("# Six"))
    view.error(0, error(0))
    assert texts_of(view) == [
        *("cell\n[0-1] one\nranks 0-1:", "# Two", "rank 0:", "# Three 0", "rank 1:", "# Three 1"),
        *("[0-1] four\n[0-1] five\nranks 0-1:", "# Six", "rank 0: ValueError: bad\nTraceback\n  x = bad"),
    ]
    assert [output.is_page for output in view.outputs()] == [True, False] * 4 + [True]
    for output in view.outputs()[::2]:
        tags_of(body_of(output.data["text/html"]))


def test_on_one_rank_nothing_stands_between_what_the_front_end_draws() -> None:
    view, _ = make_view(1)
    view.display(0, markdown("# One"))
    view.display(0, markdown("# Two"))
    assert texts_of(view) == ["# One", "# Two"]


def test_more_natives_than_a_notebook_can_take_are_text() -> None:
    view, _ = make_view(1)
    for number in range(MAX_NATIVES + 5):
        view.output(0, "stdout", f"line {number}\n")
        view.display(0, markdown(f"# {number}"))
    view.result(0, markdown("# value"))
    texts = texts_of(view)
    assert len(texts) == 2 * MAX_NATIVES + 1
    assert texts[-1].splitlines()[:2] == [f"line {MAX_NATIVES}", f"# {MAX_NATIVES}"]
    assert texts[-1].splitlines()[-1] == "# value"
    assert "\n".join(texts) == view.text()


def test_views_below_each_other_are_cut_too() -> None:
    views = [make_view(1, title=title)[0] for title in ("first", "second", "third")]
    for view in views:
        view.output(0, "stdout", "a\n")
    views[1].display(0, markdown("# Between"))
    views[1].output(0, "stdout", "b\n")
    assert texts_of(StackView(views)) == ["first\na\nsecond\na", "# Between", "b\nthird\na"]


class Screen(NotebookPublisher):
    """What a notebook has on screen: outputs that are added or replaced, never inserted."""

    def __init__(self) -> None:
        super().__init__()
        self.outputs: dict[str, tuple[str, object]] = {}
        self.num_sent = 0

    def _send(self, display_id: str, data: dict[str, str], metadata: object, *, known: bool) -> None:  # type: ignore[override]
        assert known == (display_id in self.outputs)
        self.outputs[display_id] = data["text/plain"], metadata
        self.num_sent += 1

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.outputs.values() if text]


SCREEN_EVENTS = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["line", "page", "native", "update", "clear", "look"]),
        st.integers(0, 2),
    ),
    max_size=40,
)


@given(SCREEN_EVENTS, st.sampled_from(["fold", "order", "rank"]))
@settings(max_examples=300)
def test_a_screen_shows_everything_once_and_in_order(events: list[tuple[int, str, int]], group: str) -> None:
    view, _ = make_view(3, group=group)
    screen = Screen()
    expected: dict[int, list[str]] = {rank: [] for rank in range(3)}
    for rank, what, value in events:
        if what == "line":
            view.output(rank, "stdout", f"line {value}\n")
            expected[rank].append(f"line {value}")
        elif what in ("page", "native"):
            show = page if what == "page" else markdown
            view.display(rank, show(f"{what} {value}"), display_id=f"{rank}{len(expected[rank])}")
            expected[rank].append(f"{what} {value}")
        elif what == "update" and expected[rank] and not expected[rank][-1].startswith("line"):
            place = len(expected[rank]) - 1
            view.display(rank, markdown(f"new {value}"), display_id=f"{rank}{place}", update=True)
            expected[rank][-1] = f"new {value}"
        elif what == "clear":
            view.clear(rank, wait=False)
            expected[rank] = []
        elif what == "look":
            screen.publish(view, final=False)
    screen.publish(view, final=True)
    assert screen.texts == texts_of(view)
    seen: dict[int, list[str]] = {rank: [] for rank in range(3)}
    drawn_by: list[int] = []
    for line in "\n".join(screen.texts).splitlines():
        labelled = re.fullmatch(r"\[([\d,-]+)\] (.*)", line)
        caption = re.fullmatch(r"ranks? ([\d,-]+):", line)
        if caption:
            drawn_by = ranks_in(caption[1])
        for rank in ranks_in(labelled[1]) if labelled else () if caption else drawn_by:
            seen[rank].append(labelled[2] if labelled else line)
    assert seen == expected


def ranks_in(text: str) -> list[int]:
    parts = [part.partition("-") for part in text.split(",")]
    return [rank for low, _, high in parts for rank in range(int(low), int(high or low) + 1)]


def test_only_what_has_changed_is_sent_again() -> None:
    view, _ = make_view(2)
    screen = Screen()
    for rank in range(2):
        view.output(rank, "stdout", "a\n")
        view.display(rank, markdown("# Plot"))
    assert screen.publish(view, final=False) > 0 and screen.num_sent == 2
    assert screen.publish(view, final=False) == 0
    view.output(0, "stdout", "b\n")
    screen.publish(view, final=False)
    assert screen.num_sent == 3 and screen.texts == ["[0-1] a\nranks 0-1:", "# Plot", "[0] b"]


def test_what_becomes_of_a_cell_is_said_in_its_last_page_alone() -> None:
    view, _ = make_view(1)
    view.describe_rest(lambda: "it goes on")
    screen = Screen()
    rest = {"monarch_nb": {"unfinished": "it goes on"}}
    view.output(0, "stdout", "a\n")
    screen.publish(view, final=False)
    assert list(screen.outputs.values()) == [("a", rest)]
    view.display(0, markdown("# Plot"))
    view.output(0, "stdout", "b\n")
    screen.publish(view, final=False)
    assert list(screen.outputs.values()) == [("a", {}), ("# Plot", {}), ("b", rest)]
    view.display(0, markdown("# Other"))
    screen.publish(view, final=False)
    assert list(screen.outputs.values()) == [("a", {}), ("# Plot", {}), ("b", rest), ("# Other", {})]
    view.done(0, 0.1)
    screen.publish(view, final=True)
    assert not any(metadata for _, metadata in screen.outputs.values())


def test_a_terminal_prints_displays_in_their_places_once() -> None:
    stream = io.StringIO()
    view, _ = make_view(2)
    terminal = TerminalPublisher(stream)
    for rank in range(2):
        view.output(rank, "stdout", "one\n")
        view.display(rank, markdown("two\nlines"))
    view.display(0, page("three"), display_id="x")
    terminal.publish(view, final=False)
    assert stream.getvalue() == "[0-1] one\n[0-1] two\n      lines\n"  # rank 1 may show the third, too
    view.display(1, page("three"), display_id="x")
    view.output(1, "stdout", "four\n")
    view.result(1, {"text/plain": "five"})
    view.close()
    terminal.publish(view, final=True)
    assert stream.getvalue().splitlines()[3:] == ["[0-1] three", "[1] four", "[1] five"]


def test_displays_in_a_terminal_are_in_the_order_of_ranks() -> None:
    view, _ = make_view(3)
    for rank in (2, 0, 1):
        view.display(rank, page(f"of {rank}"))
    assert view.drain() == "[0] of 0\n[1] of 1\n[2] of 2\n"


def test_a_terminal_is_told_at_the_end_what_has_become_of_a_display() -> None:
    stream = io.StringIO()
    view, _ = make_view(1)
    terminal = TerminalPublisher(stream)
    for step in range(4):
        view.display(0, {"text/plain": f"step {step}"}, display_id="x", update=step > 0)
        terminal.publish(view, final=False)
    view.output(0, "stdout", "done\n")
    terminal.publish(view, final=True)
    assert stream.getvalue() == "step 0\ndone\nstep 3\n"


# progress and times


def test_progress_after_two_seconds() -> None:
    view, clock = make_view()
    assert view.next_tick_s() is None
    view.started()
    clock.now = 1.5
    for rank in range(5):
        view.done(rank, 1.5)
    assert (view.visible(), view.next_tick_s()) == (False, 0.5)
    clock.now = 12.0
    assert view.visible()
    assert view.next_tick_s() == 1.0
    assert view.text() == "5 of 8 ranks done, 12 s; waiting for 5-7"
    assert "width: 62%" in view.html()
    view.close()
    assert view.text() == "5 of 8 ranks done, 12 s; not finished: 5-7"
    assert view.next_tick_s() is None


def test_an_error_ends_its_rank() -> None:
    view, clock = make_view(2)
    view.started()
    view.done(0, 1.0)
    view.error(1, error(1))
    clock.now = 60.0
    state = view.state()
    assert (state.done, state.failed, state.running, state.elapsed_s) == ((0,), (1,), (), 0.0)
    assert "ranks done" not in view.text()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        ([1.0, 1.1, 1.19], ""),
        ([0.01, 0.05], ""),
        ([1.21, 1.22, 3.4], "time: [0-1] 1.2 s, [2] 3.4 s"),
        ([0.2, 0.1, 130.0], "time: [1] 0.10 s, [0] 0.20 s, [2] 2 min 10 s"),
        ([float(1 + n) for n in range(9)], "time: fastest [0] 1.0 s, median 5.0 s, slowest [8] 9.0 s"),
    ],
)
def test_time_strip_when_ranks_differ(seconds: list[float], text: str) -> None:
    view, _ = make_view(len(seconds))
    for rank, took in enumerate(seconds):
        view.done(rank, took)
    assert view.text() == text
    assert body_of(view.html()).count('class="mno-bar"') == (len(seconds) if text else 0)


def test_no_strip_while_a_rank_runs() -> None:
    state = CellState(
        (0, 1, 2), done=(0, 1), failed=(), seconds={0: 1.0, 1: 9.0}, elapsed_s=9.0, num_lines=0, closed=False
    )
    assert strip_text(state) == ""


# live


class Recorder:
    """A publisher that counts, and lets a test wait for a publication."""

    def __init__(self) -> None:
        self.texts: list[tuple[str, bool]] = []
        self.published = threading.Event()

    def publish(self, view: CellView, *, final: bool) -> int:
        self.texts.append((view.text(), final))
        self.published.set()
        return 0


route: contextvars.ContextVar[str] = contextvars.ContextVar("route", default="elsewhere")


def test_a_short_cell_publishes_once() -> None:
    recorder = Recorder()
    view, _ = make_view(2)
    with LiveDisplay(view, publisher=recorder, interval_s=WAIT_S):
        for rank in range(2):
            view.output(rank, "stdout", "hi\n")
    assert recorder.texts == [("[0-1] hi", True)]


def test_a_long_cell_publishes_from_a_thread() -> None:
    recorder = Recorder()
    view, _ = make_view(2)
    live = LiveDisplay(view, publisher=recorder, interval_s=0.001)
    sender = threading.Thread(target=view.output, args=(1, "stdout", "hi\n"))
    sender.start()
    sender.join()
    assert recorder.published.wait(WAIT_S)
    live.finish()
    live.finish()
    assert recorder.texts == [("[1] hi", False), ("[1] hi", True)]


def test_nothing_to_show_publishes_nothing_before_the_end() -> None:
    recorder = Recorder()
    view, _ = make_view(2)
    live = LiveDisplay(view, publisher=recorder, interval_s=0.001)
    live.finish()
    assert recorder.texts == [("", True)]


def test_progress_shows_without_any_event() -> None:
    recorder = Recorder()
    view, clock = make_view(2)
    live = LiveDisplay(view, publisher=recorder, interval_s=0.001)
    clock.now = -1.999
    view.started()
    clock.now = 5.0
    assert recorder.published.wait(WAIT_S)
    assert recorder.texts[0][0] == "0 of 2 ranks done, 7.0 s; waiting for 0-1"
    live.finish()


def test_text_is_printed_in_the_context_of_its_cell() -> None:
    class Routed(io.StringIO):
        def write(self, text: str) -> int:
            return super().write(f"{route.get()}: {text}")

    stream = Routed()
    view, _ = make_view(2)
    token = route.set("this cell")
    live = LiveDisplay(view, publisher=TerminalPublisher(stream))
    route.reset(token)
    view.output(0, "stdout", "hi\n")
    live.finish()
    assert stream.getvalue() == "this cell: [0] hi\n"


def test_terminal_prints_lines_then_the_rest() -> None:
    stream = io.StringIO()
    view, _ = make_view(2)
    terminal = TerminalPublisher(stream)
    view.output(0, "stdout", "\x1b[31ma\x1b[0m\nb")
    terminal.publish(view, final=False)
    view.output(1, "stdout", "c\n")
    view.result(1, {"text/plain": "42"})
    view.error(0, error(0))
    view.close()
    terminal.publish(view, final=True)
    assert stream.getvalue() == (
        "[0] \x1b[31ma\x1b[0m\n[1] c\n[0] b\n[1] 42\nrank 0: ValueError: bad\nTraceback\n  x = bad\n"
    )


def test_what_comes_after_the_end_does_not_repeat_the_results() -> None:
    stream = io.StringIO()
    view, _ = make_view(2)
    terminal = TerminalPublisher(stream)
    view.result(0, {"text/plain": "42"})
    view.close()
    terminal.publish(view, final=True)
    view.output(1, "stdout", "late\n")
    terminal.publish(view, final=True)
    assert stream.getvalue() == "[0] 42\n[1] late\n"


def test_a_line_in_a_terminal_waits_a_moment_for_other_ranks() -> None:
    stream = io.StringIO()
    view, _ = make_view(2)
    terminal = TerminalPublisher(stream)
    view.output(0, "stdout", "red\n")
    view.output(0, "stdout", "blue\n")
    terminal.publish(view, final=False)
    assert stream.getvalue() == "" and view.next_tick_s() == 0.0
    view.output(1, "stdout", "red\n")
    terminal.publish(view, final=False)
    assert stream.getvalue() == "[0-1] red\n"
    for _ in range(3):
        terminal.publish(view, final=False)
    assert stream.getvalue() == "[0-1] red\n[0] blue\n" and view.next_tick_s() != 0.0
    view.output(1, "stdout", "blue\n")
    view.output(0, "stdout", "end\n")
    terminal.publish(view, final=True)
    assert stream.getvalue() == "[0-1] red\n[0] blue\n[1] blue\n[0] end\n"


def test_lines_shown_live_come_though_nothing_more_happens() -> None:
    class Told(io.StringIO):
        def write(self, text: str) -> int:
            written.set()
            return super().write(text)

    written = threading.Event()
    stream = Told()
    view = CellView([0, 1], world_size=2)
    with LiveDisplay(view, publisher=TerminalPublisher(stream)):
        view.output(0, "stdout", "only here\n")
        assert written.wait(30)
    assert stream.getvalue() == "[0] only here\n"


def test_terminal_progress_line_is_wiped() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    view, clock = make_view(2)
    terminal = TerminalPublisher(stream)
    view.started()
    clock.now = 3.0
    terminal.publish(view, final=False)
    view.output(0, "stdout", "x\n")
    terminal.publish(view, final=True)
    progress = "0 of 2 ranks done, 3.0 s; waiting for 0-1"
    assert stream.getvalue() == f"{progress}\r\x1b[2K[0] x\n{progress}\n"


def test_without_a_kernel_text_is_printed() -> None:
    assert isinstance(choose_publisher(), TerminalPublisher)


def test_in_a_kernel() -> None:
    """One output in the saved notebook, text and HTML, in the cell that made it though another ends it."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [
        nbformat.v4.new_code_cell(source)
        for source in (
            "from monarch_nb._display import CellView, LiveDisplay\nview = CellView([0, 1], 2)\n"
            "class Watched(type(LiveDisplay(view)._publisher)):\n"
            "    def publish(self, view, *, final):\n"
            "        super().publish(view, final=final)\n        published.set()\n        return 0\n"
            "import threading\npublished = threading.Event()\n"
            "live = LiveDisplay(view, publisher=Watched())\n"
            "threading.Thread(target=view.output, args=(0, 'stdout', 'early\\n')).start()\n"
            "published.wait(30), Watched.__base__.__name__",
            "view.output(1, 'stdout', 'early\\n')\nview.result(1, {'text/plain': '42'})\nlive.finish()",
            "with LiveDisplay(CellView([0], 1)) as quiet: pass",
        )
    ]
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    first, second, last = (cell.outputs for cell in notebook.cells)
    assert [output.output_type for output in first] == ["display_data", "execute_result"]
    assert first[0].data["text/plain"] == "[0-1] early\n[1] 42"
    assert "early" in first[0].data["text/html"]
    assert first[1].data["text/plain"] == f"(True, '{NotebookPublisher.__name__}')"
    assert (second, last) == ([], [])
