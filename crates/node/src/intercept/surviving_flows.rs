//! Decides which connections that pass by the node are reset, so that they come back through it.
//!
//! A connection that began while this node did not intercept passes by until it ends, which takes weeks for a mounted
//! share. The rules log a sample of its packets. When none came for a while, both hosts are asked for their numbers,
//! and the client once more behind a pause. Three answers that agree prove that nothing was under way for longer than
//! a round trip.
//!
//! ```text
//!   None ── no packet for `idle` ──► ClientAsked ── its numbers ──► ServerAsked ── the same numbers ──► Agreed
//!    ▲                                                                                                    │
//!    │ another packet, other numbers, no answer                                  after CLIENT_PAUSE       ▼
//!    └────────────────────────────────────────────────────────────────────────────────────── ClientAskedAgain
//!                                                                the same numbers ──► resets for both hosts
//! ```
//!
//! It reads no clock and sends nothing: [`super::surviving`] does. It does not read payload: whether a request waits
//! for the server for a long time (a change notification, a lock) is not visible to it.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tokio::time::Instant;

use super::segment::{SegmentKind, TcpSegment};
use crate::config::SurvivingResets;

/// Connections that are watched at a time, and the size of the sets that sample them: four times the mounts of a
/// large branch.
pub(super) const FLOWS_MAX: usize = 4_096;
/// The time without a packet after which a connection is forgotten: it has ended elsewhere, or its next packet has it
/// watched again.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(3_600);
/// The interval between two begun checks, so that a site's clients do not come back all at once.
const CHECK_EVERY: Duration = Duration::from_secs(1);
/// A host answers a question within this time: the longest usual round trip, and a busy host.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);
/// The time between the two questions to a client. Linux answers one in 500 ms (`net.ipv4.tcp_invalid_ratelimit`).
const CLIENT_PAUSE: Duration = Duration::from_millis(1_000);
/// The amount by which a question to a client has a later timestamp than the server's last one that was logged.
/// A host ignores earlier timestamps than it has received (RFC 7323 §5, PAWS), and a packet that was not logged followed
/// within half a second. Clocks of timestamps make at most 1,000 ticks in a second. The client does not keep the
/// timestamp of a segment in front of its window.
const TIMESTAMP_MARGIN: u32 = 1_000;
/// The pause after a question without an answer.
const RETRY_AFTER: Duration = Duration::from_secs(60);
/// Within this time after a reset, connections that were found later between the same hosts are left alone: what
/// passes by again gains nothing from another reset.
const ONCE_WITHIN: Duration = Duration::from_secs(24 * 3_600);
/// Pairs of hosts that are remembered for that. Beyond it nothing is reset until the oldest are forgotten.
const PAIRS_MAX: usize = 4_096;

/// The client's address and the server's.
type AddressPair = (SocketAddr, SocketAddr);

/// The host that sent a logged packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SegmentSender {
    Client,
    Server,
}

/// An action for the shell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SurvivingOutput {
    /// Send this IP packet to a host.
    Send { to: IpAddr, packet: Vec<u8> },
    /// The connection has been reset.
    Reset {
        client: SocketAddr,
        server: SocketAddr,
    },
}

/// Counts for `status` and the metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub(crate) struct SurvivingReport {
    /// Connections of the configured ports that pass by now although a new one would be intercepted.
    pub(crate) passing: usize,
    /// Connections that were reset.
    pub(crate) reset: u64,
    /// Checks that found a connection in use.
    pub(crate) in_use: u64,
    /// Checks without an answer of a host.
    pub(crate) unanswered: u64,
}

#[derive(Debug)]
struct SurvivingFlow {
    found_at: Instant,
    moved_at: Instant,
    not_before: Instant,
    /// The client's last segment.
    client: TcpSegment,
    /// The server's latest timestamp.
    server_timestamp: Option<u32>,
    check: IdleCheck,
}

impl SurvivingFlow {
    /// Takes the timestamps of a segment.
    fn note_timestamps(&mut self, sender: SegmentSender, segment: &TcpSegment) {
        let Some(stamps) = segment.timestamps else {
            return;
        };
        let noted = match sender {
            SegmentSender::Client => stamps.echo,
            SegmentSender::Server => stamps.value,
        };
        let is_later = |before: u32| noted.wrapping_sub(before) as i32 > 0;
        if self.server_timestamp.is_none_or(is_later) {
            self.server_timestamp = Some(noted);
        }
    }

    /// Builds a question to the client, which has these numbers.
    fn question_to_client(&self, client: &TcpSegment) -> Vec<u8> {
        let later = (self.server_timestamp).map(|stamp| stamp.wrapping_add(TIMESTAMP_MARGIN));
        let client = client.with_echo(later.unwrap_or_default());
        client.question_to_sender()
    }
}

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
enum IdleCheck {
    None,
    ClientAsked {
        at: Instant,
    },
    ServerAsked {
        client: TcpSegment,
        client_asked: Instant,
        at: Instant,
    },
    Agreed {
        client: TcpSegment,
        client_asked: Instant,
    },
    ClientAskedAgain {
        client: TcpSegment,
        at: Instant,
    },
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(super) struct SurvivingFlows {
    settings: Option<SurvivingResets>,
    flows: HashMap<AddressPair, SurvivingFlow>,
    /// The time of the first reset between a client and a server.
    reset_pairs: HashMap<(IpAddr, SocketAddr), Instant>,
    last_check: Option<Instant>,
    counts: SurvivingReport,
    outputs: VecDeque<SurvivingOutput>,
}

impl SurvivingFlows {
    /// Takes settings; `None` ends all checks.
    pub(super) fn configure(&mut self, settings: Option<SurvivingResets>) {
        self.settings = settings;
        let settings = &self.settings;
        self.flows.retain(|(_, server), _| {
            let resets = settings.as_ref();
            resets.is_some_and(|resets| resets.has_port(server.port()))
        });
    }

    pub(super) fn report(&self) -> SurvivingReport {
        SurvivingReport {
            passing: self.flows.len(),
            ..self.counts
        }
    }

    pub(super) fn poll_output(&mut self) -> Option<SurvivingOutput> {
        self.outputs.pop_front()
    }

    /// Takes a packet of a connection that passes by.
    pub(super) fn observe(&mut self, now: Instant, sender: SegmentSender, segment: &TcpSegment) {
        if self.settings.is_none() {
            return;
        }
        let pair = match sender {
            SegmentSender::Client => (segment.source, segment.destination),
            SegmentSender::Server => (segment.destination, segment.source),
        };
        if segment.kind == SegmentKind::Ending {
            self.flows.remove(&pair);
            return;
        }
        let Some(flow) = self.flows.get_mut(&pair) else {
            if sender == SegmentSender::Client {
                self.find(now, pair, segment);
            }
            return;
        };
        flow.note_timestamps(sender, segment);
        let is_empty = segment.payload == 0;
        let next = match (flow.check, sender) {
            (IdleCheck::ClientAsked { at }, SegmentSender::Client) if is_empty => {
                let packet = segment.question_to_receiver();
                let to = pair.1.ip();
                self.outputs.push_back(SurvivingOutput::Send { to, packet });
                Some(IdleCheck::ServerAsked {
                    client: *segment,
                    client_asked: at,
                    at: now,
                })
            }
            (
                IdleCheck::ServerAsked {
                    client,
                    client_asked,
                    ..
                },
                SegmentSender::Server,
            ) if is_empty && agree(&client, segment) => Some(IdleCheck::Agreed {
                client,
                client_asked,
            }),
            (IdleCheck::ClientAskedAgain { client, .. }, SegmentSender::Client)
                if is_empty && are_same(&client, segment) =>
            {
                self.reset(now, pair, segment);
                return;
            }
            (IdleCheck::None, _) => None,
            (
                IdleCheck::ClientAsked { .. }
                | IdleCheck::ServerAsked { .. }
                | IdleCheck::Agreed { .. }
                | IdleCheck::ClientAskedAgain { .. },
                _,
            ) => {
                self.counts.in_use += 1;
                None
            }
        };
        if sender == SegmentSender::Client {
            flow.client = *segment;
        }
        flow.check = next.unwrap_or(IdleCheck::None);
        if next.is_none() {
            flow.moved_at = now;
        }
    }

    fn find(&mut self, now: Instant, pair: AddressPair, segment: &TcpSegment) {
        let was_reset = self.reset_pairs.contains_key(&(pair.0.ip(), pair.1));
        if was_reset || self.flows.len() >= FLOWS_MAX {
            return;
        }
        let flow = SurvivingFlow {
            found_at: now,
            moved_at: now,
            not_before: now,
            client: *segment,
            server_timestamp: segment.timestamps.map(|stamps| stamps.echo),
            check: IdleCheck::None,
        };
        self.flows.insert(pair, flow);
    }

    /// Resets a connection. `segment` is the client's answer, whose numbers the server has confirmed.
    fn reset(&mut self, now: Instant, pair: AddressPair, segment: &TcpSegment) {
        self.flows.remove(&pair);
        let (client, server) = pair;
        self.reset_pairs.entry((client.ip(), server)).or_insert(now);
        self.counts.reset += 1;
        self.outputs.extend([
            SurvivingOutput::Send {
                to: client.ip(),
                packet: segment.reset_to_sender(),
            },
            SurvivingOutput::Send {
                to: server.ip(),
                packet: segment.reset_to_receiver(),
            },
            SurvivingOutput::Reset { client, server },
        ]);
    }

    /// Asks whose time it is; call it every few hundred milliseconds.
    pub(super) fn tick(&mut self, now: Instant) {
        let Some(settings) = &self.settings else {
            return;
        };
        self.reset_pairs
            .retain(|_, at| now.duration_since(*at) < ONCE_WITHIN);
        self.flows
            .retain(|_, flow| now.duration_since(flow.moved_at) < FORGOTTEN_AFTER);
        for (pair, flow) in &mut self.flows {
            match flow.check {
                IdleCheck::None => {}
                IdleCheck::ClientAsked { at }
                | IdleCheck::ServerAsked { at, .. }
                | IdleCheck::ClientAskedAgain { at, .. } => {
                    if now.duration_since(at) >= ANSWER_WITHIN {
                        flow.check = IdleCheck::None;
                        flow.not_before = now + RETRY_AFTER;
                        self.counts.unanswered += 1;
                    }
                }
                IdleCheck::Agreed {
                    client,
                    client_asked,
                } => {
                    if now.duration_since(client_asked) >= CLIENT_PAUSE {
                        flow.check = IdleCheck::ClientAskedAgain { client, at: now };
                        self.outputs.push_back(SurvivingOutput::Send {
                            to: pair.0.ip(),
                            packet: flow.question_to_client(&client),
                        });
                    }
                }
            }
        }
        let is_early = |at: Instant| now.duration_since(at) < CHECK_EVERY;
        if self.last_check.is_some_and(is_early) || self.reset_pairs.len() >= PAIRS_MAX {
            return;
        }
        let is_idle = |flow: &SurvivingFlow| {
            matches!(flow.check, IdleCheck::None)
                && flow.not_before <= now
                && now.duration_since(flow.moved_at) >= settings.idle
                && now.duration_since(flow.found_at) >= settings.after
        };
        let idle = self.flows.iter_mut().filter(|(_, flow)| is_idle(flow));
        // A connection whose hosts did not answer waits behind those that could be asked before it.
        let order = |(pair, flow): &(&AddressPair, &mut SurvivingFlow)| {
            (flow.not_before, flow.moved_at, **pair)
        };
        if let Some((pair, flow)) = idle.min_by_key(order) {
            flow.check = IdleCheck::ClientAsked { at: now };
            self.last_check = Some(now);
            self.outputs.push_back(SurvivingOutput::Send {
                to: pair.0.ip(),
                packet: flow.question_to_client(&flow.client),
            });
        }
    }
}

/// Returns true if each of the hosts has received all that the other has sent, and takes more.
///
/// The peer of a host with a closed window may hold data that has no sequence number yet.
fn agree(client: &TcpSegment, server: &TcpSegment) -> bool {
    client.window != 0
        && server.window != 0
        && server.acknowledged == client.sequence
        && server.sequence == client.acknowledged
}

/// Returns true if the client's second answer is as its first one, and its window is open.
fn are_same(first: &TcpSegment, second: &TcpSegment) -> bool {
    second.window != 0
        && (first.sequence, first.acknowledged) == (second.sequence, second.acknowledged)
}

#[cfg(test)]
mod tests;
