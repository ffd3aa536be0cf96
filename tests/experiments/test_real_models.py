import pytest
import torch

from transformer_block import count_parameters, record, toy_language, trained
from transformer_block.activations import intervene
from transformer_block.experiments.real_models import (
    LONGER,
    PUBLISHED,
    STEPS,
    TRAINED_ON,
    beginning,
    loss_by_eighth,
    modern,
    window,
)
from transformer_block.modern import ModernModel
from transformer_block.pretrained import read_config


def longer_model(positions="rotary", seed=3):
    return modern(seed, vocab_size=TRAINED_ON.n_symbols, n_ctx=LONGER.n, positions=positions)


@pytest.mark.parametrize("step", STEPS)
def test_a_step_changes_what_it_names_and_keeps_the_parameters_within_a_tenth(step):
    model, plain = modern(3, **STEPS[step]), modern(3)
    changed = {k for k, v in vars(model.config).items() if vars(plain.config)[k] != v}
    assert changed == STEPS[step].keys()
    assert count_parameters(model) / count_parameters(plain) == pytest.approx(1, abs=0.1)


def test_without_a_change_it_is_the_model_of_this_book_but_for_its_first_numbers():
    ours = trained(seed=7, keep_at=(0, 50, 100, 200, 400, 800)).model
    model = modern(3)
    model.load_state_dict(ours.state_dict())
    ids, _ = toy_language().sample(5, torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(ids), ours(ids), rtol=0, atol=0)


def test_a_seed_decides_and_torch_s_own_state_is_left_alone():
    before = torch.get_rng_state()
    same, other = longer_model(seed=3), longer_model(seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(same.E.weight, longer_model(seed=3).E.weight)
    assert not torch.equal(same.E.weight, other.E.weight)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_number_of_parameters(name):
    with torch.device("meta"):
        model = ModernModel(read_config(PUBLISHED[name].config))
    assert count_parameters(model) == PUBLISHED[name].parameters


def test_the_eighths_together_are_the_loss_on_what_is_certain():
    model = longer_model()
    ids = LONGER.sample(500, torch.Generator().manual_seed(5)).ids
    many = [int(c.sum()) for c in LONGER.certain(ids)[:, 1:].chunk(8, dim=1)]
    eighths = loss_by_eighth(model, LONGER, seed=5)
    whole = sum(n * loss for n, loss in zip(many, eighths, strict=True)) / sum(many)
    assert whole == pytest.approx(LONGER.evaluate(model, ids).loss, rel=1e-5)


def seen(edit):
    """Return which key each query of the second block reads, under an edit of the scores."""
    model, ids = longer_model(), LONGER.sample(1, torch.Generator().manual_seed(6)).ids
    with intervene(model, {"blocks.*.mha.S": edit}), record(model, "blocks.1.mha.A") as run:
        model(ids)
    return run["blocks.1.mha.A"][0, 0] > 0


def test_a_window_shows_the_last_32_and_the_beginning_the_first_32():
    place = torch.arange(LONGER.n)
    query, key = place[:, None], place[None]
    may = key <= query
    assert torch.equal(seen(window), may & (query - key < 32))
    assert torch.equal(seen(beginning), may & ((key < 32) | (key == query)))
