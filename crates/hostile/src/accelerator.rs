//! Entries of `accelerate`: naming a protocol by its first bytes, and every registered half.

use accelerate::{Half, Input, LettingGo, Output, detect, registry};
use bytes::Bytes;
use vocab::{Segment, Time};

use crate::Script;
use crate::seed::{Seed, seed, sized};

/// Outputs after one input past which a half is taken to be in a circle.
const MOST_OUTPUTS: usize = 10_000;

/// Any first bytes have a protocol or none.
pub(crate) fn first_bytes(bytes: &[u8]) {
    let _ = detect::by_first_bytes(bytes);
    let looked_at = &bytes[..bytes.len().min(detect::LOOK_LIMIT)];
    assert_eq!(
        detect::by_first_bytes(bytes),
        detect::by_first_bytes(looked_at),
        "detection looked further than it says"
    );
}

/// Drives one half of one accelerator with any inputs in any order. It ends each drain, asks for
/// no time in the past while it has nothing to say, and says nothing more once it has let go.
pub(crate) fn halves(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let entry = &registry::ENTRIES[usize::from(script.byte()) % registry::ENTRIES.len()];
    let side = if script.byte().is_multiple_of(2) {
        Half::Near
    } else {
        Half::Far
    };
    let mut half = (entry.build)(side);
    let mut now = Time::default();
    half.handle(now, Input::Start);
    while let Some(step) = script.step() {
        // The engine drops a half that has let go.
        if drain(half.as_mut()) {
            return;
        }
        let input = match step % 8 {
            0 | 1 => Input::Lan(Bytes::copy_from_slice(script.bytes())),
            2 => Input::Wan(Segment::payload(Bytes::copy_from_slice(script.bytes()))),
            3 => Input::Wan(Segment::control(Bytes::copy_from_slice(script.bytes()))),
            4 => Input::Wan(Segment::frame(Bytes::copy_from_slice(script.bytes()))),
            5 => Input::LanFinished,
            6 => Input::WanFinished,
            _ => {
                let Some(at) = half.poll_timeout() else {
                    continue;
                };
                now = now.max(at);
                Input::Timeout
            }
        };
        half.handle(now, input);
    }
    drain(half.as_mut());
}

/// Takes all outputs; whether the half let go.
fn drain(half: &mut dyn accelerate::Accelerator) -> bool {
    let mut gone = false;
    for _ in 0..MOST_OUTPUTS {
        match half.poll_output() {
            None => return gone,
            Some(output) => {
                assert!(!gone, "{output:?} after letting go");
                gone = matches!(
                    output,
                    Output::LettingGo(LettingGo::LetGo { .. } | LettingGo::Close { .. })
                );
            }
        }
    }
    panic!("more than {MOST_OUTPUTS} outputs after one input");
}

/// Good inputs for [`first_bytes`].
pub(crate) fn first_bytes_seeds() -> Vec<Seed> {
    let tls: &[u8] = &[0x16, 0x03, 0x01, 0x02, 0x00, 0x01];
    let smb2: &[u8] = b"\0\0\0\x40\xfeSMB\x40\0\0\0";
    let smb1: &[u8] = b"\0\0\0\x40\xffSMBr\0\0\0";
    let encrypted: &[u8] = b"\0\0\0\x40\xfdSMB\0\0\0\0";
    vec![
        seed("http", b"GET /index.html HTTP/1.1\r\nHost: a\r\n\r\n"),
        seed("http-answer", b"HTTP/1.1 200 OK\r\n\r\n"),
        seed("ftp", b"220 (vsFTPd 3.0.3)\r\n"),
        seed("smtp", b"220 mail.example ESMTP\r\n"),
        seed("ssh", b"SSH-2.0-OpenSSH_9.2\r\n"),
        seed("tls", tls),
        seed("smb2", smb2),
        seed("smb1", smb1),
        seed("smb3-encrypted", encrypted),
    ]
}

/// Good inputs for [`halves`].
pub(crate) fn halves_seeds() -> Vec<Seed> {
    let request = sized(b"GET / HTTP/1.1\r\n\r\n");
    let answer = sized(b"HTTP/1.1 204 No Content\r\n\r\n");
    let released = sized(&[0]);
    let near = [&[0, 0, 0][..], &request, &[5, 2], &answer, &[6]].concat();
    let far = [&[0, 1, 2][..], &request, &[6, 0], &answer, &[5]].concat();
    let released = [&[0, 0, 4][..], &released, &[0], &request].concat();
    vec![
        seed("near", near),
        seed("far", far),
        seed("released", released),
    ]
}
