//! Forwarding between the ports of an emulated device: a switch that learns addresses.
//!
//! ```text
//!   frame ─► learn its source ─► destination known?  ─ yes ─► that port
//!                                                    ─ no ──► every other port, within the limit
//! ```
//! A device model says how long a packet takes and not where it goes, so a switch decides that, and
//! hosts behind the ports need no setting. A frame for an address that is behind the port it came
//! from goes nowhere. Frames to all ports are limited: in a loop between two ports each of them
//! would otherwise return for ever.

use std::collections::HashMap;
use std::time::Duration;

use vocab::Time;

/// Bytes of the two addresses at the start of a frame.
const ADDRESSES: usize = 12;

/// Addresses that are kept, as in a small switch; frames to further ones go to all ports.
const ADDRESSES_MAX: usize = 4_096;

/// Frames to all ports within [`FLOOD_SPAN`]: more than the address resolution of a measurement with
/// 16 ports, and a small part of what a loop makes.
const FLOODS_MAX: u32 = 500;
const FLOOD_SPAN: Duration = Duration::from_millis(100);

/// An Ethernet address.
type EthernetAddress = [u8; 6];

/// Ports that a frame leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameOutputs {
    /// One port.
    One(u16),
    /// Every port except the one that it came from.
    Others,
    /// None: its destination is behind the port that it came from, or it is malformed.
    Nowhere,
    /// None: too many frames go to all ports.
    OverLimit,
}

/// The table of a switch.
#[derive(Debug, Default)]
pub(super) struct FrameSwitch {
    ports: HashMap<EthernetAddress, u16>,
    flood_from: Time,
    floods: u32,
}

impl FrameSwitch {
    /// Decides where a frame goes that comes to port `input` at `now`.
    pub(super) fn outputs(&mut self, now: Time, input: u16, frame: &[u8]) -> FrameOutputs {
        let Some((destination, source)) = addresses(frame) else {
            return FrameOutputs::Nowhere;
        };
        if !is_group(source)
            && (self.ports.len() < ADDRESSES_MAX || self.ports.contains_key(&source))
        {
            self.ports.insert(source, input);
        }
        match self.ports.get(&destination) {
            Some(port) if *port == input => FrameOutputs::Nowhere,
            Some(port) => FrameOutputs::One(*port),
            None => self.flood(now),
        }
    }

    fn flood(&mut self, now: Time) -> FrameOutputs {
        if now.since(self.flood_from) >= FLOOD_SPAN {
            (self.flood_from, self.floods) = (now, 0);
        }
        if self.floods == FLOODS_MAX {
            return FrameOutputs::OverLimit;
        }
        self.floods += 1;
        FrameOutputs::Others
    }
}

/// Destination and source.
fn addresses(frame: &[u8]) -> Option<(EthernetAddress, EthernetAddress)> {
    let both = frame.get(..ADDRESSES)?;
    let (destination, source) = both.split_at(ADDRESSES / 2);
    Some((destination.try_into().ok()?, source.try_into().ok()?))
}

/// Tells whether an address is that of several hosts (IEEE 802 §8.2.2, the I/G bit).
fn is_group(address: EthernetAddress) -> bool {
    address[0] & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROADCAST: u8 = 0xff;

    fn frame(to: u8, from: u8) -> Vec<u8> {
        let mut frame = vec![to; 6];
        frame.extend([from; 6]);
        frame.extend([0x08, 0x00]);
        frame
    }

    #[test]
    fn learned_address_has_one_port() {
        let mut switch = FrameSwitch::default();
        let mut outputs = |input, frame: &[u8]| switch.outputs(Time::ZERO, input, frame);
        assert_eq!(outputs(0, &frame(4, 2)), FrameOutputs::Others);
        assert_eq!(outputs(3, &frame(2, 4)), FrameOutputs::One(0));
        assert_eq!(outputs(0, &frame(4, 2)), FrameOutputs::One(3));
        // Both behind one port.
        assert_eq!(outputs(3, &frame(4, 6)), FrameOutputs::Nowhere);
        // The host has moved.
        outputs(1, &frame(BROADCAST, 4));
        assert_eq!(outputs(0, &frame(4, 2)), FrameOutputs::One(1));
        assert_eq!(outputs(0, &[0; 11]), FrameOutputs::Nowhere);
    }

    #[test]
    fn group_source_is_not_learned() {
        let mut switch = FrameSwitch::default();
        switch.outputs(Time::ZERO, 1, &frame(2, BROADCAST));
        let outputs = switch.outputs(Time::ZERO, 0, &frame(BROADCAST, 2));
        assert_eq!(outputs, FrameOutputs::Others);
    }

    #[test]
    fn frames_to_all_ports_are_limited() {
        let mut switch = FrameSwitch::default();
        let others = (0..10_000)
            .filter(|_| {
                let outputs = switch.outputs(Time::ZERO, 0, &frame(BROADCAST, 2));
                outputs == FrameOutputs::Others
            })
            .count();
        assert_eq!(others, 500);
        let later = Time::ZERO + FLOOD_SPAN;
        let outputs = switch.outputs(later, 0, &frame(BROADCAST, 2));
        assert_eq!(outputs, FrameOutputs::Others);
    }

    #[test]
    fn address_table_has_a_limit() {
        let mut switch = FrameSwitch::default();
        for number in 0..10_000_u32 {
            let mut frame = frame(BROADCAST, 2);
            frame[8..12].copy_from_slice(&number.to_be_bytes());
            switch.outputs(Time::ZERO, 1, &frame);
        }
        assert_eq!(switch.ports.len(), ADDRESSES_MAX);
    }
}
