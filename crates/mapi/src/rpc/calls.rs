//! Gathers the fragments of calls, in one direction.
//!
//! Fragments of several calls may be mixed where the hosts multiplex calls. Each call's fragments
//! come in order (C706 §12.6.2). What does not fit the rules, or is larger than any call of a
//! mailbox, is not gathered: its fragments pass as they are.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};

use super::pdu::{PduKind, pfc};
use super::splitter::RawPdu;

/// Calls that are gathered at a time.
pub const CALLS_MAX: usize = 32;
/// Bytes of one call's stub. The buffers of a call have 256 KiB and 4 KiB ([MS-OXCRPC] §3.1.4.2,
/// EcDoRpcExt2), and this is twice as much.
pub const STUB_MAX: usize = 512 << 10;
/// Bytes of all calls that are gathered.
pub const GATHERED_MAX: usize = 2 << 20;

/// A call, or the result of one, with its whole stub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatheredCall {
    /// The number of the call.
    pub call_id: u32,
    /// Its presentation context.
    pub context_id: u16,
    /// Its operation; `None` of results.
    pub opnum: Option<u16>,
    /// Its stub.
    pub stub: Bytes,
}

/// The state of a call after one more fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GatheredFragment {
    /// It was the last one.
    Whole(GatheredCall),
    /// Others follow.
    Partial,
    /// The call cannot be gathered. These are its earlier fragments; the last one is the present.
    Refused(Vec<RawPdu>),
}

/// Calls whose fragments have not all come.
#[derive(Debug, Default)]
pub struct CallGatherer {
    calls: BTreeMap<u32, Vec<RawPdu>>,
    held: usize,
}

impl CallGatherer {
    /// Takes a fragment of a request or a response.
    pub fn fragment(&mut self, pdu: RawPdu) -> GatheredFragment {
        let id = pdu.header.call_id;
        let is_first = pdu.header.has(pfc::FIRST);
        let is_last = pdu.header.has(pfc::LAST);
        let mut fragments = self.calls.remove(&id).unwrap_or_default();
        let held: usize = fragments.iter().map(|one| one.bytes.len()).sum();
        self.held -= held;
        let follows = fragments
            .first()
            .is_none_or(|first| is_continued(first, &pdu));
        let fits = held + pdu.bytes.len() <= STUB_MAX
            && self.held + held + pdu.bytes.len() <= GATHERED_MAX
            && self.calls.len() < CALLS_MAX;
        let is_due = is_first == fragments.is_empty();
        fragments.push(pdu);
        match (is_due && follows && fits, is_last) {
            (false, _) => GatheredFragment::Refused(fragments),
            (true, true) => GatheredFragment::Whole(gathered(&fragments)),
            (true, false) => {
                self.held += fragments.iter().map(|one| one.bytes.len()).sum::<usize>();
                self.calls.insert(id, fragments);
                GatheredFragment::Partial
            }
        }
    }

    /// Gives the fragments of a call back that are held, in their order.
    pub fn give_back(&mut self, call_id: u32) -> Vec<RawPdu> {
        let fragments = self.calls.remove(&call_id).unwrap_or_default();
        self.held -= fragments.iter().map(|one| one.bytes.len()).sum::<usize>();
        fragments
    }

    /// True if earlier fragments of this call are held.
    #[must_use]
    pub fn holds(&self, call_id: u32) -> bool {
        self.calls.contains_key(&call_id)
    }

    /// Gives all fragments back that are held.
    pub fn give_back_all(&mut self) -> Vec<RawPdu> {
        self.held = 0;
        let calls = std::mem::take(&mut self.calls);
        calls.into_values().flatten().collect()
    }

    /// The number of bytes that are held.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }
}

/// True if a fragment may continue the call of this first one.
fn is_continued(first: &RawPdu, next: &RawPdu) -> bool {
    first.header.kind == next.header.kind
        && first.context_id() == next.context_id()
        && first.opnum() == next.opnum()
}

fn gathered(fragments: &[RawPdu]) -> GatheredCall {
    let first = &fragments[0];
    let stub = match fragments {
        [only] => only.bytes.slice(only.unpadded_stub()),
        several => {
            let mut stub = BytesMut::new();
            for one in several {
                stub.extend_from_slice(&one.bytes[one.unpadded_stub()]);
            }
            stub.freeze()
        }
    };
    GatheredCall {
        call_id: first.header.call_id,
        context_id: first.context_id().unwrap_or_default(),
        opnum: first
            .opnum()
            .filter(|_| first.header.kind == PduKind::Request),
        stub,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    fn fragment(call_id: u32, flags: u8, stub: &[u8]) -> RawPdu {
        let mut bytes = request(call_id, 11, stub);
        bytes[3] = flags;
        RawPdu::parse(bytes.into()).unwrap()
    }

    #[test]
    fn mixed_calls_are_gathered_apart() {
        let mut calls = CallGatherer::default();
        let first = fragment(1, pfc::FIRST, b"ab");
        assert_eq!(calls.fragment(first), GatheredFragment::Partial);
        let other = calls.fragment(fragment(2, pfc::FIRST | pfc::LAST, b"xy"));
        assert!(matches!(other, GatheredFragment::Whole(call) if &call.stub[..] == b"xy"));
        assert_eq!(
            calls.fragment(fragment(1, 0, b"cd")),
            GatheredFragment::Partial
        );
        let GatheredFragment::Whole(whole) = calls.fragment(fragment(1, pfc::LAST, b"e")) else {
            panic!("the call is whole");
        };
        assert_eq!((&whole.stub[..], whole.opnum), (&b"abcde"[..], Some(11)));
        assert_eq!(calls.held(), 0);
    }

    #[test]
    fn fragments_out_of_order_are_given_back() {
        let mut calls = CallGatherer::default();
        let middle = fragment(1, 0, b"cd");
        let refused = calls.fragment(middle.clone());
        assert_eq!(refused, GatheredFragment::Refused(vec![middle]));
        let first = fragment(1, pfc::FIRST, b"ab");
        let _ = calls.fragment(first.clone());
        let refused = calls.fragment(first.clone());
        assert_eq!(
            refused,
            GatheredFragment::Refused(vec![first.clone(), first])
        );
        assert_eq!(calls.held(), 0);
    }

    #[test]
    fn fragment_floods_are_not_held() {
        let mut calls = CallGatherer::default();
        let stub = vec![0; 60_000];
        let mut refused = 0;
        for call_id in 0..1_000 {
            if let GatheredFragment::Refused(_) =
                calls.fragment(fragment(call_id, pfc::FIRST, &stub))
            {
                refused += 1;
            }
            assert!(calls.held() <= GATHERED_MAX);
        }
        assert_eq!(refused, 1_000 - calls.calls.len());
        let endless = (0..100).map(|at| {
            let flags = if at == 0 { pfc::FIRST } else { 0 };
            fragment(5_000, flags, &stub)
        });
        let mut calls = CallGatherer::default();
        let results: Vec<_> = endless.map(|one| calls.fragment(one)).collect();
        let is_refused = |one: &&GatheredFragment| matches!(one, GatheredFragment::Refused(_));
        assert!(results.iter().find(is_refused).is_some());
    }
}
