//! The agreement of the hosts of one connection: its presentation contexts and the sizes of
//! fragments.
//!
//! A presentation context counts once the server has accepted it; until then, and where another
//! transfer syntax than NDR 2.0 was agreed, its calls are not understood.

use std::collections::BTreeMap;

use super::bind::{BindAnswer, BindProposal};
use super::pdu::{PduKind, pfc};
use super::splitter::RawPdu;

/// Presentation contexts of one connection that are remembered. Clients of Exchange have three.
const CONTEXTS_MAX: usize = 256;
/// Proposals that wait for their answer at a time.
const PROPOSALS_MAX: usize = 16;
/// The least size of a fragment that both hosts take (C706 §12.6.2, Alignment and sizes:
/// MustRecvFragSize).
pub const FRAGMENT_MIN: u16 = 1_432;

/// The state of an association.
#[derive(Clone, Debug)]
pub struct RpcAssociation {
    proposed: BTreeMap<u32, BindProposal>,
    contexts: BTreeMap<u16, [u8; 16]>,
    /// Bytes of the largest fragment to the server.
    to_server: u16,
    /// Bytes of the largest fragment to the client.
    to_client: u16,
    client_multiplexes: bool,
    server_multiplexes: bool,
}

impl Default for RpcAssociation {
    fn default() -> Self {
        Self {
            proposed: BTreeMap::new(),
            contexts: BTreeMap::new(),
            to_server: FRAGMENT_MIN,
            to_client: FRAGMENT_MIN,
            client_multiplexes: false,
            server_multiplexes: false,
        }
    }
}

impl RpcAssociation {
    /// Looks at a PDU of the client.
    pub fn client_sent(&mut self, pdu: &RawPdu) {
        if matches!(pdu.header.kind, PduKind::Bind | PduKind::AlterContext)
            && self.proposed.len() < PROPOSALS_MAX
            && let Some(proposal) = BindProposal::parse(&pdu.bytes)
        {
            self.client_multiplexes |= pdu.header.has(pfc::MULTIPLEXED);
            self.proposed.insert(pdu.header.call_id, proposal);
        }
    }

    /// Looks at a PDU of the server.
    pub fn server_sent(&mut self, pdu: &RawPdu) {
        match pdu.header.kind {
            PduKind::BindAck | PduKind::AlterContextResponse => {
                let proposal = self.proposed.remove(&pdu.header.call_id);
                let answer = BindAnswer::parse(&pdu.bytes);
                if let (Some(proposal), Some(answer)) = (proposal, answer) {
                    self.server_multiplexes |= pdu.header.has(pfc::MULTIPLEXED);
                    self.agree(pdu.header.kind, &proposal, &answer);
                }
            }
            PduKind::BindNak | PduKind::Fault => {
                self.proposed.remove(&pdu.header.call_id);
            }
            PduKind::Request
            | PduKind::Response
            | PduKind::Bind
            | PduKind::AlterContext
            | PduKind::Auth3
            | PduKind::Shutdown
            | PduKind::Cancel
            | PduKind::Orphaned => {}
        }
    }

    fn agree(&mut self, kind: PduKind, proposal: &BindProposal, answer: &BindAnswer) {
        if kind == PduKind::BindAck {
            self.to_server = answer.max_receive.max(FRAGMENT_MIN);
            self.to_client = answer.max_transmit.max(FRAGMENT_MIN);
        }
        for ((id, interface), accepted) in proposal.contexts.iter().zip(&answer.accepted) {
            if *accepted && self.contexts.len() < CONTEXTS_MAX {
                self.contexts.insert(*id, *interface);
            }
        }
    }

    /// The UUID of the interface behind a presentation context that the server has accepted.
    #[must_use]
    pub fn interface(&self, context_id: u16) -> Option<&[u8; 16]> {
        self.contexts.get(&context_id)
    }

    /// The presentation context of an interface.
    #[must_use]
    pub fn context_of(&self, interface: &[u8; 16]) -> Option<u16> {
        let mut contexts = self.contexts.iter();
        contexts.find(|(_, of)| *of == interface).map(|(id, _)| *id)
    }

    /// Bytes of the largest fragment to the server.
    #[must_use]
    pub fn fragment_to_server(&self) -> u16 {
        self.to_server
    }

    /// Bytes of the largest fragment to the client.
    #[must_use]
    pub fn fragment_to_client(&self) -> u16 {
        self.to_client
    }

    /// True if several calls may be under way at a time.
    #[must_use]
    pub fn multiplexes(&self) -> bool {
        self.client_multiplexes && self.server_multiplexes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emsmdb::EMSMDB;
    use crate::testing::{bind, bind_ack};

    fn pdu(bytes: Vec<u8>) -> RawPdu {
        RawPdu::parse(bytes.into()).unwrap()
    }

    #[test]
    fn only_accepted_contexts_have_an_interface() {
        let mut association = RpcAssociation::default();
        association.client_sent(&pdu(bind(5, &[(0, [7; 16]), (1, EMSMDB)], None)));
        assert_eq!(association.interface(1), None);
        association.server_sent(&pdu(bind_ack(4, "6001", &[0, 0], None)));
        assert_eq!(association.interface(1), None, "another call's answer");
        association.server_sent(&pdu(bind_ack(5, "6001", &[2, 0], None)));
        assert_eq!(association.interface(0), None);
        assert_eq!(association.interface(1), Some(&EMSMDB));
        assert_eq!(association.fragment_to_client(), 4280);
    }
}
