"""Mail and webhook channels deliver messages to real servers, and report an error otherwise."""

from __future__ import annotations

import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from slurm_gpu.notices.mail import MailChannel
from slurm_gpu.notices.sending import Message, NotSentError, UnknownFateError
from slurm_gpu.notices.settings import Mail, Webhook
from slurm_gpu.notices.texts import Text
from slurm_gpu.notices.webhook import WebhookChannel

from .findings import NOW_S
from .servers import MailServer, WebServer, serving

NOTICE = Message(
    id="0123456789abcdef" * 2,
    at_s=NOW_S,
    cluster="neuron",
    user="alice",
    kind="never_used",
    jobs=("17_3",),
    text=Text("[neuron] 1 job: 학습", "Hello alice,\n.\n..dots, 학습\n" + "x" * 2000 + "\n"),
)


@pytest.fixture
def mail() -> Iterator[MailServer]:
    server = MailServer()
    with serving(server):
        yield server


@pytest.fixture
def web() -> Iterator[WebServer]:
    server = WebServer()
    with serving(server):
        yield server


def by_mail(port: int, **changes: object) -> MailChannel:
    settings = {"sender": "gpu-help@b.edu", "to": "{user}@b.edu", "host": "127.0.0.1", "port": port}
    return MailChannel(Mail(**{**settings, **changes}), timeout_s=5.0)  # type: ignore[arg-type]


def by_web(port: int, secret: Path | None = None, path: str = "/hook?x=1") -> WebhookChannel:
    return WebhookChannel(Webhook(url=f"http://127.0.0.1:{port}{path}", secret_file=secret), timeout_s=5.0)


def unused_port() -> int:
    with closing(socket.socket()) as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class TestMail:
    def test_the_message_arrives_unchanged(self, mail: MailServer) -> None:
        by_mail(mail.port).send(NOTICE)
        ((sender, to, message),) = mail.got
        assert (sender.strip("<> "), to) == ("gpu-help@b.edu", ("alice@b.edu",))
        assert message["Subject"] == "[neuron] 1 job: 학습"
        assert message["Auto-Submitted"] == "auto-generated"
        assert message["Message-ID"] == f"<{NOTICE.id}@neuron.slurm-gpu>"
        assert message.get_content().replace("\r\n", "\n") == NOTICE.text.body

    @pytest.mark.parametrize(
        ("answer", "for_good"), [("550 no such user", True), ("451 come back later", False)]
    )
    @pytest.mark.parametrize("where", ["on_recipient", "on_message"])
    def test_a_refused_message_was_certainly_not_sent(
        self, mail: MailServer, where: str, answer: str, for_good: bool
    ) -> None:
        setattr(mail, where, answer)
        with pytest.raises(NotSentError, match=answer) as raised:
            by_mail(mail.port).send(NOTICE)
        assert raised.value.for_good is for_good
        assert mail.got == []

    def test_an_unreachable_server_is_tried_again(self) -> None:
        with pytest.raises(NotSentError, match="Connection refused") as raised:
            by_mail(unused_port()).send(NOTICE)
        assert not raised.value.for_good

    def test_an_invalid_host_name_is_reported(self, mail: MailServer) -> None:
        nowhere = by_mail(mail.port, host=f"{'a' * 64}.edu")
        for ask in (lambda: nowhere.send(NOTICE), nowhere.try_out):
            with pytest.raises(NotSentError, match="label"):
                ask()

    def test_after_a_connection_lost_behind_the_message_its_fate_is_unknown(self, mail: MailServer) -> None:
        mail.on_message = None
        with pytest.raises(UnknownFateError):
            by_mail(mail.port).send(NOTICE)

    def test_nothing_is_sent_unencrypted_where_tls_is_required(self, mail: MailServer) -> None:
        with pytest.raises(NotSentError, match="STARTTLS"):
            by_mail(mail.port, starttls=True).send(NOTICE)
        assert mail.got == []


class TestWebhook:
    def test_the_posted_json_arrives_unchanged(self, web: WebServer, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.touch(mode=0o600)
        secret.write_text("hush-9f2b1c\n")
        by_web(web.port, secret).send(NOTICE)
        ((path, headers, body),) = web.asked
        assert path == "/hook?x=1"
        assert headers["Authorization"] == "Bearer hush-9f2b1c"
        assert headers["Idempotency-Key"] == NOTICE.id
        assert body == {
            "id": NOTICE.id,
            "at_s": int(NOW_S),
            "cluster": "neuron",
            "user": "alice",
            "kind": "never_used",
            "jobs": ["17_3"],
            "subject": NOTICE.text.subject,
            "text": NOTICE.text.body,
        }

    @pytest.mark.parametrize(
        ("status", "for_good"), [(500, False), (503, False), (429, False), (404, True), (401, True)]
    )
    def test_a_refused_request_was_certainly_not_accepted(
        self, web: WebServer, status: int, for_good: bool
    ) -> None:
        web.status = status
        with pytest.raises(NotSentError, match=f"answered {status}") as raised:
            by_web(web.port).send(NOTICE)
        assert raised.value.for_good is for_good

    @pytest.mark.parametrize("status", [301, 302, 307, 308])
    def test_no_redirect_is_followed_with_the_secret(self, web: WebServer, status: int) -> None:
        web.status = status
        with pytest.raises(NotSentError, match="redirects are not followed") as raised:
            by_web(web.port).send(NOTICE)
        assert raised.value.for_good
        assert [path for path, _, _ in web.asked] == ["/hook?x=1"]

    def test_after_no_answer_the_fate_of_a_request_is_unknown(self, web: WebServer) -> None:
        web.status = None
        with pytest.raises(UnknownFateError):
            by_web(web.port).send(NOTICE)

    def test_an_unreachable_webhook_is_tried_again(self) -> None:
        with pytest.raises(NotSentError, match="Connection refused"):
            by_web(unused_port()).send(NOTICE)

    def test_an_error_does_not_contain_the_path_which_may_be_secret(self, web: WebServer) -> None:
        web.status = 500
        with pytest.raises(NotSentError) as raised:
            by_web(web.port, path="/T0/hush-9f2b1c").send(NOTICE)
        assert "hush" not in str(raised.value)

    @pytest.mark.parametrize(
        ("mode", "content", "complaint"),
        [
            (0o644, "x", "must be a file that other users cannot read"),
            (0o620, "x", "must be a file that other users cannot read"),
            (0o600, "", "must contain one ASCII word"),
            (0o600, "a\r\nX-Evil: b", "must contain one ASCII word"),
            (0o600, "a b", "must contain one ASCII word"),
            (0o600, "é", "must contain one ASCII word"),
        ],
    )
    def test_an_unusable_secret_is_not_sent(
        self, web: WebServer, tmp_path: Path, mode: int, content: str, complaint: str
    ) -> None:
        secret = tmp_path / "secret"
        secret.write_text(content)
        secret.chmod(mode)
        with pytest.raises(NotSentError, match=complaint):
            by_web(web.port, secret).send(NOTICE)
        assert web.asked == []

    def test_a_link_in_its_place_is_not_followed(self, web: WebServer, tmp_path: Path) -> None:
        (tmp_path / "shadow").touch(mode=0o600)
        (tmp_path / "secret").symlink_to(tmp_path / "shadow")
        with pytest.raises(NotSentError, match="cannot be read"):
            by_web(web.port, tmp_path / "secret").send(NOTICE)


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Return a self-signed certificate of localhost with its key."""
    file = tmp_path / "localhost.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            file,
            "-out",
            tmp_path / "certificate.pem",
        ],
        check=True,
        capture_output=True,
    )
    file.write_bytes(file.read_bytes() + (tmp_path / "certificate.pem").read_bytes())
    return file


def test_only_a_trusted_certificate_receives_notices(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    server = WebServer(context)
    with serving(server):
        settings = Webhook(url=f"https://localhost:{server.port}/hook")
        with pytest.raises(NotSentError, match="certificate"):
            WebhookChannel(settings, timeout_s=5.0).send(NOTICE)
        assert server.asked == []
        trusting = ssl.create_default_context(cafile=str(certificate))
        WebhookChannel(settings, timeout_s=5.0, context=trusting).send(NOTICE)
        assert [path for path, _, _ in server.asked] == ["/hook"]
