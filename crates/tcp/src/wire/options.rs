//! Options of the TCP header, in the order in which Linux writes them.

use crate::segment::{SackBlocks, SegmentOptions, TimestampOption};

const END: u8 = 0;
const NO_OPERATION: u8 = 1;
const MSS: u8 = 2;
const WINDOW_SCALE: u8 = 3;
const SACK_PERMITTED: u8 = 4;
const SACK: u8 = 5;
const TIMESTAMPS: u8 = 8;

/// Greatest shift count, RFC 7323 §2.3.
const WINDOW_SCALE_MAX: u8 = 14;

/// Appends the options; their length is [`SegmentOptions::wire_length`].
pub(super) fn emit(out: &mut Vec<u8>, options: &SegmentOptions) {
    if let Some(mss) = options.mss {
        out.extend_from_slice(&[MSS, 4]);
        out.extend_from_slice(&mss.to_be_bytes());
    }
    let padding = if options.sack_permitted {
        [SACK_PERMITTED, 2]
    } else {
        [NO_OPERATION; 2]
    };
    if let Some(timestamps) = options.timestamps {
        out.extend_from_slice(&padding);
        out.extend_from_slice(&[TIMESTAMPS, 10]);
        out.extend_from_slice(&timestamps.value.to_be_bytes());
        out.extend_from_slice(&timestamps.echo.to_be_bytes());
    } else if options.sack_permitted {
        out.extend_from_slice(&[NO_OPERATION; 2]);
        out.extend_from_slice(&padding);
    }
    if let Some(shift) = options.window_scale {
        out.extend_from_slice(&[NO_OPERATION, WINDOW_SCALE, 3, shift]);
    }
    let blocks = options.sack.as_slice();
    if !blocks.is_empty() {
        let length = 2 + 8 * blocks.len() as u8;
        out.extend_from_slice(&[NO_OPERATION, NO_OPERATION, SACK, length]);
        for (start, end) in blocks {
            out.extend_from_slice(&start.to_be_bytes());
            out.extend_from_slice(&end.to_be_bytes());
        }
    }
}

/// Reads the known options. A damaged option ends the list, as RFC 9293 §3.2 allows.
pub(super) fn parse(mut bytes: &[u8]) -> SegmentOptions {
    let mut options = SegmentOptions::default();
    while let [kind, rest @ ..] = bytes {
        match *kind {
            END => break,
            NO_OPERATION => {
                bytes = rest;
                continue;
            }
            _ => {}
        }
        let Some(length) = rest.first().map(|length| usize::from(*length)) else {
            break;
        };
        let Some(body) = bytes.get(2..length) else {
            break;
        };
        parse_one(&mut options, *kind, body);
        bytes = &bytes[length..];
    }
    options
}

fn parse_one(options: &mut SegmentOptions, kind: u8, body: &[u8]) {
    let word = |at: usize| {
        let bytes = body.get(at..at + 4).and_then(|four| four.try_into().ok());
        bytes.map_or(0, u32::from_be_bytes)
    };
    match (kind, body) {
        (MSS, [high, low]) => options.mss = Some(u16::from_be_bytes([*high, *low])),
        (WINDOW_SCALE, [shift]) => options.window_scale = Some((*shift).min(WINDOW_SCALE_MAX)),
        (SACK_PERMITTED, []) => options.sack_permitted = true,
        (TIMESTAMPS, body) if body.len() == 8 => {
            options.timestamps = Some(TimestampOption {
                value: word(0),
                echo: word(4),
            });
        }
        (SACK, body) if body.len() % 8 == 0 => {
            let mut blocks = SackBlocks::default();
            for at in (0..body.len()).step_by(8) {
                blocks.push(word(at), word(at + 4));
            }
            options.sack = blocks;
        }
        _ => {}
    }
}
