"""Requests that office programs and file managers send to an SMB server, for the clients of the bench.

Each pattern is one action of a user's. Its requests are sent in the order and in the form (rights, options,
create contexts, compounds) of its source, one frame after the other, except where the source has several
frames at once. A frame whose answers are awaited counts as one round trip of direct access.

The form of the requests of Windows and macOS comes from captures of real clients that are published with
Zeek's tests (github.com/zeek/zeek, testing/btest/Traces/smb). The numbers are frames of a capture:

- BROWSE: smb_v2_only_non_zero_reserved1.pcap, a Windows client that browses a share and opens a file.
- COPY: smb2readwrite.pcap, Windows' Explorer with a copy and a refresh of its window.
- REWRITE: smb3_multichannel.pcap, a Windows client that reads documents (.docx, .doc), writes new files
  beside them and deletes them.
- FINDER: smb_many_open_files_500.pcap, macOS' Finder with a share in its window.

No public capture of an office program on SMB 2 or 3 is known. The order of an office program's operations
comes from Microsoft's articles and a log of a file system below Word; each operation is then sent in the form
in which the captures have it. Each pattern says which.
"""

import hashlib
import os
import struct
import time
import uuid

from smbprotocol.create_contexts import (
    SMB2CreateContextRequest,
    SMB2CreateDurableHandleRequestV2,
    SMB2CreateRequestLeaseV2,
)
from smbprotocol.change_notify import SMB2ChangeNotifyRequest
from smbprotocol.exceptions import SMBResponseException
from smbprotocol.open import (
    SMB2CloseRequest,
    SMB2CreateRequest,
    SMB2CreateResponse,
    SMB2FlushRequest,
    SMB2QueryDirectoryRequest,
    SMB2QueryInfoRequest,
    SMB2ReadRequest,
    SMB2ReadResponse,
    SMB2SetInfoRequest,
    SMB2WriteRequest,
)

# Rights ([MS-SMB2] §2.2.13.1.1, File_Pipe_Printer_Access_Mask), as the captures have them.
READS = 0x00120089
READS_AND_WRITES = 0x0012019F
DELETES = 0x00010080
ASKS = 0x00100080
ASKS_SECURITY = 0x00020080
LISTS = 0x00100081
FINDER_READS = 0x00020081
FINDER_WRITES = 0x00020087

# Sharing, dispositions and options ([MS-SMB2] §2.2.13).
SHARE_READ, SHARE_ALL, SHARE_READ_DELETE = 1, 7, 5
OPEN, CREATE, OVERWRITE = 1, 2, 5
IS_DIRECTORY, IS_FILE, ASYNCHRONOUS = 0x1, 0x40, 0x20
SEQUENTIAL, NO_REPARSE = 0x4, 0x00200000
HIDDEN = 2

# Classes of information ([MS-FSCC] §2.4 and §2.5).
EA, STREAMS, NETWORK_OPEN, NORMALIZED_NAME, ALL, INTERNAL = 7, 22, 34, 48, 18, 6
BASIC, RENAME, DISPOSITION, ALLOCATION, END_OF_FILE = 4, 10, 13, 19, 20
VOLUME, SIZE, ATTRIBUTES, FULL_SIZE = 1, 3, 5, 7
OF_FILE, OF_FILE_SYSTEM, OF_SECURITY = 1, 2, 3
ID_BOTH_DIRECTORY = 37
RESTARTS, ONE_ENTRY = 1, 2

NOT_FOUND = 0xC0000034
NO_SUCH_FILE = 0xC000000F
NO_MORE_FILES = 0x80000006
FILE_CLOSED = 0xC0000128

# REWRITE 29 and 114: the redirector reads documents in pieces of 32 KiB, and writes in pieces of 64 KiB.
READ_PIECE, WRITE_PIECE = 32_768, 65_536
# REWRITE 78 to 87 and 174 to 187: requests for room before the data of a document are written.
ROOM_REQUESTS = 5

SAME = b"\xff" * 16


class Answer:
    """The server's answer to one request."""

    def __init__(self, status, data):
        self.status = status
        self.data = data

    def open(self):
        body = SMB2CreateResponse()
        body.unpack(self.data)
        return OpenFile(
            body["file_id"].get_value(),
            body["end_of_file"].get_value(),
            body["oplock_level"].get_value(),
        )

    def read(self):
        body = SMB2ReadResponse()
        body.unpack(self.data)
        return body["buffer"].get_value()


class OpenFile:
    def __init__(self, file_id, length, level):
        self.id = file_id
        self.length = length
        self.level = level


class PatternClient:
    """Requests on a session's tree connect, in the form of Windows' redirector."""

    def __init__(self, session):
        self.session = session
        self.connection = session.connection
        self.ids = (session.tree.session.session_id, session.tree.tree_connect_id)
        self.frames = 0
        # Windows derives a lease's key from the file, and so does this client.
        self.secret = os.urandom(16)

    def send(self, *frames, errors=()):
        """Sends frames at once and waits for the answers to all of their requests."""
        self.frames += 1
        sent = []
        for messages in frames:
            if len(messages) == 1:
                # As many credits as Windows holds after a while.
                sent.append(self.connection.send(messages[0], *self.ids, credit_request=64))
            else:
                sent += self.connection.send_compound(messages, *self.ids, related=True)
        answers = []
        for request in sent:
            try:
                response = self.connection.receive(request)
                answers.append(Answer(0, response["data"].get_value()))
            except SMBResponseException as error:
                if error.status not in errors:
                    raise
                answers.append(Answer(error.status, b""))
        return answers

    def ask(self, *messages, errors=()):
        """Sends one frame; the answer to its first request."""
        return self.send(messages, errors=errors)[0]

    def open(self, path, access, options=0, **more):
        self.session.opens += 1
        file = self.ask(self.create(path, access, options=options, **more)).open()
        # Servers may give none for a folder.
        assert file.level == 0xFF or not options & IS_FILE, f"no lease: oplock level {file.level}"
        return file

    def misses(self, path, **more):
        """Opens a file that is not there."""
        answer = self.ask(self.create(path, READS, **more), errors=(NOT_FOUND,))
        assert answer.status == NOT_FOUND, f"{path} is there"

    def close(self, file, flags=0):
        self.ask(self.closing(file.id, flags))
        self.session.closes += 1

    def read(self, file, offset, length):
        return self.ask(reading(file.id, offset, length)).read()

    def create(self, path, access, share=SHARE_ALL, disposition=OPEN, options=0, lease=7, contexts=(), attributes=0):
        """A CREATE, with the contexts of Windows: a durable handle, the maximal access, the id on the disk
        and a lease with all caching (REWRITE 25); with lease None, only the maximal access (BROWSE 29)."""
        request = SMB2CreateRequest()
        request["impersonation_level"] = 2
        request["desired_access"] = access
        request["file_attributes"] = attributes
        request["share_access"] = share
        request["create_disposition"] = disposition
        request["create_options"] = options
        request["requested_oplock_level"] = 0 if lease is None else 0xFF
        request["buffer_path"] = path.encode("utf-16-le") or b"\x00\x00"
        own = []
        if lease is not None:
            durable = SMB2CreateDurableHandleRequestV2()
            durable["create_guid"] = uuid.uuid4()
            own += [context(b"DH2Q", durable)]
        if lease is not None or not contexts:
            own += [context(b"MxAc", b"")]
        if lease:
            own += [context(b"QFid", b"")]
        if lease is not None:
            wanted = SMB2CreateRequestLeaseV2()
            wanted["lease_key"] = hashlib.blake2b(
                path.lower().encode(), key=self.secret, digest_size=16
            ).digest()
            wanted["lease_state"] = lease
            wanted["parent_lease_key"] = bytes(16)
            wanted["epoch"] = bytes(2)
            own += [context(b"RqLs", wanted)]
        request["buffer_contexts"] = SMB2CreateContextRequest.pack_multiple([*own, *contexts])
        return request

    def closing(self, file_id=SAME, flags=0):
        request = SMB2CloseRequest()
        request["flags"] = flags
        request["file_id"] = file_id
        return request

    def probe(self, path, access=ASKS, lease=7):
        """The attributes of a name (BROWSE 41 to 44): the answer to the open has them."""
        self.close(self.open(path, access, lease=lease))

    def ask_details(self, file):
        """BROWSE 77, a compound."""
        self.ask(asking(file.id, EA), asking(SAME, STREAMS), asking_security(SAME))

    def ask_volume(self, file):
        """BROWSE 83, a compound."""
        self.ask(asking(file.id, VOLUME, OF_FILE_SYSTEM), asking(SAME, ATTRIBUTES, OF_FILE_SYSTEM))

    def rename(self, old, new):
        """In the form of REWRITE 133 to 140, which sets a disposition in place of a name."""
        file = self.open(old, DELETES, options=NO_REPARSE | IS_FILE, lease=0)
        self.ask(setting(file.id, RENAME, rename_to(new)))
        self.ask(asking(file.id, NORMALIZED_NAME))
        self.close(file)

    def delete(self, path):
        """REWRITE 133 to 140."""
        file = self.open(path, DELETES, options=NO_REPARSE | IS_FILE, lease=0)
        self.ask(setting(file.id, DISPOSITION, b"\x01"))
        self.ask(asking(file.id, NORMALIZED_NAME))
        self.close(file)

    def write_new(self, path, data, disposition=CREATE):
        """Writes a new document (REWRITE 172 to 208). The redirector has all WRITEs outstanding at once."""
        file = self.open(
            path, READS_AND_WRITES, share=0, disposition=disposition, options=IS_FILE | ASYNCHRONOUS
        )
        for part in range(1, ROOM_REQUESTS + 1):
            room = len(data) * part // ROOM_REQUESTS
            self.ask(setting(file.id, ALLOCATION, struct.pack("<Q", room)))
        self.ask(asking(file.id, NETWORK_OPEN))
        self.ask(asking_security(file.id))
        self.write(file, data)
        return file

    def write(self, file, data):
        pieces = range(0, len(data), WRITE_PIECE)
        self.send(*([writing(file.id, at, data[at : at + WRITE_PIECE])] for at in pieces))

    def read_all(self, file):
        """Reads a document as a program does that unpacks it: the beginning, the end with the archive's
        directory, and the rest (form of REWRITE 29 to 66)."""
        content = bytearray(file.length)
        pieces = list(range(0, file.length, READ_PIECE))
        for at in pieces[:1] + pieces[-1:] * (len(pieces) > 1) + pieces[1:-1]:
            content[at : at + READ_PIECE] = self.read(file, at, min(READ_PIECE, file.length - at))
        return bytes(content)


def context(name, data):
    request = SMB2CreateContextRequest()
    request["buffer_name"] = name
    request["buffer_data"] = data
    return request


def asking(file_id, level, kind=OF_FILE, more=0):
    request = SMB2QueryInfoRequest()
    request["info_type"] = kind
    request["file_info_class"] = level
    request["output_buffer_length"] = 4_096
    request["additional_information"] = more
    request["file_id"] = file_id
    return request


def asking_security(file_id):
    """The owner, the group and the list of rights."""
    return asking(file_id, 0, OF_SECURITY, 7)


def setting(file_id, level, data):
    request = SMB2SetInfoRequest()
    request["info_type"] = OF_FILE
    request["file_info_class"] = level
    request["file_id"] = file_id
    request["buffer"] = data
    return request


def rename_to(path):
    """[MS-FSCC] §2.4.42.2, FileRenameInformation for SMB2: nothing is replaced."""
    name = path.encode("utf-16-le")
    return struct.pack("<B7xQI", 0, 0, len(name)) + name


def reading(file_id, offset, length):
    request = SMB2ReadRequest()
    request["length"] = length
    request["offset"] = offset
    request["file_id"] = file_id
    request["padding"] = b"\x50"
    return request


def writing(file_id, offset, data):
    request = SMB2WriteRequest()
    request["offset"] = offset
    request["file_id"] = file_id
    request["buffer"] = data
    return request


def flushing(file_id, reserved=0):
    request = SMB2FlushRequest()
    request["reserved1"] = reserved
    request["file_id"] = file_id
    return request


def listing(pattern, flags=0, file_id=SAME):
    request = SMB2QueryDirectoryRequest()
    request["file_information_class"] = ID_BOTH_DIRECTORY
    request["flags"] = flags
    request["file_id"] = file_id
    request["output_buffer_length"] = 65_536
    request["buffer"] = pattern.encode("utf-16-le")
    return request


def watching():
    """BROWSE 31: names, attributes, sizes and times."""
    request = SMB2ChangeNotifyRequest()
    request["file_id"] = SAME
    request["output_buffer_length"] = 32
    request["completion_filter"] = 0x17
    return request


def beside(path, name):
    return f"{path.rpartition(chr(92))[0]}\\{name}"


def owner_file(path):
    """The name of Word's owner file: ~$ in place of the first two characters (KB 211632)."""
    return beside(path, "~$" + path.rpartition("\\")[2][2:])


def read_document(client, path, order):
    """Opens and reads a document in the order of Word.

    Order: the log of Word 2016 in github.com/dokan-dev/dokany/issues/476 (opens for attributes and for the
    list of rights before the document is opened); Microsoft's article KB 211632 (the owner file ~$); a
    stream Zone.Identifier is looked for to find documents from the Internet ([MS-FSCC] §5.6.1). Form: BROWSE
    41 to 44, BROWSE 77 to 84, REWRITE 25 to 71."""
    client.probe(path)
    rights = client.open(path, ASKS_SECURITY)
    client.ask(asking_security(rights.id))
    client.close(rights)
    file = client.open(
        path, READS_AND_WRITES, share=SHARE_READ, options=IS_FILE | ASYNCHRONOUS
    )
    client.ask_details(file)
    client.ask_volume(file)
    client.misses(path + ":Zone.Identifier", share=SHARE_ALL, options=IS_FILE | ASYNCHRONOUS)
    owner = client.open(
        owner_file(path),
        READS_AND_WRITES | 0x00010000,
        share=SHARE_READ,
        disposition=CREATE,
        options=IS_FILE | ASYNCHRONOUS,
        attributes=HIDDEN,
    )
    client.write(owner, order["user"].encode().ljust(162, b"\0"))
    return file, owner, client.read_all(file)


def word_open(client, path, order):
    file, owner, content = read_document(client, path, order)

    def leave():
        client.close(file)
        client.close(owner)
        client.delete(owner_file(path))

    return content, leave


def word_save(client, path, order):
    """Saves a document: a new file ~WRDxxxx.tmp, the old one under ~WRLxxxx.tmp, two renames, a deletion.

    Order: KB 211632. Form: REWRITE 141 to 218, with the program's own FLUSH before the names change."""
    file, owner, content = read_document(client, path, order)
    began = client.begin()
    edited = os.urandom(1_000) + content[1_000:]
    temporary, backup = beside(path, "~WRD0000.tmp"), beside(path, "~WRL0001.tmp")
    client.misses(temporary, options=IS_FILE)
    new = client.write_new(temporary, edited)
    client.ask(flushing(new.id))
    # REWRITE 124: after WRITEs the CLOSE asks for the attributes.
    client.close(new, flags=1)
    client.ask(asking(file.id, STREAMS))
    client.close(file)
    client.rename(path, backup)
    client.rename(temporary, path)
    client.delete(backup)
    again = client.open(path, READS_AND_WRITES, share=SHARE_READ, options=IS_FILE | ASYNCHRONOUS)
    client.ask_details(again)
    assert client.read(again, 0, min(READ_PIECE, again.length)) == edited[:READ_PIECE]
    client.end(began)

    def leave():
        client.close(again)
        client.close(owner)
        client.delete(owner_file(path))

    return edited, leave


def excel_save(client, path, order):
    """Saves a workbook: a new file with eight hexadecimal digits as its name, deletion of the old one, a
    rename.

    Order: Microsoft's article "Description of the way that Excel saves files". Form as in word_save."""
    file, owner, content = read_document(client, path, order)
    began = client.begin()
    edited = os.urandom(1_000) + content[1_000:]
    temporary = beside(path, f"{struct.unpack('<I', os.urandom(4))[0]:08X}")
    client.misses(temporary, options=IS_FILE)
    new = client.write_new(temporary, edited)
    client.ask(flushing(new.id))
    # REWRITE 124: after WRITEs the CLOSE asks for the attributes.
    client.close(new, flags=1)
    client.ask(asking(file.id, STREAMS))
    client.close(file)
    client.delete(path)
    client.rename(temporary, path)
    again = client.open(path, READS_AND_WRITES, share=SHARE_READ, options=IS_FILE | ASYNCHRONOUS)
    client.ask_details(again)
    assert client.read(again, 0, min(READ_PIECE, again.length)) == edited[:READ_PIECE]
    client.end(began)

    def leave():
        client.close(again)
        client.close(owner)
        client.delete(owner_file(path))

    return edited, leave


def powerpoint_save(client, path, order):
    """Saves a presentation in place, through the open that it was read with.

    Neither a capture nor an article with PowerPoint's order is public: this is the plain form of a save in
    place, with the requests for room of REWRITE 174 to 187 and one for the length."""
    file, owner, content = read_document(client, path, order)
    began = client.begin()
    edited = os.urandom(1_000) + content[1_000:] + os.urandom(10_000)
    for part in range(1, ROOM_REQUESTS + 1):
        room = len(content) + 10_000 * part // ROOM_REQUESTS
        client.ask(setting(file.id, ALLOCATION, struct.pack("<Q", room)))
    client.ask(setting(file.id, END_OF_FILE, struct.pack("<Q", len(edited))))
    client.write(file, edited)
    client.ask(flushing(file.id))
    client.ask(asking(file.id, NETWORK_OPEN))
    client.end(began)

    def leave():
        client.close(file)
        client.close(owner)
        client.delete(owner_file(path))

    return edited, leave


def explorer_browse(client, path, order):
    """Opens a folder with pictures in Explorer's window.

    Order and form: BROWSE 25 to 52, 77 to 89 and 112 to 123; desktop.ini also in COPY 26. The reads of the
    first and the last part of each file are those of a thumbnail; Zone.Identifier as in read_document."""
    began = client.begin()
    client.probe(path, lease=7)
    client.misses(path + "\\desktop.ini", options=IS_FILE | ASYNCHRONOUS | SEQUENTIAL)
    folder, names = list_folder(client, path)
    watch = client.connection.send_compound(
        [client.create(path, LISTS, lease=None), watching()], *client.ids, related=True
    )
    client.frames += 1
    client.session.opens += 1
    watched = Answer(0, client.connection.receive(watch[0])["data"].get_value()).open()
    client.close(folder)
    client.probe(path)
    space = client.open(path, READS, options=ASYNCHRONOUS)
    client.ask(asking(space.id, FULL_SIZE, OF_FILE_SYSTEM))
    client.close(space)
    digest = hashlib.blake2b()
    for name in names:
        file = client.open(
            f"{path}\\{name}",
            READS,
            share=SHARE_READ_DELETE,
            options=NO_REPARSE | IS_FILE | ASYNCHRONOUS | SEQUENTIAL,
        )
        first = client.read(file, 0, min(READ_PIECE, file.length))
        client.ask_details(file)
        client.ask_volume(file)
        at = max(0, file.length - READ_PIECE)
        last = client.read(file, at, file.length - at)
        client.misses(f"{path}\\{name}:Zone.Identifier", options=IS_FILE | ASYNCHRONOUS)
        client.close(file)
        digest.update(first + last)
    client.end(began)

    def leave():
        client.close(watched)

    return digest, leave


def list_folder(client, path):
    """BROWSE 29: the folder is opened, and listed to its end, in one compound."""
    client.session.opens += 1
    answers = client.send(
        [client.create(path, LISTS, options=ASYNCHRONOUS, lease=None), listing("*"), listing("*")],
        errors=(NO_MORE_FILES,),
    )
    return answers[0].open(), names_in(answers[1])


def names_in(answer):
    """The names in an answer to QUERY_DIRECTORY ([MS-FSCC] §2.4.17, FileIdBothDirectoryInformation)."""
    offset, length = struct.unpack_from("<HI", answer.data, 2)
    entries, names, at = answer.data[offset - 64 : offset - 64 + length], [], 0
    while True:
        following, size = struct.unpack_from("<I56xI", entries, at)
        names.append(entries[at + 104 : at + 104 + size].decode("utf-16-le"))
        if following == 0:
            return sorted(name for name in names if name not in (".", ".."))
        at += following


def finder_browse(client, path, order):
    """Opens a folder in Finder's window, and stores the window's state in .DS_Store.

    Order and form: FINDER 156 to 488, for a server without named streams, whose names ._* Finder looks for.
    This server has them; the compounds with AFP_AfpInfo and AFP_Resource in their place, the context AAPL,
    and 0xFFFF in the reserved field of FLUSH (F_FULLFSYNC) are those of Apple's published client
    (github.com/apple-oss-distributions/SMBClient, kernel/smbfs/smbfs_smb_2.c, kernel/netsmb/smb_smb_2.c)."""
    began = client.begin()
    # kAAPL_SERVER_QUERY with all of the reply bitmap, and the capabilities of the client.
    aapl = context(b"AAPL", struct.pack("<IIQQ", 1, 0, 7, 7))
    client.ask(client.create("", ASKS, options=IS_DIRECTORY, lease=None, contexts=(aapl,)), client.closing())
    for kind, level in [(OF_FILE_SYSTEM, SIZE), (OF_FILE_SYSTEM, ATTRIBUTES), (OF_FILE, ALL)]:
        ask_folder(client, path, asking(SAME, level, kind))
    for name in [".DS_Store", "DCIM", ".metadata_never_index_unless_rootfs", ".metadata_never_index"]:
        find_name(client, path, name)
    store = client.open(path + "\\.DS_Store", FINDER_READS, lease=None)
    client.read(store, 0, 6_148)
    client.close(store)
    find_name(client, path, ".hidden")
    client.session.opens += 1
    answers = client.send(
        [client.create(path, LISTS, options=IS_DIRECTORY, lease=None), listing("*", RESTARTS)]
    )
    folder, names = answers[0].open(), names_in(answers[1])
    client.ask(listing("*", 0, folder.id), errors=(NO_MORE_FILES,))
    client.close(folder)
    digest = hashlib.blake2b()
    for name in names:
        if name == ".DS_Store":
            continue
        find_name(client, path, name)
        file = f"{path}\\{name}"
        client.ask(client.create(file, 0x80, lease=None), client.closing())
        # smb2fs_smb_cmpd_create_read with the whole of the stream.
        read_stream(client, file + ":AFP_AfpInfo", 60)
        read_stream(client, file + ":AFP_Resource", 0)
        digest.update(name.encode())
    store = client.open(path + "\\.DS_Store", FINDER_WRITES, lease=None)
    client.ask(writing(store.id, 0, bytes(6_148)))
    client.ask(flushing(store.id, 0xFFFF))
    client.close(store)
    client.end(began)
    return digest, lambda: None


def ask_folder(client, path, question):
    """FINDER 156: a compound that opens, asks and closes."""
    client.ask(client.create(path, ASKS, options=IS_DIRECTORY, lease=None), question, client.closing())


def find_name(client, path, name):
    """FINDER 203: a compound that opens a folder, asks for one name of it, and closes."""
    client.ask(
        client.create(path, LISTS, options=IS_DIRECTORY, lease=None),
        listing(name, RESTARTS | ONE_ENTRY),
        client.closing(),
        errors=(NO_SUCH_FILE,),
    )


def read_stream(client, path, length):
    asks = reading(SAME, 0, length) if length else asking(SAME, ALL)
    client.ask(
        client.create(path, FINDER_READS, lease=None), asks, client.closing(),
        errors=(NOT_FOUND, FILE_CLOSED),
    )


PATTERNS = {
    "word-open": word_open,
    "word-save": word_save,
    "excel-save": excel_save,
    "powerpoint-save": powerpoint_save,
    "explorer-browse": explorer_browse,
    "finder-browse": finder_browse,
}


class TimedClient(PatternClient):
    """A client that tells the time and the frames of the part of a pattern that counts."""

    def __init__(self, session):
        super().__init__(session)
        self.counted = None

    def begin(self):
        return time.monotonic(), self.frames

    def end(self, began):
        at, frames = began
        self.counted = time.monotonic() - at, self.frames - frames


def run(session, order):
    """Carries out a pattern on each of several paths, one after the other, in one session."""
    client = TimedClient(session)
    seconds, frames, count, is_identical = 0, 0, 0, True
    for path, truth in order["paths"]:
        client.counted = None
        began = client.begin()
        result, leave = PATTERNS[order["pattern"]](client, path, order)
        if client.counted is None:
            client.end(began)
        leave()
        seconds += client.counted[0]
        frames += client.counted[1]
        count += len(result) if isinstance(result, bytes) else 0
        is_identical = is_identical and agrees(result, order["pattern"], truth)
    return {
        "bytes": count,
        "seconds": seconds,
        "requests": frames,
        "files": len(order["paths"]),
        "is_identical": is_identical,
    }


def agrees(result, pattern, truth):
    """Whether the server's disk has what the client read or wrote."""
    if isinstance(result, bytes):
        with open(truth, "rb") as file:
            left = [name for name in os.listdir(os.path.dirname(truth)) if name.startswith("~")]
            return file.read() == result and not left
    digest = hashlib.blake2b()
    for name in sorted(os.listdir(truth)):
        if pattern == "finder-browse":
            digest.update(b"" if name == ".DS_Store" else name.encode())
            continue
        with open(os.path.join(truth, name), "rb") as file:
            content = file.read()
        digest.update(content[:READ_PIECE] + content[-READ_PIECE:])
    return digest.digest() == result.digest()
