"""Tokens to bytes, end tokens and chat templates of real models' tokenizers."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from reference_server.detokenizer import TextStream
from reference_server.errors import ConfigError
from reference_server.models.chat_template import MOST_TEXT_CHARACTERS, ChatTemplate
from reference_server.models.text_tokenizer import TextTokenizer
from reference_server.models.tokenizer import ChatError
from tests.reference_server.models.checkpoints import TEXT, VOCABULARY, make_tokenizer


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    make_tokenizer(tmp_path)
    return tmp_path


def stream(tokenizer: TextTokenizer, tokens: list[int]) -> tuple[str, list[str]]:
    text = TextStream(tokenizer)
    pieces = [text.push(token) for token in tokens]
    return "".join(pieces) + text.finish(), pieces


def test_text_comes_out_as_it_went_in_and_only_in_whole_characters(directory: Path) -> None:
    tokenizer = TextTokenizer(directory, VOCABULARY)
    tokens = tokenizer.encode(TEXT + "🎉 ключ")
    whole, pieces = stream(tokenizer, tokens)
    assert whole == TEXT + "🎉 ключ"
    assert "" in pieces, "some characters take several tokens"
    assert not any("\ufffd" in piece for piece in pieces)


def test_any_tokens_give_what_the_tokenizer_itself_would_say(directory: Path) -> None:
    tokenizer = TextTokenizer(directory, VOCABULARY)
    fast = Tokenizer.from_file(str(directory / "tokenizer.json"))
    rng = random.Random(5)
    for _ in range(50):
        tokens = [rng.randrange(fast.get_vocab_size()) for _ in range(30)]
        assert stream(tokenizer, tokens)[0] == fast.decode(tokens, skip_special_tokens=True)


def test_vocabularies_with_byte_fallback(tmp_path: Path) -> None:
    """As in Llama 2, Mistral and Gemma: U+2581 for a space, `<0x..>` for a byte."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["\u2581", "\u2581ca", "che"]
    made = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence(steps)
    made.add_special_tokens(["<s>", "</s>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = TextTokenizer(tmp_path, 300)
    euro = [pieces.index(f"<0x{byte:02X}>") for byte in "€".encode()]
    tokens = [pieces.index("\u2581ca"), pieces.index("che"), *euro, 2]
    assert stream(tokenizer, tokens) == (" cache€", [" ca", "che", "", "", "€", ""])
    assert tokenizer.token_bytes(299) == b"", "ids that pad the model's vocabulary say nothing"


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    made = Tokenizer(models.WordPiece({"[UNK]": 0}, unk_token="[UNK]"))
    made.decoder = decoders.WordPiece()
    made.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ConfigError, match="decoder WordPiece is not served"):
        TextTokenizer(tmp_path, 10)


def test_a_tokenizer_larger_than_its_model_is_refused(directory: Path) -> None:
    with pytest.raises(ConfigError, match=r"the tokenizer has \d+ tokens, the model 16"):
        TextTokenizer(directory, 16)


def test_a_text_ends_at_any_token_that_generation_config_names(directory: Path) -> None:
    assert TextTokenizer(directory, VOCABULARY).eos_tokens == {2}
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert TextTokenizer(directory, VOCABULARY).eos_tokens == {2, 5}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [6, 7]}))
    assert TextTokenizer(directory, VOCABULARY).eos_tokens == {2, 6, 7}
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [10**6]}))
    with pytest.raises(ConfigError, match="eos_token_id 1000000 is no token"):
        TextTokenizer(directory, VOCABULARY)


def test_a_chat_is_rendered_by_the_models_own_template(directory: Path) -> None:
    tokenizer = TextTokenizer(directory, VOCABULARY)
    tokens = tokenizer.encode_chat([("user", " Hi "), ("assistant", "Yes")], add_generation_prompt=True)
    assert tokenizer.decode(tokens) == "<s><|user|>Hi<|end|>\n<|assistant|>Yes<|end|>\n<|assistant|>"
    assert tokens[0] == 1, "marks are tokens, not text"


def test_without_a_template_a_chat_is_refused(directory: Path) -> None:
    (directory / "tokenizer_config.json").unlink()
    with pytest.raises(ChatError, match="no chat template"):
        TextTokenizer(directory, VOCABULARY).encode_chat([("user", "x")], add_generation_prompt=True)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages.__class__.__mro__ }}{{ ''.__class__.__base__.__subclasses__() }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe|undefined|not safely callable"),
        ("{% for a in range(10**9) %}{% endfor %}", "too big|Range"),
        ("{% for a in range(90000) %}{{ 'x' * 1000 }}{% endfor %}", "endless"),
        ("{{ 10 ** (10 ** 10) }}", "too large"),
        ("{% set t = 'x' * 90000 * 90000 %}", "too large"),
        ("{% set t = [0] * 90000000 %}", "too large"),
        ("{% set n = namespace(t='x' * 1000) %}" + "{% set n.t = n.t ~ n.t %}" * 20, "too large"),
        ("{% set n = namespace(t='x' * 1000) %}" + "{% set n.t = n.t + n.t %}" * 20, "too large"),
        ("{{ messages[7].content }}", "undefined|no element"),
        ("{{ 1 // 0 }}", "division"),
        ("{% include 'other' %}", "no loader"),
    ],
)
def test_a_template_can_do_no_harm(source: str, words: str) -> None:
    with pytest.raises(ChatError, match=f"(?i){words}"):
        ChatTemplate(source, {}).render([("user", "x")], add_generation_prompt=True)


SILENT = {
    "loops": "{% for a in range(90000) %}{% for b in range(90000) %}{% endfor %}{% endfor %}",
    "loops over a text": "{% set t = 'x' * 9000 %}" + "{% for a in t %}" * 4 + "{% endfor %}" * 4,
    "a loop in a macro": "{% macro m() %}{% for a in range(90000) %}{% for b in range(90000) %}"
    "{% endfor %}{% endfor %}{% endmacro %}{{ m() }}",
    "macros that call themselves": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "a loop that calls itself": "{% for a in [1] recursive %}{% for b in range(90000) %}"
    "{% for c in range(90000) %}{% endfor %}{% endfor %}{% endfor %}",
    "a loop that hides": "{% set look_at_clock = 1 %}{% for environment in range(90000) %}"
    "{% for b in range(90000) %}{% endfor %}{% endfor %}",
}


@pytest.mark.parametrize("name", SILENT)
def test_a_template_that_writes_nothing_ends_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_server.models.chat_template.MOST_SECONDS", 0.05)
    template = ChatTemplate(SILENT[name], {})
    with pytest.raises(ChatError, match="endless"):
        template.render([("user", "x")], add_generation_prompt=True)


def test_large_numbers_are_no_large_texts() -> None:
    source = (
        "{{ 100000 * 100000 }} {{ 2 ** 10 }} {{ [1] + [2] }} {{ 'a' ~ 1 ~ none }} "
        "{{ 3 * 'ab' }} {{ 1.5 * 2 }}"
    )
    rendered = ChatTemplate(source, {}).render([], add_generation_prompt=False)
    assert rendered == "10000000000 1024 [1, 2] a1None ababab 3.0"


def test_a_template_may_be_long_and_its_text_too_but_not_endless() -> None:
    with pytest.raises(ConfigError, match="longer than"):
        ChatTemplate("x" * 300_000, {})
    template = ChatTemplate("{{ messages[0].content }}", {})
    assert len(template.render([("user", "x" * 10_000)], add_generation_prompt=False)) == 10_000
    with pytest.raises(ChatError, match="endless"):
        template.render([("user", "x" * (MOST_TEXT_CHARACTERS + 1))], add_generation_prompt=False)


def test_helpers_that_templates_use() -> None:
    source = "{{ messages | tojson }} {{ bos_token }} {% for m in messages %}{% break %}{% endfor %}"
    template = ChatTemplate(source, {"bos_token": "<s>"})
    rendered = template.render([("user", "ä<b>")], add_generation_prompt=False)
    assert rendered == '[{"role": "user", "content": "ä<b>"}] <s> '
