import math
import sys
from dataclasses import asdict, replace

import pytest
import torch

from transformer_block.language import toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import states, texts
from transformer_block.training.loop import STANDARD_RECIPE
from transformer_block.training.plan import Plan, plan_from, read_toml
from transformer_block.training.states import State
from transformer_block.training.texts import ByteTokenizer, PairTokenizer, ToyData, open_data

TEXT = "the cat sat on the mat. 天气很好。 " * 40

# The plan


def test_a_plan_is_the_standard_recipe_and_the_toy_languages_model():
    assert Plan().recipe() == STANDARD_RECIPE
    assert Plan().config(vocab_size=7).d_ff == 4 * 64
    assert Plan(d_ff=10).config(vocab_size=7).d_ff == 10


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"steps": 0}, "steps"),
        ({"steps": True}, "steps must be a whole number, not True"),
        ({"steps": 2.0}, "steps must be a whole number, not 2.0"),
        ({"lr": "fast"}, "lr must be a number, not 'fast'"),
        ({"lr": math.nan}, "lr must be a number, not nan"),
        ({"betas": (0.9, 1.5)}, "betas must be two numbers"),
        ({"betas": (0.9,)}, "betas must be two numbers"),
        ({"compile": "yes"}, "compile must be true or false"),
        ({"text": 3}, "text must be a text"),
        ({"tokenizer": "words"}, "tokenizer must be byte or bpe, not 'words'"),
        ({"parallel": "tensor"}, "parallel must be ddp or fsdp"),
        ({"n_heads": 3}, "n_heads must divide d_model"),
        ({"norm": "batch"}, "batch"),
        ({"held_out": 1.0}, "held_out"),
        ({"d_ff": -1}, "d_ff"),
        ({"seed": -1}, "seed"),
        ({"save_every": 0}, "save_every"),
        ({"tokenizer": "bpe", "vocab_size": 256}, "at least 257"),
        ({"batch_size": 6, "accumulate": 4}, r"1 × 4; 6 leaves 2; try 4"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(wrong, said, as_a_reader):
    with pytest.raises(ValueError, match=said):
        Plan(**wrong)


def test_a_whole_number_is_a_number(as_a_reader):
    assert Plan(lr=1, clip=math.inf).recipe().lr == 1


def test_rows_are_split_evenly_or_not_at_all():
    assert Plan(batch_size=12, accumulate=2).rows(processes=3) == 2
    with pytest.raises(ValueError, match=r"3 × 4; 16 leaves 4; try 12"):
        Plan(batch_size=16, accumulate=4).rows(processes=3)
    with pytest.raises(ValueError, match="2 leaves 2; try 3"):
        Plan(batch_size=2).rows(processes=3)


def test_a_file_names_what_differs(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text('d_model = 32\nlr = 1e-3\nbetas = [0.9, 0.95]\nparallel = "fsdp"\n', "utf-8")
    plan = plan_from(read_toml(path), "here")
    assert plan == Plan(d_model=32, lr=1e-3, betas=(0.9, 0.95), parallel="fsdp")
    assert plan_from(asdict(plan), "here") == plan
    assert plan.differences(Plan(betas=(0.9, 0.95), accumulate=2, save_every=7)) == [
        "d_model is 32, there 64",
        "lr is 0.001, there 0.004",
    ]


def test_a_file_that_is_no_plan_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="no plan at"):
        read_toml(tmp_path / "none.toml")
    for data in (b"steps = ", b"\xff\xfe"):
        (tmp_path / "plan.toml").write_bytes(data)
        with pytest.raises(ValueError, match="is not TOML"):
            read_toml(tmp_path / "plan.toml")
    with pytest.raises(ValueError, match=r"x names 'd_modle', .*did you mean d_model\?"):
        plan_from({"d_modle": 3}, "x")
    with pytest.raises(ValueError, match="there are text, tokenizer"):
        plan_from({"qqqq": 3}, "x")


# What is read


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, "utf-8")
    return path


def opened(tmp_path, text, **changes):
    plan = Plan(text=str(text), batch_size=6, **({"n_ctx": 16} | changes))
    texts.prepare(plan, tmp_path)
    return open_data(plan, tmp_path), plan


@pytest.mark.parametrize("kind", [{}, {"tokenizer": "bpe", "vocab_size": 300}])
def test_a_text_is_read_in_windows_and_its_end_is_not(kind, text, tmp_path):
    data, plan = opened(tmp_path, text, **kind)
    assert data.tokenizer.decode(data.read.tolist()) == TEXT[: -round(len(TEXT) / 10)]
    assert data.tokenizer.decode(data.held_out.tolist()) == TEXT[-round(len(TEXT) / 10) :]
    most = kind.get("vocab_size", 256)  # a short text has fewer pairs that come twice
    assert 256 <= data.vocab_size <= most
    assert (data.vocab_size == 256) == (not kind)
    ids, counts = data.batch(3, plan)
    assert ids.shape == (6, 16)
    assert bool(counts.all())
    windows = data.read.unfold(0, 16, 1)
    assert all(bool((windows == row).all(1).any()) for row in ids)
    assert torch.equal(data.batch(3, plan).ids, ids)
    assert not torch.equal(data.batch(4, plan).ids, ids)
    assert not torch.equal(data.batch(3, replace(plan, seed=1)).ids, ids)
    assert math.isnan(data.floor)


def test_each_window_may_come_and_none_reaches_beyond(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("abcdefgh", "utf-8")
    data, plan = opened(tmp_path, path, n_ctx=6, held_out=0.0)
    firsts = {bytes(row.tolist()) for step in range(9) for row in data.batch(step, plan).ids}
    assert firsts == {b"abcdef", b"bcdefg", b"cdefgh"}
    assert math.isnan(data.judge(torch.nn.Identity(), 6))


def test_the_held_out_loss_is_the_mean_over_its_windows(text, tmp_path):
    data, plan = opened(tmp_path, text)
    model = LanguageModel(plan.config(data.vocab_size))
    n = len(data.held_out) // 16
    starts = [round(i * (len(data.held_out) - 16) // (n - 1)) for i in range(n)]
    log_p = [
        model(data.held_out[None, s : s + 16].long())[0, :-1]
        .log_softmax(-1)
        .gather(1, data.held_out[s + 1 : s + 16, None].long())
        .mean()
        .item()
        for s in starts
    ]
    assert data.judge(model, 5) == pytest.approx(-sum(log_p) / n, abs=1e-5)
    assert data.judge(model, 7) == pytest.approx(data.judge(model, 100), abs=1e-6)


def test_bytes_come_back_in_any_language():
    bytes_ = ByteTokenizer()
    assert bytes_.decode(bytes_.encode("né 天")) == "né 天"
    assert bytes_.decode(bytes_.encode("天")[:2]) == "\ufffd"


def test_pairs_are_learnt_once_and_on_what_is_read_alone(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("ab" * 90 + "yz" * 10, "utf-8")
    data, _ = opened(tmp_path, path, tokenizer="bpe", vocab_size=257)
    assert [len(data.tokenizer.encode(word)) for word in ("ab", "yz")] == [1, 2]
    before = (tmp_path / "tokenizer.json").read_bytes()
    path.write_text("cd" * 100, "utf-8")
    opened(tmp_path, path, tokenizer="bpe", vocab_size=257)
    assert (tmp_path / "tokenizer.json").read_bytes() == before
    path.write_text("ab" * 90 + "yz" * 10, "utf-8")
    (tmp_path / "tokenizer.json").write_bytes(before + b"\n")
    other, _ = opened(tmp_path, path, tokenizer="bpe", vocab_size=257)
    assert other.digest != data.digest, "other merges are other tokens"
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ValueError, match="holds no tokenizer"):
        PairTokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(FileNotFoundError):
        PairTokenizer(tmp_path / "none.json")


def test_without_the_library_the_way_out_is_named(text, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ValueError, match="pip install tokenizers"):
        opened(tmp_path, text, tokenizer="bpe")


def test_texts_that_cannot_be_read_are_named(text, tmp_path):
    with pytest.raises(FileNotFoundError, match="no text at"):
        opened(tmp_path, tmp_path / "none.txt")
    with pytest.raises(ValueError, match=r"n_ctx = 2000 .* 1440 tokens to read and 160 held out"):
        opened(tmp_path, text, n_ctx=2000)
    with pytest.raises(ValueError, match="n_ctx ≤ 160, or another held_out"):
        opened(tmp_path, text, n_ctx=200)
    text.write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match="is not UTF-8: byte 3 is 0xe9"):
        opened(tmp_path, text)
    with pytest.raises(ValueError, match="longest sentence has"):
        open_data(Plan(n_ctx=4), tmp_path)


def test_the_toy_language_is_drawn_by_the_step():
    data, plan = ToyData(), Plan(batch_size=5)
    assert data.vocab_size == len(toy_language().vocabulary)
    assert data.floor == toy_language().entropy_bound
    assert data.digest != ToyData(toy_language().only("bank")).digest
    one, two = data.batch(3, plan), data.batch(3, plan)
    assert torch.equal(one.ids, two.ids)
    assert torch.equal(one.counts, two.counts)
    assert one.ids.shape != data.batch(4, plan).ids.shape or not torch.equal(
        one.ids, data.batch(4, plan).ids
    )


# The state on disk


def state(step, **changes):
    weights = {"W": torch.randn(3, 2), "E": torch.randn(4)}
    moments = [{n: torch.randn_like(w) for n, w in weights.items()} for _ in range(2)]
    judged = torch.tensor([[1.0, 0.1 + 0.2]], dtype=torch.float64)
    plan = Plan(clip=math.inf, d_model=32, **changes)
    return State(plan, "digest", step, weights, *moments, torch.randn(step, 2), judged)


def test_a_state_comes_back_bit_for_bit(tmp_path):
    kept = state(3)
    found = states.read(states.write(kept, tmp_path))
    assert (found.plan, found.digest, found.step) == (kept.plan, "digest", 3)
    for group in ("weights", "first_moments", "second_moments"):
        ours, theirs = getattr(kept, group), getattr(found, group)
        assert ours.keys() == theirs.keys()
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.equal(found.losses, kept.losses)
    assert torch.equal(found.judged, kept.judged)


def test_the_newest_two_are_kept_and_a_damaged_one_is_passed_over(tmp_path):
    assert states.newest(tmp_path) == (None, [])
    for step in (9, 10, 100):
        path = states.write(state(step), tmp_path)
    (tmp_path / "step-1.safetensors.txt").touch()
    assert [p.name for p in states.stored(tmp_path)] == [
        "step-000000100.safetensors",
        "step-000000010.safetensors",
    ]
    assert states.newest(tmp_path)[0].step == 100
    path.write_bytes(path.read_bytes()[:-5])
    found, faults = states.newest(tmp_path)
    assert found.step == 10
    assert "step-000000100.safetensors cannot be read" in faults[0]
    assert "cut short" in faults[0]
    states.stored(tmp_path)[1].write_bytes(b"no")
    with pytest.raises(ValueError, match=r"no checkpoint in .* can be read.*--fresh"):
        states.newest(tmp_path)


def test_a_file_of_another_kind_or_version_is_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(states, "VERSION", "0")
    path = states.write(state(1), tmp_path)
    monkeypatch.undo()
    with pytest.raises(ValueError, match="version '0'"):
        states.read(path)


@pytest.mark.skipif(not hasattr(__import__("os"), "mkfifo"), reason="there is no /dev/full")
def test_a_full_disk_leaves_what_was_there(tmp_path):
    before = states.write(state(1), tmp_path)
    (tmp_path / "step-000000002.part").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        states.write(state(2), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == [before.name]
    assert states.newest(tmp_path)[0].step == 1
