//! The receiving half of a connection: reassembly, the window, SACK blocks, and when to acknowledge.
//!
//! ```text
//!   segment ─► window check ─► in order? ─► store ─► application
//!                                 │ no
//!                                 └─► ranges ─► SACK blocks, the latest first (RFC 2018 §4)
//!   acknowledge at once: 2 segments, a gap, a gap filled, a duplicate (RFC 5681 §4.2), or quick
//!   mode (the first segments of a flow); later: 40 ms, or 1 ms behind a gap (as Linux does)
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use vocab::Time;

use crate::config::ConnectionConfig;
use crate::payload::ReceiveStore;
use crate::range_set::RangeSet;
use crate::receive_window::OfferedWindow;
use crate::segment::{SACK_BLOCKS_MAX, SackBlocks, SegmentPayload};

/// Segments at the start, or after a pause, that are acknowledged at once: the sender is in slow
/// start (Linux's TCP_MAX_QUICKACKS).
const QUICK_ACKS: u32 = 16;
/// Acknowledgements behind one gap that go out at once, so that a sender without RACK sees three.
const GAP_ACKS_AT_ONCE: u32 = 3;
/// Acknowledgements behind a gap that one delay may swallow (tcp_comp_sack_nr).
const GAP_ACKS_SWALLOWED_MOST: u32 = 44;
/// Ranges that may wait behind gaps. Data that would make more are dropped, as if they were lost.
const RANGES_MOST: usize = 4_096;
/// Part of an RTT that an acknowledgement behind a gap may wait at most.
const GAP_DELAY_SHARE: u32 = 20;

/// Need of an acknowledgement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum AckNeed {
    #[default]
    None,
    Now,
    At(Time),
}

/// The receiving half of a connection. Positions count the SYN as 0 and the first byte as 1.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveSide {
    next: u64,
    fin: Option<u64>,
    capacity: u64,
    window: OfferedWindow,
    shift: u8,
    mss: u32,
    uses_sack: bool,
    /// Position behind the advertised window.
    edge: u64,
    store: ReceiveStore,
    early: RangeSet,
    /// Positions inside the ranges that were reported, the latest first.
    recent: VecDeque<u64>,
    duplicate: Option<(u64, u64)>,
    /// Position of the latest acknowledgement sent.
    acknowledged: u64,
    need: AckNeed,
    ack_delay: Duration,
    gap_delay: Duration,
    quick_acks: u32,
    gap_acks: u32,
    gap_position: u64,
    swallowed: u32,
    latest_data: Option<Time>,
}

impl ReceiveSide {
    /// A half that expects the first byte, from a peer whose full segments have `mss` bytes.
    pub(crate) fn new(config: &ConnectionConfig, mss: u32, shift: u8, uses_sack: bool) -> Self {
        let capacity = config.receive_buffer.bytes().max(1);
        Self {
            next: 1,
            fin: None,
            capacity,
            window: OfferedWindow::new(config.receive_window_initial, capacity, mss.max(1)),
            shift,
            mss: mss.max(1),
            uses_sack,
            edge: 1,
            store: ReceiveStore::new(config.receive_content),
            early: RangeSet::default(),
            recent: VecDeque::new(),
            duplicate: None,
            acknowledged: 1,
            need: AckNeed::None,
            ack_delay: config.ack_delay,
            gap_delay: config.sack_delay,
            quick_acks: 0,
            gap_acks: 0,
            gap_position: 0,
            swallowed: 0,
            latest_data: None,
        }
    }

    /// Next position that is expected, a FIN included.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }

    /// Position behind the window.
    pub(crate) fn edge(&self) -> u64 {
        self.edge.max(self.next)
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// The peer's FIN has arrived, and all before it.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin.is_some_and(|fin| self.next > fin)
    }

    /// Payload bytes that arrived in order.
    pub(crate) fn bytes_received(&self) -> u64 {
        self.next - 1 - u64::from(self.is_finished())
    }

    pub(crate) fn bytes_damaged(&self) -> u64 {
        self.store.damaged()
    }

    pub(crate) fn ack_due(&self) -> Option<Time> {
        match self.need {
            AckNeed::At(due) => Some(due),
            AckNeed::None | AckNeed::Now => None,
        }
    }

    pub(crate) fn must_acknowledge(&self) -> bool {
        self.need == AckNeed::Now
    }

    pub(crate) fn acknowledge_now(&mut self) {
        self.need = AckNeed::Now;
    }

    pub(crate) fn on_timer(&mut self, now: Time) {
        if self.ack_due().is_some_and(|due| due <= now) {
            self.need = AckNeed::Now;
        }
    }

    /// Takes the payload and FIN of an acceptable segment.
    pub(crate) fn on_data(
        &mut self,
        now: Time,
        rtt: Option<Duration>,
        position: u64,
        payload: SegmentPayload,
        has_fin: bool,
    ) {
        let end = position + payload.len() as u64;
        self.note_pause(now, rtt);
        if self.window.grow(payload.len()) {
            // A segment more than otherwise: the other quick acknowledgements remain (tcp_grow_window).
            self.quick_acks |= 1;
        }
        if has_fin {
            self.fin.get_or_insert(end);
        }
        let fin_at = self.fin.filter(|fin| has_fin && end == *fin);
        let full_end = end + u64::from(fin_at.is_some());
        if full_end <= self.next {
            self.report_duplicate(position, end.min(self.next));
            return;
        }
        let start = position.max(self.next);
        let keep = self.edge().saturating_sub(start);
        if keep == 0 && end > start {
            self.need = AckNeed::Now;
            return;
        }
        if start > self.next {
            self.take_early(
                now,
                rtt,
                start,
                payload.trimmed((start - position) as usize, keep as usize),
            );
            return;
        }
        let was_in_order = self.early.is_empty();
        if position < self.next {
            self.duplicate = Some((position, self.next));
        }
        let payload = payload.trimmed((start - position) as usize, keep as usize);
        let data_end = start + payload.len() as u64;
        self.store.insert(start - 1, payload);
        self.next = data_end.max(self.next);
        if let Some((_, range_end)) = self.early.containing(self.next) {
            self.next = range_end;
        }
        self.early.remove_below(self.next);
        self.store.deliver(self.next - 1);
        self.adjust_window(now);
        if self.fin == Some(self.next) {
            self.next += 1;
        }
        self.need_after_progress(now, was_in_order);
    }

    /// RFC 5681 §4.2 (Generating Acknowledgments) and Linux's quick mode.
    fn need_after_progress(&mut self, now: Time, was_in_order: bool) {
        let fills_last_gap = !was_in_order && self.early.is_empty();
        let unacknowledged = self.next - self.acknowledged;
        let at_once = fills_last_gap
            || self.is_finished()
            || self.duplicate.is_some()
            || unacknowledged > u64::from(self.mss)
            || self.quick_acks > 0;
        if at_once {
            self.need = AckNeed::Now;
        } else if !self.early.is_empty() {
            self.need_behind_gap(now, None);
        } else if self.need == AckNeed::None {
            self.need = AckNeed::At(now + self.ack_delay);
        }
    }

    fn take_early(
        &mut self,
        now: Time,
        rtt: Option<Duration>,
        start: u64,
        payload: SegmentPayload,
    ) {
        let end = start + payload.len() as u64;
        if payload.is_empty() {
            // A FIN behind a gap: it comes again.
            self.fin = None;
            self.need = AckNeed::Now;
            return;
        }
        if self.early.covers(start, end) {
            self.duplicate = Some((start, end));
            self.need = AckNeed::Now;
            return;
        }
        if self.early.count() >= RANGES_MOST {
            self.need = AckNeed::Now;
            return;
        }
        self.store.insert(start - 1, payload);
        self.early.insert(start, end);
        self.adjust_window(now);
        self.recent.push_front(start);
        // One for each block, and one for each that may have merged into another.
        self.recent.truncate(2 * SACK_BLOCKS_MAX);
        self.need_behind_gap(now, rtt);
    }

    /// Behind a gap each segment is acknowledged, the later ones together after a short delay.
    fn need_behind_gap(&mut self, now: Time, rtt: Option<Duration>) {
        if self.quick_acks > 0 || !self.uses_sack || self.gap_delay.is_zero() {
            self.need = AckNeed::Now;
            return;
        }
        if self.gap_position != self.next {
            self.gap_position = self.next;
            self.gap_acks = 0;
        }
        if self.gap_acks < GAP_ACKS_AT_ONCE || self.swallowed >= GAP_ACKS_SWALLOWED_MOST {
            self.gap_acks += 1;
            self.need = AckNeed::Now;
            return;
        }
        self.swallowed += 1;
        if self.swallowed > 1 && matches!(self.need, AckNeed::At(_)) {
            return;
        }
        let most = rtt.map_or(self.gap_delay, |rtt| rtt / GAP_DELAY_SHARE);
        let delay = self.gap_delay.min(most);
        // On a path without delay nothing waits: a timer that is due already would look like output.
        self.need = if delay.is_zero() {
            AckNeed::Now
        } else {
            AckNeed::At(now + delay)
        };
    }

    /// Takes the age of the time stamp that a full segment echoes.
    pub(crate) fn take_echo(&mut self, echo: u32, age: Duration) {
        self.window.take_echo(echo, age);
    }

    fn adjust_window(&mut self, now: Time) {
        let read = (self.next - 1).saturating_sub(self.store.waiting());
        let behind_gap = self
            .early
            .end()
            .map_or(0, |end| end.saturating_sub(self.next));
        self.window.adjust(now, read, behind_gap);
    }

    /// A sender that pauses starts again slowly, so its segments are acknowledged at once.
    fn note_pause(&mut self, now: Time, rtt: Option<Duration>) {
        let pause = Duration::from_millis(200) + rtt.unwrap_or_default();
        if self
            .latest_data
            .is_none_or(|latest| now.since(latest) > pause)
        {
            self.quick_acks = QUICK_ACKS;
        }
        self.latest_data = Some(now);
    }

    /// RFC 2883 §4: the first block reports a segment that was there already.
    fn report_duplicate(&mut self, start: u64, end: u64) {
        if start < end {
            self.duplicate = Some((start, end));
        }
        self.need = AckNeed::Now;
    }

    /// The next bytes in order, for the application; a window that opens is announced.
    pub(crate) fn read(&mut self) -> Option<bytes::Bytes> {
        let bytes = self.store.read()?;
        let room = (self.next + self.free()).saturating_sub(self.edge);
        // RFC 9293 §3.8.6.2.2: the window opens by a segment or half the buffer.
        if room >= u64::from(2 * self.mss).min(self.capacity / 2) {
            self.need = AckNeed::Now;
        }
        Some(bytes)
    }

    fn free(&self) -> u64 {
        self.capacity
            .saturating_sub(self.store.waiting())
            .min(self.window.bytes())
    }

    /// Window field of a segment that is sent now. The edge never moves back (RFC 9293 §3.8.6).
    pub(crate) fn advertise(&mut self, scaled: bool) -> u16 {
        let shift = if scaled { self.shift } else { 0 };
        let wanted = self.next + self.free();
        let gain = wanted.saturating_sub(self.edge);
        let is_worth_it =
            gain >= u64::from(self.mss).min(self.capacity / 2) || self.edge <= self.next;
        let open = if is_worth_it { wanted } else { self.edge };
        let window = open.max(self.edge).saturating_sub(self.next);
        let field = u16::try_from(window >> shift).unwrap_or(u16::MAX);
        self.edge = self.edge.max(self.next + (u64::from(field) << shift));
        field
    }

    /// SACK blocks of an acknowledgement that is sent now, `most` at most, as positions.
    pub(crate) fn blocks(&mut self, most: usize, number: impl Fn(u64) -> u32) -> SackBlocks {
        let mut blocks = SackBlocks::default();
        if !self.uses_sack {
            self.duplicate = None;
            return blocks;
        }
        let mut count = 0;
        if let Some((start, end)) = self.duplicate.take() {
            blocks.push(number(start), number(end));
            count += 1;
        }
        let mut reported: [(u64, u64); SACK_BLOCKS_MAX] = Default::default();
        let mut reported_count = 0;
        let early = &self.early;
        self.recent.retain(|position| {
            let Some(range) = early.containing(*position) else {
                return false;
            };
            if reported[..reported_count].contains(&range) {
                return false;
            }
            if count < most && reported_count < reported.len() {
                blocks.push(number(range.0), number(range.1));
                reported[reported_count] = range;
                reported_count += 1;
                count += 1;
            }
            true
        });
        blocks
    }

    /// Notes that a segment with the acknowledgement field went out.
    pub(crate) fn note_acknowledged(&mut self) {
        self.acknowledged = self.next;
        self.need = AckNeed::None;
        self.swallowed = 0;
        self.quick_acks = self.quick_acks.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use vocab::ByteCount;

    use super::*;
    use crate::payload::ReceiveContent;

    const SEGMENT: u32 = 1_000;

    /// Segments in order that are acknowledged one by one.
    fn acknowledged_one_by_one(initial: u64, buffer: u64) -> u64 {
        let config = ConnectionConfig {
            receive_buffer: ByteCount::new(buffer),
            receive_window_initial: ByteCount::new(initial),
            receive_content: ReceiveContent::Pattern,
            ..ConnectionConfig::default()
        };
        let mut side = ReceiveSide::new(&config, SEGMENT, 0, true);
        side.advertise(true);
        (0..100)
            .find(|index| {
                let position = 1 + index * u64::from(SEGMENT);
                let payload = SegmentPayload::Pattern {
                    offset: position - 1,
                    length: SEGMENT,
                };
                side.on_data(Time::ZERO, None, position, payload, false);
                let is_delayed = !side.must_acknowledge();
                side.note_acknowledged();
                side.advertise(true);
                is_delayed
            })
            .expect("acknowledgements are delayed in the end")
    }

    #[test]
    fn segments_that_enlarge_the_window_are_acknowledged_at_once() {
        assert_eq!(
            acknowledged_one_by_one(60_000, 60_000),
            u64::from(QUICK_ACKS)
        );
        // 2,500 bytes more in steps of two segments, and then the quick ones.
        assert_eq!(
            acknowledged_one_by_one(10_000, 60_000),
            2 + u64::from(QUICK_ACKS)
        );
    }
}
