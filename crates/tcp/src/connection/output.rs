//! Segments that a connection sends: SYN, data, acknowledgements, resets.

use std::time::Duration;

use vocab::Time;

use super::TcpConnection;
use crate::info::ConnectionState;
use crate::segment::{
    SackBlocks, SegmentFlags, SegmentOptions, SegmentPayload, TcpSegment, TimestampOption,
};
use crate::send::PendingTransmission;

/// RFC 6298 §2.1: the time-out of a first SYN; it doubles.
const SYN_TIMEOUT: Duration = Duration::from_secs(1);

impl TcpConnection {
    /// The next segment to send; `None` when there is none at `now`.
    pub fn poll_output(&mut self, now: Time) -> Option<TcpSegment> {
        let segment = self.next_segment(now);
        self.output_pending = segment.is_some();
        segment
    }

    fn next_segment(&mut self, now: Time) -> Option<TcpSegment> {
        if self.reset_due {
            self.reset_due = false;
            let mut segment = self.segment(now, self.send.next());
            segment.flags = SegmentFlags::RST | SegmentFlags::ACK;
            return Some(segment);
        }
        match self.state {
            ConnectionState::Closed => None,
            ConnectionState::SynSent | ConnectionState::SynReceived => self.syn(now),
            ConnectionState::Established
            | ConnectionState::FinWait1
            | ConnectionState::FinWait2
            | ConnectionState::CloseWait
            | ConnectionState::Closing
            | ConnectionState::LastAck
            | ConnectionState::TimeWait => match self.send.next_transmission(now) {
                Some(transmission) => Some(self.data(now, transmission)),
                None if self.receive.must_acknowledge() => Some(self.acknowledgement(now)),
                None => None,
            },
        }
    }

    fn syn(&mut self, now: Time) -> Option<TcpSegment> {
        if !self.handshake.syn_due {
            return None;
        }
        let handshake = &mut self.handshake;
        handshake.syn_due = false;
        handshake.syn_sent.get_or_insert(now);
        let timeout = SYN_TIMEOUT * (1 << handshake.transmissions.min(6));
        handshake.transmissions += 1;
        handshake.timer = Some(now + timeout);
        let answers = self.state == ConnectionState::SynReceived;
        let options = SegmentOptions {
            mss: Some(self.config.mss),
            window_scale: self.handshake.scaling.then(|| self.config.window_shift()),
            sack_permitted: self.handshake.sack,
            timestamps: self.timestamps(now),
            sack: SackBlocks::default(),
        };
        let window = self.receive.advertise(false);
        let mut segment = TcpSegment {
            sequence: self.handshake.own,
            acknowledgement: 0,
            flags: SegmentFlags::SYN,
            window,
            options,
            payload: SegmentPayload::Empty,
        };
        if answers {
            segment.flags = SegmentFlags::SYN | SegmentFlags::ACK;
            segment.acknowledgement = self.handshake.peer.wrapping_add(1);
        }
        Some(segment)
    }

    fn data(&mut self, now: Time, transmission: PendingTransmission) -> TcpSegment {
        let mut segment = self.segment(now, transmission.position);
        if transmission.is_fin {
            segment.flags = segment.flags | SegmentFlags::FIN;
        }
        if transmission.is_push {
            segment.flags = segment.flags | SegmentFlags::PSH;
        }
        segment.payload = transmission.payload;
        // A segment keeps its length: blocks that do not fit beside the payload are left out.
        let room = (usize::try_from(self.send.mss()).unwrap_or(usize::MAX))
            .saturating_sub(segment.payload.len());
        let most = room.saturating_sub(4) / 8;
        segment.options.sack = self.sack_blocks(most);
        self.receive.note_acknowledged();
        segment
    }

    fn acknowledgement(&mut self, now: Time) -> TcpSegment {
        let mut segment = self.segment(now, self.send.next());
        let most = if segment.options.timestamps.is_some() {
            3
        } else {
            4
        };
        segment.options.sack = self.sack_blocks(most);
        self.receive.note_acknowledged();
        segment
    }

    fn sack_blocks(&mut self, most: usize) -> SackBlocks {
        if most == 0 {
            return SackBlocks::default();
        }
        let first = self.handshake.peer;
        self.receive
            .blocks(most.min(3), |position| first.wrapping_add(position as u32))
    }

    /// A segment without payload at this position.
    fn segment(&mut self, now: Time, position: u64) -> TcpSegment {
        let window = self.receive.advertise(self.handshake.scaling);
        TcpSegment {
            sequence: self.handshake.own.wrapping_add(position as u32),
            acknowledgement: self.handshake.peer.wrapping_add(self.receive.next() as u32),
            flags: SegmentFlags::ACK,
            window,
            options: SegmentOptions {
                timestamps: self.timestamps(now),
                ..SegmentOptions::default()
            },
            payload: SegmentPayload::Empty,
        }
    }

    fn timestamps(&self, now: Time) -> Option<TimestampOption> {
        self.handshake.timestamps.then(|| TimestampOption {
            value: self.clock.value(now),
            echo: self.clock.recent,
        })
    }
}

/// Reset for a segment that belongs to no connection, RFC 9293 §3.10.7.1; `None` for a reset.
#[must_use]
pub fn reset_for(segment: &TcpSegment) -> Option<TcpSegment> {
    if segment.flags.contain(SegmentFlags::RST) {
        return None;
    }
    let mut reset = TcpSegment::default();
    if segment.flags.contain(SegmentFlags::ACK) {
        reset.sequence = segment.acknowledgement;
        reset.flags = SegmentFlags::RST;
    } else {
        reset.acknowledgement = segment.sequence.wrapping_add(segment.sequence_length());
        reset.flags = SegmentFlags::RST | SegmentFlags::ACK;
    }
    Some(reset)
}
