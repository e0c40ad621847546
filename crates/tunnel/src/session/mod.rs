//! The session's machine: one for each peer.

use bytes::Bytes;
use vocab::{FlowId, NodeId, Random, Time};

use crate::{
    Answer, Config, Error, Event, FlowStatistics, LinkId, Open, OpenError, ResetReason, Statistics,
};

/// One peer, over all the links that come and go.
pub struct Session {}

#[allow(unused_variables)]
impl Session {
    /// A session that has not met its peer yet. `random` should be seeded from the system: the
    /// incarnation nonce comes from it.
    pub fn new(config: Config, local: NodeId, peer: NodeId, random: Random, now: Time) -> Self {
        todo!()
    }
    /// Sets what the peer's engine gets as [`Event::Hello`]; told at once when a link is up.
    pub fn set_hello_blob(&mut self, blob: Bytes) {
        todo!()
    }
    /// A new authenticated link to the peer.
    pub fn link_up(&mut self, now: Time, link: LinkId, dialed_by_us: bool) {
        todo!()
    }
    /// The link is gone.
    pub fn link_down(&mut self, now: Time, link: LinkId) {
        todo!()
    }
    /// Bytes from the link.
    ///
    /// # Errors
    /// The link must be closed.
    pub fn handle(&mut self, now: Time, link: LinkId, bytes: &[u8]) -> Result<(), Error> {
        todo!()
    }
    /// Frames ready to go on that link.
    pub fn poll_transmit(&mut self, now: Time, link: LinkId, max: usize) -> Option<Bytes> {
        todo!()
    }
    /// The link that `poll_transmit` has frames for now. To be asked after every call.
    pub fn wants_transmit(&self) -> Option<LinkId> {
        todo!()
    }
    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        todo!()
    }
    /// When `handle_timeout` wants to be called.
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!()
    }
    /// Does what is due.
    pub fn handle_timeout(&mut self, now: Time) {
        todo!()
    }
    /// Opens a flow.
    ///
    /// # Errors
    /// When the connection should pass by.
    pub fn open(&mut self, now: Time, open: Open) -> Result<FlowId, OpenError> {
        todo!()
    }
    /// Answers the peer's open.
    pub fn answer(&mut self, flow: FlowId, answer: Answer) {
        todo!()
    }
    /// Encoded bytes the engine may write now.
    pub fn writable(&self, flow: FlowId) -> usize {
        todo!()
    }
    /// Appends to our direction of the flow.
    pub fn write(&mut self, flow: FlowId, bytes: Bytes) {
        todo!()
    }
    /// Ends our direction after what was written.
    pub fn finish(&mut self, flow: FlowId) {
        todo!()
    }
    /// Ends both directions at once.
    pub fn reset(&mut self, flow: FlowId, reason: ResetReason) {
        todo!()
    }
    /// The next contiguous received bytes.
    pub fn read(&mut self, flow: FlowId, max: usize) -> Option<Bytes> {
        todo!()
    }
    /// Everything below this received offset is resolved: its credit is given back.
    pub fn consumed(&mut self, flow: FlowId, offset: u64) {
        todo!()
    }
    /// Sends a message to the peer's engine.
    pub fn send_message(&mut self, flow: FlowId, kind: u8, bytes: Bytes) {
        todo!()
    }
    /// Takes no new flows from here on.
    pub fn goaway(&mut self, now: Time) {
        todo!()
    }
    /// Whether a link is established.
    pub fn is_up(&self) -> bool {
        todo!()
    }
    /// Whether nothing was heard for so long.
    pub fn is_silent(&self) -> bool {
        todo!()
    }
    /// Flows open now.
    pub fn flow_count(&self) -> usize {
        todo!()
    }
    /// Counters.
    pub fn statistics(&self) -> Statistics {
        todo!()
    }
    /// Counters of one flow.
    pub fn flow_statistics(&self, flow: FlowId) -> Option<FlowStatistics> {
        todo!()
    }
}
