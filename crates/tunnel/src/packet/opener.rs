//! Opens the packets of one direction of a path: believes nothing before the tag, takes each
//! number once.
//!
//! ```text
//!  datagram ─► form, id ─► unmask header ─► number ─► key by phase ─► tag ─► window ─► OpenedPacket
//!                                                                      │ wrong: counted, nothing changes
//! ```
//!
//! Keys follow the sender's key phase bit (RFC 9001 §6). Packets overtake each other, so for a
//! while two epochs arrive at once; which key a packet needs follows from the bit and from where
//! its number lies:
//!
//! ```text
//!   phase bit   number                                     key
//!   as current  from where the previous key took over      current
//!   as current  below it (two epochs old)                  none
//!   other       up to where the current key took over      previous, while it is kept
//!   other       above it                                   next; if it fits it becomes current
//! ```
//!
//! Each packet is tried with one key, once. The next epoch's key is made ahead, so that a packet
//! with a changed bit takes no longer than another (§6.3, Timing of Receive Key Generation). The
//! previous one is kept for three probe timeouts (§6.5, Receiving with Different Keys).

use std::ops::Range;
use std::time::Duration;

use thiserror::Error;
use vocab::Time;

use super::header::{ConnectionId, KEY_PHASE, NUMBER_OFFSET, RESERVED_MASK, decode_number};
use super::keys::{CipherSuite, HkdfSecret, INITIAL_PROBE_TIMEOUT, KEPT_PROBE_TIMEOUTS, KeyLimits};
use super::protection::{HeaderKey, PacketKey, TAG_LENGTH};
use super::replay::{ReplayRejection, ReplayWindow};
use crate::wire::NUMBER_LIMIT;

/// Reason for dropping a datagram. It changes nothing but a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PacketRefusal {
    /// Not a packet of this path: another form, another connection id, or too short.
    #[error("it is no packet of this path")]
    NotOurs,
    /// The tag does not match: the packet was forged, damaged, or sealed with a key of another
    /// path.
    #[error("its tag is wrong")]
    Forged,
    /// The number of forged packets reached the limit of the key; the path must end.
    #[error("too many packets with a wrong tag have come; the path must end")]
    ForgeryLimit,
    /// Sealed with a key that is no longer kept.
    #[error("its key is no longer kept")]
    OldKey,
    /// Its number has been taken.
    #[error("it has been received before")]
    Replayed,
    /// Its number is below the window.
    #[error("it is too late to tell whether it has been received before")]
    TooOld,
    /// The peer sealed it, and it is no packet of this version.
    #[error("the peer sealed what is no packet of this version")]
    Malformed,
}

/// Key change of a packet: whether it was the first one under a new key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhaseChange {
    /// The key was known.
    Same,
    /// The peer has renewed its key.
    Renewed,
}

/// Proof that a packet's tag was right and its number new; only an [`PacketOpener`] makes one.
#[derive(Debug)]
pub struct OpenedPacket {
    number: u64,
    payload: Range<usize>,
    phase: PhaseChange,
}

impl OpenedPacket {
    /// The packet's number.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the range of the opened payload in the datagram; never empty.
    #[must_use]
    pub fn payload(&self) -> Range<usize> {
        self.payload.clone()
    }

    /// Returns whether the key changed with this packet.
    #[must_use]
    pub fn phase(&self) -> PhaseChange {
        self.phase
    }
}

/// Counters of one opener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpenerStatistics {
    /// Packets opened.
    pub opened: u64,
    /// Refused as [`PacketRefusal::NotOurs`].
    pub not_ours: u64,
    /// Refused as [`PacketRefusal::Forged`].
    pub forged: u64,
    /// Refused as [`PacketRefusal::OldKey`].
    pub old_key: u64,
    /// Refused as [`PacketRefusal::Replayed`].
    pub replayed: u64,
    /// Refused as [`PacketRefusal::TooOld`].
    pub too_old: u64,
    /// Refused as [`PacketRefusal::Malformed`].
    pub malformed: u64,
    /// Key updates of the peer's that were followed.
    pub key_updates: u64,
}

/// Opens the packets that this node receives on one path.
pub struct PacketOpener {
    suite: CipherSuite,
    /// Connection id of the path at this node.
    id: ConnectionId,
    header_key: HeaderKey,
    current: PacketKey,
    /// The key phase bit of `current`.
    key_phase: u8,
    /// The number with which `current` took over; 0 in the first epoch, which begins there. Lower
    /// ones of its epoch may come later, and none of the epoch before is above it.
    current_from: u64,
    next: PacketKey,
    /// Secret of the epoch after that of `next`. Earlier secrets are erased.
    secret_after_next: HkdfSecret,
    previous: Option<PreviousKey>,
    /// First number of the key before `current`, whether it is kept or not.
    previous_from: u64,
    window: ReplayWindow,
    limits: KeyLimits,
    probe_timeout: Duration,
    statistics: OpenerStatistics,
}

/// The key of the epoch before, for packets that were overtaken.
struct PreviousKey {
    key: PacketKey,
    until: Time,
}

/// Key that a packet needs, of the keys that are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SelectedKey {
    Previous,
    Current,
    Next,
}

impl PacketOpener {
    pub(super) fn new(
        suite: CipherSuite,
        secret: &HkdfSecret,
        id: ConnectionId,
        limits: KeyLimits,
    ) -> Self {
        let next_secret = secret.next_epoch();
        Self {
            suite,
            id,
            header_key: HeaderKey::new(suite, secret),
            current: PacketKey::new(suite, secret),
            key_phase: 0,
            current_from: 0,
            next: PacketKey::new(suite, &next_secret),
            secret_after_next: next_secret.next_epoch(),
            previous: None,
            previous_from: 0,
            window: ReplayWindow::new(limits.window),
            limits,
            probe_timeout: INITIAL_PROBE_TIMEOUT,
            statistics: OpenerStatistics::default(),
        }
    }

    /// Returns `true` if a datagram begins with this node's connection id for the path. The id is
    /// not authenticated.
    #[must_use]
    pub fn is_addressed_by(&self, datagram: &[u8]) -> bool {
        ConnectionId::of(datagram) == Some(self.id)
    }

    /// Opens a datagram in place.
    ///
    /// # Errors
    /// [`PacketRefusal`]; no state but a counter has changed, and what `datagram` holds is worth nothing.
    pub fn open(&mut self, now: Time, datagram: &mut [u8]) -> Result<OpenedPacket, PacketRefusal> {
        let outcome = self.try_open(now, datagram);
        let statistics = &mut self.statistics;
        match outcome {
            Ok(_) => statistics.opened += 1,
            Err(PacketRefusal::NotOurs) => statistics.not_ours += 1,
            Err(PacketRefusal::Forged) => statistics.forged += 1,
            Err(PacketRefusal::ForgeryLimit) => {}
            Err(PacketRefusal::OldKey) => statistics.old_key += 1,
            Err(PacketRefusal::Replayed) => statistics.replayed += 1,
            Err(PacketRefusal::TooOld) => statistics.too_old += 1,
            Err(PacketRefusal::Malformed) => statistics.malformed += 1,
        }
        outcome
    }

    fn try_open(&mut self, now: Time, datagram: &mut [u8]) -> Result<OpenedPacket, PacketRefusal> {
        self.handle_timeout(now);
        if self.is_exhausted() {
            return Err(PacketRefusal::ForgeryLimit);
        }
        if !self.is_addressed_by(datagram) {
            return Err(PacketRefusal::NotOurs);
        }
        let number_length = self
            .header_key
            .show(datagram, NUMBER_OFFSET)
            .ok_or(PacketRefusal::NotOurs)?;
        let (header, sealed) = datagram.split_at_mut(NUMBER_OFFSET + number_length);
        let flags = header[0];
        let truncated = header[NUMBER_OFFSET..]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte));
        let number = decode_number(self.window.top(), truncated, number_length);
        let chosen = self.choose_key(flags & KEY_PHASE, number)?;
        let key = match chosen {
            SelectedKey::Current => &self.current,
            SelectedKey::Next => &self.next,
            SelectedKey::Previous => &self.previous.as_ref().ok_or(PacketRefusal::OldKey)?.key,
        };
        if !key.open(number, header, sealed) {
            return Err(PacketRefusal::Forged);
        }
        // From here on the bytes are the peer's.
        let payload = header.len()..header.len() + sealed.len() - TAG_LENGTH;
        if flags & RESERVED_MASK != 0 || payload.is_empty() || number >= NUMBER_LIMIT {
            return Err(PacketRefusal::Malformed);
        }
        self.window.take(number).map_err(|refused| match refused {
            ReplayRejection::Replayed => PacketRefusal::Replayed,
            ReplayRejection::TooOld => PacketRefusal::TooOld,
        })?;
        let phase = match chosen {
            SelectedKey::Current | SelectedKey::Previous => PhaseChange::Same,
            SelectedKey::Next => {
                self.renew(now, number);
                PhaseChange::Renewed
            }
        };
        Ok(OpenedPacket {
            number,
            payload,
            phase,
        })
    }

    fn choose_key(&self, phase: u8, number: u64) -> Result<SelectedKey, PacketRefusal> {
        if phase == self.key_phase {
            return if number >= self.previous_from {
                Ok(SelectedKey::Current)
            } else {
                Err(PacketRefusal::OldKey)
            };
        }
        if number > self.current_from || self.current_from == 0 {
            return Ok(SelectedKey::Next);
        }
        Ok(SelectedKey::Previous)
    }

    fn renew(&mut self, now: Time, first: u64) {
        let next = PacketKey::new(self.suite, &self.secret_after_next);
        self.secret_after_next = self.secret_after_next.next_epoch();
        let current = std::mem::replace(&mut self.next, next);
        let key = std::mem::replace(&mut self.current, current);
        self.previous = Some(PreviousKey {
            key,
            until: now + self.probe_timeout * KEPT_PROBE_TIMEOUTS,
        });
        self.previous_from = self.current_from;
        self.current_from = first;
        self.key_phase ^= KEY_PHASE;
        self.statistics.key_updates += 1;
    }

    /// Hears the probe timeout of the path (RFC 9002 §6.2.1), by which the time is measured that an
    /// old key is kept; from the next key update on.
    pub fn set_probe_timeout(&mut self, probe_timeout: Duration) {
        self.probe_timeout = probe_timeout;
    }

    /// Returns the time at which an old key is erased; [`Time::NEVER`] when there is none.
    #[must_use]
    pub fn poll_timeout(&self) -> Time {
        self.previous.as_ref().map_or(Time::NEVER, |old| old.until)
    }

    /// Forgets an old key whose time has come.
    pub fn handle_timeout(&mut self, now: Time) {
        if self.poll_timeout() <= now {
            self.previous = None;
        }
    }

    /// Returns `true` if the forgery limit is reached. Nothing is opened any more, and the path
    /// must end.
    #[must_use]
    pub fn is_exhausted(&self) -> bool {
        self.statistics.forged >= self.limits.forgeries
    }

    /// Returns the counters so far.
    #[must_use]
    pub fn statistics(&self) -> OpenerStatistics {
        self.statistics
    }
}

impl std::fmt::Debug for PacketOpener {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Opener")
            .field("id", &self.id)
            .field("statistics", &self.statistics)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl PacketOpener {
    /// As if the packet of that number had been opened.
    pub(super) fn skip_to(&mut self, number: u64) {
        self.window.take(number).unwrap();
    }
}
