"""The set-up of .venv: when it begins anew, where packages go, why it failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from book.tools import common, set_up
from book.tools.common import Problem

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="the stand-in is a shell script")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder with an environment whose Python notes how it was called."""
    root = tmp_path / "ein Ordner, 文件夹"
    (root / ".venv" / "bin").mkdir(parents=True)
    for name in ("pyproject.toml", "constraints.txt"):
        (root / name).write_text("one")
    python = root / ".venv" / "bin" / "python"
    # the pip that it plays writes the path as hatchling does, and says what it is told to say
    python.write_text(
        '#!/bin/sh\ncase "$*" in *"pip install"*)'
        ' echo "$PIP_USER|$PIP_TARGET|$PYTHONPATH" >> calls;'
        ' printf "%s" "$SAYS" >&2; [ -z "$SAYS" ];; esac\n'
    )
    python.chmod(0o755)
    packages = root / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "_editable_impl_transformer_block.pth").write_text(
        str(root / "src"), encoding="utf-8"
    )
    monkeypatch.setattr(common, "ROOT", root)
    monkeypatch.setattr(set_up, "ROOT", root)
    monkeypatch.setattr(set_up, "VENV", root / ".venv")
    monkeypatch.setattr(set_up, "PYTHON", python)
    monkeypatch.setattr(set_up, "STAMP", root / ".venv" / ".set-up")
    return root


def calls(folder: Path) -> int:
    file = folder / "calls"
    return len(file.read_text().splitlines()) if file.is_file() else 0


@POSIX
def test_it_installs_once_and_again_when_a_pin_has_changed(folder: Path) -> None:
    for expected in (1, 1):
        set_up.set_up()
        assert calls(folder) == expected
    (folder / "constraints.txt").write_text("two")
    set_up.set_up()
    assert calls(folder) == 2


@POSIX
def test_a_copied_or_renamed_folder_is_set_up_afresh(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_up.set_up()
    made = []
    monkeypatch.setattr(set_up, "_make_environment", lambda: made.append("afresh"))
    stamp = folder / ".venv" / ".set-up"
    stamp.write_bytes(stamp.read_bytes().replace(os.fsencode(folder.name), b"the old name"))
    set_up.set_up()
    assert made == ["afresh"]
    assert calls(folder) == 2
    assert "copied or moved" in capsys.readouterr().out


@POSIX
def test_an_environment_made_by_hand_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "_make_environment", lambda: pytest.fail("made anew"))
    set_up.set_up()
    assert calls(folder) == 1


@POSIX
def test_the_sources_are_named_in_ascii_and_relative_to_the_environment(folder: Path) -> None:
    set_up.set_up()
    packages = folder / ".venv" / "lib" / "python3.11" / "site-packages"
    text = (packages / "_editable_impl_transformer_block.pth").read_text(encoding="ascii")
    assert (packages / text).resolve() == folder / "src"


@POSIX
def test_settings_that_lead_astray_do_not_reach_pip(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PIP_USER", "PIP_TARGET", "PYTHONPATH"):
        monkeypatch.setenv(name, "1")
    set_up.set_up()
    assert (folder / "calls").read_text() == "0||\n"


@POSIX
@pytest.mark.parametrize(
    ("said", "cause"),
    [
        ("NewConnectionError ...\nNo matching distribution found for torch", "The network is"),
        ("No matching distribution found for torch==2", r"does not exist for Python 3\.\d+"),
        ("[Errno 28] No space left on device", "disk is full"),
        ("[Errno 13] Permission denied: '/x'", "cannot be written"),
        ("ERROR: Can not perform a '--user' install", "pip's words above say why"),
    ],
)
def test_the_true_cause_is_said_and_the_set_up_is_not_taken_for_done(
    folder: Path, monkeypatch: pytest.MonkeyPatch, said: str, cause: str
) -> None:
    monkeypatch.setenv("SAYS", said)
    with pytest.raises(Problem, match=cause):
        set_up.set_up()
    monkeypatch.delenv("SAYS")
    set_up.set_up()
    assert calls(folder) == 2


def test_a_read_only_folder_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up.os, "access", lambda *_: False)
    with pytest.raises(Problem, match="cannot be written to: it is read-only"):
        set_up.set_up()


def test_a_python_without_venv_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(set_up, "find_spec", lambda name: None)
    with pytest.raises(Problem, match="apt install python3-venv"):
        set_up._make_environment()


def test_only_the_standard_library_is_needed() -> None:
    code = "import sys; import book.tools.set_up; print(*sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=Path(__file__).parents[2],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    outside = {name.split(".")[0] for name in done.stdout.split()} - set(sys.stdlib_module_names)
    assert outside <= {"book", "__main__"}
