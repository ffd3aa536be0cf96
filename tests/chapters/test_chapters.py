"""Stored notebooks are what the texts and the package make; chapters keep the book's form."""

import ast
import gzip
import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest
import yaml

from book.tools.execute import CHAPTERS, MADE_FROM, STATE, VIEW, made_from, read

ROOT = Path(__file__).parents[2]
LIST = yaml.safe_load((ROOT / "book" / "claims.yml").read_text("utf-8"))["chapters"]
WRITTEN = [name for name, chapter in LIST.items() if chapter["written"]]
HEADINGS = [
    "Where we are",
    "By hand",
    "The formula",
    "In plain torch",
    "In the package",
    "Measure it",
    "Play",
    "Exercises",
    "Quiz",
    "Keep",
]
every_chapter = pytest.mark.parametrize("name", WRITTEN)


def text_of(name):
    return read(CHAPTERS / f"{name}.md")


def stored(name):
    return nbformat.read(CHAPTERS / f"{name}.ipynb", as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def claims_of(cell):
    return {t.removeprefix("claim-") for t in cell.metadata.get("tags", []) if "claim-" in t}


def calls(cell, function):
    return re.search(rf"(?<![\w.]){function}\(", cell.source)


# What is wrong with a chapter's text: each function returns a list of sentences.


def claim_faults(name, notebook):
    wanted = LIST[name]["claims"].keys()
    faults, proved = [], set()
    for cell in code_cells(notebook):
        tags = claims_of(cell)
        if bool(calls(cell, "verify")) != bool(tags):
            faults.append(f"verify and a claim tag go together; not so in\n{cell.source}")
        faults += [f"claim {tag} is not one of {name}" for tag in sorted(tags - wanted)]
        proved |= tags
    return faults + [f"claim {tag} is not proved yet" for tag in wanted if tag not in proved]


def is_fold(cell):
    """Tell whether a cell shows nothing but sources under a fold."""
    return bool(re.match(r"show_study\(|show_source\((.|\n)*fold=", cell.source))


def is_open(cell):
    """Tell whether a reader who opens no fold sees the code of a cell."""
    return not is_fold(cell) and "hide-input" not in cell.metadata.get("tags", [])


def syntax(source):
    """Return the syntax tree of a cell, without IPython's own lines."""
    return ast.parse(re.sub(r"^(\s*)%.*$", r"\1pass", source, flags=re.MULTILINE))


def form_faults(notebook, headings=HEADINGS):
    faults = []
    text = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    found = [m for source in text for m in re.findall(r"^## (.*)$", source, flags=re.M)]
    if found != headings:
        faults.append(f"the headings are {found}")
    if not text or not re.match(r"# \d\d \w", text[0]):
        faults.append("the first cell must be the title: # NN Title")
    open_cells = [cell for cell in notebook.cells if cell.cell_type == "markdown" or is_open(cell)]
    if not 40 <= len(open_cells) <= 70:
        faults.append(f"{len(open_cells)} cells, folds aside; a chapter has 40 to 70")
    for source in text:
        if re.search(r"^\s*:::|^\s*```\{|\{[a-z:-]+\}`", source, flags=re.M):
            faults.append(f"only plain Markdown shows everywhere; not\n{source}")
    sizes = [len(cell.source.splitlines()) for cell in code_cells(notebook)]
    seen = [len(cell.source.splitlines()) for cell in code_cells(notebook) if is_open(cell)]
    if max(sizes, default=0) > 20:
        faults.append(f"a code cell has {max(sizes)} lines; at most 20")
    if sum(size <= 8 for size in seen) < len(seen) / 2:
        faults.append(
            f"most open code cells should have 8 lines or fewer; they have {sorted(seen)}"
        )
    for cell in code_cells(notebook):
        if cell.source.rstrip().endswith(";"):
            faults.append(f"a last semicolon hides the output from people only:\n{cell.source}")
        faults += [f"only the last line of a cell is shown, so {x} is lost" for x in lost(cell)]
        if re.search(r"\binteract(ive|_manual)?\(|\btqdm\b", cell.source):
            faults.append(f"dead on a page, or noisy:\n{cell.source}")
    return faults


def lost(cell):
    """Find what is made to be looked at and not on a cell's last line."""
    for line in syntax(cell.source).body[:-1]:
        if isinstance(line, ast.Expr) and isinstance(line.value, ast.Call):
            name = ast.unparse(line.value.func)
            if re.fullmatch(r"show_source|show_study|explore|quiz|figures\..*", name):
                yield ast.unparse(line)


WIDE = 80  # characters; a page 1280 px wide shows 82
DRAWN = 5  # lines of calls of figures that a cell may show; more is folded
LONG = 100  # characters of a condition: longer ones get a name first
COMPREHENSIONS = ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp


def visible_faults(notebook):
    """Find what keeps a reader from seeing the idea: wide lines, drawing code, puzzles."""
    faults = []
    answers = [
        code
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for code in re.findall(r"```python\n(.*?)```", cell.source, flags=re.DOTALL)
    ]
    for source in [cell.source for cell in code_cells(notebook)] + answers:
        wide = [line for line in source.splitlines() if len(line) > WIDE]
        faults += [f"a line of {len(line)} characters is cut off: {line}" for line in wide]
    for cell in code_cells(notebook):
        if "hide-input" in cell.metadata.get("tags", []):
            if not cell.metadata.get("mystnb", {}).get("code_prompt_show"):
                faults.append(f"a fold must say what is inside:\n{cell.source}")
        elif not is_fold(cell):
            faults += [f"{fault}:\n{cell.source}" for fault in puzzles(syntax(cell.source))]
    return faults


def holds(nodes, kind):
    return any(isinstance(node, kind) for node in nodes)


def puzzles(tree):
    drawn = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("figures."):
            drawn += node.end_lineno - node.lineno + 1
        if isinstance(node, COMPREHENSIONS) and holds(ast.walk(node), ast.NamedExpr):
            yield "a := within a lambda or a comprehension is a puzzle"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Tuple):
            yield from ["statements joined by commas"] * holds(node.value.elts, ast.Call)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "verify":
            condition = ast.unparse(node.args[1])
            if len(condition) > LONG:
                yield f"name the parts of a condition of {len(condition)} characters"
    if drawn > DRAWN:
        yield f"{drawn} lines draw; fold them (hide-input, with a code_prompt_show)"


READ = 200, 12  # words and lines of code that a reader takes in a minute (measured)
SHORT = "optional"  # sections whose heading says so are not counted


def reading_minutes(notebook):
    """Count how long the open parts of a chapter take to read, up to the next five minutes."""
    words = lines = skipped = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for level, title in re.findall(r"^(#+) (.*)$", cell.source, flags=re.MULTILINE):
                if len(level) <= (skipped or 9):
                    skipped = len(level) if SHORT in title else 0
        if skipped:
            continue
        if cell.cell_type == "markdown":
            said = re.sub(r"<details>.*?</details>|```.*?```", "", cell.source, flags=re.DOTALL)
            words += len(re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", said))
        elif is_open(cell):
            lines += sum(bool(line.strip()) for line in cell.source.splitlines())
    return 5 * math.ceil((words / READ[0] + lines / READ[1]) / 5)


def time_faults(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    said = re.search(r"Reading: (\d+) minutes(?:, the exercises (\d+))?", text)
    if not said:
        return ["say “Reading: N minutes, the exercises M more.”"]
    counted = reading_minutes(notebook)
    given = sum(int(n) for n in re.findall(r"^### \d.*\((\d+) minutes\)", text, flags=re.MULTILINE))
    faults = []
    if int(said[1]) != counted:
        faults.append(f"it says {said[1]} minutes of reading; {counted} are counted")
    if counted > 40:
        faults.append(f"{counted} minutes are too many; at most 40")
    if given and int(said[2] or 0) != given:
        faults.append(f"it says {said[2]} minutes of exercises; their headings say {given}")
    if re.search(r"\bthe lecture", text, flags=re.IGNORECASE):
        faults.append("which lecture? The usual sizes are “the running example”")
    return faults


# What is wrong with a stored notebook.


def stale_faults(name, notebook):
    now = text_of(name)
    faults = []
    stored_digests = {**notebook.metadata.get(MADE_FROM, {})}
    stored_digests.pop("measured", None)
    if stored_digests != made_from(now):
        faults.append("it was made from other code cells or another package")
    for ours, theirs in zip(now.cells, notebook.cells, strict=False):
        same = (ours.cell_type, ours.source, ours.id) == (
            theirs.cell_type,
            theirs.source,
            theirs.id,
        )
        if not same or ours.metadata.get("tags") != theirs.metadata.get("tags"):
            faults.append(f"a cell differs from the text:\n{ours.source}")
            break
    if len(now.cells) != len(notebook.cells):
        faults.append(f"it has {len(notebook.cells)} cells, the text {len(now.cells)}")
    return faults


class Unnamed(HTMLParser):
    """Finds pictures that say nothing to those who cannot see them."""

    def __init__(self):
        super().__init__()
        self.faults = []

    def handle_starttag(self, tag, attrs):
        has = dict(attrs)
        if tag == "svg" and not (has.get("role") == "img" and has.get("aria-label")):
            self.faults.append("an <svg> has no role=img with an aria-label")
        if tag == "img" and not has.get("alt"):
            self.faults.append("an <img> has no alt text")


def picture_faults(notebook):
    parser = Unnamed()
    for cell in code_cells(notebook):
        for out in cell.outputs:
            data = out.get("data", {})
            parser.feed(data.get("text/html", ""))
            if images := [kind for kind in data if kind.startswith("image/")]:
                parser.faults.append(f"{images[0]} has no alt text; make a figures.Picture of it")
    for model in states(notebook).values():
        parser.feed(str(model["state"].get("value", "")))
    return parser.faults


def states(notebook):
    return notebook.metadata.get("widgets", {}).get(STATE, {}).get("state", {})


def reachable(models, name):
    found, todo = {}, [name]
    while todo:
        one = todo.pop()
        if one in models and one not in found:
            found[one] = models[one]
            todo += re.findall(r"IPY_MODEL_(\w+)", json.dumps(models[one]))
    return found


def size_faults(notebook, raw):
    faults = [f"the notebook has {len(raw):,} bytes"] if len(raw) >= 1_000_000 else []
    for cell in code_cells(notebook):
        for out in cell.outputs:
            if VIEW in out.get("data", {}):
                models = reachable(states(notebook), out.data[VIEW]["model_id"])
                state = json.dumps(models, ensure_ascii=False).encode()
                small = len(gzip.compress(state, 9))
                if not models:
                    faults.append(f"a widget has no stored state:\n{cell.source}")
                if len(state) >= 300_000 or small >= 30_000:
                    faults.append(f"a widget's state has {len(state):,} bytes, {small:,} packed")
    return faults


def residue_faults(raw):
    known = {
        "an object's address": r"\bat 0x[0-9a-f]{6,}",
        "a path of some machine": r"/(?:home|root|Users|tmp)/|ipykernel_\d",
        "a time stamp": r"20\d\d-\d\d-\d\dT\d\d:",
        "stderr": r'"name": "stderr"',
    }
    return [f"it holds {what}" for what, pattern in known.items() if re.search(pattern, raw)]


@every_chapter
def test_the_text_proves_its_claims(name):
    assert claim_faults(name, text_of(name)) == []


@every_chapter
def test_the_text_has_the_book_s_form(name):
    headings = LIST[name].get("headings", HEADINGS)
    assert form_faults(text_of(name), headings) == []


@every_chapter
def test_the_idea_is_visible_and_the_time_is_true(name):
    notebook = text_of(name)
    assert visible_faults(notebook) + time_faults(notebook) == []


@every_chapter
def test_the_notebook_was_made_from_this_text_and_package(name):
    assert stale_faults(name, stored(name)) == [], "run `make run`"


@every_chapter
def test_the_notebook_is_small_and_says_what_its_pictures_show(name):
    raw = (CHAPTERS / f"{name}.ipynb").read_text("utf-8")
    notebook = stored(name)
    faults = size_faults(notebook, raw.encode()) + picture_faults(notebook) + residue_faults(raw)
    assert faults == []
    for cell in code_cells(notebook):
        if calls(cell, "verify"):
            assert "✓" in "".join(out.get("text", "") for out in cell.outputs), cell.source


def test_the_claims_are_of_the_chapters_that_exist():
    texts = {path.stem for path in CHAPTERS.glob("*.md")}
    notebooks = {path.stem for path in CHAPTERS.glob("*.ipynb")}
    assert texts == set(WRITTEN), "chapters on disk, and `written: true` in book/claims.yml"
    assert notebooks == texts, "each text has its notebook"


def test_claims_have_one_chapter_and_a_sentence_each():
    every = [(tag, said) for chapter in LIST.values() for tag, said in chapter["claims"].items()]
    assert len({tag for tag, _ in every}) == len(every)
    assert len({said for _, said in every}) == len(every)
    assert all(said.endswith(".") and len(said) < 120 for _, said in every)


# The checks above are themselves checked: a planted fault must be found.


def planted(*cells):
    notebook = nbformat.v4.new_notebook()
    for source, *tags in cells:
        notebook.cells.append(nbformat.v4.new_code_cell(source, metadata={"tags": tags}))
    return notebook


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ([("verify('so', True)",)], "go together"),
        ([("1 + 1", "claim-H1")], "go together"),
        ([("verify('so', True)", "claim-R1")], "R1 is not one of 01-heads"),
        ([("verify('so', True)", "claim-H1")], "claim H2 is not proved yet"),
    ],
)
def test_a_missing_or_strange_claim_is_found(cells, said):
    assert any(said in fault for fault in claim_faults("01-heads", planted(*cells)))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("x = 1\n" * 21, "21 lines"),
        ("draw();", "semicolon"),
        ("interact(draw, n=3)", "dead"),
        ("figures.table([], [])\nverify('so', True)", "figures.table([], []) is lost"),
        ("x", "headings"),
        ("x", "1 cells"),
    ],
)
def test_a_code_cell_out_of_form_is_found(source, said):
    assert any(said in fault for fault in form_faults(planted([source])))


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (f"x = '{'y' * 80}'", "cut off"),
        ("figures.table(\n1,\n2,\n3,\n4,\n5)", "6 lines draw"),
        ("keep = [y := f(x), y * y]\nfirst = lambda x: (y := f(x), y * y)", "puzzle"),
        ("first(), second()", "joined by commas"),
        (f"verify('so', {' and '.join('abcdefghijklmnopqrst')})", "of 115 characters"),
    ],
)
def test_what_hides_the_idea_is_found(source, said):
    assert any(said in fault for fault in visible_faults(planted((source,))))


def test_a_fold_needs_a_label_and_hides_the_rest():
    drawing = planted(("figures.table(\n1,\n2,\n3,\n4,\n5)", "hide-input"))
    assert "must say what is inside" in visible_faults(drawing)[0]
    drawing.cells[0].metadata["mystnb"] = {"code_prompt_show": "The drawing"}
    assert visible_faults(drawing) == []


def said(*paragraphs):
    cells = [nbformat.v4.new_markdown_cell(source) for source in paragraphs]
    return nbformat.v4.new_notebook(cells=cells)


@pytest.mark.parametrize(
    ("paragraphs", "fault"),
    [
        (["Reading: 10 minutes.", "word " * 1100], None),
        (["Reading: 5 minutes.", "word " * 1100], "10 are counted"),
        (["Reading: 5 minutes.", "## A detour (optional)", "word " * 1100], None),
        (
            ["Reading: 5 minutes.", "### One (optional)\n", "word " * 9, "## Two", "w " * 999],
            "10 are",
        ),
        (["Reading: 5 minutes.", "<details>" + "word " * 1100 + "</details>"], None),
        (
            ["Reading: 5 minutes, the exercises 5 more.", "### 1. Do (10 minutes)"],
            "headings say 10",
        ),
        (["Reading: 45 minutes.", "word " * 9000], "too many"),
        (["The lecture says so. Reading: 5 minutes."], "which lecture"),
        (["No time."], "say"),
    ],
)
def test_a_time_that_is_not_true_is_found(paragraphs, fault):
    faults = time_faults(said(*paragraphs))
    assert (fault is None and not faults) or any(fault in f for f in faults)


@pytest.mark.parametrize(
    "source", [":::{note}\nx\n:::", "see {cite}`vaswani`", "```{figure} x\n```"]
)
def test_directives_and_roles_are_found(source):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(source)])
    assert any("plain Markdown" in fault for fault in form_faults(notebook))


@pytest.mark.parametrize(
    "data",
    [
        {"text/html": "<svg></svg>"},
        {"text/html": '<img src="x.png">'},
        {"image/png": "aGk="},
        {"image/svg+xml": "<svg/>"},
    ],
)
def test_a_picture_without_words_is_found(data):
    notebook = planted(["x"])
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", data)]
    assert picture_faults(notebook)


def test_a_large_widget_is_found():
    notebook = planted(["x"])
    view = {VIEW: {"model_id": "a"}}
    notebook.cells[0].outputs = [nbformat.v4.new_output("display_data", view)]
    assert "no stored state" in size_faults(notebook, b"")[0]
    model = {"state": {"value": html.escape("<b>" * 100_000)}}
    notebook.metadata.widgets = {STATE: {"state": {"a": model}}}
    assert "bytes" in size_faults(notebook, b"")[0]


def test_traces_of_a_machine_are_found():
    for raw in ["<X at 0x7f00aa11>", "/home/me/x.py", "2026-01-01T10:00", '"name": "stderr"']:
        assert residue_faults(raw)
