"""Agent of the lab's machine: carries out one request after the other.

A request is one line of JSON on the virtio port, `{"id": 7, "do": "walk", ...}`. The answer is one line
with the same id: `{"id": 7, "ok": {...}}`, or `{"id": 7, "error": "..."}`. Times are taken here, beside
the system calls, and digests only afterwards. The host compares digests with the server's own files.
With id 0 the agent says that it is ready.

Debian's smallest Python has no json module: a request is read as the Python expression that it is
(the host is trusted), and `to_json` writes answers.
"""

import fcntl
import hashlib
import os
import random
import signal
import stat
import subprocess
import time

PORT = "trunkline.control"
# Longest output of a command in an answer; the end is what explains a failure.
OUTPUT_LIMIT = 64 * 1024
NAMES = {"true": True, "false": False, "null": None}


def to_json(value):
    if value is None:
        return "null"
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        escaped = "".join(
            character if 32 <= ord(character) < 127 and character not in '"\\'
            else "\\u%04x" % min(ord(character), 0xFFFF)
            for character in value
        )
        return '"' + escaped + '"'
    if isinstance(value, dict):
        return "{" + ",".join(to_json(key) + ":" + to_json(each) for key, each in value.items()) + "}"
    return "[" + ",".join(to_json(each) for each in value) + "]"


def digest(data):
    return hashlib.sha256(data).hexdigest()


def read_whole(path):
    """Content of a file, read as `cat` reads it: to the end of the file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        parts = []
        while part := os.read(descriptor, 128 * 1024):
            parts.append(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def write_all(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view):]


def write_whole(path, data):
    """Writes a file as `cp` does: the whole content, then close."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        write_all(descriptor, data)
    finally:
        os.close(descriptor)


# Actions


def shell(request):
    """Runs a command of busybox; its status and what it printed."""
    process = subprocess.Popen(
        ["/bin/sh", "-c", request["command"]],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    began = time.monotonic()
    try:
        output, _ = process.communicate(timeout=request["limit_s"])
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        output += b"\nended after %d s" % request["limit_s"]
    return {
        "status": process.returncode,
        "output": output[-OUTPUT_LIMIT:].decode(errors="replace"),
        "seconds": time.monotonic() - began,
    }


def forget(request):
    """Empties the caches of pages, names and inodes."""
    os.sync()
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3\n")
    return {}


def small_read(request):
    """Reads files by their names, one after the other."""
    base, names = request["directory"], request["names"]
    contents = []
    began = time.monotonic()
    for name in names:
        contents.append(read_whole(base + "/" + name))
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "items": len(names),
        "bytes": sum(map(len, contents)),
        "digests": {name: digest(content) for name, content in zip(names, contents)},
    }


def small_write(request):
    """Writes new files, one after the other."""
    base, names = request["directory"], request["names"]
    contents = [os.urandom(request["file_bytes"]) for _ in names]
    began = time.monotonic()
    for name, content in zip(names, contents):
        write_whole(base + "/" + name, content)
    seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "items": len(names),
        "bytes": sum(map(len, contents)),
        "digests": {name: digest(content) for name, content in zip(names, contents)},
    }


def walk(request):
    """Lists a tree and asks for the status of each entry, as `find` does."""
    base = request["directory"]
    found = []
    directories = 0
    began = time.monotonic()
    waiting = [base]
    while waiting:
        directory = waiting.pop()
        directories += 1
        for name in sorted(os.listdir(directory)):
            path = directory + "/" + name
            status = os.lstat(path)
            is_directory = stat.S_ISDIR(status.st_mode)
            if is_directory:
                waiting.append(path)
            found.append((path[len(base) + 1:], is_directory, status.st_size))
    seconds = time.monotonic() - began
    sizes = {path: -1 if is_directory else size for path, is_directory, size in found}
    return {"seconds": seconds, "items": directories, "bytes": 0, "sizes": sizes}


def read_blocks(request):
    """Reads a file from its start, one block after the other."""
    block, left = request["block"], request["bytes"]
    parts = []
    began = time.monotonic()
    descriptor = os.open(request["path"], os.O_RDONLY)
    while left > 0:
        part = os.read(descriptor, min(block, left))
        if not part:
            break
        parts.append(part)
        left -= len(part)
    os.close(descriptor)
    seconds = time.monotonic() - began
    content = b"".join(parts)
    return {
        "seconds": seconds,
        "items": len(parts),
        "bytes": len(content),
        "digests": {os.path.basename(request["path"]): digest(content)},
    }


def write_blocks(request):
    """Writes a new file, one block after the other; its close counts."""
    block = request["block"]
    blocks = [os.urandom(block) for _ in range(request["bytes"] // block)]
    began = time.monotonic()
    descriptor = os.open(request["path"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for part in blocks:
        write_all(descriptor, part)
    os.close(descriptor)
    seconds = time.monotonic() - began
    content = b"".join(blocks)
    return {
        "seconds": seconds,
        "items": len(blocks),
        "bytes": len(content),
        "digests": {os.path.basename(request["path"]): digest(content)},
    }


def make_tree(request):
    """Writes a tree of files of many sizes, and removes nothing."""
    base, seed = request["directory"], request["seed"]
    source = random.Random(seed)
    digests = {}
    os.mkdir(base)
    for branch in range(request["branches"]):
        directory = "branch-%d" % branch
        os.mkdir(base + "/" + directory)
        for number in range(request["files"]):
            name = "%s/file-%d" % (directory, number)
            content = source.randbytes(source.choice([0, 1, 700, 4096, 10_000, 100_000]))
            write_whole(base + "/" + name, content)
            digests[name] = digest(content)
    return {"digests": digests}


def read_tree(request):
    """Reads every file of a tree."""
    base = request["directory"]
    digests = {}
    for directory, _, files in os.walk(base):
        for name in files:
            path = directory + "/" + name
            digests[path[len(base) + 1:]] = digest(read_whole(path))
    return {"digests": digests}


def model(request):
    """Random operations on files, beside the same on bytes in memory: both must always agree."""
    base, source = request["directory"], random.Random(request["seed"])
    contents = {}
    counts = {}

    def path(name):
        return base + "/" + name

    def check(name):
        assert read_whole(path(name)) == bytes(contents[name]), "the content of %s" % name
        assert os.stat(path(name)).st_size == len(contents[name]), "the size of %s" % name

    def create():
        name = "model-%d" % len(counts_of_names)
        counts_of_names.append(name)
        contents[name] = bytearray(source.randbytes(source.randrange(30_000)))
        write_whole(path(name), contents[name])

    def write(name):
        data = source.randbytes(source.randrange(1, 9_000))
        offset = source.randrange(len(contents[name]) + 2_000)
        descriptor = os.open(path(name), os.O_RDWR)
        os.pwrite(descriptor, data, offset)
        if source.random() < 0.5:
            os.fsync(descriptor)
        os.close(descriptor)
        content = contents[name]
        if offset > len(content):
            content.extend(bytes(offset - len(content)))
        content[offset:offset + len(data)] = data

    def append(name):
        data = source.randbytes(source.randrange(1, 3_000))
        descriptor = os.open(path(name), os.O_WRONLY | os.O_APPEND)
        write_all(descriptor, data)
        os.close(descriptor)
        contents[name].extend(data)

    def truncate(name):
        size = source.randrange(len(contents[name]) + 1)
        os.truncate(path(name), size)
        del contents[name][size:]

    def rename(name):
        target = source.choice([*contents, "renamed-%d" % len(counts_of_names)])
        counts_of_names.append(target)
        if target != name:
            os.rename(path(name), path(target))
            contents[target] = contents.pop(name)

    def remove(name):
        os.unlink(path(name))
        del contents[name]

    def names(_):
        assert sorted(os.listdir(base)) == sorted(contents), "the names"

    counts_of_names = []
    operations = [write] * 5 + [append] * 3 + [truncate] * 2 + [check] * 3 + [rename, remove, names]
    for _ in range(request["steps"]):
        if len(contents) < 3 or (len(contents) < 8 and source.random() < 0.1):
            create()
            continue
        operation = source.choice(operations)
        operation(source.choice(sorted(contents)))
        counts[operation.__name__] = counts.get(operation.__name__, 0) + 1
    for name in contents:
        check(name)
    digests = {name: digest(content) for name, content in contents.items()}
    return {"digests": digests, "counts": counts}


def records(request):
    """Writes records into one file, each with fsync. After an error the record is written again through
    a new open file: what fsync has confirmed must stay."""
    path, size = request["path"], request["record_bytes"]
    source = random.Random(request["seed"])
    content = b""
    retries = 0
    descriptor = -1
    for number in range(request["records"]):
        record = source.randbytes(size)
        deadline = time.monotonic() + request["limit_s"]
        while True:
            try:
                if descriptor < 0:
                    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                os.pwrite(descriptor, record, number * size)
                os.fsync(descriptor)
                break
            except OSError:
                retries += 1
                if time.monotonic() > deadline:
                    raise
                try:
                    if descriptor >= 0:
                        os.close(descriptor)
                except OSError:
                    pass
                descriptor = -1
                time.sleep(0.1)
        content += record
    os.close(descriptor)
    return {"digests": {os.path.basename(path): digest(content)}, "retries": retries}


def locks(request):
    """Takes byte-range locks of one file through two mounts; a range has one holder."""
    path, other_path = request["path"], request["other_path"]
    write_whole(path, bytes(1_000))
    first = os.open(path, os.O_RDWR)
    refused = []
    fcntl.lockf(first, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 0)
    # A process's own locks never conflict with each other.
    child = os.fork()
    if child == 0:
        status = 0
        try:
            second = os.open(other_path, os.O_RDWR)
            fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 200)
            try:
                fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 50)
                status = 1
            except OSError:
                pass
        except BaseException:
            status = 2
        os._exit(status)
    refused.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0)
    fcntl.lockf(first, fcntl.LOCK_UN, 100, 0)
    second = os.open(other_path, os.O_RDWR)
    fcntl.lockf(second, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, 50)
    os.close(second)
    os.close(first)
    return {"refused": all(refused)}


ACTIONS = {
    action.__name__.replace("_", "-"): action
    for action in (
        shell, forget, small_read, small_write, walk, read_blocks, write_blocks,
        make_tree, read_tree, model, records, locks,
    )
}


def open_port():
    base = "/sys/class/virtio-ports"
    for port in os.listdir(base):
        with open(base + "/" + port + "/name") as file:
            if file.read().strip() == PORT:
                return open("/dev/" + port, "r+b", buffering=0)
    raise SystemExit("there is no port " + PORT)


def main():
    port = open_port()
    port.write(b'{"id":0,"ok":{}}\n')
    waiting = b""
    while True:
        received = port.read(64 * 1024)
        if not received:
            # Nobody is connected at the moment.
            time.sleep(0.05)
            continue
        waiting += received
        while b"\n" in waiting:
            line, waiting = waiting.split(b"\n", 1)
            request = eval(line.decode(), dict(NAMES))
            try:
                answer = {"id": request["id"], "ok": ACTIONS[request["do"]](request)}
            except Exception as error:
                place = error.__traceback__
                while place.tb_next:
                    place = place.tb_next
                said = "%s: %s (agent.py:%d)" % (type(error).__name__, error, place.tb_lineno)
                answer = {"id": request["id"], "error": said}
            rest = memoryview((to_json(answer) + "\n").encode())
            while rest:
                rest = rest[port.write(rest):]


main()
