"""What the hosting site reads, and what visitors are told, agree with the project and each other.

The schemas of workflows, forms and the citation come with check-jsonschema; nothing is fetched.
"""

import importlib.util
import itertools
import json
import os
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from check_jsonschema.cli import main as check_jsonschema

ROOT = Path(__file__).parents[2]
FORGE = ROOT / ".github"
WORKFLOWS = sorted((FORGE / "workflows").glob("*.yml"))
FORMS = sorted(
    set((FORGE / "ISSUE_TEMPLATE").glob("*.yml")) - {FORGE / "ISSUE_TEMPLATE/config.yml"}
)
SCRIPTS = sorted(path for path in (ROOT / ".ci").iterdir() if not path.suffix)
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "custom.github-workflows-require-timeout": WORKFLOWS,
    "vendor.github-issue-forms": FORMS,
    "vendor.github-issue-config": [FORGE / "ISSUE_TEMPLATE/config.yml"],
    "vendor.dependabot": [FORGE / "dependabot.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PYTHONS = re.findall(
    r"Python :: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), flags=re.M
)


def fits(schema, *files):
    """Tell whether the files fit a schema that check-jsonschema brings."""
    with pytest.raises(SystemExit) as ended:
        check_jsonschema(["--builtin-schema", schema, *map(str, files)])
    return ended.value.code == 0


@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_sites_files_are_valid(schema, capsys):
    assert SCHEMAS[schema]
    assert fits(schema, *SCHEMAS[schema]), capsys.readouterr().out


def test_a_file_that_is_not_valid_is_found(tmp_path):
    for name, schema, text in [
        ("w.yml", "vendor.github-workflows", "on: push\njobs: {a: {steps: []}}\n"),
        ("f.yml", "vendor.github-issue-forms", "name: a\nbody: []\n"),
        ("c.cff", "vendor.citation-file-format", "cff-version: 1.2.0\n"),
    ]:
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert not fits(schema, tmp_path / name)


# --- what is run and used ---


def read(path):
    return yaml.safe_load(path.read_text("utf-8"))


def steps(workflow):
    """Return what a workflow uses and runs: its jobs that are workflows, too."""
    return [
        step
        for job in workflow["jobs"].values()
        for step in ([job] if "uses" in job else job["steps"])
    ]


def unpinned(workflow):
    """Return the actions without a version: a site's own by major number, others by commit."""
    pinned = r"actions/[\w-]+@v\d+|[\w.-]+/[\w./-]+@[0-9a-f]{40}|\./\.github/workflows/[\w-]+\.yml"
    return [
        s["uses"]
        for s in steps(workflow)
        if not re.fullmatch(pinned, s.get("uses", "./.github/workflows/x.yml"))
    ]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_asks_for_little_and_is_pinned(path):
    workflow = read(path)
    assert workflow["permissions"] == {"contents": "read"}, "more is asked for by the job in need"
    assert unpinned(workflow) == []
    for step in steps(workflow):
        assert "${{" not in step.get("run", ""), "hand it over in env: what is pasted can be code"
        if step.get("uses", "").startswith("./"):
            assert (ROOT / step["uses"]).is_file()


def test_each_action_has_one_version():
    used = {s["uses"] for path in WORKFLOWS for s in steps(read(path)) if "uses" in s}
    names = [use.split("@")[0] for use in used]
    assert sorted(names) == sorted(set(names))


def commands(path):
    """Return the lines that a file tells people or machines to run."""
    text = path.read_text("utf-8")
    if path.suffix == ".yml":
        return "\n".join(step.get("run", "") for step in steps(yaml.safe_load(text))).splitlines()
    if path.suffix == ".md":
        blocks = re.findall(r"^```\w+\n(.*?)^```", text, flags=re.M | re.S)
        return [*"\n".join(blocks).splitlines(), *re.findall(r"`([^`\n]+)`", text)]
    return text.splitlines()


def sessions():
    """Return the names of nox's sessions, as `nox --list` has them."""
    ids = re.findall(r'id="([\w-]+)"', (ROOT / "noxfile.py").read_text("utf-8"))
    return {"versions", "newest", *(f"versions-{p}({i})" for p in PYTHONS for i in ids)}


def missing(lines):
    """Return what the lines run that is not there: targets, tools, scripts, sessions."""
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), flags=re.M)
    faults = []
    for line in lines:
        said = line.split("#")[0].strip()
        for target in re.findall(r"^make (?:[A-Z_]+=\S+ )*([\w-]+)", said):
            faults += [f"make {target}"] * (target not in targets)
        for tool in re.findall(r"-m book\.tools\.(\w+)", said):
            faults += [f"book.tools.{tool}"] * (not (ROOT / f"book/tools/{tool}.py").is_file())
        for script in re.findall(r"(?:^|[ =])(\.(?:ci|devcontainer)/[\w./-]+)", said):
            there = (ROOT / script).is_file()
            runs = os.access(ROOT / script, os.X_OK) or not said.startswith(script)
            faults += [script] * (not (there and runs))
        for session in re.findall(r"nox (?:.* )?-s \"?([\w.()-]+)", said):
            faults += [f"nox -s {session}"] * (session not in sessions())
    return faults


@pytest.mark.parametrize(
    "path",
    [*WORKFLOWS, *SCRIPTS, *(ROOT / n for n in ("README.md", "CONTRIBUTING.md", "noxfile.py"))],
    ids=lambda path: path.name,
)
def test_what_is_to_be_run_is_there(path):
    assert missing(commands(path)) == []


def test_what_is_not_there_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\nMake haste: `make haste`, `make book`, `.ci/nothing x`, `.ci/run`.\n\n"
        "```bash\nmake PYTHON=python3.12 tea  # not coffee\npython -m book.tools.nothing\n"
        'nox -s "versions-2.7(oldest)"\nnox -s newest\n```\n'
    )
    assert sorted(missing(commands(page))) == [
        ".ci/nothing",
        "book.tools.nothing",
        "make haste",
        "make tea",
        "nox -s versions-2.7(oldest)",
    ]
    planted = {
        "jobs": {"a": {"steps": [{"uses": use} for use in ("actions/x@v1", "a/b@v1", "a/b")]}}
    }
    assert unpinned(planted) == ["a/b@v1", "a/b"]


def test_the_readmes_windows_is_what_runs_there():
    block = re.search(
        r"^```powershell\n(.*?)^```", (ROOT / "README.md").read_text("utf-8"), re.M | re.S
    )
    job = read(FORGE / "workflows/ci.yml")["jobs"]["windows"]
    assert [
        s["run"] for s in job["steps"] if "book" in s.get("run", "") or "pytest" in s.get("run", "")
    ] == (block[1].splitlines())
    assert job["env"]["PYTHONIOENCODING"] == "cp1252"


# --- versions and licences ---


def test_the_noxfile_reads_the_pythons_and_finds_every_range():
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    noxfile = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(noxfile)
    assert noxfile.PYTHONS == PYTHONS
    assert len(list(noxfile.needs())) > len(noxfile.TESTERS)


def test_pythons_agree_everywhere():
    first, last = PYTHONS[0], PYTHONS[-1]
    beyond = f"3.{int(last.split('.')[1]) + 1}"
    assert PROJECT["project"]["requires-python"] == f">={first}"
    assert PROJECT["tool"]["mypy"]["python_version"] == first
    assert f"python >={first},<{beyond}" in read(ROOT / "environment.yml")["dependencies"]
    for page in ("README.md", "book/how-to-read.md"):
        assert f"Python {first} to {last}" in (ROOT / page).read_text("utf-8")
    image = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))["image"]
    named = {path.name: path.read_text("utf-8") for path in WORKFLOWS} | {"container": image}
    found = {
        name: set(
            re.findall(
                r"(?:(?:python(?:-version)?|PY_PYTHON)\"?: \"?|python:|versions-)(3\.\d+)", text
            )
        )
        for name, text in named.items()
    }
    assert {
        name: sorted(each - set(PYTHONS)) for name, each in found.items() if each - set(PYTHONS)
    } == {}
    assert found["ci.yml"] == set(PYTHONS), "each Python is tested before pages are published"
    assert last in found["weekly.yml"]
    assert found["container"]


def test_environments_name_no_second_list():
    named = read(ROOT / "environment.yml")["dependencies"]
    extras = re.fullmatch(r"-e \.\[([\w,]+)\]", named[-1]["pip"][0])[1].split(",")
    assert set(extras) <= PROJECT["project"]["optional-dependencies"].keys()
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    assert missing([container["postCreateCommand"]]) == []


def test_the_version_is_one():
    version = PROJECT["project"]["version"]
    citation = read(ROOT / "CITATION.cff")
    assert citation["version"] == citation["preferred-citation"]["version"] == version
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    newest, day = re.search(r"^## (\S+) – (.+)$", changelog, flags=re.M).groups()
    assert newest == version
    said = str(citation.get("date-released", "unreleased"))
    assert said == day, "CITATION.cff and CHANGELOG.md give the same day, or none yet"


def test_licences_are_said_and_there():
    code, text = ((ROOT / name).read_text("utf-8") for name in ("LICENSE", "LICENSE-text"))
    assert code.startswith("MIT License\n")
    assert text.startswith("Creative Commons Attribution 4.0 International\n")
    assert [f"Section {n} –" in text for n in range(1, 9)] == [True] * 8
    citation = read(ROOT / "CITATION.cff")
    assert (citation["license"], PROJECT["project"]["license"]) == ("MIT", "MIT")
    assert citation["preferred-citation"]["license"] == "CC-BY-4.0"
    for page in ("README.md", "book/how-to-read.md", "_config.yml"):
        said = (ROOT / page).read_text("utf-8")
        assert re.search(r"MIT licence", said), page
        assert re.search(r"CC BY 4\.0|Creative Commons Attribution 4\.0", said), page


def test_pages_of_the_repository_link_to_what_is_there():
    links = itertools.chain.from_iterable(
        [(p, link) for link in re.findall(r"\]\((?!https?:)([^)#]+)", p.read_text("utf-8"))]
        for p in ROOT.glob("*.md")
    )
    assert [f"{p.name}: {link}" for p, link in links if not (p.parent / link).exists()] == []
