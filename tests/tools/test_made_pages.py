import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from docutils import nodes
from docutils.utils import new_document

from book.ext import glossary_links, made_pages

ROOT = Path(__file__).parents[2]


def notebook(*cells, measured=None):
    made = [
        {
            "cell_type": "code",
            "source": source,
            "metadata": {"tags": tags},
            "outputs": [{"output_type": "stream", "text": said}] if said else [],
        }
        for source, tags, said in cells
    ]
    return {"cells": made, "metadata": {made_pages.MADE_FROM: {"measured": measured or {}}}}


def test_a_verified_sentence_comes_with_its_numbers_and_seeds():
    found = made_pages.verified(
        notebook(
            ("seeds = (7, 21)\nruns = [train(seed) for seed in seeds]", [], ""),
            ("verify('so', min(runs) > 0.6)", ["claim-K1"], "✓ it is *so*\nnoise\n✓ plain\n"),
            ("print('✓ no claim')", [], "✓ no claim\n"),
            measured={"it is *so*": ["0.8 > 0.6"]},
        )
    )
    assert found == {
        "K1": [r"it is \*so\* — measured: 0.8 \> 0.6 (seeds 7, 21)", "plain"],
    }


@pytest.mark.parametrize(
    ("sources", "wanted"),
    [
        (["trained(seed=7)"], [7]),
        (["torch.manual_seed(3)"], [3]),
        (["for seed in [1, 2]:\n    run(seed)"], [1, 2]),
        (["def f(s):\n    return go(s, seed=5)", "f(1)"], [5]),
        (["a = go(seed=5)", "b = go(seed=6)", "b"], [6]),
        (["a = go(seed=5)", "a = go(seed=6)", "a"], [6]),
        (["%pip install x", "study('whole_or_parts')"], [31, 32, 33, 34, 35, 36]),
        (["seed = other", "run(seed=seed)"], []),
    ],
)
def test_seeds_are_those_a_cell_rests_on(sources, wanted):
    assert made_pages.seeds(sources, len(sources) - 1) == wanted


def test_every_written_claim_has_its_line_and_a_missing_one_is_refused(tmp_path):
    (tmp_path / "book").mkdir()
    (tmp_path / "chapters").mkdir()
    listed = "chapters:\n  01-x:\n    written: true\n    claims: {A1: Said., A2: More.}\n"
    (tmp_path / "book" / "claims.yml").write_text(listed, "utf-8")
    title = {"cell_type": "markdown", "source": "# 01 X\n\ntext", "metadata": {}}
    file = tmp_path / "chapters" / "01-x.ipynb"

    def write(*cells):
        whole = notebook(*cells)
        whole["cells"].insert(0, title)
        file.write_text(json.dumps(whole), "utf-8")

    write(("verify()", ["claim-A1"], "✓ yes\n"))
    with pytest.raises(ValueError, match="01-x verifies nothing for claim A2"):
        made_pages.claims(tmp_path)
    write(("verify()", ["claim-A1", "claim-A2"], "✓ yes\n"))
    text = made_pages.claims(tmp_path)
    assert "## 01 X" in text
    assert "**[A2](../chapters/01-x.ipynb#claim-A2)** More." in text


def test_the_list_of_questions_has_them_all_and_no_answer():
    chapter = (ROOT / "chapters" / "12-misconceptions.md").read_text("utf-8")
    listed = made_pages.questions(ROOT)
    assert listed.count("\n1. ") == 1
    numbers = [int(n) for n in re.findall(r"^(\d+)\. ", listed, flags=re.M)]
    assert numbers == list(range(1, chapter.count("<summary><b>") + 1))
    assert len(numbers) >= 40
    assert "What people get wrong" not in listed


def test_each_answer_has_three_parts_and_a_proof():
    chapter = (ROOT / "chapters" / "12-misconceptions.md").read_text("utf-8")
    for answer in re.findall(r"<summary><b>.*?</details>", chapter, flags=re.S):
        for part in ("**In a sentence.**", "**Why.**", "**What people get wrong.**", "#claim-"):
            assert part in answer, answer


def linked(*texts, left):
    document = new_document("x")
    for text in texts:
        document += nodes.paragraph("", "", nodes.Text(text))
    app = SimpleNamespace(
        builder=SimpleNamespace(format="html", get_relative_uri=lambda a, b: "../" + b),
        srcdir="x",
    )
    for paragraph in document.findall(nodes.paragraph):
        for text in list(paragraph.findall(nodes.Text)):
            glossary_links._link(app, "chapters/x", text, left)
    return [(r.astext(), r["refuri"]) for r in document.findall(nodes.reference)], document.astext()


def test_the_first_use_of_a_word_is_linked_once_and_the_text_is_unchanged():
    left = {"stream": "stream", "causal mask": "causal-mask"}
    found, text = linked("Two streams, one causal mask.", "The stream; upstream.", left=left)
    assert found == [
        ("streams", "../book/glossary#stream"),
        ("causal mask", "../book/glossary#causal-mask"),
    ]
    assert text == "Two streams, one causal mask.\n\nThe stream; upstream."
    assert left == {}


def test_the_words_are_those_of_the_glossary():
    words = glossary_links.terms(ROOT)
    assert words["d_model"] == "d-model"
    assert "token" not in words, "too common"
