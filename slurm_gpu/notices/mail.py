"""Send notices by mail through the site's SMTP server."""

from __future__ import annotations

import email.policy
import email.utils
import re
import smtplib
import socket
import ssl
from email.message import EmailMessage

from slurm_gpu.notices.sending import TIMEOUT_S, Message, NotSentError, UnknownFateError
from slurm_gpu.notices.settings import Mail

_DELIVERED = (250, 251)
_NO_HOST = re.compile(r"[^A-Za-z0-9.-]+")


class MailChannel:
    """Opens one connection per message, because there are few messages."""

    def __init__(self, settings: Mail, timeout_s: float = TIMEOUT_S) -> None:
        self._settings, self._timeout_s = settings, timeout_s

    def send(self, message: Message) -> None:
        """Hand a message to the mail server; raise NotSentError or UnknownFateError."""
        to = self._settings.address_of(message.user)
        octets = compose(message, self._settings.sender, to).as_bytes(policy=email.policy.SMTP)
        smtp = self._connected()
        try:
            try:
                self._greet(smtp)
                self._envelope(smtp, to)
            except (OSError, smtplib.SMTPException) as error:  # no part of the message was sent
                raise self._not_sent(error) from error
            self._hand_over(smtp, octets)
        finally:
            smtp.close()

    def try_out(self) -> None:
        """Check that the server accepts the sender, but send no message; raise NotSentError on failure."""
        smtp = self._connected()
        try:
            self._greet(smtp)
            self._accepted(*smtp.mail(self._settings.sender))
        except (OSError, smtplib.SMTPException) as error:
            raise self._not_sent(error) from error
        finally:
            smtp.close()

    def _connected(self) -> smtplib.SMTP:
        # Without a local host name, smtplib queries the name service, which may be slow.
        name = socket.gethostname() or "localhost"
        host, port = self._settings.host, self._settings.port
        try:
            return smtplib.SMTP(host, port, local_hostname=name, timeout=self._timeout_s)
        except (OSError, smtplib.SMTPException, UnicodeError) as error:  # UnicodeError: invalid host name
            raise self._not_sent(error) from error

    def _greet(self, smtp: smtplib.SMTP) -> None:
        smtp.ehlo_or_helo_if_needed()
        if self._settings.starttls:
            smtp.starttls(context=ssl.create_default_context())
            smtp.ehlo()

    def _envelope(self, smtp: smtplib.SMTP, to: str) -> None:
        self._accepted(*smtp.mail(self._settings.sender))
        self._accepted(*smtp.rcpt(to))

    def _accepted(self, code: int, answer: bytes) -> None:
        if code not in _DELIVERED:
            raise smtplib.SMTPResponseException(code, answer)

    def _hand_over(self, smtp: smtplib.SMTP, octets: bytes) -> None:
        try:
            code, answer = smtp.data(octets)
        except smtplib.SMTPDataError as error:  # the server refuses messages at present
            raise self._not_sent(error) from error
        except (OSError, smtplib.SMTPException) as error:
            raise UnknownFateError(f"{self._where} did not answer after the message: {error}") from error
        if code not in _DELIVERED:
            raise self._not_sent(smtplib.SMTPResponseException(code, answer))

    def _not_sent(self, error: Exception) -> NotSentError:
        if isinstance(error, smtplib.SMTPResponseException):
            answer = error.smtp_error
            text = answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer)
            for_good = 500 <= error.smtp_code < 600
            return NotSentError(f"{self._where}: {error.smtp_code} {text}", for_good=for_good)
        return NotSentError(f"{self._where}: {error}")

    @property
    def _where(self) -> str:
        return f"mail server {self._settings.host}:{self._settings.port}"


def compose(message: Message, sender: str, to: str) -> EmailMessage:
    """Return the mail; the email library rejects headers with line breaks."""
    mail = EmailMessage(policy=email.policy.SMTP)
    mail["From"], mail["To"], mail["Subject"] = sender, to, message.text.subject
    mail["Date"] = email.utils.formatdate(message.at_s)
    mail["Message-ID"] = f"<{message.id}@{_NO_HOST.sub('-', message.cluster) or 'cluster'}.slurm-gpu>"
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Slurm-Gpu"] = message.kind
    mail.set_content(message.text.body, cte="quoted-printable")
    return mail
