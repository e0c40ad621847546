//! MAPI over HTTP on the connections of the accelerator `http`: in clear, and inside HTTPS that it decrypts.

use accelerate::http::wire::RequestHead;
use accelerate::shared::SharedHandle;
use accelerate::{AcceleratorHalf, CarriedFlow, CarriedProtocol, WanEnd};
use bytes::Bytes;

use super::{HttpMailFarHalf, HttpMailNearHalf, SequenceTable};
use crate::rop::tactics::{SessionPlace, SessionTable};

/// The beginning of the paths of mailboxes and address books ([MS-OXCMAPIHTTP] §2.2.1), in lower case.
const MAPI_PATH: &[u8] = b"/mapi/";

/// Builder of halves of MAPI over HTTP, with the state that all flows of a node share.
#[derive(Clone, Debug)]
pub(crate) struct HttpMailProtocol {
    pub(crate) sessions: SharedHandle<SessionTable>,
    pub(crate) sequences: SharedHandle<SequenceTable>,
}

impl HttpMailProtocol {
    /// The far half of a flow.
    pub(crate) fn far(&self, flow: CarriedFlow) -> HttpMailFarHalf {
        let server = flow.server.ip();
        let sessions = self.sessions.clone();
        let place = SessionPlace::new(sessions, flow.flow, flow.client.ip(), server);
        let sequences = self.sequences.clone();
        HttpMailFarHalf::new(flow.may_store, server, flow.flow, place, sequences)
    }
}

impl CarriedProtocol for HttpMailProtocol {
    fn number(&self) -> u8 {
        crate::ENTRY.number
    }

    fn name(&self) -> &'static str {
        crate::ENTRY.name
    }

    fn begins_with(&self, head: &[u8]) -> bool {
        let Ok(head) = RequestHead::parse(Bytes::copy_from_slice(head)) else {
            return false;
        };
        let path = head.target().get(..MAPI_PATH.len());
        head.method() == b"POST"
            && path.is_some_and(|path| path.eq_ignore_ascii_case(MAPI_PATH))
            && head.fields.has("x-requesttype")
    }

    fn build(&self, half: WanEnd, flow: CarriedFlow) -> Box<dyn AcceleratorHalf> {
        match half {
            WanEnd::Near => Box::new(HttpMailNearHalf::new(flow.may_store)),
            WanEnd::Far => Box::new(self.far(flow)),
        }
    }
}
