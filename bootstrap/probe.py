"""Whether a certain peer answers at a host and port: one TCP connection, and a look at the certificate that it shows.

p2pd cannot be asked: it is connected to the peer already, and would find that connection. So this speaks the first
three steps of libp2p by itself: multistream-select, the TLS 1.3 handshake, and the extension of the certificate in
which the peer's key signs the certificate's (libp2p's TLS specification). Then it hangs up. A machine that merely has
an open port, or another peer behind the same router, does not count.
"""

from __future__ import annotations

import asyncio
import ssl

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from protocol.errors import ProtocolError
from protocol.signature import verify

_MULTISTREAM, _TLS = b"/multistream/1.0.0\n", b"/tls/1.0.0\n"
_EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED = b"libp2p-tls-handshake:"
_KEY_BYTES, _SIGNATURE_BYTES = 32, 64
# SEQUENCE { OCTET STRING { a PublicKey message: Ed25519, 32 bytes }, OCTET STRING { 64 bytes } }: one length only.
_BEFORE_KEY, _BEFORE_SIGNATURE = bytes.fromhex("30680424 08011220"), bytes.fromhex("0440")
_AFTER_KEY = len(_BEFORE_KEY) + _KEY_BYTES


async def answers(host: str, port: int, key: bytes, timeout: float) -> bool:
    """Whether peer `key` itself answers at the IP address `host` within `timeout` seconds. Never raises for a no."""
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(_framed(_MULTISTREAM) + _framed(_TLS))
            for line in (_MULTISTREAM, _TLS):
                if await reader.readexactly(1 + len(line)) != _framed(line):
                    return False
            await writer.start_tls(_context())
            return _key_of_certificate(writer.get_extra_info("ssl_object").getpeercert(True)) == key
    except (OSError, EOFError, TimeoutError, ProtocolError):
        return False
    finally:
        if writer is not None:
            writer.transport.abort()


def _framed(line: bytes) -> bytes:
    return bytes([len(line)]) + line


def _context() -> ssl.SSLContext:
    """No certificate authority is asked: the handshake proves the certificate's key, and that names the peer's."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["libp2p"])
    return context


def _key_of_certificate(der: bytes | None) -> bytes:
    """The peer key in a libp2p certificate. ProtocolError if there is none, or if it has not signed the certificate."""
    try:
        certificate = x509.load_der_x509_certificate(der or b"")
        extension = certificate.extensions.get_extension_for_oid(_EXTENSION).value
        spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    except (ValueError, TypeError, x509.ExtensionNotFound, x509.DuplicateExtension) as error:
        raise ProtocolError("certificate: not one of libp2p's") from error
    value = extension.value if isinstance(extension, x509.UnrecognizedExtension) else b""
    key, signature = value[len(_BEFORE_KEY) : _AFTER_KEY], value[-_SIGNATURE_BYTES:]
    if value != _BEFORE_KEY + key + _BEFORE_SIGNATURE + signature or len(signature) != _SIGNATURE_BYTES:
        raise ProtocolError("certificate: not of an Ed25519 peer")
    if not verify(key, _SIGNED + spki, signature):
        raise ProtocolError("certificate: wrong signature")
    return key
