"""Checks of the target: what a load test will ask of it, asked once."""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlsplit

import httpx

from kvprobe.doctor import prefix_probe
from kvprobe.doctor.asking import Answer, Endpoint, cached_tokens, stream_one
from kvprobe.doctor.model import Check
from kvprobe.errors import KvprobeError
from kvprobe.observe.metrics import MetricsClient
from kvprobe.run import target as targets
from kvprobe.summary.units import plural, seconds

PROBE_TOKENS = 8
_NO_CHAT = (400, 404, 405, 422, 501)
"""With these a server says that it has no chat for this model."""
CERTIFICATE_DAYS = 14
TLS_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Asked:
    """What is asked, and with what."""

    client: httpx.Client
    base_url: str
    model: str | None
    metrics_url: str
    metrics_headers: dict[str, str]
    insecure: bool


def check_target(asked: Asked) -> list[Check]:
    """All checks in the order in which one needs the other; what cannot be asked is `skipped`."""
    checks = [tls(asked.base_url, insecure=asked.insecure)]
    try:
        target = targets.preflight(asked.client, asked.base_url, asked.model)
    except KvprobeError as error:
        return [*checks, *_unreachable(error), metrics(asked)]
    facts = {"models": list(target.models[:20]), "max_model_len_tokens": target.max_model_len_tokens}
    checks.append(Check(id="reachable", status="ok", text=f"{asked.base_url} answers"))
    limit = target.max_model_len_tokens
    length = f", context of {limit:,} tokens" if limit is not None else ""
    checks.append(Check(id="model", status="ok", text=f"serves `{target.model}`{length}", facts=facts))
    answer, refused = _ask(asked, target.model)
    endpoint: Endpoint = "chat" if refused is None else "completions"
    checks += [
        stream(answer, refused),
        usage(answer),
        tokenizer(asked, target.model, endpoint),
        metrics(asked),
    ]
    if answer.first_token_s is None or answer.error is not None:
        why = "no token could be streamed" if answer.first_token_s is None else "the stream failed"
        return [*checks, _skipped("prefix_cache", why)]
    return [*checks, prefix_cache(asked, target.model, endpoint)]


def _ask(asked: Asked, model: str) -> tuple[Answer, Answer | None]:
    """One streamed answer; of a model that takes no chat (a base model without a chat template) one of
    /v1/completions, and beside it how the chat was refused."""

    def ask(endpoint: Endpoint) -> Answer:
        text = "Count from one to ten."
        return stream_one(asked.client, asked.base_url, model, text, PROBE_TOKENS, endpoint)

    chat = ask("chat")
    if chat.status not in _NO_CHAT:
        return chat, None
    plain = ask("completions")
    return (plain, chat) if plain.first_token_s is not None else (chat, None)


def _unreachable(error: KvprobeError) -> list[Check]:
    problem = error.problems[0]
    failed = Check(id="reachable", status="fail", text=problem.message, fix=problem.fix)
    later = ("stream", "usage", "tokenizer", "prefix_cache")
    if problem.code == "model":
        failed.id = "model"
        reached = Check(id="reachable", status="ok", text="the target answers")
        return [reached, failed, *(_skipped(i, "no model was chosen") for i in later)]
    return [failed, *(_skipped(i, "the target was not reached") for i in ("model", *later))]


def _skipped(name: str, why: str) -> Check:
    return Check(id=name, status="skipped", text=f"not looked at: {why}")


def tls(base_url: str, *, insecure: bool) -> Check:
    """Is the certificate good, and for how long?"""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    if parts.scheme != "https":
        return Check(id="tls", status="ok", text="plain HTTP: no certificate to look at")
    if insecure:
        text = "certificates are not verified (--insecure)"
        return Check(
            id="tls", status="warn", text=text, fix="leave out --insecure once the certificate is good"
        )
    try:
        context = ssl.create_default_context()
        with (
            socket.create_connection((host, parts.port or 443), TLS_TIMEOUT_S) as raw,
            context.wrap_socket(raw, server_hostname=host) as wrapped,
        ):
            return _certificate(wrapped.getpeercert() or {}, wrapped.version())
    except ssl.SSLError as error:
        fix = "correct the certificate, or accept it with --insecure (which is then recorded)"
        return Check(id="tls", status="fail", text=f"TLS with {host} fails: {error}", fix=fix)
    except (OSError, UnicodeError) as error:  # the latter: a host name that no DNS name can be
        return Check(id="tls", status="unknown", text=f"no TLS connection to {host}: {error}", fix=None)


def _certificate(certificate: Mapping[str, object], version: str | None) -> Check:
    until = str(certificate.get("notAfter", ""))
    try:
        left_s = ssl.cert_time_to_seconds(until) - time.time()
    except ValueError:
        return Check(id="tls", status="ok", text=f"{version}, the certificate verifies")
    days = int(left_s // 86_400)
    when = datetime.fromtimestamp(time.time() + left_s, UTC).date().isoformat()
    facts = {"days_left": days, "version": version}
    text = f"{version}, the certificate verifies and ends on {when}"
    if days < CERTIFICATE_DAYS:
        return Check(id="tls", status="warn", text=text, fix="renew the certificate", facts=facts)
    return Check(id="tls", status="ok", text=text, facts=facts)


def stream(answer: Answer, refused: Answer | None = None) -> Check:
    """One answer, streamed to its end; `refused` is what a chat met before /v1/completions answered."""
    facts = {"status_code": answer.status or None, "first_token_s": answer.first_token_s}
    if answer.first_token_s is None:
        why = answer.error or "the stream ended without a token"
        fix = "see that /v1/chat/completions streams (`stream: true`) for this model and key"
        return Check(id="stream", status="fail", text=f"no token came: {why}", fix=fix, facts=facts)
    text = f"the first token came after {seconds(answer.first_token_s)}"
    if answer.error is not None:
        fix = "look at the server's log: an error inside a 200 counts as a failed request"
        return Check(id="stream", status="fail", text=f"{text}, then {answer.error}", fix=fix, facts=facts)
    if answer.finish_reason is None and not answer.done:
        fix = "look for a proxy that cuts streams; such requests count as `truncated`"
        return Check(
            id="stream", status="fail", text=f"{text}, without finish reason or [DONE]", fix=fix, facts=facts
        )
    role = " (after a chunk without text, which is not counted as one)" if answer.empty_first else ""
    if refused is not None:
        text = f"/v1/completions streams, {text}; a chat is refused ({refused.error})"
        fix = "add --set endpoint=completions to runs, or give the server a chat template"
        return Check(id="stream", status="warn", text=text, fix=fix, facts=facts)
    if not answer.visible:
        role += (
            f"; all {PROBE_TOKENS} tokens were reasoning: TTFT counts it, TTFO waits for the answer's text"
        )
    return Check(id="stream", status="ok", text=text + role, facts=facts)


def usage(answer: Answer) -> Check:
    """Token counts are the server's own: without them TPOT and lengths are not known."""
    if answer.first_token_s is None:
        return _skipped("usage", "no token could be streamed")
    found = answer.usage
    if found is None or found.prompt_tokens is None or found.completion_tokens is None:
        fix = "make the server honour stream_options.include_usage; without it TPOT and lengths are not known"
        return Check(id="usage", status="warn", text="no usage block at the end of the stream", fix=fix)
    facts = {"prompt_tokens": found.prompt_tokens, "completion_tokens": found.completion_tokens}
    text = f"usage says {found.prompt_tokens:,} tokens in, {found.completion_tokens:,} out"
    if (why := _odd(answer, found.prompt_tokens, found.completion_tokens)) is not None:
        fix = "do not go by TPOT, lengths and hits of this server before its counts are right"
        return Check(id="usage", status="warn", text=f"{text}: {why}", fix=fix, facts=facts)
    return Check(id="usage", status="ok", text=text, facts=facts)


def _odd(answer: Answer, prompt_tokens: int, completion_tokens: int) -> str | None:
    """Why these counts are not those of what was sent and what came; null where they may be."""
    cached = cached_tokens(answer.usage)
    if prompt_tokens == 0 or completion_tokens == 0:
        return "a prompt was sent and text came"
    if cached is not None and cached > prompt_tokens:
        return f"and {cached:,} of the prompt from the cache, which is more than all of it"
    if completion_tokens > PROBE_TOKENS:
        return f"max_tokens was {PROBE_TOKENS}: the server does not keep to it, or counts otherwise"
    return None


def tokenizer(asked: Asked, model: str, endpoint: Endpoint = "chat") -> Check:
    """Prompts are sized by the target's own tokenizer where it lends it."""
    from kvprobe.load.calibration import calibrate
    from kvprobe.load.prompts import PromptSource

    found = calibrate(asked.base_url, model, endpoint, None, asked.client, PromptSource.vocabulary[:64])
    if found.source != "tokenize":
        fix = "compare asked with got prompt tokens in the run; sizes are assumed until then"
        return Check(id="tokenizer", status="warn", text="no /tokenize: prompt sizes are assumed", fix=fix)
    template = found.template_tokens
    extra = f"; its chat template adds {plural(template, 'token')}" if template is not None else ""
    return Check(
        id="tokenizer",
        status="ok",
        text=f"the target's tokenizer can be asked{extra}",
        facts={"template_tokens": template},
    )


def metrics(asked: Asked) -> Check:
    """Engine, version and what it exports."""
    client = MetricsClient(asked.metrics_url, asked.metrics_headers, insecure=asked.insecure)
    try:
        scrape = client.scrape(buckets=False)
    finally:
        client.close()
    shown = targets.without_query(asked.metrics_url)
    if scrape.page is None:
        why = scrape.failure.text if scrape.failure is not None else "no page"
        fix = (
            "name the page with --metrics URL (SGLang needs --enable-metrics, llama.cpp --metrics; "
            "trtllm-serve has it at /prometheus/metrics)"
        )
        return Check(id="metrics", status="warn", text=f"{shown}: {why}", fix=fix)
    page = scrape.page
    version = page.version or getattr(page, "version_range", None)
    config = page.cache_config or {}
    facts = {
        "engine": page.engine,
        "engine_version": version,
        "not_exported": list(page.not_exported),
        "scrape_s": scrape.duration_s,
        "block_size": config.get("block_size"),
        "enable_prefix_caching": config.get("enable_prefix_caching"),
    }
    text = f"{shown}: {page.engine} {version or '(version not told)'}, {len(page.names)} series known here"
    return Check(id="metrics", status="ok", text=text, facts=facts)


def prefix_cache(asked: Asked, model: str, endpoint: Endpoint = "chat") -> Check:
    """State and match unit of the prefix cache, by byte-identical repeats."""
    reuse = prefix_probe.probe(
        lambda text: stream_one(asked.client, asked.base_url, model, text, 1, endpoint), seed=time.time_ns()
    )
    facts = {
        "repeats": [{"prompt_tokens": r.prompt_tokens, "cached_tokens": r.cached} for r in reuse.repeats],
        "match_unit_candidates_tokens": list(reuse.units[:20]),
    }
    if reuse.error is not None:
        fix = "see the stream and usage checks"
        return Check(id="prefix_cache", status="unknown", text=f"not knowable: {reuse.error}", fix=fix)
    fullest = reuse.fullest
    if reuse.doubt is not None:
        fix = "go by the server's own prefix counters (/metrics) instead of the usage block"
        text = f"not knowable: {reuse.doubt}"
        return Check(id="prefix_cache", status="unknown", text=text, fix=fix, facts=facts)
    if fullest is None:
        text = "the server does not state cached tokens for each request: a repeat shows nothing"
        fix = "vLLM: --enable-prompt-tokens-details; else go by the prefix counters of /metrics during a run"
        return Check(id="prefix_cache", status="unknown", text=text, fix=fix, facts=facts)
    if not fullest.cached:
        longest = fullest.prompt_tokens
        text = f"a byte-identical repeat of {longest:,} tokens took nothing from a cache"
        fix = (
            f"if reuse is wanted: switch prefix caching on, or look for a match unit above {longest:,} tokens"
        )
        return Check(id="prefix_cache", status="warn", text=text, fix=fix, facts=facts)
    return Check(id="prefix_cache", status="ok", text=_unit_text(reuse, fullest), facts=facts)


def _unit_text(reuse: prefix_probe.Reuse, fullest: prefix_probe.Repeat) -> str:
    took = f"a repeat of {fullest.prompt_tokens:,} tokens took {fullest.cached:,} from the cache"
    if len(reuse.units) == 1:
        return f"on: {took}; the match unit is {plural(reuse.units[0], 'token')}"
    if reuse.units:
        return f"on: {took}; the match unit is between {reuse.units[0]} and {reuse.units[-1]} tokens"
    return f"on: {took}; no single block size explains the repeats (speculative decoding drops one unit)"
