"""The lab's mail server: a stand-in for Exchange, for measurements of Outlook's protocol.

    server.py --listen 10.20.0.2 --accounts accounts.json --mailbox mailbox.json --journal journal.jsonl

Prints one JSON line with its ports when it is ready, and serves until its standard input ends, or with
--ignore-input until it gets a signal.

accounts: [{"user": "reader", "password": "...", "domain": "LAB"}]
mailbox:  {"folders": [{"name": "Inbox", "messages": 500, "body_bytes": 1200}],
           "attachments": [{"folder": "Inbox", "subject": "report", "bytes": 10485760, "seed": 1},
                           {"subject": "again", "file": "/tmp/report.bin"}]}
The journal gets a JSON line for each message that SaveChangesMessage or SubmitMessage stored, with the length and
SHA-256 of each attachment.
"""

import argparse
import json
import signal
import ssl
import sys
import threading

import directory
import emsmdb
import http_server
import rpc_server
import security
import store

DEFAULT_MAILBOX = {
    "folders": [{"name": "Inbox", "messages": 500}, {"name": "Sync", "messages": 200, "body_bytes": 4000}],
    "attachments": [{"folder": "Inbox", "subject": "attachment", "bytes": 10485760, "seed": 1}],
}


class Credentials:
    """What the server knows of its users, and its own name."""

    def __init__(self, accounts, keytab, host, end_with_ticket):
        self.accounts = accounts
        self.keytab = keytab
        self.end_with_ticket = end_with_ticket
        self.host = host


def parse(arguments):
    parser = argparse.ArgumentParser(description="The lab's mail server.")
    parser.add_argument("--listen", default="127.0.0.1", help="the address to listen at")
    parser.add_argument("--endpoint-mapper-port", type=int, default=135, help="0 takes any")
    parser.add_argument("--mailbox-port", type=int, default=0, help="EMSMDB's port; 0 takes any")
    parser.add_argument("--directory-port", type=int, default=0, help="RFR's and NSPI's port; 0 takes any")
    parser.add_argument("--http-port", type=int, action="append", help="a port of MAPI over HTTP, instead of any")
    parser.add_argument("--https-port", type=int, help="a port of MAPI over HTTP inside TLS")
    parser.add_argument("--certificate", help="the certificate of that port, as PEM")
    parser.add_argument("--certificate-key", help="its key, as PEM")
    parser.add_argument("--accounts", help="a JSON list of users; without it nobody has to log in")
    parser.add_argument("--require-authentication", action="store_true", help="refuses sessions of nobody")
    parser.add_argument("--keytab", help="the service's keys, for Kerberos")
    parser.add_argument("--end-with-ticket", action="store_true", help="refuses calls after the end of a session's ticket")
    parser.add_argument("--host", default="mail", help="the server's own name")
    parser.add_argument("--mailbox", help="a JSON description of folders and attachments")
    parser.add_argument("--journal", help="a file that gets a line for each message stored")
    parser.add_argument("--ignore-input", action="store_true", help="serves until it gets a signal")
    parser.add_argument("--verbose", action="store_true", help="says on standard error what is refused")
    return parser.parse_args(arguments)


def load(path, default):
    if path is None:
        return default
    with open(path) as file:
        return json.load(file)


def main():
    options = parse(sys.argv[1:])
    # Long calls into C release the interpreter; a short interval hands over quickly between connections.
    sys.setswitchinterval(0.001)

    def log(text):
        if options.verbose:
            print(text, file=sys.stderr, flush=True)

    accounts = [security.Account(entry) for entry in load(options.accounts, [])]
    credentials = Credentials(accounts, options.keytab, options.host, options.end_with_ticket)
    mailbox = store.Mailbox(options.journal)
    mailbox.fill(load(options.mailbox, DEFAULT_MAILBOX))
    service = emsmdb.EmsmdbService(mailbox, log, options.require_authentication)
    for_mailbox, for_directory = directory.interfaces(service)
    mapper = directory.EndpointMapper()
    ports = {}
    for name, port, offered in (
        ("mailbox", options.mailbox_port, for_mailbox),
        ("directory", options.directory_port, for_directory),
        ("endpoint_mapper", options.endpoint_mapper_port, {directory.MAPPER: mapper}),
    ):
        sock = rpc_server.listen(options.listen, port)
        ports[name] = sock.getsockname()[1]
        mapper.ports.update({interface: ports[name] for interface in offered})
        rpc_server.serve(sock, offered, credentials, log)
    by_http = http_server.HttpService(service)
    for port in reversed(options.http_port or [0]):
        sock = rpc_server.listen(options.listen, port)
        ports["http"] = sock.getsockname()[1]
        http_server.serve(sock, by_http)
    if options.https_port is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(options.certificate, options.certificate_key)
        tls.set_alpn_protocols(["http/1.1"])
        sock = rpc_server.listen(options.listen, options.https_port)
        ports["https"] = sock.getsockname()[1]
        http_server.serve(sock, by_http, tls)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(json.dumps({"ready": True, "ports": ports}), flush=True)
    if not options.ignore_input:
        threading.Thread(target=lambda: (sys.stdin.read(), signal.raise_signal(signal.SIGTERM)), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
