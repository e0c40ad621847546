#!/usr/bin/env python3
"""Makes office documents, and the same ones edited in place, from a seed.

    scripts/office-documents.py DIR

writes DIR/before and DIR/after with documents (.docx), workbooks (.xlsx) and a presentation with
pictures (.pptx): zip archives with deflated XML as office programs write them, pictures stored. After
is before with a few words, cells or a slide's text changed and everything packed again, which is what
"save" does. They need no office program, and are the same on every machine with the same zlib.
"""

import io
import os
import random
import struct
import sys
import zipfile
import zlib

SEED = 20
CONTENT_TYPES = '<?xml version="1.0" encoding="UTF-8"?><Types xmlns="http://schemas.openxmlformats.org/package/2006/content-types"><Default Extension="xml" ContentType="application/xml"/><Default Extension="png" ContentType="image/png"/></Types>'
STYLE = '<w:rPr><w:rFonts w:ascii="Liberation Sans" w:hAnsi="Liberation Sans"/><w:sz w:val="22"/><w:lang w:val="en-GB"/></w:rPr>'


def words(rng, vocabulary, count):
    size = len(vocabulary)
    return [vocabulary[int(size * rng.random() ** 3)] for _ in range(count)]


def vocabulary(rng):
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    return ["".join(letters[int(26 * rng.random() ** 2)] for _ in range(rng.randint(2, 10))) for _ in range(8000)]


def picture(rng, width, height):
    """A PNG that compresses as a photograph does: noise over a slope."""
    rows = bytearray()
    for y in range(height):
        rows.append(0)
        rows += bytes((x * 255 // width + y * 64 // height + rng.randrange(48)) & 255 for x in range(width))

    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(rows))) + chunk(b"IEND", b"")


def paragraph(text):
    return f'<w:p><w:pPr><w:pStyle w:val="TextBody"/></w:pPr><w:r>{STYLE}<w:t>{text}</w:t></w:r></w:p>'


def cell(column, row, value):
    return f'<c r="{column}{row}" s="3"><v>{value}</v></c>'


def pack(path, parts):
    """Writes a zip archive; pictures are stored, XML is deflated."""
    with open(path, "wb") as out, zipfile.ZipFile(out, "w") as archive:
        for name, body in parts.items():
            info = zipfile.ZipInfo(name, date_time=(2024, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_STORED if name.endswith(".png") else zipfile.ZIP_DEFLATED
            archive.writestr(info, body)


def documents(rng, known):
    for number in range(12):
        paragraphs = [" ".join(words(rng, known, rng.randint(30, 120))) for _ in range(rng.randint(150, 600))]
        parts = {"[Content_Types].xml": CONTENT_TYPES}
        for image in range(rng.randint(1, 4)):
            parts[f"word/media/image{image + 1}.png"] = picture(rng, 480, 320)
        after = list(paragraphs)
        for _ in range(3):
            index = rng.randrange(len(after))
            after[index] += " " + " ".join(words(rng, known, 6))
        for state, text in (("before", paragraphs), ("after", after)):
            body = "".join(map(paragraph, text))
            whole = {**parts, "word/document.xml": f"<w:document><w:body>{body}</w:body></w:document>"}
            yield state, f"report-{number:02}.docx", whole


def workbooks(rng):
    for number in range(8):
        rows = [[round(rng.gauss(1000, 250), 2) for _ in range(12)] for _ in range(rng.randint(1500, 4000))]
        after = [list(row) for row in rows]
        for _ in range(5):
            after[rng.randrange(len(after))][rng.randrange(12)] = round(rng.gauss(1000, 250), 2)
        for state, table in (("before", rows), ("after", after)):
            body = io.StringIO()
            for index, row in enumerate(table, 1):
                body.write(f'<row r="{index}">')
                body.writelines(cell("ABCDEFGHIJKL"[column], index, value) for column, value in enumerate(row))
                body.write("</row>")
            sheet = f"<worksheet><sheetData>{body.getvalue()}</sheetData></worksheet>"
            yield state, f"figures-{number:02}.xlsx", {"[Content_Types].xml": CONTENT_TYPES, "xl/worksheets/sheet1.xml": sheet}


def presentation(rng, known):
    parts = {"[Content_Types].xml": CONTENT_TYPES}
    slides = [" ".join(words(rng, known, 60)) for _ in range(40)]
    for image in range(12):
        parts[f"ppt/media/image{image + 1}.png"] = picture(rng, 640, 480)
    after = list(slides)
    after[17] = " ".join(words(rng, known, 60))
    for state, texts in (("before", slides), ("after", after)):
        whole = dict(parts)
        for index, text in enumerate(texts, 1):
            whole[f"ppt/slides/slide{index}.xml"] = f"<p:sld><p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sld>"
        yield state, "meeting.pptx", whole


def main():
    if len(sys.argv) != 2:
        sys.exit("usage: scripts/office-documents.py DIR")
    rng = random.Random(SEED)
    known = vocabulary(rng)
    for state in ("before", "after"):
        os.makedirs(os.path.join(sys.argv[1], state), exist_ok=True)
    for made in (documents(rng, known), workbooks(rng), presentation(rng, known)):
        for state, name, parts in made:
            pack(os.path.join(sys.argv[1], state, name), parts)


main()
