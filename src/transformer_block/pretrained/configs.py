"""Read a published config.json as a `ModernConfig`, and write one."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from transformer_block.config import ModelConfig
from transformer_block.modern import ModernConfig
from transformer_block.pretrained.architectures import (
    ACTIVATIONS,
    ARCHITECTURES,
    FOUR_TIMES,
    GPT2,
    LLAMA,
    MISTRAL,
    Architecture,
)
from transformer_block.pretrained.folders import CONFIG, find
from transformer_block.rotary import Stretch

# Fields that change no logit: where a config comes from, how it was trained, what is returned,
# how text is drawn from the logits, which ids mean what. `n_ctx` repeats n_positions.
WITHOUT_EFFECT = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path architectures
    dtype model_type name_or_path torch_dtype transformers_version unsloth_version use_bfloat16
    attention_dropout attention_probs_dropout_prob attn_pdrop embd_pdrop hidden_dropout
    hidden_dropout_prob initializer_range resid_pdrop gradient_checkpointing
    chunk_size_feed_forward n_ctx pretraining_tp torchscript use_cache
    finetuning_task id2label is_decoder label2id num_labels output_attentions
    output_hidden_states problem_type return_dict return_dict_in_generate output_scores
    summary_activation summary_first_dropout summary_proj_to_labels summary_type summary_use_proj
    task_specific_params prefix tokenizer_class
    bos_token_id eos_token_id pad_token_id sep_token_id decoder_start_token_id unk_token_id
    bad_words_ids begin_suppress_tokens diversity_penalty do_sample early_stopping
    encoder_no_repeat_ngram_size exponential_decay_length_penalty forced_bos_token_id
    forced_eos_token_id length_penalty max_length min_length no_repeat_ngram_size
    num_beam_groups num_beams num_return_sequences remove_invalid_values repetition_penalty
    suppress_tokens temperature top_k top_p typical_p
    """.split()  # noqa: SIM905 (a list of seventy quoted words is hard to read)
)

# Fields of any model for which one value is implemented, with what another would mean.
ONLY: Mapping[str, tuple[object, str]] = {
    "add_cross_attention": (False, "a second attention, to an encoder"),
    "auto_map": (None, "code that comes with the weights and would have to be run"),
    "is_encoder_decoder": (False, "an encoder beside the decoder"),
    "pruned_heads": ({}, "heads taken out of single blocks"),
    "quantization_config": (None, "weights stored in a few bits each"),
}

ROPE = ("rope_theta", "rope_scaling", "rope_parameters")
LLAMA3 = {
    "factor": "factor",
    "low_freq_factor": "low",
    "high_freq_factor": "high",
    "original_max_position_embeddings": "n_trained",
}


def read_config(
    source: str | os.PathLike[str] | Mapping[str, object],
    *,
    revision: str | None = None,
    ignore: Iterable[str] = (),
) -> ModernConfig:
    """Return what a published config says, from its fields, a folder or file, or a model's name.

    GPT-2's, Llama's and Mistral's are read. Every field must be one that is implemented with the
    value it has, or is known to change no logit: a model that loads and computes something else
    would be worse than one that does not load. A field that is null asks for nothing. Fields
    named in `ignore` count as not written.

    Raises:
        ValueError: naming the field, its value and the way out.
        FileNotFoundError: if there is no such config.

    >>> sizes = {"vocab_size": 50257, "n_positions": 1024, "n_embd": 768}
    >>> config = read_config({"model_type": "gpt2", **sizes, "n_layer": 12, "n_head": 12})
    >>> config.d_ff, config.activation, config.tie_weights
    (3072, 'gelu_tanh', True)
    """
    if isinstance(source, Mapping):
        return parse(source, ignore)[1]
    file = Path(source)
    return parse(fields(file if file.is_file() else find(file, [CONFIG], revision)), ignore)[1]


def fields(place: Path) -> dict[str, object]:
    """Return the fields of a config.json, given itself or its folder.

    Raises:
        FileNotFoundError: if there is none.
        ValueError: if it is not JSON, or no object.
    """
    file = place / CONFIG if place.is_dir() else place
    if not file.is_file():
        raise FileNotFoundError(
            f"there is no {CONFIG} in {place}; the weights' sizes and kind stand in it, so it "
            "must lie beside them"
        )
    try:
        given = json.loads(file.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}); fetch it again") from error
    if not isinstance(given, dict):
        raise ValueError(f"{file} must hold the fields of a config, not {given!r:.40}")
    return given


def parse(
    given: Mapping[str, object], ignore: Iterable[str] = ()
) -> tuple[Architecture, ModernConfig]:
    """Return a config's architecture and what it says; raise as `read_config` does."""
    ignored = {ignore} if isinstance(ignore, str) else set(ignore)
    given = {name: value for name, value in given.items() if name not in ignored}
    architecture = _architecture(given.get("model_type"))
    _check_only(given, {**ONLY, **architecture.only})
    turned = architecture.fixed["positions"] == "rotary"
    known = {*architecture.fields, *architecture.only, *ONLY, *WITHOUT_EFFECT}
    known |= {*ROPE, "sliding_window"} if turned else set()
    if unknown := sorted(name for name in given.keys() - known if given[name] is not None):
        raise ValueError(
            f"{_told(given, unknown)}: not known to this reader, which cannot tell whether it "
            f"changes what the model computes; if it does not, read with ignore={unknown}"
        )
    if missing := sorted(
        name
        for name in architecture.fields.keys() - architecture.optional.keys()
        if given.get(name) is None
    ):
        raise ValueError(
            f"a config of {architecture.model_type} must say {', '.join(missing)}; is this the "
            "whole config.json?"
        )
    values = dict(architecture.fixed)
    for theirs, ours in architecture.fields.items():
        value = given.get(theirs)
        if value is None:
            value = architecture.optional[theirs]
        if value is FOUR_TIMES:
            value = 4 * values["d_model"]  # type: ignore[operator]  # a number, as seen before
        values[ours] = _read(theirs, ours, value)
    if turned:
        values |= _rope(given)
        _check_window(given, architecture)
    return architecture, ModernConfig(**values)  # type: ignore[arg-type]  # the config checks them


def written(config: ModelConfig) -> tuple[Architecture, dict[str, object]]:
    """Return the architecture that computes what a config asks for, and its fields.

    Rotary positions make it a Llama, learned ones a GPT-2.

    Raises:
        ValueError: naming what neither of them does.
    """
    modern = config if isinstance(config, ModernConfig) else ModernConfig(**asdict(config))
    architecture = LLAMA if modern.positions == "rotary" else GPT2
    fixed = dict(architecture.fixed)
    if architecture is GPT2:
        fixed |= {"n_kv_heads": modern.n_heads, "d_head": modern.d_model // modern.n_heads}
    other = [
        f"{name} = {value!r}, not {getattr(modern, name)!r}"
        for name, value in fixed.items()
        if getattr(modern, name) != value
    ]
    if architecture is GPT2 and modern.activation not in ACTIVATIONS.values():
        other.append(f"a plain FFN, not {modern.activation!r}")
    if other:
        raise ValueError(
            f"with {modern.positions} positions this would be a {architecture.model_type}, which "
            f"has {'; '.join(other)}; transformer_block.checkpoint.save writes any model"
        )
    values: dict[str, object] = {
        "model_type": architecture.model_type,
        "architectures": [architecture.class_name],
        **{theirs: getattr(modern, ours) for theirs, ours in architecture.fields.items()},
        "bos_token_id": None,  # which ids mean what, this book's models do not know
        "eos_token_id": None,
    }
    if architecture is GPT2:
        names = [theirs for theirs, ours in ACTIVATIONS.items() if ours == modern.activation]
        values["activation_function"] = names[0]
    else:  # in the form that older readers know as well
        values["rope_theta"] = modern.theta
        if modern.stretch is not None:
            stretch = {theirs: getattr(modern.stretch, ours) for theirs, ours in LLAMA3.items()}
            values["rope_scaling"] = {"rope_type": "llama3", **stretch}
    return architecture, values


def _architecture(model_type: object) -> Architecture:
    if not isinstance(model_type, str) or model_type not in ARCHITECTURES:
        raise ValueError(
            f"model_type must be one of {', '.join(ARCHITECTURES)}, not {model_type!r}; other "
            "architectures compute something else"
        )
    return ARCHITECTURES[model_type]


def _check_only(given: Mapping[str, object], only: Mapping[str, tuple[object, str]]) -> None:
    for name, (value, meaning) in only.items():
        found = given.get(name, value)
        if found != value and not (found is None and not value):
            raise ValueError(
                f"{name} = {found!r:.60} means {meaning}, which is not implemented here; take a "
                f"model whose {name} is {json.dumps(value)}"
            )


def _read(theirs: str, ours: str, value: object) -> object:
    """Return a field's value as a `ModernConfig` has it; an error names the field as the file."""
    match ours:
        case "eps":
            return float(_number(theirs, value))
        case "tie_weights" | "bias":
            if not isinstance(value, bool):
                raise ValueError(f"{theirs} must be true or false, not {value!r}")
            return value
        case "activation":
            if not isinstance(value, str) or value not in ACTIVATIONS:
                raise ValueError(
                    f"{theirs} must be one of {', '.join(ACTIVATIONS)}, not {value!r}; no other "
                    "is implemented here"
                )
            return ACTIVATIONS[value]
    return _number(theirs, value, int)


def _rope(given: Mapping[str, object]) -> dict[str, object]:
    """Read theta and stretch: one object in newer configs, a number and an object in older ones."""
    said = {"rope_theta": theta} if (theta := given.get("rope_theta")) is not None else {}
    for name in ("rope_scaling", "rope_parameters"):
        part = given.get(name) or {}
        if not isinstance(part, dict):
            raise ValueError(f"{name} must hold fields or be null, not {part!r}")
        for key, value in part.items():
            key = "rope_type" if key == "type" else key  # its older name
            if said.setdefault(key, value) != value:
                raise ValueError(
                    f"{key} is {said[key]!r} in one place of the config and {value!r} in {name}; "
                    "remove the wrong one"
                )
    kind = said.pop("rope_type", "default")
    base = float(_number("rope_theta", said.pop("rope_theta", 10_000.0)))
    _check_only(said, {"partial_rotary_factor": LLAMA.only["partial_rotary_factor"]})
    said.pop("partial_rotary_factor", None)
    wanted = {"default": set[str](), "llama3": set(LLAMA3)}
    if not isinstance(kind, str) or kind not in wanted:
        raise ValueError(
            f"rope_type must be one of {', '.join(wanted)}, not {kind!r}; no other way to turn "
            "is implemented here"
        )
    if said.keys() != wanted[kind]:
        raise ValueError(
            f"rope_type {kind!r} has the fields {sorted(wanted[kind])}, not {sorted(said)}"
        )
    if kind == "default":
        return {"theta": base}
    numbers = {ours: _number(theirs, said[theirs]) for theirs, ours in LLAMA3.items()}
    n_trained = _number("original_max_position_embeddings", numbers.pop("n_trained"), int)
    floats = {name: float(value) for name, value in numbers.items()}
    return {"theta": base, "stretch": Stretch(**floats, n_trained=int(n_trained))}


def _check_window(given: Mapping[str, object], architecture: Architecture) -> None:
    window = given.get("sliding_window", 4096 if architecture is MISTRAL else None)
    n_ctx = _number("max_position_embeddings", given["max_position_embeddings"], int)
    if window is not None and _number("sliding_window", window, int) < n_ctx:
        raise ValueError(
            f"sliding_window = {window} hides from a token what lies further back, which is not "
            f"implemented here; up to {window} tokens it hides nothing: set "
            f"max_position_embeddings, which is {n_ctx}, to {window}"
        )


def _number(name: str, value: object, kind: type = float) -> int | float:
    kinds = int if kind is int else int | float
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"{name} must be a {'whole ' * (kind is int)}number, not {value!r}")
    return value


def _told(given: Mapping[str, object], names: Iterable[str]) -> str:
    return ", ".join(f"{name} = {given[name]!r:.60}" for name in names)
