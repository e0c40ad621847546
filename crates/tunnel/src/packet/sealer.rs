//! Sealing of one direction of a path, which also numbers the packets.
//!
//! All packets of a path (data, repairs, probes and acknowledgements) go through its one
//! [`PacketSealer`], and the packet number is the nonce of the seal. A number is used up before the
//! seal is made and never reused. The counter continues across key updates, and neither the sealer
//! nor its source can be copied. Data that is sent again is sent in a new packet.
//!
//! Each side renews only the keys of its own direction; the other side follows the key phase bit.
//! Only one update is pending at a time: the next one waits until a packet of the last has been
//! acknowledged, or one bit could mean both phases (RFC 9001 §6.1, Initiating a Key Update). It
//! then waits three probe timeouts more, until packets under the previous key have arrived or are
//! lost (§6.5, Receiving with Different Keys).

use std::time::Duration;

use bytes::BytesMut;
use thiserror::Error;
use vocab::Time;

use super::header::{ConnectionId, FORM, HEADER_LENGTH, KEY_PHASE, NUMBER_LENGTH, NUMBER_OFFSET};
use super::keys::{CipherSuite, HkdfSecret, INITIAL_PROBE_TIMEOUT, KEPT_PROBE_TIMEOUTS, KeyLimits};
use super::protection::{HeaderKey, PacketKey};

/// Packet numbers may be ahead of the largest acknowledged one by less than this: with the widest
/// replay window, what three bytes of a number can tell apart. At 1,400 bytes a packet it is
/// 5.9 GB under way, a second at 47 Gbit/s.
pub const UNACKNOWLEDGED_LIMIT: u64 = 1 << 22;

/// Number of packets at the end of the limit that are reserved for probes of the peer. Without a
/// probe nothing would ever be acknowledged again. At one probe in half a minute they last three
/// weeks.
pub const ASKING_RESERVE: u64 = 1 << 16;

/// Reason for not sealing a packet. No number was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum SealError {
    /// The last [`UNACKNOWLEDGED_LIMIT`] packets were not acknowledged.
    #[error("the peer acknowledges nothing on this path; wait, or use the link")]
    TooFarAhead,
    /// The key has sealed twice its limit, and the peer has not confirmed the previous update.
    #[error("the keys of this path are used up; close it and use the link")]
    KeyExhausted,
}

/// Seals the packets that this node sends on one path.
///
/// ```compile_fail
/// fn twice(sealer: tunnel::packet::PacketSealer) {
///     let _ = sealer.clone();
/// }
/// ```
pub struct PacketSealer {
    suite: CipherSuite,
    /// The peer's name for the path.
    id: ConnectionId,
    header_key: HeaderKey,
    key: PacketKey,
    /// Secret of the next epoch. The secret of the present epoch is erased.
    next_secret: HkdfSecret,
    key_phase: u8,
    epoch: KeyEpoch,
    next_number: u64,
    largest_acknowledged: Option<u64>,
    limits: KeyLimits,
    probe_timeout: Duration,
}

/// Key epoch: its start time and its first packet.
struct KeyEpoch {
    index: u64,
    first_number: u64,
    began: Time,
    /// Time of the first acknowledgement of a packet under it.
    confirmed: Option<Time>,
}

impl KeyEpoch {
    fn new(now: Time, index: u64, first_number: u64) -> Self {
        Self {
            index,
            first_number,
            began: now,
            confirmed: None,
        }
    }
}

impl PacketSealer {
    pub(super) fn new(
        now: Time,
        suite: CipherSuite,
        secret: &HkdfSecret,
        id: ConnectionId,
        limits: KeyLimits,
    ) -> Self {
        Self {
            suite,
            id,
            header_key: HeaderKey::new(suite, secret),
            key: PacketKey::new(suite, secret),
            next_secret: secret.next_epoch(),
            key_phase: 0,
            epoch: KeyEpoch::new(now, 0, 0),
            next_number: 0,
            largest_acknowledged: None,
            limits,
            probe_timeout: INITIAL_PROBE_TIMEOUT,
        }
    }

    /// Makes room for the header of a packet at the end of `packets` and gives the place where it
    /// starts; the payload is appended next.
    pub fn begin(packets: &mut BytesMut) -> usize {
        let start = packets.len();
        packets.resize(start + HEADER_LENGTH, 0);
        start
    }

    /// Seals the packet that starts at `start` and reaches to the end of `packets`, so that several
    /// can be made one behind the other; it grows by [`TAG_LENGTH`](super::TAG_LENGTH). Gives the packet's number.
    ///
    /// # Errors
    /// [`SealError`]; `packets` is as it was.
    ///
    /// # Panics
    /// When the packet has no payload behind the room for its header.
    pub fn seal(
        &mut self,
        now: Time,
        packets: &mut BytesMut,
        start: usize,
    ) -> Result<u64, SealError> {
        assert!(
            packets.len() > start + HEADER_LENGTH,
            "a packet holds at least one frame"
        );
        if self.ahead() >= UNACKNOWLEDGED_LIMIT {
            return Err(SealError::TooFarAhead);
        }
        self.update_key_when_due(now);
        if self.sealed_in_epoch() >= self.limits.packets_per_key.saturating_mul(2) {
            return Err(SealError::KeyExhausted);
        }
        let number = self.next_number;
        self.next_number += 1;

        let (header, payload) = packets[start..].split_at_mut(HEADER_LENGTH);
        header[0] = FORM | self.key_phase | (NUMBER_LENGTH as u8 - 1);
        header[1..NUMBER_OFFSET].copy_from_slice(&self.id.0);
        header[NUMBER_OFFSET..].copy_from_slice(&number.to_be_bytes()[8 - NUMBER_LENGTH..]);
        let tag = self.key.seal(number, header, payload);
        packets.extend_from_slice(&tag);
        self.header_key.hide(&mut packets[start..], NUMBER_OFFSET);
        Ok(number)
    }

    /// Records that the peer has received packets up to `largest`. A number that was never sent is
    /// ignored here; recovery reports the violation.
    pub fn acknowledged(&mut self, now: Time, largest: u64) {
        if largest >= self.next_number {
            return;
        }
        self.largest_acknowledged = self.largest_acknowledged.max(Some(largest));
        if largest >= self.epoch.first_number && self.epoch.confirmed.is_none() {
            self.epoch.confirmed = Some(now);
        }
    }

    /// Hears the probe timeout of the path (RFC 9002 §6.2.1, Computing PTO).
    pub fn set_probe_timeout(&mut self, probe_timeout: Duration) {
        self.probe_timeout = probe_timeout;
    }

    /// The number that the next packet gets.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Returns the number of key updates.
    #[must_use]
    pub fn key_updates(&self) -> u64 {
        self.epoch.index
    }

    /// Returns `true` if so little was acknowledged that only the [`ASKING_RESERVE`] is left.
    #[must_use]
    pub fn is_far_ahead(&self) -> bool {
        self.ahead() >= UNACKNOWLEDGED_LIMIT - ASKING_RESERVE
    }

    fn ahead(&self) -> u64 {
        match self.largest_acknowledged {
            Some(largest) => self.next_number - largest,
            None => self.next_number,
        }
    }

    fn sealed_in_epoch(&self) -> u64 {
        self.next_number - self.epoch.first_number
    }

    fn update_key_when_due(&mut self, now: Time) {
        let due = self.sealed_in_epoch() >= self.limits.packets_per_key
            || now.since(self.epoch.began) >= self.limits.key_age;
        let settled = self.probe_timeout * KEPT_PROBE_TIMEOUTS;
        let confirmed = self
            .epoch
            .confirmed
            .is_some_and(|confirmed| now.since(confirmed) >= settled);
        if !due || !confirmed {
            return;
        }
        self.key = PacketKey::new(self.suite, &self.next_secret);
        self.next_secret = self.next_secret.next_epoch();
        self.key_phase ^= KEY_PHASE;
        self.epoch = KeyEpoch::new(now, self.epoch.index + 1, self.next_number);
    }
}

impl std::fmt::Debug for PacketSealer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Sealer")
            .field("id", &self.id)
            .field("next_number", &self.next_number)
            .field("key_updates", &self.epoch.index)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
impl PacketSealer {
    /// As if all numbers below `number` had been sealed.
    pub(crate) fn skip_to(&mut self, number: u64) {
        assert!(number >= self.next_number);
        self.next_number = number;
    }

    /// Seals a packet as a peer with different rules would: `flags` are its low bits, and the
    /// payload is not checked.
    pub(super) fn seal_raw(&mut self, flags: u8, payload: &[u8]) -> Vec<u8> {
        let number = self.next_number;
        self.next_number += 1;
        let number_length = usize::from(flags & 0x03) + 1;
        let mut header = vec![FORM | flags];
        header.extend(self.id.0);
        header.extend(&number.to_be_bytes()[8 - number_length..]);
        let mut payload = payload.to_vec();
        let tag = self.key.seal(number, &header, &mut payload);
        let mut packet = [header, payload, tag.to_vec()].concat();
        self.header_key.hide(&mut packet, NUMBER_OFFSET);
        packet
    }
}
