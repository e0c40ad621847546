//! Peer that lets go of flows for every possible reason byte, including those of later releases.

use accelerate::registry::AcceleratorReason;
use accelerate::{FrameKind, ReasonCode, ReasonSource, smb};
use bytes::Bytes;
use reduce::{Dictionary, DictionaryConfig, EncoderConfig, FlowEncoder, PeerSlot};
use tunnel::ResetReason;
use vocab::{ByteCount, FlowSegment, SeededRandom, Time};

use crate::site::{HOSTILE, SERVER, TestSite};

/// The segments as an encoder sends them.
fn encoded(segments: [FlowSegment; 2]) -> Bytes {
    let now = Time::from_nanos(1);
    let dictionary = DictionaryConfig {
        memory: ByteCount::mebibytes(1),
        ..DictionaryConfig::default()
    };
    let mut dictionary = Dictionary::new(dictionary, SeededRandom::from_seed(3));
    let mut encoder = FlowEncoder::new(EncoderConfig::default(), PeerSlot::UNTRACKED);
    for segment in segments {
        encoder.push(now, segment);
    }
    let mut stream = Vec::new();
    while let Some(bytes) = encoder.poll_encoded(now, &mut dictionary, 1 << 20) {
        stream.extend_from_slice(&bytes);
    }
    stream.into()
}

#[test]
fn unknown_reason_is_shown_by_number() {
    let mut site = TestSite::new();
    let mut unknown = 0;
    for number in 0..=u8::MAX {
        let open = tunnel::OpenRequest {
            accelerator: smb::ENTRY.number,
            ..TestSite::open_to(HOSTILE, SERVER.into())
        };
        let flow = site.peers[HOSTILE].session.open(site.now, open).unwrap();
        site.exchange();
        let released = Bytes::copy_from_slice(&[FrameKind::Released.to_byte(), number]);
        let request = format!("request {number}");
        let segments = [
            FlowSegment::frame(released),
            FlowSegment::payload(Bytes::from(request.clone())),
        ];
        let stream = encoded(segments);
        assert_eq!(site.write(HOSTILE, flow, &stream), stream.len());
        let mut connections = site.connections.values();
        assert!(connections.any(|at| at.written == request.as_bytes()));

        let code = ReasonCode::new(number);
        let meaning = AcceleratorReason {
            accelerator: &smb::ENTRY,
            code,
        }
        .explanation(ReasonSource::Peer("peer 0"));
        let shown = why_not(&site, u64::from(number) + 1);
        assert!(shown.starts_with(&*meaning.text), "{shown}");
        if shown.contains("this release does not know") {
            unknown += 1;
            assert!(shown.contains(&format!("code {number} of")), "{shown}");
        }
        site.peers[HOSTILE]
            .session
            .reset(flow, ResetReason::HostReset);
        site.exchange();
    }
    assert_eq!(unknown, 256 - 17);
}

/// Returns the output of `why` for the flow's accelerator.
fn why_not(site: &TestSite, flow: u64) -> String {
    let why = site.engine.why(site.now, flow).expect("the flow is known");
    let mut stages = why.stages.into_iter();
    let stage = stages.find(|stage| stage.stage == "accelerate");
    stage.and_then(|stage| stage.why_not).unwrap_or_default()
}
