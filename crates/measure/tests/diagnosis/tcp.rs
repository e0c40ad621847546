//! TCP as Linux speaks it, as far as a diagnosis sees it: segments, delayed and selective
//! acknowledgements, NewReno or CUBIC.
//!
//! Slow start from ten segments (RFC 6928), loss by SACK and by the order of sending (RFC 6675 §4,
//! RFC 8985 §4 with a reordering window of three segments), retransmission time-outs (RFC 6298), CUBIC
//! with fast convergence and its Reno-friendly region (RFC 9438 §4). Segments are counted, not bytes;
//! all are of full size. It has no pacing and no HyStart.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use measure::tcp_info::TcpInfo;
use vocab::{ByteCount, Time};

/// Segments beyond which one that was sent before counts as lost (RFC 6675 §2, DupThresh).
const REORDERED: u64 = 3;
/// RFC 6298 §2.4 asks for a second; Linux has this (TCP_RTO_MIN).
const TIMEOUT_LEAST: Duration = Duration::from_millis(200);
/// Linux delays acknowledgements by this at least (TCP_DELACK_MIN).
const ACK_DELAY: Duration = Duration::from_millis(40);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CongestionControl {
    Reno,
    Cubic,
}

/// Acknowledgement of a receiver: all segments below `next` have arrived, and these blocks beyond
/// it, the latest first.
#[derive(Clone, Debug)]
pub(crate) struct AckSegment {
    /// Segment that it answers; a real sender finds it by the additional data of the first block.
    pub(crate) latest: u64,
    pub(crate) next: u64,
    pub(crate) blocks: Vec<(u64, u64)>,
}

/// The sending end of a connection.
pub(crate) struct TcpSender {
    control: CongestionControl,
    /// Payload of a segment.
    payload: u64,
    /// The receiver's window and the own buffer, in segments.
    window: u64,
    buffer: u64,
    /// Segments there are to send.
    total: u64,
    first_unacknowledged: u64,
    next: u64,
    segments: VecDeque<SentSegment>,
    /// Transmissions in their order.
    sent: VecDeque<(u64, u64)>,
    next_order: u64,
    latest_delivered: u64,
    lost: BTreeSet<u64>,
    in_flight: u64,
    congestion_window: f64,
    threshold: f64,
    recover: Option<u64>,
    cubic: CubicState,
    srtt: Option<f64>,
    variance: f64,
    least_rtt: Duration,
    timeout: Option<Time>,
    backoff: u32,
    limit: SendLimit,
    limit_since: Time,
    started: Option<Time>,
    waited: [Duration; 2],
    bytes_sent: u64,
    bytes_resent: u64,
}

#[derive(Clone, Copy, Debug)]
struct SentSegment {
    order: u64,
    at: Time,
    delivered: bool,
    resent: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct CubicState {
    most: f64,
    epoch: Option<Time>,
    k: f64,
    friendly: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendLimit {
    Congestion,
    ReceiveWindow,
    SendBuffer,
}

/// Settings of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionSettings {
    pub(crate) control: CongestionControl,
    /// The IP packet of a full segment; 52 bytes of it are headers with time stamps.
    pub(crate) packet: u64,
    pub(crate) window: ByteCount,
    pub(crate) buffer: ByteCount,
    pub(crate) total: ByteCount,
}

/// IPv4 and TCP headers with the time stamp option.
pub(crate) const HEADERS: u64 = 52;

impl TcpSender {
    pub(crate) fn new(settings: ConnectionSettings) -> Self {
        let payload = settings.packet - HEADERS;
        Self {
            control: settings.control,
            payload,
            window: (settings.window.bytes() / payload).max(1),
            buffer: (settings.buffer.bytes() / payload).max(1),
            total: settings.total.bytes().div_ceil(payload),
            first_unacknowledged: 0,
            next: 0,
            segments: VecDeque::new(),
            sent: VecDeque::new(),
            next_order: 1,
            latest_delivered: 0,
            lost: BTreeSet::new(),
            in_flight: 0,
            congestion_window: 10.0,
            threshold: f64::INFINITY,
            recover: None,
            cubic: CubicState::default(),
            srtt: None,
            variance: 0.0,
            least_rtt: Duration::MAX,
            timeout: None,
            backoff: 0,
            limit: SendLimit::Congestion,
            limit_since: Time::ZERO,
            started: None,
            waited: [Duration::ZERO; 2],
            bytes_sent: 0,
            bytes_resent: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.first_unacknowledged >= self.total
    }

    pub(crate) fn timeout(&self) -> Option<Time> {
        self.timeout
    }

    pub(crate) fn info(&self, now: Time) -> TcpInfo {
        let mut waited = self.waited;
        if let Some(index) = self.limit.index() {
            waited[index] += now.since(self.limit_since);
        }
        TcpInfo {
            segment_bytes: self.payload as u32,
            rtt: Duration::from_secs_f64(self.srtt.unwrap_or_default()),
            rtt_min: self.least_rtt,
            congestion_window: self.congestion_window as u32,
            bytes_acknowledged: ByteCount::new(self.first_unacknowledged * self.payload),
            bytes_sent: ByteCount::new(self.bytes_sent),
            bytes_retransmitted: ByteCount::new(self.bytes_resent),
            busy: self
                .started
                .map_or(Duration::ZERO, |started| now.since(started)),
            receive_window_limited: waited[0],
            send_buffer_limited: waited[1],
            peer_window: Some(ByteCount::new(self.window * self.payload)),
            ..TcpInfo::default()
        }
    }

    /// The next segment to send at `now`: its number, and whether it was sent before.
    pub(crate) fn poll(&mut self, now: Time) -> Option<(u64, bool)> {
        self.started.get_or_insert(now);
        if self.in_flight as f64 + 1.0 > self.congestion_window.max(1.0) {
            self.limited_by(now, SendLimit::Congestion);
            return None;
        }
        if let Some(number) = self.lost.pop_first() {
            self.transmit(now, number);
            self.bytes_resent += self.payload;
            return Some((number, true));
        }
        let outstanding = self.next - self.first_unacknowledged;
        let limit = match () {
            () if self.next >= self.total => Some(SendLimit::Congestion),
            () if outstanding >= self.window => Some(SendLimit::ReceiveWindow),
            () if outstanding >= self.buffer => Some(SendLimit::SendBuffer),
            () => None,
        };
        if let Some(limit) = limit {
            self.limited_by(now, limit);
            return None;
        }
        self.segments.push_back(SentSegment {
            order: 0,
            at: now,
            delivered: false,
            resent: false,
        });
        self.next += 1;
        let number = self.next - 1;
        self.transmit(now, number);
        Some((number, false))
    }

    fn transmit(&mut self, now: Time, number: u64) {
        let index = (number - self.first_unacknowledged) as usize;
        let segment = &mut self.segments[index];
        segment.resent = segment.order > 0;
        segment.order = self.next_order;
        segment.at = now;
        self.sent.push_back((self.next_order, number));
        self.next_order += 1;
        self.in_flight += 1;
        self.bytes_sent += self.payload;
        if self.timeout.is_none() {
            self.arm(now);
        }
    }

    fn limited_by(&mut self, now: Time, limit: SendLimit) {
        if let Some(index) = self.limit.index() {
            self.waited[index] += now.since(self.limit_since);
        }
        self.limit = limit;
        self.limit_since = now;
    }

    pub(crate) fn on_ack(&mut self, now: Time, ack: &AckSegment) {
        let mut newest: Option<SentSegment> = None;
        let mut delivered = 0;
        if let Some(segment) = self.deliver(ack.latest) {
            delivered += 1;
            newest = Some(segment);
        }
        for (start, end) in &ack.blocks {
            for number in (*start..*end).rev() {
                match self.deliver(number) {
                    Some(segment) => {
                        delivered += 1;
                        newest = newest
                            .filter(|newest| newest.order > segment.order)
                            .or(Some(segment));
                    }
                    // What is below was said before.
                    None => break,
                }
            }
        }
        let advances = ack.next > self.first_unacknowledged;
        while self.first_unacknowledged < ack.next.min(self.next) {
            if let Some(segment) = self.deliver(self.first_unacknowledged) {
                delivered += 1;
                newest = newest
                    .filter(|newest| newest.order > segment.order)
                    .or(Some(segment));
            }
            self.segments.pop_front();
            self.first_unacknowledged += 1;
        }
        if let Some(newest) = newest {
            self.latest_delivered = self.latest_delivered.max(newest.order);
            if !newest.resent {
                self.sample(now.since(newest.at));
            }
        }
        self.find_losses(now);
        if self
            .recover
            .is_some_and(|recover| self.first_unacknowledged >= recover)
        {
            self.recover = None;
        }
        if self.recover.is_none() && delivered > 0 {
            self.grow(now, delivered as f64);
        }
        if advances {
            self.backoff = 0;
            self.timeout = None;
            if self.first_unacknowledged < self.next {
                self.arm(now);
            }
        }
    }

    /// Marks one segment as delivered; `None` when it was already.
    fn deliver(&mut self, number: u64) -> Option<SentSegment> {
        let index = number.checked_sub(self.first_unacknowledged)? as usize;
        let segment = self.segments.get_mut(index)?;
        if segment.delivered {
            return None;
        }
        segment.delivered = true;
        let segment = *segment;
        // One that counts as lost is no longer in flight.
        if !self.lost.remove(&number) {
            self.in_flight = self.in_flight.saturating_sub(1);
        }
        Some(segment)
    }

    fn find_losses(&mut self, now: Time) {
        let mut found = false;
        while let Some((order, number)) = self.sent.front().copied() {
            let index = number.checked_sub(self.first_unacknowledged);
            let segment = index.and_then(|index| self.segments.get(index as usize));
            let is_current =
                segment.is_some_and(|segment| !segment.delivered && segment.order == order);
            if is_current {
                if order + REORDERED > self.latest_delivered {
                    break;
                }
                found |= self.lost.insert(number);
                self.in_flight = self.in_flight.saturating_sub(1);
            }
            self.sent.pop_front();
        }
        if found && self.recover.is_none() {
            self.recover = Some(self.next);
            self.reduce(now);
            self.congestion_window = self.threshold;
        }
    }

    fn reduce(&mut self, _now: Time) {
        let window = self.congestion_window;
        self.threshold = match self.control {
            CongestionControl::Reno => window * 0.5,
            CongestionControl::Cubic => {
                // RFC 9438 §4.7 (Fast Convergence), §4.6 (Multiplicative Decrease).
                self.cubic.most = match window < self.cubic.most {
                    true => window * 0.85,
                    false => window,
                };
                self.cubic.epoch = None;
                window * 0.7
            }
        }
        .max(2.0);
    }

    fn grow(&mut self, now: Time, delivered: f64) {
        // Not while something else holds the sender back (RFC 7661; Linux is_cwnd_limited).
        if (self.in_flight as f64 + delivered) < self.congestion_window / 2.0 {
            return;
        }
        if self.limit != SendLimit::Congestion && self.congestion_window > self.threshold {
            return;
        }
        if self.congestion_window < self.threshold {
            if (self.in_flight as f64 + delivered) * 2.0 > self.congestion_window {
                self.congestion_window += delivered;
            }
            return;
        }
        match self.control {
            CongestionControl::Reno => self.congestion_window += delivered / self.congestion_window,
            CongestionControl::Cubic => self.grow_cubic(now, delivered),
        }
    }

    /// RFC 9438 §4.2 (Window Increase Function), §4.3 (Reno-Friendly Region).
    fn grow_cubic(&mut self, now: Time, delivered: f64) {
        const C: f64 = 0.4;
        let rtt = self.srtt.unwrap_or(0.1);
        let window = self.congestion_window;
        let epoch = *self.cubic.epoch.get_or_insert_with(|| {
            self.cubic.k = match self.cubic.most > window {
                true => ((self.cubic.most - window) / C).cbrt(),
                false => 0.0,
            };
            self.cubic.most = self.cubic.most.max(window);
            self.cubic.friendly = window;
            now
        });
        let elapsed = now.since(epoch).as_secs_f64() + rtt;
        let target = self.cubic.most + C * (elapsed - self.cubic.k).powi(3);
        self.cubic.friendly += 3.0 * 0.3 / 1.7 * delivered / window;
        let target = target.clamp(window, 1.5 * window);
        self.congestion_window += (target - window) / window * delivered;
        self.congestion_window = self.congestion_window.max(self.cubic.friendly);
    }

    pub(crate) fn on_timeout(&mut self, now: Time) {
        if self.timeout.is_none_or(|at| at > now) {
            return;
        }
        self.timeout = None;
        if self.first_unacknowledged >= self.next {
            return;
        }
        self.reduce(now);
        self.congestion_window = 1.0;
        self.recover = Some(self.next);
        for (index, segment) in self.segments.iter().enumerate() {
            if !segment.delivered {
                self.lost.insert(self.first_unacknowledged + index as u64);
            }
        }
        self.in_flight = 0;
        self.sent.clear();
        self.recover = None;
        self.backoff = (self.backoff + 1).min(6);
        self.arm(now);
    }

    fn arm(&mut self, now: Time) {
        let base = self.srtt.map_or(1.0, |srtt| srtt + 4.0 * self.variance);
        let timeout = Duration::from_secs_f64(base).max(TIMEOUT_LEAST);
        self.timeout = Some(now + timeout * (1 << self.backoff));
    }

    /// RFC 6298 §2.
    fn sample(&mut self, rtt: Duration) {
        self.least_rtt = self.least_rtt.min(rtt);
        let rtt = rtt.as_secs_f64();
        match &mut self.srtt {
            None => {
                self.srtt = Some(rtt);
                self.variance = rtt / 2.0;
            }
            Some(srtt) => {
                self.variance += ((*srtt - rtt).abs() - self.variance) / 4.0;
                *srtt += (rtt - *srtt) / 8.0;
            }
        }
    }
}

impl SendLimit {
    fn index(self) -> Option<usize> {
        match self {
            SendLimit::Congestion => None,
            SendLimit::ReceiveWindow => Some(0),
            SendLimit::SendBuffer => Some(1),
        }
    }
}

/// The receiving end.
#[derive(Debug, Default)]
pub(crate) struct TcpReceiver {
    pub(crate) next: u64,
    /// Blocks that arrived beyond a gap, the latest first.
    beyond: Vec<(u64, u64)>,
    unacknowledged: u32,
    latest: u64,
    pub(crate) ack_at: Option<Time>,
}

impl TcpReceiver {
    /// Takes a segment; returns the acknowledgement that it calls for at once.
    pub(crate) fn on_segment(&mut self, now: Time, number: u64) -> Option<AckSegment> {
        let in_order = number == self.next && self.beyond.is_empty();
        if number == self.next {
            self.next += 1;
            while let Some(index) = self
                .beyond
                .iter()
                .position(|(start, _)| *start <= self.next)
            {
                let (_, end) = self.beyond.remove(index);
                self.next = self.next.max(end);
            }
        } else if number > self.next {
            let mut merged = (number, number + 1);
            self.beyond.retain(|(start, end)| {
                let touches = *start <= merged.1 && merged.0 <= *end;
                if touches {
                    merged = (merged.0.min(*start), merged.1.max(*end));
                }
                !touches
            });
            self.beyond.insert(0, merged);
        }
        self.unacknowledged += 1;
        if in_order && self.unacknowledged < 2 {
            self.latest = number;
            self.ack_at.get_or_insert(now + ACK_DELAY);
            return None;
        }
        self.latest = number;
        Some(self.acknowledge())
    }

    pub(crate) fn acknowledge(&mut self) -> AckSegment {
        self.unacknowledged = 0;
        self.ack_at = None;
        AckSegment {
            latest: self.latest,
            next: self.next,
            // Three fit beside time stamps (RFC 2018 §3).
            blocks: self.beyond.iter().take(3).copied().collect(),
        }
    }
}
