"""The mailbox: folders, messages and attachments in memory, made from a short description.

Everything has numbers that depend on the order of creation inside its folder only, and the clock is a counter, so
that the same calls get the same answers from a fresh server every time.
"""

import copy
import hashlib
import json
import random
import struct
import threading
import zlib

import properties as p

REPLICA = struct.pack("<H", 1)
MAILBOX_GUID = hashlib.md5(b"trunkline lab mailbox").digest()
REPLICA_GUID = hashlib.md5(b"trunkline lab replica").digest()
# 1 January 2006, as a FILETIME.
BEGIN = 127805472000000000
TICK = 10_000_000
# Names of the folders that a logon returns, in its order ([MS-OXCSTOR] §2.2.1.1.3).
SPECIAL = (
    "Root", "Deferred Action", "Spooler Queue", "Top of Information Store", "Inbox", "Outbox", "Sent Items",
    "Deleted Items", "Common Views", "Schedule", "Finder", "Views", "Shortcuts",
)
VISIBLE_BELOW_TOP = ("Inbox", "Outbox", "Sent Items", "Deleted Items")
# Counters of messages begin at folder number << 20.
MESSAGES_PER_FOLDER = 1 << 20
# Numbers of folders that clients create begin here.
FIRST_CREATED = 1 << 10


def object_id(counter):
    """A folder's or message's identifier: replica number and counter, as one unsigned number."""
    return int.from_bytes(REPLICA + counter.to_bytes(6, "big"), "little")


def counter_of(identifier):
    return int.from_bytes(identifier.to_bytes(8, "little")[2:], "big")


def source_key(identifier):
    return REPLICA_GUID + identifier.to_bytes(8, "little")[2:]


def generated(seed, count):
    """Bytes that cannot be compressed, the same for the same seed."""
    return random.Random(seed).randbytes(count)


class Attachment:
    """An attachment of a message; its data is bytes, or a bytearray while it is written."""

    def __init__(self, number):
        self.number = number
        self.values = {
            p.same_id(p.ATTACH_NUMBER): number,
            p.same_id(p.ATTACH_METHOD): 1,
            p.same_id(p.RENDERING_POSITION): -1,
        }
        self.data = b""

    def properties(self):
        values = dict(self.values)
        values[p.same_id(p.ATTACH_SIZE)] = len(self.data)
        values[p.same_id(p.ATTACH_DATA)] = self.data
        return values

    def copy(self):
        other = copy.copy(self)
        other.values = dict(self.values)
        return other


class Message:
    """A message of a folder."""

    def __init__(self, identifier, folder):
        self.identifier = identifier
        self.folder = folder
        self.values = {}
        self.recipients = []
        self.attachments = {}
        self.change = 0
        self.next_attachment = 0
        self.is_associated = False

    def properties(self):
        values = dict(self.values)
        values[p.same_id(p.MESSAGE_ID)] = signed(self.identifier)
        values[p.same_id(p.FOLDER_ID)] = signed(self.folder.identifier)
        values[p.same_id(p.HAS_ATTACH)] = bool(self.attachments)
        values[p.same_id(p.MESSAGE_SIZE)] = self.size()
        values[p.same_id(p.CHANGE_NUMBER)] = signed(object_id(self.change))
        values[p.same_id(p.SOURCE_KEY)] = source_key(self.identifier)
        values[p.same_id(p.CHANGE_KEY)] = source_key(object_id(self.change))
        values[p.same_id(p.PREDECESSORS)] = b"\x16" + source_key(object_id(self.change))
        values[p.same_id(p.ASSOCIATED)] = self.is_associated
        values[p.same_id(p.DISPLAY_TO)] = "; ".join(name for _, name, _ in self.recipients)
        return values

    def size(self):
        body = self.values.get(p.same_id(p.BODY), "")
        return 600 + 2 * len(body) + sum(len(each.data) for each in self.attachments.values())

    def copy(self):
        other = copy.copy(self)
        other.values = dict(self.values)
        other.recipients = list(self.recipients)
        other.attachments = {number: each.copy() for number, each in self.attachments.items()}
        return other


def signed(identifier):
    return identifier - (1 << 64) if identifier >> 63 else identifier


class Folder:
    """A folder with its messages and subfolders."""

    def __init__(self, number, name, parent):
        self.number = number
        self.identifier = object_id(number)
        self.name = name
        self.parent = parent
        self.children = []
        self.messages = {}
        self.next_message = number * MESSAGES_PER_FOLDER + 1
        self.next_change = number * MESSAGES_PER_FOLDER + 1
        self.values = {}

    def properties(self):
        unread = sum(1 for each in self.messages.values() if not each.values.get(p.same_id(p.MESSAGE_FLAGS), 0) & 1)
        return {
            **self.values,
            p.same_id(p.DISPLAY_NAME): self.name,
            p.same_id(p.FOLDER_ID): signed(self.identifier),
            p.same_id(p.CONTENT_COUNT): len(self.messages),
            p.same_id(p.UNREAD_COUNT): unread,
            p.same_id(p.SUBFOLDERS): bool(self.children),
            p.same_id(p.CONTAINER_CLASS): "IPF.Note",
            p.same_id(p.COMMENT): "",
        }

    def new_message(self):
        message = Message(object_id(self.next_message), self)
        self.next_message += 1
        return message

    def time(self):
        """The folder's clock: one second for each change."""
        return BEGIN + (self.next_change % MESSAGES_PER_FOLDER) * TICK


class Mailbox:
    """All folders; `lock` is held for every ROP that looks at or changes them."""

    def __init__(self, journal=None):
        self.lock = threading.RLock()
        self.folders = {}
        self.next_folder = 1
        self.journal = journal
        self.listeners = []
        self.special = []
        root = None
        for name in SPECIAL:
            parent = root
            if name in VISIBLE_BELOW_TOP:
                parent = self.special[3]
            folder = self.add_folder(name, parent)
            root = root or folder
            self.special.append(folder)

    def add_folder(self, name, parent):
        return self.put_folder(Folder(self.next_folder, name, parent))

    def create_folder(self, name, parent):
        """A folder of a client's: its number depends on its name alone, and not on what other clients create."""
        number = FIRST_CREATED + zlib.crc32(name.encode()) % (1 << 24)
        while object_id(number) in self.folders:
            number += 1
        return self.put_folder(Folder(number, name, parent))

    def put_folder(self, folder):
        self.next_folder += 1
        parent = folder.parent
        self.folders[folder.identifier] = folder
        if parent:
            parent.children.append(folder)
        return folder

    def named(self, name):
        for folder in self.folders.values():
            if folder.name == name:
                return folder
        return self.add_folder(name, self.special[3])

    def fill(self, description):
        """Makes what the description says: folders with messages, and messages with attachments."""
        for entry in description.get("folders", []):
            folder = self.named(entry["name"])
            for index in range(entry.get("messages", 0)):
                self.add(folder, f"{entry['name']} message {index + 1}", entry.get("body_bytes", 1200), index)
        for entry in description.get("attachments", []):
            folder = self.named(entry.get("folder", "Inbox"))
            if "file" in entry:
                with open(entry["file"], "rb") as file:
                    data = file.read()
            else:
                data = generated(entry.get("seed", 1), entry["bytes"])
            self.add(folder, entry["subject"], entry.get("body_bytes", 1200), 0, entry.get("name", "data.bin"), data)

    def add(self, folder, subject, body_bytes, index, name=None, data=b""):
        message = folder.new_message()
        words = random.Random(f"{folder.name} {subject}")
        body = " ".join(words.choice(WORDS) for _ in range(body_bytes // 6 + 1))[:body_bytes]
        message.values = {
            p.same_id(p.MESSAGE_CLASS): "IPM.Note",
            p.same_id(p.SUBJECT): subject,
            p.same_id(p.SENDER_NAME): f"Sender {index % 17}",
            p.same_id(p.SENDER_EMAIL): f"sender{index % 17}@lab.test",
            p.same_id(p.IMPORTANCE): 1,
            p.same_id(p.MESSAGE_FLAGS): 0 if index % 3 else 1,
            p.same_id(p.BODY): body,
        }
        message.recipients = [(1, "Reader", "reader@lab.test")]
        if name is not None:
            attachment = Attachment(0)
            attachment.values[p.same_id(p.ATTACH_NAME)] = name
            attachment.values[p.same_id(p.ATTACH_LONG_NAME)] = name
            attachment.data = data
            message.attachments[0] = attachment
            message.next_attachment = 1
        self.store(message)
        return message

    def store(self, message):
        """Puts a message, new or changed, into its folder."""
        folder = message.folder
        message.change = folder.next_change
        folder.next_change += 1
        now = folder.time()
        message.values.setdefault(p.same_id(p.CREATION_TIME), now)
        message.values.setdefault(p.same_id(p.DELIVERY_TIME), now)
        message.values[p.same_id(p.MODIFICATION_TIME)] = now
        message.values.setdefault(p.same_id(p.MESSAGE_FLAGS), 0)
        is_new = message.identifier not in folder.messages
        for attachment in message.attachments.values():
            if isinstance(attachment.data, bytearray):
                attachment.data = bytes(attachment.data)
        folder.messages[message.identifier] = message.copy()
        for listener in list(self.listeners):
            listener("created" if is_new else "modified", folder, message.identifier)

    def submit(self, message):
        """Delivers a message to the mailbox itself, and keeps it in Sent Items."""
        for name in ("Sent Items", "Inbox"):
            folder = self.named(name)
            own = message.copy()
            own.identifier, own.folder = folder.new_message().identifier, folder
            self.store(own)
        # The outbox forgets it.
        message.folder.messages.pop(message.identifier, None)

    def write_journal(self, event, message):
        """Notes what was saved, with digests; in a thread, because they take time."""
        if not self.journal:
            return
        pieces = [(each.values.get(p.same_id(p.ATTACH_LONG_NAME), ""), each.data) for each in message.attachments.values()]
        subject = message.values.get(p.same_id(p.SUBJECT), "")

        def write():
            line = {
                "event": event,
                "subject": subject,
                "attachments": [
                    {"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                    for name, data in pieces
                ],
            }
            with self.lock, open(self.journal, "a") as file:
                file.write(json.dumps(line) + "\n")

        threading.Thread(target=write).start()


WORDS = (
    "the quarterly figures of our branch are attached please review them before the meeting on Tuesday and send any "
    "comments to me by noon so that the report can be printed with best regards from the office in Amsterdam where it "
    "rains again while Palo Alto has sunshine budget forecast schedule customer invoice delivery contract signature"
).split()
