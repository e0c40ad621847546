//! Entries of `vocab`: the cursor over wire bytes, and quantities written by people.

use std::fmt::Debug;
use std::str::FromStr;

use vocab::{Bitrate, ByteCount, ByteReader, ByteWriter, NodeId, Probability, parse_duration};

use crate::ByteScript;
use crate::seed::{CorpusSeed, seed, sized};

/// Reads by a script of calls. A call that fails takes nothing, one that succeeds takes the bytes
/// it returns, and a variable-length integer can be written again in no more bytes.
pub(crate) fn cursor(bytes: &[u8]) {
    let mut script = ByteScript::new(bytes);
    let mut reader = ByteReader::new(script.bytes());
    while let Some(step) = script.step() {
        let before = reader.remaining();
        let expected = match step % 8 {
            0 => reader.u8().map_or(0, |_| 1),
            1 => reader.u16().map_or(0, |_| 2),
            2 => reader.u32().map_or(0, |_| 4),
            3 => reader.u64().map_or(0, |_| 8),
            4 => reader.array::<12>().map_or(0, |array| array.len()),
            5 => reader
                .bytes(usize::from(script.short()))
                .map_or(0, <[u8]>::len),
            6 => {
                let value = reader.varint();
                let taken = before - reader.remaining();
                if let Ok(value) = value {
                    let mut writer = ByteWriter::new();
                    writer.varint(value);
                    let written = writer.finish();
                    assert!(written.len() <= taken, "{value} grew when written");
                    assert_eq!(ByteReader::new(&written).varint(), Ok(value));
                }
                taken
            }
            _ => {
                // Of a string that is cut, the length has been taken.
                let _ = reader.prefixed();
                before - reader.remaining()
            }
        };
        assert_eq!(before - reader.remaining(), expected);
    }
}

/// Quantities as people write them: whatever is read can be shown and read again.
pub(crate) fn units(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    is_readable_when_shown::<Bitrate>(text);
    is_readable_when_shown::<ByteCount>(text);
    is_readable_when_shown::<Probability>(text);
    is_readable_when_shown::<NodeId>(text);
    if let Ok(span) = parse_duration(text) {
        let shown = vocab::format_duration(span);
        assert!(
            parse_duration(&shown).is_ok(),
            "{text:?} is shown as {shown:?}"
        );
    }
}

fn is_readable_when_shown<T: FromStr + ToString + Debug>(text: &str) {
    let Ok(value) = text.parse::<T>() else {
        return;
    };
    let shown = value.to_string();
    assert!(shown.parse::<T>().is_ok(), "{text:?} is shown as {shown:?}");
}

/// Good inputs for [`cursor`].
pub(crate) fn cursor_seeds() -> Vec<CorpusSeed> {
    let mut writer = ByteWriter::new();
    writer
        .u8(1)
        .u16(2)
        .u32(3)
        .u64(4)
        .varint(63)
        .varint(15_293)
        .varint(494_878_333)
        .varint(1 << 60)
        .prefixed(b"name");
    let message = sized(&writer.finish());
    let calls: &[u8] = &[0, 1, 2, 3, 6, 6, 6, 6, 7];
    vec![
        seed("every-kind", [&message, calls].concat()),
        seed("cut", [&message[..9], calls].concat()),
        seed("empty", [sized(b""), calls.to_vec()].concat()),
    ]
}

/// Good inputs for [`units`].
pub(crate) fn units_seeds() -> Vec<CorpusSeed> {
    [
        ("rate", "51.84Mbit"),
        ("rate-per-second", "10Gbit/s"),
        ("size", "64KiB"),
        ("size-decimal", "125kB"),
        ("probability", "0.05%"),
        ("fraction", "0.0005"),
        ("time", "250ms"),
        ("time-micro", "20µs"),
        ("huge", "99999999999999999999Gbit"),
        ("negative", "-1s"),
        (
            "node",
            "a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5",
        ),
    ]
    .into_iter()
    .map(|(name, text)| seed(name, text.as_bytes()))
    .collect()
}
