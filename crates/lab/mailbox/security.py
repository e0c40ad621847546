"""The server's side of NTLM version 2 with session security, and of Kerberos in DCE style.

Each acceptor takes the client's tokens one after the other (`accept`), and then protects and checks PDUs:
`seal` and `unseal` take the header, the body (stub and padding) and the security trailer. Both signatures and
sequence numbers are checked; impacket's own server does neither.

[MS-NLMP] §3.4 (session security), [MS-RPCE] §3.3.1.5.2, RFC 4121 with the rotation of [MS-KILE] §3.4.5.4.1.
"""

import hashlib
import hmac
import os
import struct
import time

from Cryptodome.Cipher import AES, ARC4
from Cryptodome.Hash import MD4

NTLM, NEGOTIATE, KERBEROS = 10, 9, 16
CONNECT, CALL, PACKET, INTEGRITY, PRIVACY = 2, 3, 4, 5, 6

UNICODE, REQUEST_TARGET, SIGN, SEAL = 0x1, 0x4, 0x10, 0x20
NTLM_KEY, ALWAYS_SIGN, TARGET_IS_SERVER = 0x200, 0x8000, 0x20000
EXTENDED_SECURITY, TARGET_INFO, VERSION = 0x80000, 0x800000, 0x2000000
KEY_128, KEY_EXCHANGE, KEY_56 = 0x20000000, 0x40000000, 0x80000000
OFFERED = (
    UNICODE | REQUEST_TARGET | SIGN | SEAL | NTLM_KEY | ALWAYS_SIGN | EXTENDED_SECURITY | TARGET_INFO
    | KEY_128 | KEY_EXCHANGE | KEY_56
)
AV_FLAGS, MIC_PRESENT = 6, 2


class SecurityError(Exception):
    """A log-on fails or a signature is wrong."""


def nt_hash(password):
    return MD4.new(password.encode("utf-16-le")).digest()


def hmac_md5(key, data):
    return hmac.digest(key, data, "md5")


class Account:
    """A user of the server."""

    def __init__(self, entry):
        self.user = entry["user"]
        self.domain = entry.get("domain", "LAB")
        self.nt_hash = bytes.fromhex(entry["nt_hash"]) if "nt_hash" in entry else nt_hash(entry["password"])

    def response_key(self, user, domain):
        """NTOWFv2 with the names as the client spells them."""
        return hmac_md5(self.nt_hash, (user.upper() + domain).encode("utf-16-le"))


class NtlmSession:
    """Signing and sealing with NTLM's extended session security and a 128-bit key."""

    SIGNATURE_BYTES = 16

    def __init__(self, session_key, is_server, flags):
        self.has_key_exchange = bool(flags & KEY_EXCHANGE)
        mine, theirs = (b"server-to-client", b"client-to-server")[:: 1 if is_server else -1]
        self.signs = self.key(session_key, mine, b"signing")
        self.checks = self.key(session_key, theirs, b"signing")
        self.seals = ARC4.new(self.key(session_key, mine, b"sealing"))
        self.opens = ARC4.new(self.key(session_key, theirs, b"sealing"))
        self.sent = 0
        self.received = 0

    @staticmethod
    def key(session_key, direction, use):
        magic = b"session key to " + direction + b" " + use + b" key magic constant\0"
        return hashlib.md5(session_key + magic).digest()

    def seal(self, header, body, trailer, is_private):
        """The body as it is sent, and the signature."""
        number = struct.pack("<I", self.sent)
        self.sent += 1
        checksum = hmac_md5(self.signs, b"".join((number, header, body, trailer)))[:8]
        if is_private:
            body = self.seals.encrypt(body)
        if self.has_key_exchange:
            checksum = self.seals.encrypt(checksum)
        return body, b"\1\0\0\0" + checksum + number

    def unseal(self, header, body, trailer, signature, is_private):
        """The body in the clear."""
        number = struct.pack("<I", self.received)
        self.received += 1
        if is_private:
            body = self.opens.decrypt(body)
        checksum = hmac_md5(self.checks, b"".join((number, header, body, trailer)))[:8]
        if self.has_key_exchange:
            checksum = self.opens.encrypt(checksum)
        if signature != b"\1\0\0\0" + checksum + number:
            raise SecurityError("the NTLM signature is wrong")
        return body


class NtlmAcceptor:
    """NTLM's three messages, seen by the server."""

    def __init__(self, accounts, host):
        self.accounts = accounts
        self.host = host
        self.challenge = None
        self.messages = []
        self.session = None
        self.user = None

    @staticmethod
    def has_expired():
        """NTLM has no tickets."""
        return False

    def accept(self, token):
        """The answer to a token; `session` is set after the last one."""
        if token[:8] != b"NTLMSSP\0":
            raise SecurityError("no NTLM message")
        (kind,) = struct.unpack_from("<I", token, 8)
        self.messages.append(bytes(token))
        if kind == 1 and self.challenge is None:
            answer = self.challenge_message(struct.unpack_from("<I", token, 12)[0])
            self.messages.append(answer)
            return answer
        if kind == 3 and self.challenge is not None and self.session is None:
            self.authenticate(bytes(token))
            return b""
        raise SecurityError(f"NTLM message {kind} at the wrong time")

    def challenge_message(self, wanted):
        flags = OFFERED & (wanted | TARGET_INFO) | TARGET_IS_SERVER
        self.challenge = os.urandom(8)
        now = int((time.time() + 11644473600) * 10_000_000)
        pairs = b""
        for number, value in (
            (2, self.host.upper().encode("utf-16-le")),
            (1, self.host.upper().encode("utf-16-le")),
            (4, b"lab.test".decode().encode("utf-16-le")),
            (3, f"{self.host}.lab.test".encode("utf-16-le")),
            (7, struct.pack("<Q", now)),
            (0, b""),
        ):
            pairs += struct.pack("<HH", number, len(value)) + value
        target = self.host.upper().encode("utf-16-le")
        fixed = 48
        return (
            b"NTLMSSP\0"
            + struct.pack("<I", 2)
            + struct.pack("<HHI", len(target), len(target), fixed)
            + struct.pack("<I", flags)
            + self.challenge
            + bytes(8)
            + struct.pack("<HHI", len(pairs), len(pairs), fixed + len(target))
            + target
            + pairs
        )

    def authenticate(self, token):
        def field(at):
            length, _, offset = struct.unpack_from("<HHI", token, at)
            return token[offset : offset + length]

        answer, domain, user = field(20), field(28).decode("utf-16-le"), field(36).decode("utf-16-le")
        (flags,) = struct.unpack_from("<I", token, 60)
        account = next((each for each in self.accounts if each.user.lower() == user.lower()), None)
        if account is None or len(answer) < 44:
            raise SecurityError("an unknown user, or no NTLM version 2")
        key = account.response_key(user, domain)
        proof, blob = answer[:16], answer[16:]
        if hmac_md5(key, self.challenge + blob) != proof:
            raise SecurityError("the password is wrong")
        session_key = hmac_md5(key, proof)
        if flags & KEY_EXCHANGE:
            session_key = ARC4.new(session_key).decrypt(field(52))
        if not flags & EXTENDED_SECURITY or not flags & KEY_128:
            raise SecurityError("no extended session security with 128 bits")
        self.check_mic(token, blob, session_key)
        self.session = NtlmSession(session_key, True, flags)
        self.user = account.user

    def check_mic(self, token, blob, session_key):
        """The MIC, where the client says that it sends one ([MS-NLMP] §3.2.5.1.2)."""
        at = 28
        while at + 4 <= len(blob):
            number, length = struct.unpack_from("<HH", blob, at)
            if number == 0:
                return
            if number == AV_FLAGS and struct.unpack_from("<I", blob, at + 4)[0] & MIC_PRESENT:
                break
            at += 4 + length
        else:
            return
        cleared = token[:72] + bytes(16) + token[88:]
        if hmac_md5(session_key, self.messages[0] + self.messages[1] + cleared) != token[72:88]:
            raise SecurityError("the MIC is wrong")


class KerberosSession:
    """GSS_Wrap and GSS_GetMIC of RFC 4121 with AES and HMAC-SHA1-96, rotated as DCE style wants it."""

    EXTRA = 16
    ROTATION = 28

    def __init__(self, key, is_server, sent=0, received=0):
        self.is_server = is_server
        self.signs, self.checks = self.keys(key, 23 if is_server else 25), self.keys(key, 25 if is_server else 23)
        self.seals, self.opens = self.keys(key, 22 if is_server else 24), self.keys(key, 24 if is_server else 22)
        # Sent by the acceptor, and with the acceptor's subkey.
        self.mine, self.theirs = (5, 4) if is_server else (4, 5)
        self.sent = sent
        self.received = received
        self.signature_bytes = {True: 16 + 44 + self.EXTRA, False: 28}

    @staticmethod
    def keys(key, usage):
        """Keys of one usage: for checksums alone, for integrity and for encryption."""
        from impacket.krb5 import crypto

        profile = crypto._get_enctype_profile(key.enctype)
        return tuple(profile.derive(key, struct.pack(">IB", usage, which)).contents for which in (0x99, 0x55, 0xAA))

    def seal(self, header, body, trailer, is_private):
        number = struct.pack(">Q", self.sent)
        self.sent += 1
        if not is_private:
            token = struct.pack(">HB5s", 0x0404, self.mine, b"\xff" * 5) + number
            return body, token + hmac.digest(self.signs[0], body + token, "sha1")[:12]
        flags = self.mine | 2
        plain = struct.pack(">HBBHH", 0x0504, flags, 0xFF, self.EXTRA, 0) + number
        text = b"".join((os.urandom(16), body, bytes(self.EXTRA), plain))
        cipher = encrypt_cts(self.seals[2], text) + hmac.digest(self.seals[1], text, "sha1")[:12]
        turn = self.ROTATION + self.EXTRA
        rotated = cipher[-turn:] + cipher[:-turn]
        token = struct.pack(">HBBHH", 0x0504, flags, 0xFF, self.EXTRA, self.ROTATION) + number
        split = len(rotated) - len(body)
        return rotated[split:], token + rotated[:split]

    def unseal(self, header, body, trailer, signature, is_private):
        if self.received is None:
            # impacket does not keep the number that the AP-REP said.
            self.received = int.from_bytes(signature[8:16], "big")
        number = struct.pack(">Q", self.received)
        self.received += 1
        if signature[8:16] != number:
            raise SecurityError("the Kerberos sequence number is wrong")
        if not is_private:
            token = signature[:16]
            checksum = hmac.digest(self.checks[0], body + token, "sha1")[:12]
            if signature[:2] != b"\x04\x04" or signature[2] & 1 == self.mine & 1 or checksum != signature[16:]:
                raise SecurityError("the Kerberos MIC is wrong")
            return body
        kind, flags, _, extra, rotation = struct.unpack_from(">HBBHH", signature)
        if kind != 0x0504 or not flags & 2 or flags & 1 == self.mine & 1:
            raise SecurityError("no Kerberos token of the peer's")
        rotated = signature[16:] + body
        turn = (rotation + extra) % len(rotated)
        cipher = rotated[turn:] + rotated[:turn]
        text = decrypt_cts(self.opens[2], cipher[:-12])
        if hmac.digest(self.opens[1], text, "sha1")[:12] != cipher[-12:]:
            raise SecurityError("the Kerberos checksum is wrong")
        plain = struct.pack(">HBBHH", 0x0504, flags, signature[3], extra, 0) + number
        if text[-16:] != plain:
            raise SecurityError("the Kerberos token's header is wrong")
        return text[16 : len(text) - 16 - extra]


def encrypt_cts(key, text):
    """AES in CBC mode with ciphertext stealing (RFC 3962 §5)."""
    cipher = AES.new(key, AES.MODE_CBC, bytes(16)).encrypt(text + bytes(-len(text) % 16))
    if len(text) <= 16:
        return cipher
    last = len(text) % 16 or 16
    return cipher[:-32] + cipher[-16:] + cipher[-32:-16][:last]


def decrypt_cts(key, cipher):
    if len(cipher) <= 16:
        return AES.new(key, AES.MODE_ECB).decrypt(cipher)
    last = len(cipher) % 16 or 16
    head, second, final = cipher[: -16 - last], cipher[-16 - last : -last], cipher[-last:]
    block = AES.new(key, AES.MODE_ECB).decrypt(second)
    whole = final + block[last:]
    text = AES.new(key, AES.MODE_CBC, bytes(16)).decrypt(head + whole + second)
    return text[: len(head) + 16 + last]


class KerberosAcceptor:
    """AP-REQ, AP-REP and the client's AP-REP, inside SPNEGO; the service's keys are in a keytab."""

    def __init__(self, keytab):
        self.keytab = keytab
        self.session = None
        self.user = None
        self.expected = None
        self.end_time = None

    def has_expired(self):
        """True if the time of the ticket is over."""
        return self.end_time < time.strftime("%Y%m%d%H%M%SZ", time.gmtime())

    def accept(self, token):
        if self.expected is None:
            return self.accept_request(bytes(token))
        return self.accept_reply(bytes(token))

    def accept_request(self, token):
        from impacket.krb5 import constants, crypto
        from impacket.krb5.asn1 import AP_REP, AP_REQ, Authenticator, EncAPRepPart, EncTicketPart
        from impacket.krb5.types import KerberosTime
        from impacket.spnego import SPNEGO_NegTokenInit, SPNEGO_NegTokenResp
        from pyasn1.codec.der import decoder, encoder

        blob = SPNEGO_NegTokenInit(token)["MechToken"]
        # The mechanism's header: 60, a length, the object identifier and the token's identifier.
        start = blob.index(b"\x01\x00\x6e") + 2
        request = decoder.decode(blob[start:], asn1Spec=AP_REQ())[0]
        sealed = request["ticket"]["enc-part"]
        key = self.service_key(int(sealed["etype"]), int(sealed["kvno"]))
        cipher = crypto._enctype_table[key.enctype]
        try:
            ticket = decoder.decode(
                cipher.decrypt(key, 2, sealed["cipher"].asOctets()), asn1Spec=EncTicketPart()
            )[0]
            session_key = crypto.Key(int(ticket["key"]["keytype"]), ticket["key"]["keyvalue"].asOctets())
            session_cipher = crypto._enctype_table[session_key.enctype]
            authenticator = decoder.decode(
                session_cipher.decrypt(session_key, 11, request["authenticator"]["cipher"].asOctets()),
                asn1Spec=Authenticator(),
            )[0]
        except crypto.InvalidChecksum:
            raise SecurityError("the ticket is not for this service's key") from None
        self.end_time = str(ticket["endtime"])
        if self.has_expired():
            raise SecurityError("the ticket has expired")
        self.user = str(ticket["cname"]["name-string"][0])
        subkey = crypto.Key(session_key.enctype, os.urandom(len(session_key.contents)))
        number = int.from_bytes(os.urandom(4), "big") & 0x3FFFFFFF
        part = EncAPRepPart()
        part["ctime"] = str(authenticator["ctime"])
        part["cusec"] = int(authenticator["cusec"])
        part["subkey"]["keytype"] = subkey.enctype
        part["subkey"]["keyvalue"] = subkey.contents
        part["seq-number"] = number
        reply = AP_REP()
        reply["pvno"] = 5
        reply["msg-type"] = int(constants.ApplicationTagNumbers.AP_REP.value)
        reply["enc-part"]["etype"] = session_key.enctype
        reply["enc-part"]["cipher"] = session_cipher.encrypt(session_key, 12, encoder.encode(part), None)
        self.expected = (session_key, number)
        received = int(authenticator["seq-number"]) if authenticator["seq-number"].hasValue() else 0
        self.pending = KerberosSession(subkey, True, number, received)
        answer = SPNEGO_NegTokenResp()
        answer["NegState"] = b"\x01"
        answer["SupportedMech"] = b"\x2a\x86\x48\x82\xf7\x12\x01\x02\x02"
        answer["ResponseToken"] = encoder.encode(reply)
        return answer.getData()

    def accept_reply(self, token):
        from impacket.krb5 import crypto
        from impacket.krb5.asn1 import AP_REP, EncAPRepPart
        from impacket.spnego import SPNEGO_NegTokenResp
        from pyasn1.codec.der import decoder

        session_key, number = self.expected
        reply = decoder.decode(SPNEGO_NegTokenResp(token)["ResponseToken"], asn1Spec=AP_REP())[0]
        cipher = crypto._enctype_table[session_key.enctype]
        try:
            text = cipher.decrypt(session_key, 12, reply["enc-part"]["cipher"].asOctets())
        except crypto.InvalidChecksum:
            raise SecurityError("the client's AP-REP has another key") from None
        if int(decoder.decode(text, asn1Spec=EncAPRepPart())[0]["seq-number"]) != number:
            raise SecurityError("the client's AP-REP has another sequence number")
        self.session = self.pending
        answer = SPNEGO_NegTokenResp()
        answer["NegState"] = b"\x00"
        return answer.getData()

    def service_key(self, enctype, version):
        from impacket.krb5 import crypto
        from impacket.krb5.keytab import Keytab

        for entry in Keytab.loadFile(self.keytab).entries:
            block = entry.main_part["keyblock"]
            held = entry.main_part["vno8"]
            if int(block["keytype"]) == enctype and int(held) == version:
                return crypto.Key(enctype, block["keyvalue"]["data"])
        raise SecurityError(f"the keytab has no key of type {enctype} and version {version}")
