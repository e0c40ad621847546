//! Connections inside TLS whose first request shows another accelerator's protocol.

use vocab::FlowSegment;

use super::*;
use crate::WanEnd;

/// A protocol whose halves send each other their hosts' bytes with all bits inverted, so that a host
/// gets its peer's bytes only through both halves.
#[derive(Debug)]
struct InvertingProtocol;

impl CarriedProtocol for InvertingProtocol {
    fn number(&self) -> u8 {
        9
    }

    fn name(&self) -> &'static str {
        "inverting"
    }

    fn begins_with(&self, head: &[u8]) -> bool {
        head.starts_with(b"GET /inverted")
    }

    fn build(&self, _: WanEnd, flow: CarriedFlow) -> Box<dyn AcceleratorHalf> {
        Box::new(InvertingHalf {
            may_store: flow.may_store,
            outputs: Vec::new(),
        })
    }
}

struct InvertingHalf {
    may_store: bool,
    outputs: Vec<AcceleratorOutput>,
}

fn inverted(bytes: &[u8]) -> Bytes {
    bytes.iter().map(|byte| !byte).collect()
}

impl AcceleratorHalf for InvertingHalf {
    fn handle(&mut self, _: Time, input: AcceleratorInput) {
        let output = match input {
            AcceleratorInput::Lan(bytes) if self.may_store => {
                AcceleratorOutput::ToWan(FlowSegment::payload(inverted(&bytes)))
            }
            AcceleratorInput::Lan(bytes) => {
                AcceleratorOutput::ToWan(FlowSegment::control(inverted(&bytes)))
            }
            AcceleratorInput::Wan(segment) => AcceleratorOutput::ToLan(inverted(&segment.bytes)),
            AcceleratorInput::Start => AcceleratorOutput::OpenServer,
            _ => return,
        };
        self.outputs.push(output);
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        (!self.outputs.is_empty()).then(|| self.outputs.remove(0))
    }

    fn answered(&self) -> u64 {
        7
    }
}

#[test]
fn first_request_inside_tls_decides_who_works() {
    let (ours, theirs) = (TestAuthority::new("ours"), TestAuthority::new("theirs"));
    for (target, may_store, answered) in [
        ("/inverted", true, 7),
        ("/inverted", false, 7),
        ("/other", true, 0),
    ] {
        let origin = TestOrigin::new(&theirs, NAME, NOW + 1_000_000);
        let mut near = settings(Some(&ours), None);
        near.may_store_decrypted = may_store;
        let far = settings(None, Some(&theirs));
        let mut sites = InterceptingSites::with(near, Some(far), origin);
        sites.carriable = Arc::new([Arc::new(InvertingProtocol)]);
        let mut path = sites.connect();
        let mut client = path.client(trusting(&ours));
        let request = format!("GET {target} HTTP/1.1\r\nHost: {NAME}\r\n\r\n");
        // The head of the first request comes in two pieces.
        let (first, second) = request.split_at(12);
        client.send(first.as_bytes());
        path.converse(&mut client);
        client.send(second.as_bytes());
        let (answer, error) = path.converse(&mut client);
        assert_eq!(error, None, "{target}");
        assert!(answer.ends_with(b"\r\n\r\nhello"), "{target}");
        assert_eq!(path.own.log, request.as_bytes(), "{target}");
        let (near, _) = path.halves.as_ref().unwrap();
        assert_eq!(near.answered(), answered, "{target}");
        let note = near.note().unwrap();
        assert_eq!(note.contains("inverting"), answered > 0, "{note}");
        let has_payload = path.segments.contains(&SegmentKind::Payload);
        assert_eq!(has_payload, may_store, "{target}");
    }
}
