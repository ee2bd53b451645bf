"""F3: certificates that must not be trusted, told apart; and the switch that trusts them anyway."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from kvprobe.load import connection
from tests.e2e.conftest import kvprobe
from tests.faults.client import PATIENT, client_of
from tests.faults.kit import DONE, LAST_CHUNK, OK_HEAD, Exchange, answer, chunk, http_chunk, playing, serve

WHOLE = (chunk("a"), chunk(finish="stop"), DONE)
FAULT = playing(*WHOLE)

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="install openssl for certificates")


AUTHORITY = """
[ca]
default_ca = here
[here]
database = {folder}/index.txt
new_certs_dir = {folder}
rand_serial = yes
default_md = sha256
policy = any
x509_extensions = names
[any]
commonName = supplied
[names]
subjectAltName = {name}
"""


def expired_certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate of January 2020 with its key in one file."""
    (folder / "index.txt").touch()
    (folder / "ca.cnf").write_text(AUTHORITY.format(folder=folder, name=name))
    key, request = str(folder / "key.pem"), str(folder / "request.pem")
    make = ["openssl", "req", "-new", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kvprobe test"]
    subprocess.run([*make, "-keyout", key, "-out", request], check=True, capture_output=True)
    sign = ["openssl", "ca", "-batch", "-selfsign", "-config", str(folder / "ca.cnf"), "-keyfile", key]
    sign += ["-startdate", "20200101000000Z", "-enddate", "20200131000000Z", "-notext"]
    out = ["-in", request, "-out", str(folder / "cert.pem")]
    subprocess.run([*sign, *out], check=True, capture_output=True)
    return joined(folder)


def joined(folder: Path) -> Path:
    path = folder / "both.pem"
    path.write_text((folder / "cert.pem").read_text() + (folder / "key.pem").read_text())
    return path


def certificate(folder: Path, name: str) -> Path:
    """A self-signed certificate with its key in one file."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=kvprobe test"]
    command += ["-addext", f"subjectAltName={name}", "-keyout", str(folder / "key.pem")]
    subprocess.run([*command, "-out", str(folder / "cert.pem")], check=True, capture_output=True)
    return joined(folder)


def server_context(path: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


@pytest.fixture
def trusting(monkeypatch, tmp_path):
    """Makes a certificate and trusts it as an authority."""

    def trust(name: str, make=certificate) -> Path:
        path = make(tmp_path, name)
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "cert.pem"))
        return path

    connection._shared_ssl_context.cache_clear()
    yield trust
    connection._shared_ssl_context.cache_clear()


def test_a_trusted_certificate_works_and_the_connection_is_kept(trusting):
    path = trusting("IP:127.0.0.1")
    with serve(FAULT, server_context(path)) as server, client_of(server.url) as client:
        assert [client.send().failure for _ in range(3)] == [None] * 3
        assert server.connections == 1


@pytest.mark.parametrize(
    ("name", "make", "trusted", "said"),
    [
        ("IP:127.0.0.1", certificate, False, "self-signed"),
        ("DNS:elsewhere.example", certificate, True, "IP address mismatch"),
        ("IP:127.0.0.1", expired_certificate, True, "expired"),
    ],
    ids=["self-signed", "wrong host", "expired"],
)
def test_f3_what_is_wrong_with_a_certificate_is_told_apart(trusting, tmp_path, name, make, trusted, said):
    path = trusting(name, make) if trusted else make(tmp_path, name)
    with serve(FAULT, server_context(path)) as server, client_of(server.url) as client:
        record = client.send()
    assert record.failure == "tls"
    assert said in record.failure_detail
    assert record.sent_ns is None


def test_insecure_accepts_any_certificate(tmp_path):
    path = certificate(tmp_path, "DNS:elsewhere.example")
    with serve(FAULT, server_context(path)) as server, client_of(server.url, insecure=True) as client:
        assert client.send().failure is None


def test_a_plain_server_is_no_tls_server():
    async def fault(exchange: Exchange) -> None:
        await exchange.reader.read(100)
        await exchange.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with serve(fault) as server, client_of(server.url.replace("http", "https")) as client:
        assert client.send().failure == "tls"


def test_a_handshake_that_never_ends_is_a_connect_timeout():
    async def fault(exchange: Exchange) -> None:
        await exchange.hang()

    url_timeouts = replace(PATIENT, connect_s=0.3)
    with serve(fault) as server, client_of(server.url.replace("http", "https"), url_timeouts) as client:
        record = client.send()
    assert record.failure == "connect"
    assert "timed out" in record.failure_detail


def test_deadlines_hold_over_tls(trusting):
    async def fault(exchange: Exchange) -> None:
        await exchange.stream(chunk("a"), chunk("b"))
        await exchange.hang()

    path = trusting("IP:127.0.0.1")
    timeouts = replace(PATIENT, gap_s=0.2)
    with serve(fault, server_context(path)) as server, client_of(server.url, timeouts) as client:
        record = client.send()
    assert record.failure == "timeout_gap"
    assert record.content_chunks == 2


def test_f3_insecure_is_recorded_in_the_run(tmp_path):
    """A run over TLS: refused with exit 3 as long as the certificate is not known, and on record once it was
    accepted with --insecure."""
    models = answer(json.dumps({"object": "list", "data": [{"id": "fault"}]}).encode())

    async def fault(exchange: Exchange) -> None:
        while True:
            request = await exchange.request()
            if b"/v1/models" in request:
                await exchange.send(models)
            elif b"/completions" in request:
                await exchange.send(OK_HEAD, *(http_chunk(event) for event in WHOLE), LAST_CHUNK)
            else:
                await exchange.send(answer(b"{}", status="404 Not Found"))

    small = ("--set", "prompt.tokens=32", "--set", "output.tokens=4", "--set", "requests=3")
    path = certificate(tmp_path, "IP:127.0.0.1")
    with serve(fault, server_context(path)) as server:
        argv = ["run", "distinct", "--target", server.url, "--json", *small, "--out", str(tmp_path / "runs")]
        refused = kvprobe(*argv)
        accepted = kvprobe(*argv, "--insecure")
    assert refused.code == 3
    assert refused.document["errors"][0]["code"] == "tls"
    assert accepted.document["requests"]["ok"] == 3, accepted.err
    run_dir = Path(accepted.document["run_dir"])
    facts = [json.loads(line) for line in (run_dir / "facts.jsonl").read_text().splitlines()]
    (target,) = [f["value"] for f in facts if f["name"] == "target"]
    assert target["insecure"] is True
    assert "not verified" in " ".join(accepted.document["diagnosis"]["validity"]["warnings"])
