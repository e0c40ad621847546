//! The largest packet that a path carries: a search by probes (RFC 8899; RFC 9000 §14.3).
//!
//! Routers drop what is too large, and their messages about it are lost, filtered or forged, so
//! nothing counts here but the fate of our own packets, as authenticated acknowledgements tell it.
//!
//! | state (RFC 8899 §5.2) | may be sent | probed | goes on when |
//! | --- | --- | --- | --- |
//! | `Base` | the base size | the base size | a packet of that size is acknowledged: `Searching`; three probes are lost: `Error` |
//! | `Searching` | the largest acknowledged | the maximum first, then the middle between what got through and what did not | the two are a grain ([`SEARCH_GRAIN`]) apart, or the maximum got through: `Complete` |
//! | `Complete` | the largest acknowledged | – | after [`RAISE_AFTER`]: `Searching`; many losses in a row, or no word of full packets for [`CONFIRM_AFTER`]: `Confirming` |
//! | `Confirming` | the same, the base size in doubt | the same size | a packet of that size is acknowledged: back; three probes are lost, a black hole: `Base` |
//! | `Error` | the base size | the base size, every [`RETRY_AFTER`] | a packet of that size is acknowledged: `Searching` |
//!
//! `Confirming` is RFC 8899 §4.3 in a state of its own, for a path whose random losses alone would
//! otherwise look like a black hole now and then; losses of full packets are watched while
//! searching, too. After many losses in a row packets are of the base size meanwhile: three probes
//! may take seconds, in which nothing longer gets through a path that has come to carry less. Which way the search goes first is ours (RFC 8899 §5.3.2 leaves it open): most
//! paths carry what the interface does, and are known after one round trip.
//!
//! Sizes are UDP payloads, as the user sends them. It does not send, and leaves it to its user to
//! tell losses; a timer stands in where the user has no verdict.

use std::time::Duration;

use vocab::Time;

/// The size that every path is expected to carry (RFC 8899 §5.1.2, BASE_PLPMTU; RFC 9000 §14).
pub const BASE_SIZE: u16 = 1_200;

/// Probes of one size that may be lost by chance (RFC 8899 §5.1.2, MAX_PROBES).
pub const PROBES_MAX: u32 = 3;

/// The search ends when what got through and what did not are this close: half a percent of a
/// packet is not worth another round of probes.
pub const SEARCH_GRAIN: u16 = 8;

/// Interval at which a larger size is tried (RFC 8899 §5.1.1, PMTU_RAISE_TIMER).
pub const RAISE_AFTER: Duration = Duration::from_secs(600);

/// Time without an acknowledged full packet, while smaller ones get through, after which one is
/// sent as a probe (RFC 8899 §5.1.1, CONFIRMATION_TIMER; less than the raise timer).
pub const CONFIRM_AFTER: Duration = Duration::from_secs(60);

/// Interval at which the base size is tried on a path that does not carry it.
pub const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The least time that a probe without a verdict is waited for (RFC 8899 §5.1.1, PROBE_TIMER).
pub const PROBE_TIMER_MIN: Duration = Duration::from_secs(1);

/// Losses of large packets, sent within a round trip or longer and with none as large acknowledged
/// between them, that raise the suspicion of a black hole. At 10 % random loss a million packets hold
/// one such row, and a run of losses is over sooner; and it costs a probe.
const SUSPICIOUS_LOSSES: u32 = 6;

/// The bounds of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MtuConfig {
    /// The size to begin with and to fall back to; [`BASE_SIZE`].
    pub base: u16,
    /// The largest size to try: what the interface carries, and the peer takes in.
    pub max: u16,
    /// Precision of the search: [`SEARCH_GRAIN`] for a transport, 1 where the exact size is needed.
    pub grain: u16,
}

/// State of the search; the table is at the head of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MtuState {
    /// The base size is not confirmed yet.
    Base,
    /// Larger sizes are being tried.
    Searching,
    /// The largest size is known.
    Complete,
    /// The size in use is being doubted.
    Confirming,
    /// The path does not even carry the base size, or nothing at all.
    Error,
}

/// A probe that is under way.
#[derive(Clone, Copy, Debug)]
struct MtuProbe {
    id: u64,
    size: u16,
    /// Time at which it counts as lost without a report.
    until: Time,
}

/// Packets above the base size that were lost, and none as large is known to have arrived since.
#[derive(Clone, Copy, Debug)]
struct LargePacketLosses {
    count: u32,
    /// The shortest.
    least: u16,
    /// Sending times of the first and the last of them.
    sent: (Time, Time),
    /// True if the losses are many, and not from one moment.
    is_suspicious: bool,
}

/// The search on one path.
#[derive(Clone, Debug)]
pub struct PathMtu {
    config: MtuConfig,
    state: MtuState,
    /// PLPMTU: the largest size that got through.
    size: u16,
    /// The least size known not to get through, above the maximum if there is none.
    too_large: u16,
    /// A size that the path carried once, to be tried first.
    first_candidate: Option<u16>,
    probe: Option<MtuProbe>,
    /// PROBE_COUNT: probes of the present size lost in a row.
    lost_probes: u32,
    /// Time of the next probe, in the states that send one.
    next_at: Time,
    /// Time of the last acknowledgement of a full packet, or of one of the largest smaller ones.
    confirmed_at: Time,
    /// The largest smaller size acknowledged since a full one was.
    passing: u16,
    row: Option<LargePacketLosses>,
    /// True if anything was acknowledged since the size is in doubt.
    path_answers: bool,
    black_holes: u32,
}

impl PathMtu {
    /// A search that begins with the base size.
    ///
    /// # Panics
    /// When the maximum is below the base.
    #[must_use]
    pub fn new(now: Time, config: MtuConfig) -> Self {
        assert!(
            config.base <= config.max,
            "the maximum is at least the base"
        );
        Self {
            config,
            state: MtuState::Base,
            size: config.base,
            too_large: config.max.saturating_add(1),
            first_candidate: None,
            probe: None,
            lost_probes: 0,
            next_at: now,
            confirmed_at: now,
            passing: 0,
            row: None,
            path_answers: false,
            black_holes: 0,
        }
    }

    /// The largest size that may be sent but for probes; the base size while many losses put a larger
    /// one in doubt.
    #[must_use]
    pub fn size(&self) -> u16 {
        if self.is_suspicious() {
            self.config.base
        } else {
            self.size
        }
    }

    fn is_suspicious(&self) -> bool {
        self.row.is_some_and(|row| row.is_suspicious)
    }

    /// Returns the state of the search.
    #[must_use]
    pub fn state(&self) -> MtuState {
        self.state
    }

    /// Returns the number of detected black holes: sizes that stopped working.
    #[must_use]
    pub fn black_holes(&self) -> u32 {
        self.black_holes
    }

    /// The size of a probe to be sent now, if one is to be; [`PathMtu::probe_sent`] says that it
    /// was. One is under way at a time, so they are a round trip apart (RFC 8899 §8).
    pub fn poll_probe(&mut self, now: Time) -> Option<u16> {
        if self.probe.is_some() || self.next_due().is_none_or(|due| due > now) {
            return None;
        }
        if self.state == MtuState::Complete {
            if self.raise_due().is_some_and(|due| due <= now) {
                self.forget_failures();
                self.search(now);
            } else {
                self.confirm(now);
            }
        }
        match self.state {
            MtuState::Base | MtuState::Error => Some(self.config.base),
            MtuState::Confirming => Some(self.size),
            MtuState::Searching => self.candidate(),
            MtuState::Complete => None,
        }
    }

    /// Records that a probe of `size` was sent. `id` identifies it when its loss is reported. It
    /// counts as lost without a report after `wait`, though not sooner than [`PROBE_TIMER_MIN`].
    pub fn probe_sent(&mut self, now: Time, id: u64, size: u16, wait: Duration) {
        let until = now + wait.max(PROBE_TIMER_MIN);
        self.probe = Some(MtuProbe { id, size, until });
    }

    /// Returns the time at which to call [`PathMtu::handle_timeout`] or [`PathMtu::poll_probe`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.probe {
            Some(probe) => Some(probe.until),
            None => self.next_due(),
        }
    }

    /// Counts a probe as lost that nothing was heard of; to be called before [`PathMtu::poll_probe`].
    pub fn handle_timeout(&mut self, now: Time) {
        if let Some(probe) = self.probe
            && probe.until <= now
        {
            self.probe_lost(now, probe.id);
        }
    }

    /// Records that a probe of `size` was acknowledged, however late.
    pub fn probe_acked(&mut self, now: Time, size: u16) {
        if self.probe.is_some_and(|probe| probe.size <= size) {
            self.probe = None;
            self.lost_probes = 0;
        }
        if size > self.size && size <= self.config.max {
            self.size = size;
            if self.too_large <= size {
                // RFC 8899 §5.3.3: the path changed, or the verdict was wrong.
                self.forget_failures();
            }
            self.confirmed(now);
            self.search(now);
            return;
        }
        self.acked(now, size);
    }

    /// Records that a packet of `size` that is no probe was acknowledged.
    pub fn acked(&mut self, now: Time, size: u16) {
        self.path_answers = true;
        self.row = self.row.filter(|row| size < row.least);
        if size < self.size {
            self.passing = self.passing.max(size);
        } else {
            self.confirmed(now);
        }
        match self.state {
            MtuState::Base | MtuState::Error => {
                if size >= self.config.base {
                    self.search(now);
                }
            }
            MtuState::Confirming => {
                if size >= self.size {
                    self.search(now);
                }
            }
            MtuState::Searching | MtuState::Complete => {}
        }
    }

    /// Records that the probe with this `id` is lost. A report on another probe changes nothing.
    pub fn probe_lost(&mut self, now: Time, id: u64) {
        let Some(probe) = self.probe.filter(|probe| probe.id == id) else {
            return;
        };
        self.probe = None;
        self.lost_probes += 1;
        self.next_at = now;
        if self.lost_probes < PROBES_MAX {
            return;
        }
        self.lost_probes = 0;
        match self.state {
            MtuState::Searching => {
                self.too_large = self.too_large.min(probe.size);
                if self
                    .first_candidate
                    .is_some_and(|hopeful| hopeful >= probe.size)
                {
                    self.first_candidate = None;
                }
                self.search(now);
            }
            MtuState::Confirming => self.fall(now),
            MtuState::Base | MtuState::Error => {
                self.state = MtuState::Error;
                self.next_at = now + RETRY_AFTER;
            }
            MtuState::Complete => {}
        }
    }

    /// Records that a packet of `size` that is no probe, sent at `sent_at`, was lost. Losses within
    /// less than `round_trip` may be one run.
    pub fn lost(&mut self, now: Time, sent_at: Time, size: u16, round_trip: Duration) {
        if size <= self.config.base || size > self.size {
            return;
        }
        let row = self.row.get_or_insert(LargePacketLosses {
            count: 0,
            least: size,
            sent: (sent_at, sent_at),
            is_suspicious: false,
        });
        row.count = row.count.saturating_add(1);
        row.least = row.least.min(size);
        row.sent = (row.sent.0.min(sent_at), row.sent.1.max(sent_at));
        let (first, last) = row.sent;
        row.is_suspicious |= row.count >= SUSPICIOUS_LOSSES && last.since(first) >= round_trip;
        if row.is_suspicious && matches!(self.state, MtuState::Searching | MtuState::Complete) {
            self.confirm(now);
        }
    }

    /// Records that the host itself refused to send a packet of `size` (EMSGSIZE): the route's
    /// interface has a smaller MTU than assumed.
    pub fn refused(&mut self, now: Time, size: u16) {
        self.probe = None;
        self.lost_probes = 0;
        self.next_at = now;
        if size <= self.config.base {
            self.state = MtuState::Error;
            self.next_at = now + RETRY_AFTER;
            return;
        }
        self.too_large = self.too_large.min(size);
        if size <= self.size {
            self.size = self.config.base;
            self.first_candidate = None;
        }
        self.search(now);
    }

    /// Takes another maximum, as when the route changes; never below the base.
    pub fn set_max(&mut self, now: Time, max: u16) {
        let max = max.max(self.config.base);
        let was = std::mem::replace(&mut self.config.max, max);
        self.size = self.size.min(max);
        if max < was {
            self.too_large = self.too_large.min(max.saturating_add(1));
            self.probe = self.probe.filter(|probe| probe.size <= max);
        } else if max > was {
            self.forget_failures();
        }
        if matches!(self.state, MtuState::Searching | MtuState::Complete) {
            self.search(now);
        }
    }

    fn confirmed(&mut self, now: Time) {
        self.confirmed_at = now;
        self.passing = 0;
        self.row = None;
    }

    fn forget_failures(&mut self) {
        self.too_large = self.config.max.saturating_add(1);
        self.first_candidate = None;
    }

    /// Continues the search, if there are sizes between the largest that passes and the smallest
    /// that does not.
    fn search(&mut self, now: Time) {
        if self.state != MtuState::Searching {
            self.probe = None;
            self.lost_probes = 0;
        }
        self.next_at = now;
        self.state = MtuState::Searching;
        if self.candidate().is_none() {
            self.state = MtuState::Complete;
            self.next_at = now + RAISE_AFTER;
        }
    }

    /// The next size to try.
    fn candidate(&self) -> Option<u16> {
        if self.size >= self.config.max {
            return None;
        }
        if let Some(hopeful) = self.first_candidate
            && hopeful > self.size
            && hopeful < self.too_large
        {
            return Some(hopeful);
        }
        if self.too_large > self.config.max {
            return Some(self.config.max);
        }
        let between = self.too_large.saturating_sub(self.size);
        (between > self.config.grain.max(1)).then(|| self.size + between / 2)
    }

    fn confirm(&mut self, now: Time) {
        self.state = MtuState::Confirming;
        self.probe = None;
        self.lost_probes = 0;
        self.path_answers = false;
        self.next_at = now;
    }

    /// Climbs down from a size that no longer gets through (RFC 8899 §4.3).
    fn fall(&mut self, now: Time) {
        self.black_holes = self.black_holes.saturating_add(1);
        if self.path_answers {
            self.too_large = self.size;
            self.first_candidate = None;
        } else {
            // Nothing got through at all: an outage, which tells nothing about sizes.
            self.forget_failures();
            self.first_candidate = Some(self.size);
        }
        self.size = self.config.base;
        let base_passes = self.passing >= self.config.base;
        self.confirmed(now);
        if base_passes {
            self.search(now);
        } else {
            self.state = MtuState::Base;
            self.next_at = now;
        }
    }

    /// Returns the time of the next probe, as long as none is in flight.
    fn next_due(&self) -> Option<Time> {
        match self.state {
            MtuState::Complete => match (self.raise_due(), self.confirm_due()) {
                (Some(raise), Some(confirm)) => Some(raise.min(confirm)),
                (one, other) => one.or(other),
            },
            MtuState::Base | MtuState::Searching | MtuState::Confirming | MtuState::Error => {
                Some(self.next_at)
            }
        }
    }

    fn raise_due(&self) -> Option<Time> {
        (self.size < self.config.max).then_some(self.next_at)
    }

    fn confirm_due(&self) -> Option<Time> {
        let is_used = self.passing > 0 && self.size > self.config.base;
        is_used.then(|| self.confirmed_at + CONFIRM_AFTER)
    }
}

#[cfg(test)]
mod tests;
