//! Resets connections that pass by once, where the configuration asks for it: time, packets and log lines around
//! [`super::surviving_flows`], which decides.

use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::packet_log::LoggedPacket;
use super::segment::TcpSegment;
use super::surviving_flows::{SegmentSender, SurvivingFlows, SurvivingOutput, SurvivingReport};
use crate::config::SurvivingResets;

/// The log prefixes that the rules give to packets of connections that pass by: the client's and the server's.
pub(super) const CLIENT_PREFIX: &[u8] = b"passing-client";
pub(super) const SERVER_PREFIX: &[u8] = b"passing-server";
/// The interval at which the time of checks is looked at: a quarter of the shortest one.
pub(super) const LOOK_AT_CHECKS: Duration = Duration::from_millis(250);

/// The connections that pass by. Clones are handles to the same ones.
#[derive(Clone, Debug, Default)]
pub(super) struct SurvivingHandle {
    flows: Arc<Mutex<SurvivingFlows>>,
}

impl SurvivingHandle {
    /// Takes settings; `None` ends all checks.
    pub(super) fn configure(&self, settings: Option<SurvivingResets>) {
        self.lock().configure(settings);
    }

    pub(super) fn report(&self) -> SurvivingReport {
        self.lock().report()
    }

    /// Takes a logged packet. Returns false if it is about something else.
    pub(super) fn observe(
        &self,
        logged: &LoggedPacket<'_>,
        send: impl FnMut(IpAddr, &[u8]) -> io::Result<()>,
    ) -> bool {
        let sender = match logged.prefix {
            CLIENT_PREFIX => SegmentSender::Client,
            SERVER_PREFIX => SegmentSender::Server,
            _ => return false,
        };
        if let Some(segment) = TcpSegment::parse(logged.packet) {
            self.lock().observe(Instant::now(), sender, &segment);
            self.carry_out(send);
        }
        true
    }

    /// Begins and ends checks.
    pub(super) fn tick(&self, send: impl FnMut(IpAddr, &[u8]) -> io::Result<()>) {
        self.lock().tick(Instant::now());
        self.carry_out(send);
    }

    fn carry_out(&self, mut send: impl FnMut(IpAddr, &[u8]) -> io::Result<()>) {
        let mut flows = self.lock();
        while let Some(output) = flows.poll_output() {
            match output {
                SurvivingOutput::Send { to, packet } => {
                    if let Err(error) = send(to, &packet) {
                        tracing::debug!(%error, host = %to, "a packet for a connection that passes by was not sent");
                    }
                }
                SurvivingOutput::Reset { client, server } => {
                    tracing::info!(
                        port = server.port(),
                        "the node reset an idle connection that bypassed it, so that the client connects again \
                         through the node"
                    );
                    tracing::debug!(%client, %server, "reset a connection that bypassed the node");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, SurvivingFlows> {
        self.flows.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
