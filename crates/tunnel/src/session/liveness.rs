//! Liveness of the peer: when it was last heard, pings, and the round-trip time.
//!
//! ```text
//!  unmet ──first hello──► heard ──nothing for 5 s──► silent ──45 s──► given up
//!                          ▲ │ ──link breaks──► doubted ─┘                │
//!                          └─────────any frame──┴────────┴────────────────┘
//! ```
//!
//! A dark path does not mean that the peer is gone, so flows wait 45 s for it. When the peer's
//! kernel closes the link shortly after the peer was heard, the peer's process is gone. The peer
//! then has 5 s to say hello on another link, or to be heard in packets, before it is given up.
//!
//! A ping is sent only when nothing was heard for a second, with a small random delay so that the
//! two sides do not both ask. The answer to one side's ping is a sign of life for the other side.
//! Pings of a busy session travel with data and only measure the round-trip time.

use std::time::Duration;

use vocab::{SeededRandom, Time};

use crate::SessionConfig;
use crate::limits::{LATE_PACKETS, ROUND_TRIP_REFRESH};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PeerPresence {
    Unmet,
    Heard,
    /// Its link broke, and it was not heard since. It counts as silent, and is asked at once.
    Doubted,
    Silent,
    GivenUp,
}

/// Liveness timeout that has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LivenessTimeout {
    Silent,
    GiveUp,
}

#[derive(Debug)]
pub(super) struct PeerLiveness {
    presence: PeerPresence,
    last_heard: Time,
    /// Time at which the peer's host closed the link, while there is no sign that the peer's
    /// process lives.
    closed_at: Option<Time>,
    /// Time of the next ping, while a link is established.
    ping_at: Time,
    ping_waiting: bool,
    ping_sent: Option<(u32, Time)>,
    last_sample: Option<Time>,
    pub(super) latest: Option<Duration>,
    pub(super) minimum: Option<Duration>,
    pub(super) smoothed: Option<Duration>,
}

impl PeerLiveness {
    pub(super) fn new() -> Self {
        Self {
            presence: PeerPresence::Unmet,
            last_heard: Time::ZERO,
            closed_at: None,
            ping_at: Time::NEVER,
            ping_waiting: false,
            ping_sent: None,
            last_sample: None,
            latest: None,
            minimum: None,
            smoothed: None,
        }
    }

    pub(super) fn presence(&self) -> PeerPresence {
        self.presence
    }

    /// A frame came; returns what the peer was before.
    pub(super) fn heard(
        &mut self,
        now: Time,
        config: &SessionConfig,
        random: &mut SeededRandom,
    ) -> PeerPresence {
        self.last_heard = now;
        // Packets that were under way when the peer's process died prove nothing.
        self.closed_at = (self.closed_at).filter(|closed_at| now.since(*closed_at) < LATE_PACKETS);
        self.ping_at = now + spread(config.ping_interval, random);
        // Who only receives has no other way to learn the round-trip time.
        self.ping_waiting &= self.latest.is_none();
        std::mem::replace(&mut self.presence, PeerPresence::Heard)
    }

    /// A link is established: measure it, and forget what another link measured.
    pub(super) fn restart(&mut self) {
        self.minimum = None;
        self.ping_sent = None;
        self.ping_waiting = true;
    }

    /// No link, no pings.
    pub(super) fn stop(&mut self) {
        self.ping_waiting = false;
        self.ping_sent = None;
        self.ping_at = Time::NEVER;
    }

    /// The peer said hello on another link: its process lives.
    pub(super) fn met(&mut self) {
        self.closed_at = None;
    }

    /// Records that the peer's host closed the link. If the peer was silent before, a middlebox may
    /// have closed both sides of a broken path, so nothing changes.
    pub(super) fn closed(&mut self, now: Time) {
        match self.presence {
            PeerPresence::Heard | PeerPresence::Doubted => {
                self.closed_at.get_or_insert(now);
            }
            PeerPresence::Unmet | PeerPresence::Silent | PeerPresence::GivenUp => {}
        }
    }

    /// The link broke, perhaps because the peer is dead: until it is heard in a packet it counts as
    /// silent, and it is asked at once.
    pub(super) fn doubt(&mut self) {
        if self.presence == PeerPresence::Heard {
            self.presence = PeerPresence::Doubted;
        }
        self.ping_sent = None;
        self.ping_waiting = true;
    }

    pub(super) fn ping_waiting(&self) -> bool {
        self.ping_waiting
    }

    /// Returns `true` if data that is sent anyway should carry a ping.
    pub(super) fn refresh_due(&self, now: Time) -> bool {
        // The answer to a ping may be lost.
        self.ping_sent
            .is_none_or(|(_, sent)| now.since(sent) >= ROUND_TRIP_REFRESH)
            && self
                .last_sample
                .is_none_or(|last| now.since(last) >= ROUND_TRIP_REFRESH)
    }

    /// The stamp of a ping that goes out now.
    pub(super) fn ping(&mut self, now: Time) -> u32 {
        let stamp = stamp_us(now, PingPurpose::Liveness);
        self.ping_waiting = false;
        self.ping_sent = Some((stamp, now));
        stamp
    }

    /// The packet with the last ping is lost.
    pub(super) fn ping_lost(&mut self) {
        if self.ping_sent.take().is_some() {
            self.ping_waiting = true;
        }
    }

    pub(super) fn pong(&mut self, now: Time, stamp: u32) {
        let Some((_, sent)) = self.ping_sent.take_if(|(expected, _)| *expected == stamp) else {
            return;
        };
        let sample = now.since(sent);
        self.last_sample = Some(now);
        self.latest = Some(sample);
        self.minimum = Some(self.minimum.map_or(sample, |least| least.min(sample)));
        // RFC 6298 §2.3: SRTT is 7/8 of itself and 1/8 of the sample.
        self.smoothed = Some(
            self.smoothed
                .map_or(sample, |smoothed| (smoothed * 7 + sample) / 8),
        );
    }

    pub(super) fn timeout(&self, config: &SessionConfig) -> Time {
        let closed = self.closed_deadline(config);
        let presence = match self.presence {
            PeerPresence::Unmet | PeerPresence::GivenUp => Time::NEVER,
            PeerPresence::Heard | PeerPresence::Doubted => {
                let silent = self.last_heard + config.silent_after.min(config.give_up_after);
                silent.min(closed)
            }
            PeerPresence::Silent => closed.min(self.last_heard + config.give_up_after),
        };
        presence.min(self.ping_at)
    }

    /// Returns the time at which a peer whose host closed the link is given up.
    fn closed_deadline(&self, config: &SessionConfig) -> Time {
        self.closed_at
            .map_or(Time::NEVER, |closed_at| closed_at + config.silent_after)
    }

    /// One thing that is due; to be called until there is none.
    pub(super) fn handle_timeout(
        &mut self,
        now: Time,
        config: &SessionConfig,
        random: &mut SeededRandom,
    ) -> Option<LivenessTimeout> {
        if now >= self.ping_at {
            self.ping_at = now + spread(config.ping_interval, random);
            self.ping_waiting = true;
        }
        let quiet = now.since(self.last_heard);
        let is_gone = now >= self.closed_deadline(config);
        let is_silent = is_gone || quiet >= config.silent_after.min(config.give_up_after);
        match self.presence {
            PeerPresence::Heard | PeerPresence::Doubted if is_silent => {
                self.presence = PeerPresence::Silent;
                Some(LivenessTimeout::Silent)
            }
            PeerPresence::Silent if is_gone || quiet >= config.give_up_after => {
                self.presence = PeerPresence::GivenUp;
                self.closed_at = None;
                Some(LivenessTimeout::GiveUp)
            }
            PeerPresence::Unmet
            | PeerPresence::Heard
            | PeerPresence::Doubted
            | PeerPresence::Silent
            | PeerPresence::GivenUp => None,
        }
    }
}

/// Purpose of a ping. Pings of different purposes travel differently, perhaps at the same moment,
/// and the answer to one does not answer the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PingPurpose {
    /// Checks that the peer is alive.
    Liveness,
    /// Confirms that data sent on the link in a trial has arrived.
    Mark,
}

/// Returns the stamp of a ping: the time, even or odd by the purpose of the ping.
pub(super) fn stamp_us(now: Time, asker: PingPurpose) -> u32 {
    let stamp = (now.as_nanos() / 1_000) as u32;
    match asker {
        PingPurpose::Liveness => stamp & !1,
        PingPurpose::Mark => stamp | 1,
    }
}

/// The interval and up to a quarter more.
fn spread(interval: Duration, random: &mut SeededRandom) -> Duration {
    interval + interval / 1024 * (random.next_u64() % 256) as u32
}
