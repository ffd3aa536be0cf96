"""A release's notes: the changelog's section of the version, or what is wrong with it."""

import pytest

from book.tools.common import Problem
from book.tools.notes import notes

CHANGELOG = """# Changelog

## 0.3.0 – unreleased

- Not yet.

## 0.2.0 – 2026-05-06

- New: more.
- Corrected: less.

## 0.1.1 – 2026-04-05

## 0.1.0 – 2026-01-02

- The first.
"""


@pytest.fixture
def project(tmp_path):
    def make(version):
        (tmp_path / "CHANGELOG.md").write_text(CHANGELOG, encoding="utf-8")
        (tmp_path / "pyproject.toml").write_text(
            f'[project]\nversion = "{version}"\n', encoding="utf-8"
        )
        return tmp_path

    return make


def test_the_section_of_the_version_is_cut_out(project):
    assert notes("v0.2.0", project("0.2.0")) == "- New: more.\n- Corrected: less.\n"
    assert notes("v0.1.0", project("0.1.0")) == "- The first.\n"


@pytest.mark.parametrize(
    ("tag", "version", "said"),
    [
        ("v0.2.0", "0.2.1", "The tag is v0.2.0, but pyproject.toml has version 0.2.1"),
        ("0.2.0", "0.2.0", "tag v0.2.0"),
        ("v0.2", "0.2", "no section “## 0.2 – date”"),
        ("v0.3.0", "0.3.0", "calls 0.3.0 “unreleased”"),
        ("v0.1.1", "0.1.1", "says nothing of 0.1.1"),
    ],
)
def test_what_is_wrong_is_said(project, tag, version, said):
    with pytest.raises(Problem, match=said):
        notes(tag, project(version))
