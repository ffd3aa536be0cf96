import torch

from transformer_block.experiments.seeds import seeded


def test_draws_inside_depend_on_the_seed_and_those_outside_do_not_notice():
    torch.manual_seed(1)
    outside = torch.randn(2)
    torch.manual_seed(1)
    with seeded(7):
        first = torch.randn(3)
    assert torch.equal(torch.randn(2), outside)
    with seeded(7):
        assert torch.equal(torch.randn(3), first)
    with seeded(8):
        assert not torch.equal(torch.randn(3), first)
