import pytest

from transformer_block.notebook import progress


@pytest.fixture
def shown(monkeypatch):
    lines = []

    class Handle:
        def update(self, data, raw):
            lines.append(data["text/plain"])

    def display(data, raw, display_id):
        lines.append(data["text/plain"])
        return Handle()

    monkeypatch.setattr("IPython.display.display", display)
    return lines


def test_it_counts_what_is_done_whatever_it_is_told(shown):
    count = progress(2, "trainings")
    count(0, "a run")
    count()
    assert shown == ["0 of 2 trainings", "1 of 2 trainings", "2 of 2 trainings"]


def test_without_a_notebook_it_says_nothing_more(monkeypatch):
    monkeypatch.setattr("IPython.display.display", lambda *_, **__: None)
    progress(1, "trainings")()


def test_nothing_to_count_is_refused():
    with pytest.raises(ValueError, match="at least 1, not 0"):
        progress(0, "trainings")
