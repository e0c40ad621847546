//! A segment arrives: RFC 9293 §3.10.7 (SEGMENT ARRIVES), with RFC 5961 against blind attacks and
//! RFC 7323 §5 (PAWS).

use vocab::Time;

use super::{
    CHALLENGE_INTERVAL, MSS_LEAST, TIME_WAIT, TIMESTAMP_BYTES, TcpConnection, milliseconds,
};
use crate::info::{ClosedReason, ConnectionState};
use crate::receive::ReceiveSide;
use crate::segment::{SACK_BLOCKS_MAX, SegmentFlags, TcpSegment};
use crate::send::PeerAck;

/// Age at which a peer's time stamp is no longer compared, RFC 7323 §5.5.
const TIMESTAMP_AGE_MOST: std::time::Duration = std::time::Duration::from_secs(24 * 24 * 3_600);

impl TcpConnection {
    /// Takes a segment of this connection.
    pub fn handle_segment(&mut self, now: Time, segment: &TcpSegment) {
        match self.state {
            ConnectionState::Closed => return,
            ConnectionState::SynSent => self.arrive_in_syn_sent(now, segment),
            ConnectionState::SynReceived
            | ConnectionState::Established
            | ConnectionState::FinWait1
            | ConnectionState::FinWait2
            | ConnectionState::CloseWait
            | ConnectionState::Closing
            | ConnectionState::LastAck
            | ConnectionState::TimeWait => self.arrive_synchronised(now, segment),
        }
        self.output_pending = true;
    }

    /// Takes the numbers and options of the peer's SYN and makes the two halves.
    pub(super) fn take_syn_options(&mut self, now: Time, segment: &TcpSegment) {
        let options = &segment.options;
        let handshake = &mut self.handshake;
        handshake.peer = segment.sequence;
        handshake.timestamps &= options.timestamps.is_some();
        handshake.sack &= options.sack_permitted;
        handshake.scaling &= options.window_scale.is_some();
        handshake.peer_shift = options.window_scale.unwrap_or(0);
        if !handshake.scaling {
            handshake.peer_shift = 0;
        }
        if let Some(mss) = options.mss {
            handshake.peer_mss = mss;
        }
        if let Some(timestamps) = options.timestamps {
            self.clock.recent = timestamps.value;
            self.clock.recent_at = Some(now);
        }
        let used = self.config.mss.min(handshake.peer_mss).max(MSS_LEAST);
        let option_bytes = if handshake.timestamps {
            TIMESTAMP_BYTES
        } else {
            0
        };
        let payload = u32::from(used - option_bytes);
        let shift = if handshake.scaling {
            self.config.window_shift()
        } else {
            0
        };
        let sack = handshake.sack;
        self.send.agree(payload, sack);
        self.receive = ReceiveSide::new(&self.config, payload, shift, sack);
        // The window of a SYN is never scaled (RFC 7323 §2.2).
        self.send.set_peer_window(u64::from(segment.window));
    }

    fn arrive_in_syn_sent(&mut self, now: Time, segment: &TcpSegment) {
        let flags = segment.flags;
        let acknowledges = flags.contain(SegmentFlags::ACK);
        let is_right = segment.acknowledgement == self.handshake.own.wrapping_add(1);
        if acknowledges && !is_right {
            // A reset for it is the host's answer to an unknown flow.
            return;
        }
        if flags.contain(SegmentFlags::RST) {
            if acknowledges {
                self.end(ClosedReason::Refused);
            }
            return;
        }
        if !flags.contain(SegmentFlags::SYN) {
            return;
        }
        self.take_syn_options(now, segment);
        if !acknowledges {
            // Both ends opened at once.
            self.state = ConnectionState::SynReceived;
            self.handshake.syn_due = true;
            self.handshake.transmissions = 0;
            return;
        }
        self.window_update = (0, 1);
        self.establish(now);
        self.receive.acknowledge_now();
    }

    fn establish(&mut self, now: Time) {
        self.handshake.timer = None;
        self.handshake.syn_due = false;
        self.state = if self.send.is_closing() {
            ConnectionState::FinWait1
        } else {
            ConnectionState::Established
        };
        match self.handshake.syn_sent {
            // RFC 6298 §3: only if it was sent once.
            Some(sent) if self.handshake.transmissions == 1 => {
                self.send.sample_handshake(now, now.since(sent));
            }
            _ => self.send.on_lost_handshake(),
        }
    }

    fn arrive_synchronised(&mut self, now: Time, segment: &TcpSegment) {
        let position = self.position_received(segment.sequence);
        let flags = segment.flags;
        let is_reset = flags.contain(SegmentFlags::RST);
        if !is_reset && self.is_old_by_timestamp(now, segment) {
            self.challenge(now);
            return;
        }
        let Some(position) = position.filter(|position| self.is_acceptable(*position, segment))
        else {
            if !is_reset {
                self.answer_unacceptable(now, segment);
            }
            return;
        };
        if is_reset {
            // RFC 5961 §3.2: only a reset at the expected number is certain.
            if position == self.receive.next() {
                self.end(ClosedReason::Reset);
            } else {
                self.challenge(now);
            }
            return;
        }
        if flags.contain(SegmentFlags::SYN) {
            if self.state == ConnectionState::SynReceived {
                self.handshake.syn_due = true;
            } else {
                self.challenge(now);
            }
            return;
        }
        if !flags.contain(SegmentFlags::ACK) {
            return;
        }
        self.take_timestamp(now, position, segment);
        if !self.take_acknowledgement(now, position, segment) {
            return;
        }
        self.take_content(now, position, segment);
        self.follow_states(now);
    }

    /// RFC 9293 §3.10.7.4: some part of the segment is inside the window.
    fn is_acceptable(&self, position: u64, segment: &TcpSegment) -> bool {
        let (next, edge) = (self.receive.next(), self.receive.edge());
        let end = position + u64::from(segment.sequence_length());
        if position == next {
            return true;
        }
        position <= edge && end >= next && (end > next || segment.sequence_length() == 0)
    }

    /// An old or repeated segment is acknowledged, so that a peer whose acknowledgements were lost goes on.
    fn answer_unacceptable(&mut self, now: Time, segment: &TcpSegment) {
        if segment.flags.contain(SegmentFlags::SYN) && self.state == ConnectionState::SynReceived {
            self.handshake.syn_due = true;
            return;
        }
        let position = self.position_received(segment.sequence).unwrap_or(0);
        if segment.sequence_length() > 0 && position < self.receive.next() {
            // RFC 2883 §4.1: the duplicate is reported.
            let has_fin = segment.flags.contain(SegmentFlags::FIN);
            let rtt = self.send.rtt().0;
            self.receive
                .on_data(now, rtt, position.max(1), segment.payload.clone(), has_fin);
            self.receive.acknowledge_now();
            return;
        }
        self.challenge(now);
    }

    /// Sends an acknowledgement, at most one each half second.
    fn challenge(&mut self, now: Time) {
        let is_early = self
            .challenged
            .is_some_and(|at| now.since(at) < CHALLENGE_INTERVAL);
        if !is_early {
            self.challenged = Some(now);
            self.receive.acknowledge_now();
        }
    }

    /// RFC 7323 §5.3 step R1: the peer's clock never goes back.
    fn is_old_by_timestamp(&self, now: Time, segment: &TcpSegment) -> bool {
        let (true, Some(timestamps)) = (self.handshake.timestamps, segment.options.timestamps)
        else {
            return false;
        };
        let is_comparable = self
            .clock
            .recent_at
            .is_some_and(|at| now.since(at) < TIMESTAMP_AGE_MOST);
        is_comparable && (timestamps.value.wrapping_sub(self.clock.recent) as i32) < 0
    }

    /// RFC 7323 §4.3 step (2): the stamp of the segment that advances the acknowledgement is echoed.
    fn take_timestamp(&mut self, now: Time, position: u64, segment: &TcpSegment) {
        if let Some(timestamps) = segment.options.timestamps
            && self.handshake.timestamps
            && position <= self.receive.acknowledged()
        {
            self.clock.recent = timestamps.value;
            self.clock.recent_at = Some(now);
        }
    }

    /// Takes the acknowledgement and the window; `false` if the segment ends here.
    fn take_acknowledgement(&mut self, now: Time, position: u64, segment: &TcpSegment) -> bool {
        let Some(acknowledged) = self.position_sent(segment.acknowledgement) else {
            return false;
        };
        if self.state == ConnectionState::SynReceived {
            if acknowledged != 1 {
                return false;
            }
            self.establish(now);
        }
        let window = u64::from(segment.window) << self.handshake.peer_shift;
        let is_newer = position > self.window_update.0
            || (position == self.window_update.0 && acknowledged >= self.window_update.1);
        if acknowledged > self.send.next() {
            // RFC 5961 §5.2: an acknowledgement of what was never sent.
            self.challenge(now);
            return false;
        }
        if is_newer {
            self.window_update = (position, acknowledged);
            self.send.set_peer_window(window);
            if window > 0 {
                self.send.stop_persisting();
            }
        }
        let mut blocks = [(0, 0); SACK_BLOCKS_MAX];
        let mut count = 0;
        for (start, end) in segment.options.sack.as_slice() {
            if let (Some(start), Some(end)) = (self.position_sent(*start), self.position_sent(*end))
            {
                blocks[count] = (start, end);
                count += 1;
            }
        }
        let echo = segment
            .options
            .timestamps
            .filter(|_| self.handshake.timestamps);
        let echo = echo.and_then(|timestamps| {
            let age = self.clock.value(now).wrapping_sub(timestamps.echo);
            let now = milliseconds(now);
            Some((now.checked_sub(u64::from(age))?, now))
        });
        let ack = PeerAck {
            position: acknowledged,
            blocks: &blocks[..count],
            echo,
            is_pure: segment.sequence_length() == 0,
        };
        self.send.on_ack(now, &ack)
    }

    fn take_content(&mut self, now: Time, position: u64, segment: &TcpSegment) {
        if segment.sequence_length() == 0 {
            return;
        }
        match self.state {
            ConnectionState::Established
            | ConnectionState::FinWait1
            | ConnectionState::FinWait2 => {
                let has_fin = segment.flags.contain(SegmentFlags::FIN);
                let rtt = self.send.rtt().0;
                self.take_echo(now, segment);
                self.receive
                    .on_data(now, rtt, position, segment.payload.clone(), has_fin);
            }
            // The peer has closed: these are repetitions.
            ConnectionState::CloseWait
            | ConnectionState::Closing
            | ConnectionState::LastAck
            | ConnectionState::TimeWait => {
                self.receive.acknowledge_now();
                if self.state == ConnectionState::TimeWait {
                    self.time_wait = Some(now + TIME_WAIT);
                }
            }
            ConnectionState::SynSent | ConnectionState::SynReceived | ConnectionState::Closed => {}
        }
    }

    /// Hands the age of the echoed time stamp of a full segment to the receiving half.
    fn take_echo(&mut self, now: Time, segment: &TcpSegment) {
        if let Some(timestamps) = segment.options.timestamps
            && self.handshake.timestamps
            && segment.payload.len() >= self.send.mss() as usize
        {
            let age = self.clock.value(now).wrapping_sub(timestamps.echo);
            let age = std::time::Duration::from_millis(u64::from(age));
            self.receive.take_echo(timestamps.echo, age);
        }
    }

    /// Moves on after FINs that arrived or were acknowledged.
    fn follow_states(&mut self, now: Time) {
        let (received, acknowledged) = (self.receive.is_finished(), self.send.is_finished());
        self.state = match (self.state, received, acknowledged) {
            (ConnectionState::Established, true, _) => ConnectionState::CloseWait,
            (ConnectionState::FinWait1, true, true) | (ConnectionState::FinWait2, true, _) => {
                self.time_wait = Some(now + TIME_WAIT);
                ConnectionState::TimeWait
            }
            (ConnectionState::FinWait1, true, false) => ConnectionState::Closing,
            (ConnectionState::FinWait1, false, true) => ConnectionState::FinWait2,
            (ConnectionState::Closing, _, true) => {
                self.time_wait = Some(now + TIME_WAIT);
                ConnectionState::TimeWait
            }
            (ConnectionState::LastAck, _, true) => {
                self.end(ClosedReason::Finished);
                ConnectionState::Closed
            }
            (state, _, _) => state,
        };
    }

    /// Position of a sequence number of the peer, near the next expected one.
    fn position_received(&self, sequence: u32) -> Option<u64> {
        unwrap_number(self.handshake.peer, self.receive.next(), sequence)
    }

    /// Position of a sequence number of this end, near the first unacknowledged one.
    fn position_sent(&self, sequence: u32) -> Option<u64> {
        unwrap_number(self.handshake.own, self.send.una(), sequence)
    }
}

/// Stream position of a 32-bit number, the one nearest to `near`; `None` before the stream.
fn unwrap_number(first: u32, near: u64, number: u32) -> Option<u64> {
    let expected = first.wrapping_add(near as u32);
    let distance = number.wrapping_sub(expected) as i32;
    near.checked_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_unwrap_across_the_end_of_their_space() {
        let first = 0xffff_ff00;
        assert_eq!(unwrap_number(first, 1, first.wrapping_add(1)), Some(1));
        assert_eq!(
            unwrap_number(first, 0x1_0000_0010, first.wrapping_add(0x20)),
            Some(0x1_0000_0020)
        );
        assert_eq!(unwrap_number(first, 1, first.wrapping_sub(5)), None);
    }
}
