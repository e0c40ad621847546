"""The SMB clients of the bench, one per process, told what to do by one JSON object.

    smb_clients.py '{"do": "serial-get", "server": "10.20.0.2", "share": "files", ...}'

Prints one JSON object, and keeps its session until its standard input ends, so that a look at the
server tells a file that was closed from one that went with the session. The object holds bytes, seconds, how many opens and closes the server must have seen, and
whether what arrived is what the server's disk holds ("truth", which this machine can read).
Seconds run from the first READ or WRITE to the last byte, on a monotonic clock; for what is written
the last byte is there when the CLOSE is answered. Stock clients that do not say when they sent
their first READ (smbclient, smbnetfs) are timed from the command to its end.

serial-get, serial-put, small-read, small-write, office, beside and change are smbprotocol with one
request in flight, and smbprotocol checks every signature with its own code. smbclient is driven
through a pseudo-terminal, prompt by prompt; smbnetfs in a mount namespace of its own.

With "watch", a directory of this machine's, small-read writes down there how far it has come, and change
alters files that it will come to: every twentieth, in turn its time, again and again, or its contents, once.
Either tells a version. Both leave their moments there, which the bench compares.
"""

import hashlib
import json
import os
import pty
import random
import re
import select
import struct
import subprocess
import sys
import threading
import time
import uuid

PROMPT = b"smb: "
# Seconds after which smbd first looks whether a connection is still used (IDLE_CLOSED_TIMEOUT).
SERVER_CHECKS_EVERY = 60


def main():
    order = json.loads(sys.argv[1])
    result, leave = DOINGS[order["do"]](order)
    print(json.dumps(result), flush=True)
    sys.stdin.read()
    leave()


class Session:
    """A connection, a session and a tree connect of smbprotocol."""

    def __init__(self, order):
        from smbprotocol.connection import Connection, Dialects, SigningAlgorithms
        from smbprotocol.session import Session as SmbSession
        from smbprotocol.tree import TreeConnect

        dialect, algorithms = {
            "off": (Dialects.SMB_2_1_0, None),
            "plain": (Dialects.SMB_3_1_1, None),
            "hmac": (Dialects.SMB_2_1_0, None),
            "cmac": (Dialects.SMB_3_0_2, None),
            "gmac": (Dialects.SMB_3_1_1, [SigningAlgorithms.AES_GMAC]),
            "encrypted": (Dialects.SMB_3_1_1, None),
        }[order["protection"]]
        signs = order["protection"] not in ("off", "plain")
        self.connection = Connection(
            uuid.uuid4(), order["server"], order.get("port", 445), require_signing=signs
        )
        self.began = time.monotonic()
        self.connection.connect(dialect, timeout=60, preferred_signing_algos=algorithms)
        session = SmbSession(
            self.connection,
            order["user"],
            order["password"],
            require_encryption=order["protection"] == "encrypted",
            auth_protocol="ntlm",
        )
        session.connect()
        assert session.signing_required == (order["protection"] in ("hmac", "cmac", "gmac"))
        assert session.encrypt_data == (order["protection"] == "encrypted")
        self.tree = TreeConnect(session, f"\\\\{order['server']}\\{order['share']}")
        # A client of SMB 2.1 knows nothing of FSCTL_VALIDATE_NEGOTIATE_INFO, whose request is signed
        # even where nothing else is.
        # A client of SMB 3.1.1 signs its TREE_CONNECT ([MS-SMB2] §3.2.4.1.1), which smbprotocol does only
        # where it signs everything.
        session.signing_required |= order["protection"] == "plain"
        self.tree.connect(require_secure_negotiate=signs)
        session.signing_required &= order["protection"] != "plain"
        self.opens = 0
        self.closes = 0
        self.leases = order.get("leases", False)

    def lease(self):
        """A lease of its own, with READ, WRITE and HANDLE caching: the second version from SMB 3.0 on."""
        from smbprotocol import Dialects
        from smbprotocol.create_contexts import (
            CreateContextName,
            LeaseState,
            SMB2CreateContextRequest,
            SMB2CreateRequestLease,
            SMB2CreateRequestLeaseV2,
        )

        is_second = self.connection.dialect >= Dialects.SMB_3_0_0
        lease = SMB2CreateRequestLeaseV2() if is_second else SMB2CreateRequestLease()
        lease["lease_key"] = os.urandom(16)
        lease["lease_state"] = (
            LeaseState.SMB2_LEASE_READ_CACHING
            | LeaseState.SMB2_LEASE_WRITE_CACHING
            | LeaseState.SMB2_LEASE_HANDLE_CACHING
        )
        if is_second:
            lease["parent_lease_key"] = bytes(16)
            lease["epoch"] = bytes(2)
        context = SMB2CreateContextRequest()
        context["buffer_name"] = CreateContextName.SMB2_CREATE_REQUEST_LEASE
        context["buffer_data"] = lease
        return context

    def open(self, path, access, disposition, options=0):
        from smbprotocol.open import (
            CreateDisposition,
            FileAttributes,
            FilePipePrinterAccessMask,
            ImpersonationLevel,
            Open,
            RequestedOplockLevel,
            ShareAccess,
        )

        masks = {
            "read": FilePipePrinterAccessMask.GENERIC_READ,
            "write": FilePipePrinterAccessMask.GENERIC_WRITE,
            "both": FilePipePrinterAccessMask.GENERIC_READ
            | FilePipePrinterAccessMask.GENERIC_WRITE,
            "rename": FilePipePrinterAccessMask.DELETE
            | FilePipePrinterAccessMask.FILE_READ_ATTRIBUTES,
            "attributes": FilePipePrinterAccessMask.FILE_WRITE_ATTRIBUTES
            | FilePipePrinterAccessMask.FILE_READ_ATTRIBUTES,
        }
        dispositions = {
            "open": CreateDisposition.FILE_OPEN,
            "overwrite": CreateDisposition.FILE_OVERWRITE_IF,
        }
        file = Open(self.tree, path)
        file.create(
            ImpersonationLevel.Impersonation,
            masks[access],
            FileAttributes.FILE_ATTRIBUTE_NORMAL,
            ShareAccess.FILE_SHARE_READ
            | ShareAccess.FILE_SHARE_WRITE
            | ShareAccess.FILE_SHARE_DELETE,
            dispositions[disposition],
            options,
            [self.lease()] if self.leases else None,
            RequestedOplockLevel.SMB2_OPLOCK_LEVEL_LEASE
            if self.leases
            else RequestedOplockLevel.SMB2_OPLOCK_LEVEL_NONE,
        )
        if self.leases:
            assert file.oplock_level == RequestedOplockLevel.SMB2_OPLOCK_LEVEL_LEASE
        self.opens += 1
        return file

    def close(self, file):
        file.close(get_attributes=False)
        self.closes += 1

    def list(self, directory):
        from smbprotocol.exceptions import NoMoreFiles
        from smbprotocol.file_info import FileInformationClass
        from smbprotocol.open import CreateOptions

        handle = self.open(directory, "read", "open", CreateOptions.FILE_DIRECTORY_FILE)
        names = []
        try:
            while True:
                for entry in handle.query_directory(
                    "*", FileInformationClass.FILE_NAMES_INFORMATION
                ):
                    names.append(entry["file_name"].get_value().decode("utf-16-le"))
        except NoMoreFiles:
            pass
        self.close(handle)
        return sorted(name for name in names if name not in (".", ".."))

    def set_info(self, file, info):
        from smbprotocol.open import SMB2SetInfoRequest

        request = SMB2SetInfoRequest()
        request["info_type"] = info.INFO_TYPE
        request["file_info_class"] = info.INFO_CLASS
        request["file_id"] = file.file_id
        request["buffer"] = info
        self.connection.receive(
            self.connection.send(
                request, self.tree.session.session_id, self.tree.tree_connect_id
            )
        )

    def report(self, **more):
        more.update(opens=self.opens, closes=self.closes)
        return more, self.leave

    def leave(self):
        """Logs off and closes the connection.

        Every 60 s of a connection smbd closes it if it has no tree connect (deadtime_fn, which no setting
        switches off). This may happen between TREE_DISCONNECT and the answer to LOGOFF. All work is done then."""
        from smbprotocol.exceptions import SMBConnectionClosed

        try:
            self.connection.disconnect(True)
        except SMBConnectionClosed:
            if time.monotonic() - self.began < SERVER_CHECKS_EVERY:
                raise
            self.connection.disconnect(False)


def holds(path, length, digest):
    """Whether the first so many bytes of a file hash to this."""
    own, left = hashlib.blake2b(), length
    with open(path, "rb") as file:
        while left > 0 and (data := file.read(min(left, 1 << 20))):
            own.update(data)
            left -= len(data)
    return left == 0 and own.digest() == digest.digest()


def are_on_disk(order, names, contents):
    """Whether each file of a directory holds this."""
    for name, content in zip(names, contents):
        with open(os.path.join(order["truth"], name), "rb") as file:
            if file.read() != content:
                return False
    return True


def serial_get(order):
    """One READ after the other until the time is up or the file ends.

    With "local" what is read is written there, as a copy to the client's disk does."""
    session = Session(order)
    local = open(order.get("local", os.devnull), "wb")
    file = session.open(order["path"], "read", "open")
    block, limit = order["block"], order["seconds"]
    digest, offset = hashlib.blake2b(), 0
    began = time.monotonic()
    last = began
    while offset < file.end_of_file and last - began < limit:
        data = file.read(offset, min(block, file.end_of_file - offset))
        last = time.monotonic()
        digest.update(data)
        local.write(data)
        offset += len(data)
    at_end = offset >= file.end_of_file
    session.close(file)
    local.close()
    return session.report(
        bytes=offset,
        seconds=last - began,
        requests=-(-offset // block),
        is_identical=holds(order["truth"], offset, digest),
        was_whole=at_end,
    )


def serial_put(order):
    """One WRITE of fresh random bytes after the other until the time is up, then CLOSE."""
    session = Session(order)
    file = session.open(order["path"], "write", "overwrite")
    block, limit = order["block"], order["seconds"]
    digest, offset = hashlib.blake2b(), 0
    began = time.monotonic()
    while time.monotonic() - began < limit and offset < order["bytes"]:
        data = os.urandom(min(block, order["bytes"] - offset))
        written = file.write(data, offset)
        assert written == len(data), f"{written} of {len(data)} bytes written"
        digest.update(data)
        offset += len(data)
    session.close(file)
    seconds = time.monotonic() - began
    return session.report(
        bytes=offset,
        seconds=seconds,
        requests=-(-offset // block),
        is_identical=holds(order["truth"], offset, digest)
        and os.path.getsize(order["truth"]) == offset,
        was_whole=True,
    )


def small_read(order):
    """Lists a directory and reads files of it: CREATE, READ, CLOSE each, one after the other."""
    session = Session(order)
    names = session.list(order["path"])[: order["files"]]
    assert len(names) == order["files"], f"{len(names)} files"
    watched = WatchedFiles(order, names) if "watch" in order else None
    contents = []
    began = time.monotonic()
    for place, name in enumerate(names):
        if watched:
            watched.come_to(place)
        asked = time.monotonic()
        file = session.open(f"{order['path']}\\{name}", "read", "open")
        opened = time.monotonic()
        contents.append(file.read(0, file.end_of_file))
        if watched:
            watched.told(name, file.last_write_time, contents[-1], (asked, opened))
        session.close(file)
    seconds = time.monotonic() - began
    if watched:
        watched.leave("told")
    kept = [
        (name, content)
        for name, content in zip(names, contents)
        if not watched or name not in watched.kinds
    ]
    return session.report(
        bytes=sum(map(len, contents)),
        seconds=seconds,
        requests=3 * len(names),
        files=len(names),
        is_identical=are_on_disk(order, *zip(*kept)),
    )


class WatchedFiles:
    """Files that a second client changes while the first reads them, and what each has to say."""

    # Of the clock that files have: version 0, and a second for each further one.
    FIRST = 1_500_000_000
    EVERY = 20
    # How far before the reader times are changed, as many as are opened ahead of it at most, and contents,
    # which are open ahead by then.
    TIMES_BEFORE = 64
    CONTENTS_BEFORE = 12

    def __init__(self, order, names):
        self.directory = order["watch"]
        self.bytes = order["file_bytes"]
        self.names = names[:: self.EVERY]
        self.kinds = {
            name: ("time", "contents")[place % 2] for place, name in enumerate(self.names)
        }
        self.lines = []
        self.place = os.open(
            os.path.join(self.directory, "place"), os.O_RDWR | os.O_CREAT, 0o600
        )

    def come_to(self, place):
        os.pwrite(self.place, struct.pack("<Q", place), 0)

    def ahead(self, versions):
        """Files that the reader will come to soon."""
        place = struct.unpack("<Q", os.pread(self.place, 8, 0) or bytes(8))[0]
        near = []
        for index, name in enumerate(self.names):
            before = index * self.EVERY - place
            match self.kinds[name]:
                case "time" if 0 < before <= self.TIMES_BEFORE:
                    near.append(name)
                # Whoever has it open ahead gives it back for this, once for each file however slow all is.
                case "contents" if 0 < before <= self.CONTENTS_BEFORE and versions[name] == 0:
                    near.append(name)
        return near

    def told(self, name, time_told, content, moments):
        kind = self.kinds.get(name)
        if kind is None:
            return
        asked, opened = moments
        if kind == "time":
            version = int(time_told.timestamp()) - self.FIRST
            self.note(name, version, asked=asked, answered=opened)
            return
        # A READ may meet a WRITE; the oldest part counts.
        assert len(content) == self.bytes, f"{name} holds {len(content)} bytes"
        version = min(set(struct.unpack(f"<{self.bytes // 8}Q", content)))
        self.note(name, version, asked=opened, answered=time.monotonic())

    def change(self, session, path, version):
        """Makes a file say this version."""
        from smbprotocol.file_info import FileBasicInformation

        name = path.rsplit("\\", 1)[1]
        began = time.monotonic()
        if self.kinds[name] == "time":
            file = session.open(path, "attributes", "open")
            info = FileBasicInformation()
            for field in ("creation_time", "last_access_time", "change_time"):
                info[field] = 0
            # In units of 100 ns since 1601.
            info["last_write_time"] = (self.FIRST + version + 11_644_473_600) * 10**7
            session.set_info(file, info)
        else:
            file = session.open(path, "write", "open")
            file.write(struct.pack("<Q", version) * (self.bytes // 8), 0)
        ended = time.monotonic()
        session.close(file)
        self.note(name, version, began=began, ended=ended)

    def note(self, name, version, **moments):
        line = {"file": name, "kind": self.kinds[name], "version": version, **moments}
        self.lines.append(json.dumps(line) + "\n")

    def leave(self, name):
        with open(os.path.join(self.directory, name), "w") as file:
            file.writelines(self.lines)


def small_write(order):
    """Writes files: CREATE, WRITE, CLOSE each, one after the other."""
    session = Session(order)
    names = [f"w{number:04}.bin" for number in range(order["files"])]
    contents = [os.urandom(order["file_bytes"]) for _ in names]
    began = time.monotonic()
    for name, data in zip(names, contents):
        file = session.open(f"{order['path']}\\{name}", "write", "overwrite")
        file.write(data, 0)
        session.close(file)
    seconds = time.monotonic() - began
    return session.report(
        bytes=sum(map(len, contents)),
        seconds=seconds,
        requests=3 * len(names),
        files=len(names),
        is_identical=are_on_disk(order, names, contents),
    )


# An office suite reads and writes its compound files in pieces of this size, and holds a lock on a
# byte far behind the end while the document is open.
PIECE = 8192
LOCK_AT = 0x7FFFFFFE


def lock(file, flag):
    from smbprotocol.open import SMB2LockElement

    element = SMB2LockElement()
    element["offset"] = LOCK_AT
    element["length"] = 1
    element["flags"] = flag
    file.lock([element])


def office_open(session, path):
    """Opens a document: CREATE, LOCK, its first piece, its end, then the rest in small READs."""
    from smbprotocol.open import LockFlags

    file = session.open(path, "both", "open")
    lock(
        file,
        LockFlags.SMB2_LOCKFLAG_EXCLUSIVE_LOCK | LockFlags.SMB2_LOCKFLAG_FAIL_IMMEDIATELY,
    )
    pieces = -(-file.end_of_file // PIECE)
    tail = list(range(max(1, pieces - 8), pieces))
    rest = [piece for piece in range(1, pieces) if piece not in tail]
    content = bytearray(file.end_of_file)
    for piece in [0] + tail + rest:
        at = piece * PIECE
        length = min(PIECE, file.end_of_file - at)
        content[at : at + length] = file.read(at, length)
    return file, bytes(content), pieces


def office(order):
    """Opens a document, then saves it: a temporary file in small WRITEs, its first piece again,
    FLUSH, CLOSE, and a rename over the document.

    With "local" what was opened is written there, and what was saved must be on the server's disk."""
    from smbprotocol.file_info import FileRenameInformation
    from smbprotocol.open import LockFlags

    session = Session(order)
    path = order["path"]
    began = time.monotonic()
    file, content, pieces = office_open(session, path)
    open_seconds = time.monotonic() - began
    with open(order["truth"], "rb") as truth:
        is_identical = truth.read() == content

    edited = os.urandom(PIECE) + content[PIECE:]
    directory = path.rpartition("\\")[0]
    temporary = f"~WRD{random.randrange(10**6):06}.tmp"
    if directory:
        temporary = f"{directory}\\{temporary}"
    began = time.monotonic()
    target = session.open(temporary, "write", "overwrite")
    for piece in range(pieces):
        target.write(edited[piece * PIECE : (piece + 1) * PIECE], piece * PIECE)
    target.write(edited[:PIECE], 0)
    target.flush()
    session.close(target)
    lock(file, LockFlags.SMB2_LOCKFLAG_UNLOCK)
    session.close(file)
    target = session.open(temporary, "rename", "open")
    rename = FileRenameInformation()
    rename["replace_if_exists"] = True
    rename["file_name"] = path
    session.set_info(target, rename)
    session.close(target)
    save_seconds = time.monotonic() - began
    with open(order["truth"], "rb") as truth:
        is_identical = is_identical and truth.read() == edited
    if "local" in order:
        assert is_identical, "what was opened or saved is not what the server holds"
        with open(order["local"], "wb") as local:
            local.write(content)
    return session.report(
        bytes=len(content),
        seconds=open_seconds + save_seconds,
        open_seconds=open_seconds,
        save_seconds=save_seconds,
        requests=2 * pieces,
        is_identical=is_identical,
    )


def beside(order):
    """Writes a small file of its own every half second until its standard input ends."""
    session = Session(order)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    count = 0
    print("writing", flush=True)
    while not over.wait(0.5) or count == 0:
        file = session.open(f"{order['path']}-{count % 16}.bin", "write", "overwrite")
        file.write(os.urandom(10_000), 0)
        session.close(file)
        count += 1
    result, leave = session.report(writes=count, bytes=10_000 * count)
    leave()
    return result, lambda: None


def change(order):
    """Changes files that a reader is about to come to, until its standard input ends."""
    session = Session(order)
    names = session.list(order["path"])[: order["files"]]
    watched = WatchedFiles(order, names)
    versions = dict.fromkeys(watched.names, 0)
    for name in watched.names:
        watched.change(session, f"{order['path']}\\{name}", 0)
    over = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    print("changing", flush=True)
    # Several while the reader goes through as many files as are opened ahead of it.
    while not over.wait(0.02):
        for name in watched.ahead(versions):
            versions[name] += 1
            watched.change(session, f"{order['path']}\\{name}", versions[name])
    watched.leave("changes")
    count = sum(versions.values())
    result, leave = session.report(writes=count)
    leave()
    return result, lambda: None


class Smbclient:
    """A stock smbclient behind a pseudo-terminal, at its prompt."""

    def __init__(self, order):
        options = {
            "off": ["-m", "SMB3_11", "--client-protection=off"],
            "hmac": ["-m", "SMB2_10", "--client-protection=sign"],
            "cmac": ["-m", "SMB3_02", "--client-protection=sign"],
            "gmac": ["-m", "SMB3_11", "--client-protection=sign"],
            "encrypted": ["-m", "SMB3_11", "--client-protection=encrypt"],
        }[order["protection"]]
        options = order.get("options", options)
        arguments = [
            "smbclient",
            f"//{order['server']}/{order['share']}",
            "-U",
            f"{order['user']}%{order['password']}",
            "--timeout=3600",
            "-s",
            "/dev/null",
            *options,
        ]
        self.child, self.terminal = pty.fork()
        if self.child == 0:
            os.environ["TERM"] = "dumb"
            os.execvp(arguments[0], arguments)
        self.until_prompt()

    def until_prompt(self):
        seen = b""
        # The prompt names the directory: "smb: \> ".
        while not re.search(rb"smb: \\[^\r\n]*> $", seen):
            ready, _, _ = select.select([self.terminal], [], [], 1800)
            if not ready:
                raise TimeoutError(f"smbclient is silent after {seen[-300:]!r}")
            try:
                piece = os.read(self.terminal, 65536)
            except OSError:
                piece = b""
            if not piece:
                raise ConnectionError(f"smbclient ended: {seen[-300:]!r}")
            seen += piece
        return seen.decode(errors="replace")

    def run(self, command):
        began = time.monotonic()
        os.write(self.terminal, command.encode() + b"\n")
        text = self.until_prompt()
        seconds = time.monotonic() - began
        if "NT_STATUS_" in text:
            raise RuntimeError(text)
        return seconds, text

    def quit(self):
        os.write(self.terminal, b"quit\n")
        os.waitpid(self.child, 0)


def smbclient_get(order):
    client = Smbclient(order)
    seconds, _ = client.run(f"get {order['path']} {order['local']}")
    return fetched(order, seconds), client.quit


def smbclient_put(order):
    client = Smbclient(order)
    seconds, _ = client.run(f"put {order['local']} {order['path']}")
    count = os.path.getsize(order["local"])
    with open(order["local"], "rb") as file:
        digest = hashlib.blake2b(file.read())
    result = {
        "bytes": count,
        "seconds": seconds,
        "requests": 0,
        "opens": 1,
        "closes": 1,
        "is_identical": holds(order["truth"], count, digest),
        "was_whole": True,
    }
    return result, client.quit


def fetched(order, seconds):
    """What stands in a local file."""
    digest, count = hashlib.blake2b(), 0
    with open(order["local"], "rb") as file:
        while data := file.read(1 << 20):
            digest.update(data)
            count += len(data)
    os.remove(order["local"])
    return {
        "bytes": count,
        "seconds": seconds,
        "requests": 0,
        "opens": 1,
        "closes": 1,
        "is_identical": holds(order["truth"], count, digest),
        "was_whole": True,
    }


def listing(order):
    """A listing of one directory by a stock smbclient, in a session that is already up."""
    client = Smbclient(order)
    seconds, text = client.run(f"ls {order['path']}\\*")
    names = re.findall(r"^\s+(\S+)\s+[AN]\s+\d+", text, re.M)
    result = {
        "bytes": 0,
        "seconds": seconds,
        "requests": 0,
        "opens": 1,
        "closes": 1,
        "files": len(names),
        "was_whole": True,
        "is_identical": sorted(names) == sorted(os.listdir(order["truth"])),
    }
    return result, client.quit


def smbnetfs(order):
    """A read of one file through smbnetfs, mounted in this process's own mount namespace."""
    home = order["home"]
    settings = os.path.join(home, ".smb")
    mount = os.path.join(home, "mount")
    os.makedirs(settings, exist_ok=True)
    os.makedirs(mount, exist_ok=True)
    protection = {
        "off": "client min protocol = SMB3_11\nclient signing = if_required\n",
        "hmac": "client max protocol = SMB2_10\nclient signing = required\n",
        "cmac": "client max protocol = SMB3_02\nclient signing = required\n",
        "gmac": "client min protocol = SMB3_11\nclient signing = required\n",
        "encrypted": "client min protocol = SMB3_11\nclient smb encrypt = required\n",
    }[order["protection"]]
    files = {
        "smb.conf": "[global]\n" + protection,
        "smbnetfs.conf": 'include "smbnetfs.auth"\n',
        "smbnetfs.auth": f'auth "{order["user"]}" "{order["password"]}"\n',
    }
    for name, text in files.items():
        path = os.path.join(settings, name)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(text)
    daemon = subprocess.Popen(
        ["smbnetfs", mount, "-f", "-o", f"config={settings}/smbnetfs.conf"],
        env={**os.environ, "HOME": home},
        stdout=sys.stderr,
    )
    def leave():
        subprocess.run(["umount", "-l", mount], check=False)
        daemon.terminate()
        daemon.wait()

    try:
        deadline = time.monotonic() + 20
        while not os.path.ismount(mount):
            assert daemon.poll() is None, "smbnetfs ended"
            assert time.monotonic() < deadline, "smbnetfs did not mount"
            time.sleep(0.01)
        path = os.path.join(mount, order["server"], order["share"], order["path"])
        digest, count = hashlib.blake2b(), 0
        with open(path, "rb", buffering=0) as file:
            began = time.monotonic()
            last = began
            while last - began < order["seconds"] and (data := file.read(131072)):
                last = time.monotonic()
                digest.update(data)
                count += len(data)
    except BaseException:
        leave()
        raise
    result = {
        "bytes": count,
        "seconds": last - began,
        "requests": -(-count // 131072),
        "opens": 1,
        "closes": 1,
        "is_identical": holds(order["truth"], count, digest),
        "was_whole": False,
    }
    return result, leave


def pattern(order):
    """One action of an office program or a file manager (smb_patterns)."""
    import smb_patterns

    session = Session(order)
    return session.report(**smb_patterns.run(session, order))


DOINGS = {
    "serial-get": serial_get,
    "serial-put": serial_put,
    "small-read": small_read,
    "small-write": small_write,
    "office": office,
    "pattern": pattern,
    "beside": beside,
    "change": change,
    "smbclient": smbclient_get,
    "smbclient-put": smbclient_put,
    "listing": listing,
    "smbnetfs": smbnetfs,
}

if __name__ == "__main__":
    main()
