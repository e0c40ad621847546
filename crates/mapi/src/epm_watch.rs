//! Both halves of a connection to an endpoint mapper: its bytes pass as they come, and the server's
//! answers are read beside that.
//!
//! Each node watches, so that each knows the ports. Where the connection is not read (encrypted
//! answers, another interface, no DCE/RPC), nothing is learnt and nothing else changes.

use std::net::IpAddr;

use accelerate::passthrough::Passthrough;
use accelerate::shared::SharedHandle;
use accelerate::{AcceleratorHalf, AcceleratorInput, AcceleratorOutput, WanEnd};
use vocab::Time;

use crate::epm::{EPT, mapped_ports};
use crate::learnt_ports::LearntPorts;
use crate::rpc::association::RpcAssociation;
use crate::rpc::calls::{CallGatherer, GatheredFragment};
use crate::rpc::pdu::PduKind;
use crate::rpc::splitter::{PduSplitter, RawPdu};

/// A half that watches (see the head of this file).
pub(crate) struct EndpointWatch {
    half: WanEnd,
    pass: Passthrough,
    server: IpAddr,
    learnt: SharedHandle<LearntPorts>,
    reader: Option<AnswerReader>,
}

/// The state of reading one connection to an endpoint mapper.
#[derive(Default)]
struct AnswerReader {
    from_client: PduSplitter,
    from_server: PduSplitter,
    association: RpcAssociation,
    answers: CallGatherer,
}

impl EndpointWatch {
    /// A half that has not started.
    pub(crate) fn new(half: WanEnd, server: IpAddr, learnt: SharedHandle<LearntPorts>) -> Self {
        Self {
            half,
            pass: Passthrough::new(half),
            server,
            learnt,
            reader: Some(AnswerReader::default()),
        }
    }

    fn watch(&mut self, now: Time, input: &AcceleratorInput) {
        let (bytes, is_from_lan) = match input {
            AcceleratorInput::Lan(bytes) => (bytes, true),
            AcceleratorInput::Wan(segment) if crate::protected::is_bytes(segment) => {
                (&segment.bytes, false)
            }
            AcceleratorInput::Wan(_)
            | AcceleratorInput::Start
            | AcceleratorInput::LanFinished
            | AcceleratorInput::WanFinished
            | AcceleratorInput::WanSilent(_)
            | AcceleratorInput::Timeout
            | AcceleratorInput::Server(..)
            | AcceleratorInput::ClaimGranted
            | AcceleratorInput::ClaimRevoked
            | AcceleratorInput::ClaimDenied
            | AcceleratorInput::Content(_)
            | AcceleratorInput::Woken => return,
        };
        let Some(reader) = &mut self.reader else {
            return;
        };
        let is_from_client = is_from_lan == (self.half == WanEnd::Near);
        match reader.read(is_from_client, bytes) {
            Some(stubs) => {
                for stub in stubs {
                    let ports = mapped_ports(&stub);
                    let server = self.server;
                    self.learnt.with(|learnt| learnt.learn(now, server, &ports));
                }
            }
            None => self.reader = None,
        }
    }
}

impl AnswerReader {
    /// Reads bytes, and returns the stubs of the answers that end in them; `None` where the
    /// connection is not understood any more.
    fn read(&mut self, is_from_client: bool, bytes: &[u8]) -> Option<Vec<bytes::Bytes>> {
        let mut stubs = Vec::new();
        let splitter = match is_from_client {
            true => &mut self.from_client,
            false => &mut self.from_server,
        };
        splitter.push(bytes);
        loop {
            let splitter = match is_from_client {
                true => &mut self.from_client,
                false => &mut self.from_server,
            };
            let Some(pdu) = splitter.next_pdu().ok()? else {
                return Some(stubs);
            };
            match is_from_client {
                true => self.association.client_sent(&pdu),
                false => stubs.extend(self.answer(pdu)?),
            }
        }
    }

    fn answer(&mut self, pdu: RawPdu) -> Option<Option<bytes::Bytes>> {
        self.association.server_sent(&pdu);
        let interface = pdu
            .context_id()
            .and_then(|id| self.association.interface(id));
        if pdu.header.kind != PduKind::Response || interface != Some(&EPT) {
            return Some(None);
        }
        match self.answers.fragment(pdu) {
            GatheredFragment::Whole(call) => Some(Some(call.stub)),
            GatheredFragment::Partial => Some(None),
            GatheredFragment::Refused(_) => None,
        }
    }

    fn held(&self) -> usize {
        self.from_client.held() + self.from_server.held() + self.answers.held()
    }
}

impl AcceleratorHalf for EndpointWatch {
    fn handle(&mut self, now: Time, input: AcceleratorInput) {
        self.watch(now, &input);
        self.pass.handle(now, input);
    }

    fn poll_output(&mut self) -> Option<AcceleratorOutput> {
        self.pass.poll_output()
    }

    fn buffered(&self) -> usize {
        self.reader.as_ref().map_or(0, AnswerReader::held)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use vocab::FlowSegment;

    use super::*;
    use crate::emsmdb::EMSMDB;
    use crate::testing::{bind, bind_ack, map_answer, response};

    /// The halves' outputs of an exchange with an endpoint mapper, and the learnt ports.
    fn watched(half: WanEnd, client: &[u8], server: &[u8]) -> (Vec<u8>, bool) {
        let learnt = SharedHandle::new(LearntPorts::default());
        let address: IpAddr = [198, 18, 0, 2].into();
        let mut watch = EndpointWatch::new(half, address, learnt.clone());
        let mut passed = Vec::new();
        let mut hand = |input| {
            watch.handle(Time::ZERO, input);
            while let Some(output) = watch.poll_output() {
                match output {
                    AcceleratorOutput::ToLan(bytes) => passed.extend(bytes),
                    AcceleratorOutput::ToWan(segment) => passed.extend(segment.bytes),
                    _ => {}
                }
            }
        };
        let lan = |bytes: &[u8]| AcceleratorInput::Lan(Bytes::copy_from_slice(bytes));
        let wan = |bytes: &[u8]| {
            AcceleratorInput::Wan(FlowSegment::payload(Bytes::copy_from_slice(bytes)))
        };
        match half {
            WanEnd::Near => {
                hand(lan(client));
                hand(wan(server));
            }
            WanEnd::Far => {
                hand(wan(client));
                hand(lan(server));
            }
        }
        let knows = learnt.with(|learnt| learnt.serve(Time::ZERO, (address, 6001).into()));
        (passed, knows)
    }

    #[test]
    fn both_ends_learn_ports_and_pass_every_byte() {
        let client = bind(1, &[(0, EPT)], None);
        let answer = response(2, &map_answer(&[(EMSMDB, 6001)]));
        let server = [bind_ack(1, "135", &[0], None), answer].concat();
        for half in [WanEnd::Near, WanEnd::Far] {
            let (passed, knows) = watched(half, &client, &server);
            assert_eq!(passed, [client.clone(), server.clone()].concat());
            assert!(knows, "{half:?}");
        }
    }

    #[test]
    fn other_interfaces_and_garbage_teach_nothing() {
        let answer = response(2, &map_answer(&[(EMSMDB, 6001)]));
        let server = [bind_ack(1, "135", &[0], None), answer].concat();
        let other = bind(1, &[(0, [9; 16])], None);
        for client in [&other[..], b"GET / HTTP/1.1\r\n\r\n"] {
            let (passed, knows) = watched(WanEnd::Near, client, &server);
            assert_eq!(passed, [client, &server].concat());
            assert!(!knows);
        }
    }
}
