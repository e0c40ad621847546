"""DCE/RPC of the clients: impacket's `DCERPC_v5`, with faster ways to send and to receive.

impacket binds, authenticates and derives the keys. It spends 0.1 s of processor time on a megabyte and does not check
the signatures of answers, so `OutlookRpc` fragments, signs, checks and reassembles by itself with impacket's keys.
`StockRpc` is impacket alone: the self test compares both.
"""

import hmac
import socket
import struct

from impacket import ntlm
from impacket.dcerpc.v5 import rpcrt, transport

import security

# What Outlook offers; impacket offers 4280.
MAX_FRAGMENT = 5840
LEVELS = {
    "none": (None, None),
    "ntlm-connect": (rpcrt.RPC_C_AUTHN_WINNT, rpcrt.RPC_C_AUTHN_LEVEL_CONNECT),
    "ntlm-integrity": (rpcrt.RPC_C_AUTHN_WINNT, rpcrt.RPC_C_AUTHN_LEVEL_PKT_INTEGRITY),
    "ntlm-privacy": (rpcrt.RPC_C_AUTHN_WINNT, rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY),
    "kerberos-integrity": (rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE, rpcrt.RPC_C_AUTHN_LEVEL_PKT_INTEGRITY),
    "kerberos-privacy": (rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE, rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY),
}


class RpcError(Exception):
    """A fault, or an answer that cannot be right."""


StockBind = rpcrt.MSRPCBind


class OutlookBind(StockBind):
    """A bind with Outlook's fragment sizes, in the association group of an earlier connection if there is one."""

    group = 0

    def __init__(self, data=None, alignment=0):
        StockBind.__init__(self, data, alignment)
        if data is None:
            self["max_tfrag"] = self["max_rfrag"] = MAX_FRAGMENT
            self["assoc_group"] = OutlookBind.group


class NtlmKeys:
    """NTLM's session security with the keys that impacket derived."""

    signature_bytes = {True: 16, False: 16}

    def __init__(self, rpc):
        get = lambda name: getattr(rpc, f"_DCERPC_v5__{name}")
        flags = get("flags")
        if not flags & ntlm.NTLMSSP_NEGOTIATE_EXTENDED_SESSIONSECURITY or not flags & ntlm.NTLMSSP_NEGOTIATE_KEY_EXCH:
            raise RpcError("the server has no extended session security with a key exchange")
        self.signs, self.checks = get("clientSigningKey"), get("serverSigningKey")
        # RC4 encrypts and decrypts alike.
        self.seals, self.opens = get("clientSealingHandle"), get("serverSealingHandle")
        self.sent = self.received = 0

    def seal(self, header, body, trailer, is_private):
        number = struct.pack("<I", self.sent)
        self.sent += 1
        checksum = hmac.digest(self.signs, b"".join((number, header, body, trailer)), "md5")[:8]
        if is_private:
            body = self.seals(body)
        return body, b"\1\0\0\0" + self.seals(checksum) + number

    def unseal(self, header, body, trailer, signature, is_private):
        number = struct.pack("<I", self.received)
        self.received += 1
        if is_private:
            body = self.opens(body)
        checksum = hmac.digest(self.checks, b"".join((number, header, body, trailer)), "md5")[:8]
        if signature != b"\1\0\0\0" + self.opens(checksum) + number:
            raise RpcError("the signature of an answer is wrong")
        return body


class OutlookRpc(rpcrt.DCERPC_v5):
    """impacket's DCE/RPC with Outlook's fragments."""

    def start(self, interface):
        """Connects and binds; returns the association group."""
        self.connect()
        sock = self.get_rpc_transport().get_socket()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(None)
        self.sock = sock
        rpcrt.MSRPCBind = OutlookBind
        answer = self.bind(interface)
        self.number = 100
        self.keys = None
        self.level = getattr(self, "_DCERPC_v5__auth_level")
        self.kind = getattr(self, "_DCERPC_v5__auth_type")
        self.room = getattr(self, "_DCERPC_v5__max_xmit_size") - 24
        if self.level > rpcrt.RPC_C_AUTHN_LEVEL_CONNECT and self.level != rpcrt.RPC_C_AUTHN_LEVEL_NONE:
            if self.kind == rpcrt.RPC_C_AUTHN_WINNT:
                self.keys = NtlmKeys(self)
            else:
                key = getattr(self, "_DCERPC_v5__sessionKey")
                self.keys = security.KerberosSession(key, False, 0, None)
            self.is_private = self.level == rpcrt.RPC_C_AUTHN_LEVEL_PKT_PRIVACY
            self.signature = self.keys.signature_bytes[self.is_private]
            self.room = (self.room - 8 - self.signature) // 16 * 16
        # Nothing is on its way now, so the buffer misses nothing.
        self.input = sock.makefile("rb", 1 << 18)
        return rpcrt.MSRPCBindAck(answer.getData())["assoc_group"]

    def invoke(self, opnum, stub):
        """A call and its answer."""
        self.send_request(opnum, stub)
        return self.receive()

    def send_request(self, opnum, stub):
        self.number += 1
        pieces, at, total = [], 0, len(stub)
        while True:
            body = stub[at : at + self.room]
            flags = (1 if at == 0 else 0) | (2 if at + self.room >= total else 0)
            padding = -len(body) % 16 if self.keys else 0
            length = 24 + len(body) + padding + (8 + self.signature if self.keys else 0)
            header = struct.pack(
                "<4BIHHIIHH", 5, 0, 0, flags, 0x10, length, self.signature if self.keys else 0, self.number,
                total - at, self._ctx, opnum,
            )
            if self.keys:
                trailer = struct.pack("<4BI", self.kind, self.level, padding, 0, self._ctx + 79231)
                body, value = self.keys.seal(header, body + bytes(padding), trailer, self.is_private)
                pieces += (header, body, trailer, value)
            else:
                pieces += (header, body)
            at += self.room
            if at >= total:
                break
        self.sock.sendall(b"".join(pieces))

    def receive(self):
        stubs = []
        while True:
            header = self.input.read(24)
            if len(header) < 24:
                raise RpcError("the server closed the connection")
            _, _, kind, flags, _, length, signature, number = struct.unpack_from("<4BIHHI", header)
            rest = self.input.read(length - 24)
            if len(rest) < length - 24:
                raise RpcError("the server closed the connection")
            if signature:
                body_end = len(rest) - 8 - signature
                trailer = rest[body_end : body_end + 8]
                body = rest[:body_end]
                if self.keys:
                    body = self.keys.unseal(header, body, trailer, rest[body_end + 8 :], self.is_private)
                body = body[: len(body) - trailer[2]]
            elif self.keys:
                raise RpcError("an answer has no signature")
            else:
                body = rest
            if kind == 3:
                raise RpcError(f"fault {struct.unpack_from('<I', body)[0]:#x}")
            if kind != 2 or number != self.number:
                raise RpcError(f"PDU {kind} of call {number}")
            stubs.append(body)
            if flags & 2:
                return b"".join(stubs) if len(stubs) > 1 else stubs[0]

    def close(self):
        self.input.close()
        self.disconnect()


class StockRpc(rpcrt.DCERPC_v5):
    """impacket's DCE/RPC as it is."""

    def start(self, interface):
        self.connect()
        rpcrt.MSRPCBind = StockBind
        answer = self.bind(interface)
        return rpcrt.MSRPCBindAck(answer.getData())["assoc_group"]

    def invoke(self, opnum, stub):
        self.call(opnum, stub)
        return self.recv()

    def close(self):
        self.disconnect()


class Dialer:
    """Opens connections with one user's protection."""

    # Tickets by user and service.
    tickets = {}

    def __init__(self, server, account, protection, is_stock=False, service="host"):
        self.server = server
        self.account = account
        self.kind, self.level = LEVELS[protection]
        self.class_ = StockRpc if is_stock else OutlookRpc
        self.host = account.get("host", "mail.lab.test")
        self.service = account.get("service", "exchangeMDB")

    def open(self, port, interface, is_protected=True, group=0):
        binding = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:{self.server}[{port}]")
        rpc = self.class_(binding)
        if is_protected and self.kind is not None:
            account = self.account
            rpc.set_credentials(
                account["user"], account.get("password", ""), account.get("domain", "LAB"),
                nthash=account.get("nt_hash", ""), TGS=self.service_ticket() if self.is_kerberos else None,
            )
            rpc.set_auth_type(self.kind)
            rpc.set_auth_level(self.level)
        OutlookBind.group = group
        return rpc, rpc.start(interface)

    @property
    def is_kerberos(self):
        return self.kind == rpcrt.RPC_C_AUTHN_GSS_NEGOTIATE

    def service_ticket(self):
        """A ticket for the mailbox's service, from the realm's KDC."""
        key = (self.account["user"], self.account["realm"], self.service, self.host, self.account["kdc"])
        if key not in self.tickets:
            from impacket.krb5 import asn1, constants, kerberosv5
            from impacket.krb5.types import Principal

            # MIT's KDC marks the encrypted part of an AS-REP as that of a TGS-REP, which clients should accept
            # (RFC 4120 §5.4.2) and impacket does not.
            kerberosv5.EncASRepPart = asn1.EncTGSRepPart
            user = Principal(self.account["user"], type=constants.PrincipalNameType.NT_PRINCIPAL.value)
            service = Principal(f"{self.service}/{self.host}", type=constants.PrincipalNameType.NT_SRV_INST.value)
            # The ticket comes from the authentication service at once: MIT's KDC refuses impacket's TGS-REQ, whose
            # authenticator has no checksum.
            reply, cipher, _, session_key = kerberosv5.getKerberosTGT(
                user, self.account["password"], self.account["realm"], b"", b"", kdcHost=self.account["kdc"],
                serverName=service,
            )
            # An AS-REP and a TGS-REP differ in their outer tag only.
            self.tickets[key] = {"KDC_REP": b"\x6d" + reply[1:], "cipher": cipher, "sessionKey": session_key}
        return self.tickets[key]
