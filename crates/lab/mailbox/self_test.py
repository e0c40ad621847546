"""Tests the mailbox: the server and both clients on loopback, every action under every protection.

    self_test.py [NAME...]

Prints a line for each test and exits with 1 if one fails. Tests that need a KDC or tshark say so and are left out
where these are missing. Nothing outside a private directory is written, and only addresses of 127.0.0.0/8 are used.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import traceback

import answers
import buffers
import clients
import directory
import emsmdb
import http_client
import lz77
import rpc_client
import rops
import session as sessions
import store

HERE = os.path.dirname(os.path.abspath(__file__))
ACCOUNT = {"user": "reader", "password": "correct horse battery", "domain": "LAB"}
REALM, SERVICE, HOST = "LAB.TEST", "exchangeMDB/mail.lab.test", "mail.lab.test"
ATTACHMENT_BYTES = 1_200_000
MAILBOX = {
    "folders": [{"name": "Inbox", "messages": 500}, {"name": "Sync", "messages": 200, "body_bytes": 1500}],
    "attachments": [
        {"folder": "Inbox", "subject": "attachment", "bytes": ATTACHMENT_BYTES, "seed": 7},
        {"folder": "Inbox", "subject": "small", "bytes": 100_000, "seed": 8},
        {"folder": "Sync", "subject": "with attachment", "bytes": 200_000, "seed": 9},
    ],
}
NTLM = ("none", "ntlm-connect", "ntlm-integrity", "ntlm-privacy")
KERBEROS = ("kerberos-integrity", "kerberos-privacy")
LIMIT_SECONDS = 60


class Skipped(Exception):
    """The test cannot run here."""


def check(holds, text):
    if not holds:
        raise AssertionError(text)


class Bench:
    """A private directory with a server, and clients that use it."""

    def __init__(self):
        self.home = tempfile.mkdtemp(prefix="trunkline-mailbox-")
        self.address = f"127.77.{os.getpid() // 250 % 250 + 1}.{os.getpid() % 250 + 1}"
        self.processes = []
        self.accounts = self.write("accounts.json", [ACCOUNT])
        self.account = self.write("account.json", ACCOUNT)
        self.mailbox = self.write("mailbox.json", MAILBOX)
        self.journal = os.path.join(self.home, "journal.jsonl")
        self.kdc = None
        self.server = None
        self.ports = None

    def write(self, name, content):
        path = os.path.join(self.home, name)
        with open(path, "w") as file:
            file.write(content if isinstance(content, str) else json.dumps(content))
        return path

    def python(self, program, *arguments, **more):
        return subprocess.Popen(
            [sys.executable, os.path.join(HERE, program), *map(str, arguments)],
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}, **more,
        )

    def start_server(self, *arguments):
        """A server process and its ports."""
        process = self.python(
            "server.py", "--listen", self.address, "--endpoint-mapper-port", 0, "--accounts", self.accounts,
            "--mailbox", self.mailbox, "--journal", self.journal, "--verbose", *arguments,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=open(os.path.join(self.home, "server.log"), "a"),
        )
        self.processes.append(process)
        line = process.stdout.readline()
        check(line, f"the server does not start: {self.log()}")
        return process, json.loads(line)["ports"]

    def log(self):
        with open(os.path.join(self.home, "server.log")) as file:
            return file.read()[-600:]

    def need_server(self):
        if self.ports is None:
            keytab = ("--keytab", self.kdc[0]) if self.need_kdc() else ()
            self.server, self.ports = self.start_server(*keytab)
        return self.ports

    def client(self, *arguments, ports=None):
        """What a client in this process prints; a new process for each takes half a second to load its modules."""
        try:
            return clients.run(clients.parse(self.arguments(arguments, ports)))
        except Exception as error:
            raise AssertionError(f"a client fails: {error!r:.300} server: {self.log()}") from error

    def arguments(self, arguments, ports):
        ports = ports or self.need_server()
        return [*map(str, arguments), "--server", self.address, "--endpoint-mapper-port", str(ports["endpoint_mapper"])]

    def start_client(self, *arguments, ports=None):
        """A client in a process of its own."""
        return self.python(
            "clients.py", *self.arguments(arguments, ports), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def result(self, process):
        try:
            output, errors = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise AssertionError(f"a client takes more than {LIMIT_SECONDS} s; server: {self.log()}") from None
        check(process.returncode == 0, f"a client fails: {errors[:200]} ... {errors[-500:]} server: {self.log()}")
        return [json.loads(line) for line in output.splitlines()]

    def protected(self, protection):
        """Arguments of a protection."""
        if protection.startswith("kerberos") and not self.need_kdc():
            raise Skipped("krb5kdc, or the right to listen at port 88, is missing")
        account = self.kdc[1] if protection.startswith("kerberos") else self.account
        return ("--protection", protection, "--account", account)

    def saved(self, digest):
        """Waits until the journal has an attachment with this digest."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            if os.path.exists(self.journal):
                with open(self.journal) as file:
                    if any(digest in line and '"save"' in line for line in file):
                        return True
            time.sleep(0.02)
        return False

    def need_kdc(self):
        """A realm of its own with a user and the mailbox's service, once."""
        if self.kdc is not None:
            return bool(self.kdc)
        self.kdc = ()
        path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
        if os.geteuid() != 0 or not all(shutil.which(each, path=path) for each in ("krb5kdc", "kdb5_util", "kadmin.local")):
            return False
        home = os.path.join(self.home, "realm")
        os.mkdir(home)
        self.write("realm/krb5.conf", (
            f"[libdefaults]\n default_realm = {REALM}\n dns_lookup_kdc = false\n dns_lookup_realm = false\n"
            f"[realms]\n {REALM} = {{\n  kdc = {self.address}:88\n }}\n"
        ))
        self.write("realm/kdc.conf", (
            f"[kdcdefaults]\n kdc_listen = {self.address}:88\n kdc_tcp_listen = {self.address}:88\n[realms]\n"
            f" {REALM} = {{\n  database_name = {home}/principal\n  key_stash_file = {home}/stash\n"
            f"  acl_file = {home}/acl\n  disable_pac = true\n  supported_enctypes = aes256-cts-hmac-sha1-96:normal\n }}\n"
        ))
        environment = {
            **os.environ, "PATH": path, "KRB5_CONFIG": f"{home}/krb5.conf", "KRB5_KDC_PROFILE": f"{home}/kdc.conf",
        }
        keytab = os.path.join(home, "keytab")
        for command in (
            ["kdb5_util", "create", "-s", "-r", REALM, "-P", "of-no-use"],
            ["kadmin.local", "-r", REALM, "-q", f"addprinc -pw {ACCOUNT['password'].replace(' ', '-')} reader"],
            ["kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {SERVICE}"],
            ["kadmin.local", "-r", REALM, "-q", f"ktadd -k {keytab} {SERVICE}"],
        ):
            subprocess.run(command, env=environment, check=True, capture_output=True)
        with open(os.path.join(home, "kdc.log"), "w") as log:
            process = subprocess.Popen(["krb5kdc", "-n", "-r", REALM], env=environment, stdout=log, stderr=log)
        self.processes.append(process)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and process.poll() is None:
            try:
                socket.create_connection((self.address, 88), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        else:
            return False
        account = {
            "user": "reader", "password": ACCOUNT["password"].replace(" ", "-"), "domain": REALM, "realm": REALM,
            "kdc": self.address, "host": HOST,
        }
        self.kdc = (keytab, self.write("kerberos.json", account))
        return True

    def close(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.home, ignore_errors=True)


# LZ77, obfuscation and buffers.


def lz77_examples_of_the_specification(_):
    """[MS-XCA] §3.1 (Plain LZ77)."""
    alphabet = b"abcdefghijklmnopqrstuvwxyz"
    check(lz77.compress(alphabet) == bytes.fromhex("3f000000") + alphabet, "the alphabet")
    repeated = bytes.fromhex("ffffff1f61626317000fff2601")
    check(lz77.compress(b"abc" * 100) == repeated, "abc a hundred times, compressed")
    check(lz77.decompress(repeated, 300) == b"abc" * 100, "abc a hundred times, decompressed")


def lz77_returns_what_was_compressed(_):
    for seed in range(400):
        rng = random.Random(seed)
        data = bytes(rng.choice(b"abcd") if rng.random() < 0.6 else rng.randrange(256) for _ in range(rng.randrange(900)))
        data *= rng.choice((1, 1, 3, 80))
        check(lz77.decompress(lz77.compress(data), len(data)) == data, f"seed {seed}")
    data = bytes(100_000)
    check(lz77.decompress(lz77.compress(data), len(data)) == data, "zeros")


def lz77_refuses_damaged_data(_):
    """Damaged data end in an error or in as many bytes as announced, and never in more."""
    for seed in range(2000):
        rng = random.Random(seed)
        data = bytearray(lz77.compress(bytes(rng.choice(b"abc") for _ in range(200))))
        for _ in range(3):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            check(len(lz77.decompress(bytes(data), 200)) == 200, f"seed {seed}")
        except lz77.DataError:
            pass


def extended_buffers_return_their_payload(_):
    for payload in (b"", b"short", b"text " * 3000, random.Random(1).randbytes(30000)):
        for may_compress in (False, True):
            for may_obfuscate in (False, True):
                packed = buffers.pack_extended(payload, buffers.LAST, may_compress, may_obfuscate)
                check(buffers.unpack_extended(packed) == [payload], f"{len(payload)} bytes")
    text = buffers.pack_extended(b"text " * 3000, buffers.LAST, True, False)
    check(len(text) < 2000, "text is not compressed")


# Actions.


def every_action_under_every_protection(bench):
    digests = {}
    for protection in (*NTLM, *KERBEROS):
        try:
            extra = bench.protected(protection)
        except Skipped as reason:
            print(f"  {protection} is left out: {reason}")
            continue
        for client in ("outlook-xp", "outlook-2003"):
            for action in ("log-on", "list", "open", "save-attachment", "synchronise"):
                result = bench.client(client, action, *extra)
                verify(f"{client} {action} {protection}", action, result, digests)


def client_programs_print_one_line(bench):
    """As a bench calls them: two processes at once."""
    for action in ("list", "save-attachment"):
        pair = [bench.start_client(client, action, "--skip-directory") for client in ("outlook-xp", "outlook-2003")]
        for process in pair:
            results = bench.result(process)
            check(len(results) == 1, f"{len(results)} lines")
            verify(action, action, results[0], {})


def verify(name, action, result, digests):
    if action == "save-attachment":
        digest = hashlib.sha256(store.generated(7, ATTACHMENT_BYTES)).hexdigest()
        check(result["sha256"] == digest, f"{name}: other bytes")
        check(result["bytes"] == ATTACHMENT_BYTES and result["is_complete"], f"{name}: {result['bytes']} bytes")
    if action == "list":
        check(result["messages"] >= 502 and result["is_complete"], f"{name}: {result['messages']} messages")
    if action == "synchronise":
        check(result["messages"] == 201 and result["is_complete"], f"{name}: {result['messages']} messages")
    # Neither the client nor the protection changes what a client sees.
    known = digests.setdefault(action, result["sha256"])
    check(result["sha256"] == known, f"{name}: another result than before")


def sent_attachments_arrive_whole(bench):
    ports = bench.start_server(*(("--keytab", bench.kdc[0]) if bench.need_kdc() else ()))[1]
    for number, (client, protection, more) in enumerate((
        ("outlook-xp", "none", ()), ("outlook-xp", "ntlm-privacy", ()), ("outlook-2003", "ntlm-integrity", ()),
        ("outlook-2003", "none", ("--exchange-optimisation", "off")), ("outlook-2003", "none", ("--upload", "packed")),
        ("outlook-2003", "ntlm-privacy", ("--upload", "transfer")), ("outlook-2003", "kerberos-privacy", ()),
        ("outlook-xp", "kerberos-integrity", ()),
    )):
        try:
            extra = bench.protected(protection)
        except Skipped as reason:
            print(f"  {protection} is left out: {reason}")
            continue
        name = f"{client} {protection} {' '.join(more)}"
        subject = f"sent {number}"
        sending = ("--bytes", 400_003, "--seed", 100 + number, "--subject", subject)
        result = bench.client(client, "send-attachment", *extra, *more, *sending, ports=ports)
        digest = hashlib.sha256(store.generated(100 + number, 400_003)).hexdigest()
        check(result["sha256"] == digest and result["is_complete"], f"{name}: other bytes sent")
        check(bench.saved(digest), f"{name}: the server has other bytes")
        # It is in the inbox now, for the other client.
        other = "outlook-2003" if client == "outlook-xp" else "outlook-xp"
        result = bench.client(other, "save-attachment", "--subject", subject, ports=ports)
        check(result["sha256"] == digest, f"{name}: the other client reads other bytes")


def chaining_and_large_buffers_save_calls(bench):
    calls = {}
    for mode, more in (("off", ()), ("on", ()), ("largest", ("--room", "0x40000"))):
        optimisation = "off" if mode == "off" else "on"
        result = bench.client(
            "outlook-2003", "save-attachment", "--exchange-optimisation", optimisation, "--skip-directory", *more
        )
        check(result["is_complete"], mode)
        calls[mode] = result["calls"]
    whole = -(-ATTACHMENT_BYTES // 0x7F00)
    check(calls["off"] == whole, f"{calls} instead of {whole} without optimisation")
    check(calls["on"] <= whole // 3 + 2 and calls["largest"] <= whole // 7 + 2, f"{calls}")


def impacket_reads_the_directory(bench):
    """impacket's own calls to the endpoint mapper, RFR and NSPI read our answers."""
    from impacket.dcerpc.v5 import epm, nspi, oxabref, transport

    ports = bench.need_server()

    def connect(port):
        rpc = transport.DCERPCTransportFactory(f"ncacn_ip_tcp:{bench.address}[{port}]").get_dce_rpc()
        rpc.connect()
        return rpc

    rpc = connect(ports["endpoint_mapper"])
    for interface, port in ((emsmdb.EMSMDB, "mailbox"), (directory.NSPI, "directory"), (directory.RFR, "directory")):
        found = epm.hept_map(bench.address, interface, protocol="ncacn_ip_tcp", dce=rpc)
        check(found == f"ncacn_ip_tcp:{bench.address}[{ports[port]}]", found)
    rpc = connect(ports["directory"])
    rpc.bind(directory.RFR)
    answer = oxabref.hRfrGetNewDSA(rpc, "/o=Lab/cn=reader\0")
    check(b"mail" in answer.getData(), f"RfrGetNewDSA says {answer.getData()}")
    rpc = connect(ports["directory"])
    rpc.bind(directory.NSPI)
    handle = nspi.hNspiBind(rpc)["contextHandle"]
    found = nspi.hNspiDNToMId(rpc, handle, ["/o=Lab/cn=reader\0"])["ppOutMIds"]["aulPropTag"]
    check([each["Data"] for each in found] == [directory.MAIL_USER], f"identifiers {found}")
    answer = nspi.hNspiGetProps(rpc, handle, CurrentRec=directory.MAIL_USER, pPropTags=[0x3001001E, 0x39FE001E])
    row = nspi.simplifyPropertyRow(answer["ppRows"])
    check(b"reader@lab.test" in str(row).encode(), f"properties {row}")


def stock_impacket_agrees_with_the_fast_client(bench):
    digests = set()
    for protection in ("none", "ntlm-integrity", "ntlm-privacy"):
        extra = bench.protected(protection)
        for stock in ((), ("--stock-rpc",)):
            for action in ("save-attachment", "send-attachment"):
                more = ("--bytes", 100_000, "--seed", 8, "--subject", "small")
                result = bench.client("outlook-xp", action, *extra, *stock, *more)
                digests.add(result["sha256"])
    check(digests == {hashlib.sha256(store.generated(8, 100_000)).hexdigest()}, f"{digests}")


def wrong_passwords_and_missing_signatures_are_refused(bench):
    ports = bench.need_server()
    wrong = bench.write("wrong.json", {**ACCOUNT, "password": "wrong"})
    for protection in NTLM[1:]:
        try:
            bench.client("outlook-xp", "log-on", "--protection", protection, "--account", wrong, "--skip-directory")
        except AssertionError:
            continue
        raise AssertionError(f"{protection} with a wrong password")
    # A byte that is turned on its way ends the session.
    for protection in ("ntlm-integrity", "ntlm-privacy"):
        relay = TurningRelay(self_address=bench.address, target=(bench.address, ports["mailbox"]))
        try:
            bench.client(
                "outlook-xp", "save-attachment", *bench.protected(protection), "--skip-directory", "--mailbox-port",
                relay.port,
            )
        except AssertionError as error:
            check("signature" in str(error), str(error))
        else:
            raise AssertionError(f"{protection} with a turned byte")
        finally:
            relay.close()


class TurningRelay:
    """A relay that turns one byte of what the server sends after 100,000 bytes."""

    def __init__(self, self_address, target):
        import threading

        self.listener = socket.create_server((self_address, 0))
        self.port = self.listener.getsockname()[1]

        def serve():
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(target)
            threading.Thread(target=pump, args=(client, server, None), daemon=True).start()
            pump(server, client, 100_000)

        def pump(source, sink, turn_at):
            count = 0
            try:
                while data := source.recv(65536):
                    if turn_at is not None and count <= turn_at < count + len(data):
                        data = bytearray(data)
                        data[turn_at - count] ^= 0x40
                    count += len(data)
                    sink.sendall(data)
            except OSError:
                pass
            for each in (source, sink):
                try:
                    each.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

        threading.Thread(target=serve, daemon=True).start()

    def close(self):
        self.listener.close()


def random_calls_are_the_same_from_a_fresh_server(bench):
    """Two clients at once, against two servers: the same answers, in the same order."""
    transcripts = []
    for _ in range(2):
        _, ports = bench.start_server()
        running = [
            bench.start_client(
                "random", "--client", client, "--seeds", "1-4", "--place", place, "--skip-directory", ports=ports
            )
            for place, client in enumerate(("outlook-xp", "outlook-2003"))
        ]
        results = [result for process in running for result in bench.result(process)]
        check(len(results) == 8, f"{len(results)} results")
        transcripts.append([(each["sha256"], each["notifications_sha256"], each["rops"]) for each in results])
    check(transcripts[0] == transcripts[1], "the answers differ")
    check(len({each[0] for each in transcripts[0]}) == 8, "different seeds give the same answers")


def notifications_end_a_long_poll(bench):
    """EcDoAsyncWaitEx is pending until a message arrives, which another client sends."""
    ports = bench.need_server()
    options = clients.parse([
        "outlook-2003", "log-on", "--server", bench.address, "--endpoint-mapper-port", str(ports["endpoint_mapper"]),
        "--skip-directory", "--notifications", "--protection", "ntlm-privacy", "--account", bench.account,
    ])
    mail = sessions.MailSession(rpc_client.Dialer(bench.address, ACCOUNT, "ntlm-privacy"), "outlook-2003", options)
    outlook = clients.Outlook(mail, options)
    outlook.log_on()
    sender = bench.start_client("outlook-xp", "send-attachment", "--bytes", 1000, "--skip-directory")
    flags = mail.wait()
    bench.result(sender)
    check(flags == 1, f"flags {flags}")
    outlook.execute("RopGetStoreState", [clients.request(0x7B, "B", 0)], [outlook.logon_handle])
    check(len(mail.notifications) >= 1, "no notification came")
    mail.async_rpc.close()
    mail.log_off()


def http_client_sees_the_same(bench):
    """MAPI over HTTP gives what EcDoRpcExt2 gives."""
    port = ("--http-port", bench.need_server()["http"])
    digests = {}
    for action in ("log-on", "list", "open", "save-attachment", "synchronise"):
        verify(f"outlook-2003 {action}", action, bench.client("outlook-2003", action), digests)
        for optimisation in ("on", "off"):
            result = bench.client("outlook-2013", action, *port, "--exchange-optimisation", optimisation)
            verify(f"outlook-2013 {action} {optimisation}", action, result, digests)
    for number, upload in enumerate(("write", "packed", "transfer")):
        result = bench.client(
            "outlook-2013", "send-attachment", *port, "--bytes", 300_000, "--seed", 70 + number, "--upload", upload
        )
        digest = hashlib.sha256(store.generated(70 + number, 300_000)).hexdigest()
        check(result["sha256"] == digest and bench.saved(digest), f"{upload} does not arrive")


def http_session(bench, *arguments):
    """A session of MAPI over HTTP that has logged on."""
    options = clients.parse([
        "outlook-2013", "log-on", "--server", bench.address, "--http-port", str(bench.need_server()["http"]), *arguments,
    ])
    mail = http_client.HttpMailSession(rpc_client.Dialer(bench.address, {}, "none"), "outlook-2013", options)
    outlook = clients.Outlook(mail, options)
    outlook.log_on()
    return mail, outlook


def http_requests_out_of_order_are_refused(bench):
    """An old sequence cookie, an X-RequestId that came before, and the cookie of no session."""
    mail, outlook = http_session(bench)
    state = [clients.request(0x7B, "B", 0)]
    for change, code in (
        (lambda: mail.jar.update(MapiSequence="1"), "15"),
        (lambda: mail.identity.__setitem__(1, 0), "4"),
        (lambda: mail.jar.update(MapiContext="0"), "10"),
    ):
        jar, identity = dict(mail.jar), list(mail.identity)
        change()
        try:
            outlook.execute("RopGetStoreState", state, [outlook.logon_handle])
            raise AssertionError(f"X-ResponseCode {code} did not come")
        except http_client.HttpError as error:
            check(str(error).endswith(f"X-ResponseCode {code}"), f"{error} instead of {code}")
        mail.jar.update(jar)
        mail.identity[1] = max(identity[1], mail.identity[1])
        outlook.execute("RopGetStoreState", state, [outlook.logon_handle])
    mail.log_off()


def http_notifications_end_a_long_poll(bench):
    """NotificationWait in a connection of its own."""
    mail, outlook = http_session(bench, "--notifications")
    sender = bench.start_client("outlook-xp", "send-attachment", "--bytes", 1000, "--skip-directory")
    pending = mail.wait()
    bench.result(sender)
    check(pending == 1, f"EventPending {pending}")
    outlook.execute("RopGetStoreState", [clients.request(0x7B, "B", 0)], [outlook.logon_handle])
    check(len(mail.notifications) >= 1, "no notification came")
    mail.waiting.close()
    mail.log_off()


def unknown_and_refused_rops(bench):
    """A known ROP that the server does not have is refused and the buffer goes on; an unknown one is a format error."""
    ports = bench.need_server()
    for client in ("outlook-xp", "outlook-2003"):
        options = clients.parse([
            client, "log-on", "--server", bench.address, "--endpoint-mapper-port", str(ports["endpoint_mapper"]),
            "--skip-directory",
        ])
        mail = sessions.MailSession(rpc_client.Dialer(bench.address, ACCOUNT, "none"), client, options)
        outlook = clients.Outlook(mail, options)
        outlook.log_on()
        found = mail.execute(
            "refused",
            [answers.request(0x38, "B", 0), answers.request(0x7B, "B", 0), answers.request(0x2C, "BH", 7, 10)],
            [outlook.logon_handle], may_fail=True,
        )
        check([each.code for each in found] == [0x80040102, 0, 0x4B9], f"{[hex(each.code) for each in found]}")
        try:
            mail.execute("unknown", [answers.request(0xF0, "B", 0)], [outlook.logon_handle])
        except answers.AnswerError as error:
            check("0x4b6" in str(error), str(error))
        else:
            raise AssertionError("an unknown ROP is answered")
        found = mail.execute("after", [answers.request(0x7B, "B", 0)], [outlook.logon_handle])
        check(found[0].code == 0, "the session does not go on")
        mail.log_off()


def damaged_calls_do_not_end_the_server(bench):
    """Random ROPs, damaged ROPs and damaged PDUs: an error or an answer, and the server goes on."""
    ports = bench.need_server()
    rng = random.Random(11)
    for client in ("outlook-xp", "outlook-2003"):
        options = clients.parse([
            client, "log-on", "--server", bench.address, "--endpoint-mapper-port", str(ports["endpoint_mapper"]),
            "--skip-directory",
        ])
        mail = sessions.MailSession(rpc_client.Dialer(bench.address, ACCOUNT, "none"), client, options)
        outlook = clients.Outlook(mail, options)
        outlook.log_on()
        mail.rpc.sock.settimeout(20)
        refused = 0
        for _ in range(400):
            requests = [bytes([rng.choice(list(rops.ROPS)), 0]) + rng.randbytes(rng.randrange(40))]
            try:
                mail.execute("damaged", requests, [outlook.logon_handle, outlook.logon_handle], may_fail=True)
            except (answers.AnswerError, LookupError, ValueError):
                refused += 1
        check(refused > 100, f"{refused} damaged calls are refused")
        mail.execute("after", [answers.request(0x7B, "B", 0)], [outlook.logon_handle])
        mail.log_off()
    for _ in range(60):
        with socket.create_connection((bench.address, ports["mailbox"])) as sock:
            pdu = bytearray.fromhex("05000b03100000004800000001000000d016d016000000000100000000000100")
            pdu += bytes(72 - len(pdu))
            for _ in range(rng.randrange(4)):
                pdu[rng.randrange(len(pdu))] = rng.randrange(256)
            sock.sendall(pdu)
            sock.shutdown(socket.SHUT_WR)
            sock.settimeout(10)
            while sock.recv(65536):
                pass
    bench.client("outlook-xp", "open", "--skip-directory")


def sessions_end_with_their_connection(bench):
    """A client that is killed leaves no session; one that continues on a second connection has its session."""
    ports = bench.need_server()
    options = clients.parse([
        "outlook-2003", "log-on", "--server", bench.address, "--endpoint-mapper-port", str(ports["endpoint_mapper"]),
        "--skip-directory", "--notifications",
    ])
    mail = sessions.MailSession(rpc_client.Dialer(bench.address, ACCOUNT, "none"), "outlook-2003", options)
    outlook = clients.Outlook(mail, options)
    outlook.log_on()
    first, handle, group = mail.rpc, mail.handle, mail.group
    mail.rpc, same = mail.dialer.open(mail.port, emsmdb.EMSMDB, group=group)
    check(same == group, f"group {same} instead of {group}")
    first.close()
    mail.async_rpc.close()
    mail.execute("on the second connection", [answers.request(0x7B, "B", 0)], [outlook.logon_handle])
    mail.rpc.close()
    deadline = time.monotonic() + 10
    while "a session ends" not in bench.log() and time.monotonic() < deadline:
        time.sleep(0.02)
    mail.rpc, _ = mail.dialer.open(mail.port, emsmdb.EMSMDB)
    check(mail.handle == handle, "the handle changed")
    try:
        mail.execute("after the end", [answers.request(0x7B, "B", 0)], [outlook.logon_handle])
    except rpc_client.RpcError as error:
        check("0x1c00001a" in str(error), str(error))
    else:
        raise AssertionError("the session outlives its connections")
    mail.rpc.close()


def limits_of_time_end_transfers(bench):
    """After 20 calls a transfer may end; what was not sent whole is not saved."""
    for action in ("save-attachment", "send-attachment"):
        result = bench.client("outlook-xp", action, "--limit-seconds", 0, "--skip-directory", "--seed", 55)
        check(result["calls"] == 20, f"{result['calls']} calls")
        check(not result["is_complete"] and 0 < result["bytes"] < ATTACHMENT_BYTES, f"{result['bytes']} bytes")


# tshark.


def tshark_accepts_the_traffic(bench):
    """Nothing is malformed for tshark, and its mapi dissector names the older generation's ROPs."""
    tshark, dumpcap = shutil.which("tshark"), shutil.which("tcpdump")
    if not tshark or not dumpcap or os.geteuid() != 0:
        raise Skipped("tshark, tcpdump or root is missing")
    ports = bench.need_server()
    capture = os.path.join(bench.home, "capture.pcap")
    dumping = subprocess.Popen(
        ["tcpdump", "-i", "lo", "-s", "0", "-U", "--immediate-mode", "-w", capture, "host", bench.address],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
    )
    dumping.stderr.readline()
    try:
        for client in ("outlook-xp", "outlook-2003"):
            for action in ("log-on", "list", "open", "save-attachment", "send-attachment", "synchronise"):
                more = ("--bytes", 100_000, "--subject", "small")
                bench.client(client, action, *more)
        for protection in ("ntlm-integrity", "ntlm-privacy"):
            bench.client("outlook-xp", "open", *bench.protected(protection))
        time.sleep(1)
    finally:
        dumping.terminate()
        dumping.wait()
    decode = [part for port in ports.values() for part in ("-d", f"tcp.port=={port},dcerpc")]

    def read(*arguments):
        run = subprocess.run(
            [tshark, "-r", capture, *decode, *arguments], capture_output=True, text=True, check=True,
            env={**os.environ, "HOME": bench.home},
        )
        return run.stdout.splitlines()

    # Two passes: the second one finds answers that came before their interface was known.
    lines = read("-2", "-Y", "dcerpc || epm || mapi || ntlmssp", "-T", "fields", "-e", "_ws.col.Protocol", "-e", "_ws.col.Info")
    check(len(lines) > 300, f"{len(lines)} packets of DCE/RPC")
    malformed = [line for line in lines if "Malformed" in line or "[Unreassembled" in line]
    check(not malformed, f"malformed: {malformed[:5]}")
    rops = {word for line in lines for word in line.split() if word.startswith("op_MAPI_")}
    wanted = {"op_MAPI_OpenMsgStore", "op_MAPI_OpenMessage", "op_MAPI_OpenAttach", "op_MAPI_OpenStream",
              "op_MAPI_ReadStream"}
    check(wanted <= rops, f"tshark names {sorted(rops)}")
    for protocol, text in (("MAPI", "EcDoConnect response"), ("EPM", "Map response"), ("DCERPC", "Bind_ack")):
        check(any(line.startswith(protocol) and text in line for line in lines), f"no {protocol} {text}")


# Rates.


def rates(bench):
    """Transfer rates on loopback; they decide nothing but are printed.

    A machine with other work makes any rate. What server and client spend of a processor does not depend on it as
    much: with both on one processor a transfer cannot be faster than that.
    """
    megabytes = 20
    mailbox = bench.write("rates.json", {
        "attachments": [{"folder": "Inbox", "subject": "attachment", "bytes": megabytes * 1_000_000, "seed": 3}]
    })
    server, ports = bench.start_server("--mailbox", mailbox, *(("--keytab", bench.kdc[0]) if bench.need_kdc() else ()))
    print("  client, protection: action, Mbit/s, processor ms per MB of client and server")
    for protection in (*NTLM, *KERBEROS):
        try:
            extra = bench.protected(protection)
        except Skipped:
            continue
        for client, more in (
            ("outlook-xp", ()), ("outlook-2003", ("--exchange-optimisation", "off")), ("outlook-2003", ()),
        ):
            for action in ("save-attachment", "send-attachment"):
                subject = "attachment" if action.startswith("save") else f"sent {client} {protection} {more}"
                mine, theirs = time.process_time(), processor_seconds(server.pid)
                result = bench.client(
                    client, action, *extra, *more, "--bytes", megabytes * 1_000_000, "--subject", subject,
                    "--skip-directory", ports=ports,
                )
                mine, theirs = time.process_time() - mine, processor_seconds(server.pid) - theirs
                rate = result["bytes"] * 8 / result["seconds"] / 1e6
                costs = f"{mine * 1000 / megabytes:.1f} + {theirs * 1000 / megabytes:.1f}"
                print(f"  {client} {' '.join(more[1:])} {protection}: {action}, {rate:.0f}, {costs}")


def processor_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


TESTS = [
    lz77_examples_of_the_specification, lz77_returns_what_was_compressed, lz77_refuses_damaged_data,
    extended_buffers_return_their_payload, unknown_and_refused_rops, every_action_under_every_protection,
    client_programs_print_one_line, sent_attachments_arrive_whole, chaining_and_large_buffers_save_calls,
    impacket_reads_the_directory, stock_impacket_agrees_with_the_fast_client,
    wrong_passwords_and_missing_signatures_are_refused, random_calls_are_the_same_from_a_fresh_server,
    notifications_end_a_long_poll, damaged_calls_do_not_end_the_server, sessions_end_with_their_connection,
    http_client_sees_the_same, http_requests_out_of_order_are_refused, http_notifications_end_a_long_poll,
    limits_of_time_end_transfers, tshark_accepts_the_traffic,
]
ON_REQUEST = [rates]


def main():
    parser = argparse.ArgumentParser(description="Tests the lab's mailbox.")
    parser.add_argument("names", nargs="*", help="only tests whose names contain one of these")
    options = parser.parse_args()
    bench = Bench()
    failed = 0
    try:
        for test in TESTS + ON_REQUEST:
            name = test.__name__
            if not any(each in name for each in options.names) if options.names else test in ON_REQUEST:
                continue
            began = time.monotonic()
            try:
                test(bench)
                outcome = "ok"
            except Skipped as reason:
                outcome = f"left out: {reason}"
            except AssertionError as error:
                outcome = f"FAILED: {error}"
                failed += 1
            except Exception as error:
                traceback.print_exc()
                outcome = f"FAILED: {error!r}"
                failed += 1
            print(f"{name}: {outcome} ({time.monotonic() - began:.1f} s)", flush=True)
    finally:
        bench.close()
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
