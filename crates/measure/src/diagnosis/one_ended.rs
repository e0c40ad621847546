//! Causes that a capture of a transfer shows.
//!
//! A token bucket is recognised by its deficit: the bytes that passed since it was last full, less
//! those that the rate has restored. The deficit is independent of the burst, and is the same
//! whether the bucket drops (policer), delays (shaper), or is a plain queue:
//!
//! ```text
//!   deficit ───┬── up to the burst ──────► passes without waiting
//!              ├── beyond, in a queue ───► waits (deficit − burst) / rate
//!              └── beyond both ──────────► dropped
//! ```
//! So where losses come, `rate × wait` is the queue and the rest of the deficit is the burst: no queue
//! is a policer, no burst a plain line, both a shaper. Losses that no deficit explains are chance.
//!
//! So at losses, `rate × wait` is the queue and the rest of the deficit is the burst: without a
//! queue it is a policer, without a burst a plain line, with both a shaper. Losses that no deficit
//! explains are random.

mod at_losses;
mod further;
#[cfg(test)]
mod held_back;
mod managed;
mod one_way;
mod policed;
mod spacing;
#[cfg(test)]
mod synthetic;
#[cfg(test)]
mod tests;
mod tokens;
mod waiting;

use std::net::IpAddr;
use std::time::Duration;

use vocab::{ByteCount, Probability};

use self::one_way::one_way;
use self::spacing::{LossSpacing, across_losses};
use self::tokens::departures;
use super::bucket::{BucketFit, best_account, split};
use super::finding::{CauseParameters, DiagnosisCause, DiagnosisFinding};
use super::line::{LineSide, behind, early_line, line_waits};
use super::passage::{
    CapturePlace, HostStream, PacketFate, PacketLimits, PacketPassage, streams, waits,
};
use super::segment::TcpSegment;
use super::statistics::{confidence, quantile};
use super::two_ended::{bitrate, bytes, seconds};

/// Least number of packets for a diagnosis.
const LEAST_PACKETS: usize = 60;
/// Least number of losses that identify a bucket or a queue.
const LEAST_LOSSES: usize = 5;
/// The queue, in packets, below which nothing waits.
const QUEUE_PACKETS: f64 = 1.7;
/// ... and from which on there is one whatever else is seen.
const LONG_QUEUE_PACKETS: f64 = 4.0;
/// ... even if they are little of the path's own time.
const MANY_PACKETS: f64 = 20.0;
/// Packets that leave this much faster than the bucket's rate waited for something else.
const FASTER_LINE: f64 = 1.8;
/// Least Youden's J with which deficits must explain losses.
const EXPLAINED: f64 = 0.5;
/// Room from which on no bucket drops and no queue lets wait, as a share of all there is, and in packets.
const FAR_SHARE: f64 = 0.5;
const FAR_PACKETS: f64 = 12.0;
/// A policer's bucket holds more than this many packets where one is lost; less is a queue that shows no
/// wait.
const POLICED_PACKETS: f64 = 3.2;
/// Packets that find so little room wait, if there is a queue.
const HARDLY_ROOM_PACKETS: f64 = 2.5;
/// Amount by which a bucket whose level is followed must explain more than one computed from the
/// beginning.
const EXPLAINS_MORE: f64 = 0.02;
/// Greatest relative distance of two rates that were found in two ways and count as the same.
const SAME_RATE: f64 = 0.015;
/// Least Youden's J with which arrivals must explain a policer's losses.
const ARRIVALS_EXPLAIN: f64 = 0.75;
/// Least Youden's J with which deficits must explain the losses of a drop-tail queue.
const FULL_EXPLAINS: f64 = 0.7;
/// Share of the BDP below which a buffer is shallow, as in the two-ended diagnosis.
const SHALLOW: f64 = 0.5;
const LOSS_LEAST: f64 = 0.0003;
/// Share of its window that a window-limited transfer uses.
const WINDOW_USED: f64 = 0.75;

/// Diagnosis of the data that one host sent another, with its causes.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferDiagnosis {
    /// Sending host.
    pub source: IpAddr,
    /// Receiving host.
    pub destination: IpAddr,
    /// Number of connections.
    pub connections: usize,
    /// Connections that had begun before the capture.
    pub begun_before: usize,
    /// Payload, retransmissions included.
    pub payload: ByteCount,
    /// Payload behind it that was left out, for a capture may stand for any number of packets, and each takes
    /// time.
    pub left_out: ByteCount,
    /// Time from the first packet to the last.
    pub duration: Duration,
    /// Place of the capture.
    pub place: CapturePlace,
    /// The least RTT, as far as it shows from there.
    pub least_rtt: Option<Duration>,
    /// At least one.
    pub findings: Vec<DiagnosisFinding>,
}

/// Finds the limits of each transfer in a capture; the largest first, none where there is no TCP.
///
/// Segments are in the order in which they were captured.
///
/// At most the first 262,144 packets of one host's transfer to another are judged, and 1,048,576 of
/// a capture; [`TransferDiagnosis::left_out`] counts the rest. So the work is bounded, even for
/// damaged segments.
#[must_use]
pub fn diagnose_capture(segments: &[TcpSegment]) -> Vec<TransferDiagnosis> {
    diagnose_within(segments, PacketLimits::default())
}

fn diagnose_within(segments: &[TcpSegment], most: PacketLimits) -> Vec<TransferDiagnosis> {
    let transfer = |stream: HostStream| {
        let duration = match (stream.passages.first(), stream.passages.last()) {
            (Some(first), Some(last)) => seconds(last.sent - first.sent),
            _ => Duration::ZERO,
        };
        TransferDiagnosis {
            source: stream.source,
            destination: stream.destination,
            connections: stream.connections,
            begun_before: stream.begun_before,
            payload: ByteCount::new(stream.payload_bytes),
            left_out: ByteCount::new(stream.left_out),
            duration,
            place: stream.place,
            least_rtt: stream.least_rtt.map(seconds),
            findings: judge(&stream),
        }
    };
    streams(segments, most).into_iter().map(transfer).collect()
}

fn judge(stream: &HostStream) -> Vec<DiagnosisFinding> {
    let passages = &stream.passages;
    if let Some(finding) = one_way(stream) {
        return vec![finding];
    }
    if passages.len() < LEAST_PACKETS {
        let evidence = match stream.left_out {
            0 => format!("{} packets are too few to tell", passages.len()),
            _ => "the capture's other transfers have more packets than are judged".to_owned(),
        };
        return vec![DiagnosisFinding::new(
            DiagnosisCause::Unknown,
            0.9,
            evidence,
        )];
    }
    let mut seen = PassageObservation::of(stream);
    let mut findings = Vec::new();
    match seen.bucket() {
        Some(bucket) => findings.extend(seen.losses_of(bucket, stream)),
        None => findings.extend(seen.random_loss()),
    }
    if seen.lost < LEAST_LOSSES {
        findings.extend(seen.lossless(stream));
    }
    findings.extend(seen.host_window(stream));
    if findings.is_empty() {
        findings.push(seen.nothing_found());
    }
    findings.sort_by(|a, b| b.confidence.total_cmp(&a.confidence));
    findings
}

/// Observations from the passages of one stream.
#[derive(Clone)]
struct PassageObservation {
    /// Passages at the dropping hop: behind the line before it, where that is known.
    passages: Vec<PacketPassage>,
    lost: usize,
    /// Bytes of a usual packet.
    packet: f64,
    rtt: f64,
    /// Time that packets waited around each passage; `None` where no nearby wait is known.
    waits: Vec<Option<f64>>,
    /// The wait that one in fifty exceeds.
    long_wait: f64,
    /// Set if the capture was taken at the receiver.
    is_behind: bool,
    /// Noise that clocks and acknowledgements add to waits.
    noise: f64,
    /// Bytes per second at which packets leave while others wait.
    waiting_rate: Option<f64>,
    /// The same where it is highest.
    fastest_rate: Option<f64>,
    /// Rate of a line before the dropping hop, which lost packets use as well.
    line_rate: Option<f64>,
    /// The line before the bucket, where it explains losses better than no line.
    line: Option<f64>,
    /// The rate at which packets leave right before a loss.
    queue_rate: Option<f64>,
    /// A line before the dropping hop that explains the waits before the first loss.
    early_line: Option<f64>,
    /// Passages without their waits for a faster line behind the dropping hop, if there is one.
    behind_further: Option<Vec<PacketPassage>>,
    /// Passages that were lost while there was much room.
    is_random: Vec<bool>,
}

/// A bucket or a queue that explains the losses.
#[derive(Clone, Copy, Debug)]
struct LossExplanation {
    /// Bytes per second.
    rate: f64,
    /// Youden's J between losses and passes, 0 to 1.
    explained: f64,
    /// The usual deficit where packets are lost, in bytes.
    deficit: f64,
    /// The usual wait there, in seconds.
    wait: f64,
    /// The share of losses at nearly the longest wait.
    at_top: f64,
    /// The usual wait of packets that find hardly any room, in packets at the rate.
    top_wait: Option<f64>,
}

impl PassageObservation {
    fn of(stream: &HostStream) -> Self {
        let is_behind = stream.place == CapturePlace::Receiver;
        let departures = departures(&stream.passages, is_behind);
        // What leaves as fast across losses as the line is, waited for what drops.
        let across = across_losses(&stream.passages, &departures, is_behind);
        let found = early_line(stream, noise(stream.place));
        let early_line = found
            .filter(|(_, side)| *side == LineSide::Before)
            .map(|(line, _)| line)
            .filter(|line| across.is_none_or(|across| across * line > FASTER_LINE));
        let further = found
            .filter(|(_, side)| *side == LineSide::Behind)
            .and_then(|(line, _)| Self::before_further(stream, line));
        further
            .unwrap_or_else(|| Self::with(stream, early_line, behind(&stream.passages, early_line)))
    }

    fn with(stream: &HostStream, early_line: Option<f64>, passages: Vec<PacketPassage>) -> Self {
        let is_behind = stream.place == CapturePlace::Receiver;
        let mut sizes: Vec<f64> = passages.iter().map(|passage| passage.bytes).collect();
        let mut known: Vec<f64> = passages
            .iter()
            .filter_map(|passage| match passage.fate {
                PacketFate::Passed(wait) => wait,
                PacketFate::Lost => None,
            })
            .collect();
        let mut seen = Self {
            lost: passages
                .iter()
                .filter(|passage| passage.fate == PacketFate::Lost)
                .count(),
            packet: quantile(&mut sizes, 0.75).unwrap_or(1500.0),
            rtt: stream.least_rtt.unwrap_or_default(),
            waits: waits(&passages),
            long_wait: quantile(&mut known, 0.98).unwrap_or_default(),
            is_behind,
            noise: noise(stream.place),
            waiting_rate: None,
            fastest_rate: None,
            line_rate: None,
            line: None,
            queue_rate: None,
            early_line,
            behind_further: None,
            is_random: Vec::new(),
            passages,
        };
        (seen.waiting_rate, seen.fastest_rate, seen.line_rate) = seen.find_waiting_rates();
        seen
    }

    fn loss(&self) -> f64 {
        self.lost as f64 / self.passages.len() as f64
    }

    /// The faster line before a bucket, where packets wait for one.
    fn line(&self, rate: f64) -> Option<f64> {
        self.line.filter(|line| *line > FASTER_LINE * rate)
    }

    /// Youden's J with which a bucket of a rate explains the losses.
    fn explained(&self, rate: f64) -> f64 {
        let line = self.line(rate);
        let from_start = BucketFit::from_start(&self.passages, rate, line).explained;
        let followed = BucketFit::followed(&self.passages, rate, line, self.packet).explained;
        from_start.max(followed)
    }

    /// Bucket that explains the losses best; `None` when none does.
    fn bucket(&mut self) -> Option<LossExplanation> {
        if self.lost < LEAST_LOSSES {
            return None;
        }
        // Behind the bottleneck a hole's place in time is known by its neighbour only, and rates so high
        // that no more than the neighbour counts explain too much.
        let farthest = match self.is_behind {
            true => 0,
            false => 7,
        };
        let (passages, scale) = (&self.passages[..], (self.rtt, self.packet));
        let search = |farthest: i32, account: &dyn Fn(f64) -> BucketFit| {
            best_account(passages, self.waiting_rate, farthest, scale, account)
        };
        // Where packets wait before they reach the bucket, they reach it at that line's rate.
        let before = |line: Option<f64>, rate: f64| line.filter(|line| *line > FASTER_LINE * rate);
        let (waiting, line) = (self.waiting_rate, self.line_rate);
        let from_start = search(farthest, &|rate| {
            BucketFit::from_start(passages, rate, before(waiting, rate))
        })?;
        let followed = |line: Option<f64>| {
            // At far rates a level that is set right at every loss is right of itself.
            search(0, &|rate| {
                BucketFit::followed(passages, rate, before(line, rate), scale.1)
            })
        };
        let (mut account, mut line_before) = (from_start, waiting);
        for line in [None, line] {
            match followed(line) {
                Some(better) if better.explained > account.explained + EXPLAINS_MORE => {
                    (account, line_before) = (better, line);
                }
                _ => {}
            }
        }
        self.line = line_before;
        let much = self.much(&account);
        let found = self.passages.iter().zip(&account.rooms);
        self.is_random = found
            .map(|(passage, room)| passage.fate == PacketFate::Lost && *room > much)
            .collect();
        let top_wait = self.top_wait(&account);
        let mut waits = self.waits_at_losses();
        let top = waits
            .iter()
            .filter(|wait| **wait > 0.7 * self.long_wait)
            .count();
        let at_top = top as f64 / waits.len().max(1) as f64;
        Some(LossExplanation {
            rate: account.rate,
            explained: account.explained,
            deficit: account.deficit,
            wait: quantile(&mut waits, 0.5).unwrap_or_default(),
            at_top,
            top_wait,
        })
    }

    /// Usual wait of packets that find hardly any room, in packets at the bucket's rate, beyond
    /// their wait for a faster line. `None` where too few waits are known, or not exactly enough.
    fn top_wait(&self, account: &BucketFit) -> Option<f64> {
        /// Least number of waits for a diagnosis.
        const LEAST_WAITS: usize = 5;
        const LEAST_IDLE: usize = 30;
        if self.is_behind {
            return None;
        }
        let before = line_waits(&self.passages, self.line(account.rate));
        let much = self.much(account);
        let (mut pressed, mut idle): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        for ((passage, room), before) in self.passages.iter().zip(&account.rooms).zip(before) {
            let PacketFate::Passed(Some(wait)) = passage.fate else {
                continue;
            };
            match *room {
                room if room < HARDLY_ROOM_PACKETS * self.packet => pressed.push(wait - before),
                room if room > much => idle.push(wait - before),
                _ => {}
            }
        }
        if pressed.len() < LEAST_WAITS {
            return None;
        }
        // What packets wait that find room enough is what hosts and acknowledgements add.
        let added = match idle.len() {
            0..LEAST_IDLE => 0.0,
            _ => quantile(&mut idle, 0.5)?.max(0.0),
        };
        let wait = quantile(&mut pressed, 0.5)? - added;
        Some(wait * account.rate / self.packet)
    }

    /// Queue in which packets wait, where its wait alone explains losses better than any bucket:
    /// other traffic fills it as well.
    fn queue_from_waits(&self, bucket: LossExplanation) -> Option<LossExplanation> {
        /// Amount by which waits must explain more losses than the bucket.
        const MORE: f64 = 0.1;
        let rate = self
            .waiting_rate
            .filter(|rate| *rate > FASTER_LINE * bucket.rate)?;
        let waits: Vec<f64> = self
            .waits
            .iter()
            .map(|wait| wait.unwrap_or_default())
            .collect();
        let (explained, _) = split(&self.passages, &waits);
        let is_told = explained > (bucket.explained + MORE).max(FULL_EXPLAINS)
            && bucket.at_top > 0.5
            && rate * bucket.wait > QUEUE_PACKETS * self.packet + 2.0 * self.noise * rate;
        is_told.then_some(LossExplanation {
            rate,
            explained,
            top_wait: None,
            ..bucket
        })
    }

    /// Shaper in which packets wait, where no bucket at a lower rate explains much: a line before a
    /// dropping bucket has no tokens.
    fn shaper_from_tokens(&self, bucket: LossExplanation) -> Option<LossExplanation> {
        /// Least share that a policer's bucket explains with a line before it.
        const EXPLAINS_MUCH: f64 = 0.8;
        let rate = self
            .queues_at(LONG_QUEUE_PACKETS)
            .filter(|rate| *rate > FASTER_LINE * bucket.rate)?;
        let is_told = bucket.explained < EXPLAINS_MUCH
            && self.early_line.is_none()
            && self.shaper(rate).is_some();
        is_told.then_some(LossExplanation {
            rate,
            top_wait: None,
            ..bucket
        })
    }

    /// Finds the cause of packet drops, where there are enough losses.
    fn losses_of(&mut self, bucket: LossExplanation, stream: &HostStream) -> Vec<DiagnosisFinding> {
        let bucket = self.queue_from_waits(bucket).unwrap_or(bucket);
        let bucket = self.shaper_from_tokens(bucket).unwrap_or(bucket);
        let at_losses = self.at_losses(&bucket);
        if let Some(LossSpacing::Queued(rate)) = at_losses.spacing {
            self.queue_rate = Some(rate);
        }
        if at_losses.waits
            || (at_losses.spacing.is_none() && at_losses.leaves_at_rate && self.drops_early())
        {
            return self.full_queue(bucket, stream);
        }
        let bucket = self.policed_at_bucket().unwrap_or(bucket);
        let shows_no_wait = at_losses.shows_no_wait(bucket.deficit / self.packet);
        let is_bucket = bucket.deficit > POLICED_PACKETS * self.packet || shows_no_wait;
        if bucket.explained > EXPLAINED && is_bucket {
            let edge = self.distinct_edge(bucket.rate);
            let (rate, deficit) = match &edge {
                Some(edge) => (Some(edge.rate), edge.full - 0.5 * self.packet),
                None => (None, bucket.deficit),
            };
            let of_rate = match rate {
                Some(rate) => format!("a bucket of {}", bitrate(rate)),
                None => "a bucket, whose rate they do not tell,".to_owned(),
            };
            let evidence = format!(
                "{} losses, while packets wait {:.2} ms at {:.1} ms RTT; {of_rate} tells {:.0} % of them from what \
                 passed",
                self.lost,
                bucket.wait * 1e3,
                self.rtt * 1e3,
                bucket.explained * 100.0
            );
            let sure = confidence(bucket.explained / EXPLAINED);
            let found = DiagnosisFinding::new(DiagnosisCause::Policer, sure, evidence);
            let found = found.with(CauseParameters {
                rate: rate.map(bitrate),
                burst: Some(bytes(deficit + self.packet)),
                ..CauseParameters::default()
            });
            let mut findings = vec![found];
            if let Some(edge) = edge.filter(|_| bucket.explained > FULL_EXPLAINS) {
                findings.extend(self.random_loss_far_from(&edge));
            }
            return findings;
        }
        if bucket.explained > EXPLAINED {
            return self.tiny_queue(bucket, stream);
        }
        let hidden = self.bucket_among_random_loss(bucket.rate);
        match hidden.is_empty() {
            true => self
                .random_loss()
                .into_iter()
                .chain(self.shaper_among_random_loss())
                .collect(),
            false => hidden,
        }
    }

    /// Room from which on nothing drops or waits.
    fn much(&self, account: &BucketFit) -> f64 {
        f64::max(FAR_SHARE * account.deficit, FAR_PACKETS * self.packet)
    }

    /// A queue too short for any wait to show in a capture.
    fn tiny_queue(&self, bucket: LossExplanation, stream: &HostStream) -> Vec<DiagnosisFinding> {
        let queue = bucket.deficit + self.packet;
        let bdp = stream.least_rtt.map(|rtt| rtt * bucket.rate);
        let evidence = format!(
            "{} losses come when about {} bytes are more than {} has carried away",
            self.lost,
            queue.round(),
            bitrate(bucket.rate)
        );
        let cause = match bdp {
            Some(bdp) if queue >= SHALLOW * bdp => DiagnosisCause::DropTailQueue,
            _ => DiagnosisCause::ShallowBuffer,
        };
        let found =
            DiagnosisFinding::new(cause, confidence(bucket.explained / EXPLAINED), evidence);
        vec![found.with(CauseParameters {
            rate: Some(bitrate(bucket.rate)),
            queue: Some(bytes(queue)),
            window_needed: bdp.map(bytes),
            ..CauseParameters::default()
        })]
    }

    /// Findings on losses while packets wait: a full queue, active queue management, or random
    /// loss.
    fn full_queue(&self, bucket: LossExplanation, stream: &HostStream) -> Vec<DiagnosisFinding> {
        let waiting_rate = self.waiting_rate;
        let is_its = |rate: &f64| *rate < FASTER_LINE * self.queue_rate.unwrap_or(bucket.rate);
        let told = self
            .shaped_at()
            .or(waiting_rate.filter(is_its))
            .or(self.queue_rate);
        let rate = told.unwrap_or(bucket.rate);
        let explained = self.explained(rate);
        let drops_early = self.drops_early();
        let is_full = explained > FULL_EXPLAINS && !drops_early;
        let mut findings = Vec::new();
        findings.extend(self.shaper(rate).map(|mut found| {
            // What tells losses best tells no rate of what waits.
            found.parameters.rate = found.parameters.rate.filter(|_| told.is_some());
            found
        }));
        if let Some(policer) = self.polices(findings.first(), explained, stream) {
            return vec![policer];
        }
        let is_shaped = !findings.is_empty();
        // What waits behind a bucket has been let wait for other reasons, too.
        let is_managed = drops_early && !is_shaped;
        let is_full = is_full || (is_shaped && explained > FULL_EXPLAINS);
        let low = self.loss_below(0.3 * self.long_wait);
        let parameters = CauseParameters {
            rate: Some(bitrate(rate)),
            queue_delay: Some(seconds(self.long_wait)),
            ..CauseParameters::default()
        };
        if is_managed || (bucket.at_top <= 0.5 && !is_full) {
            if low > 0.4 * self.loss() && !is_managed {
                findings.extend(self.random_loss());
            } else {
                let evidence = format!(
                    "losses come at {:.1} ms of queueing in the median, though packets wait up to {:.1} ms, \
                     and hardly any come at short queues",
                    bucket.wait * 1e3,
                    self.long_wait * 1e3
                );
                let sure = confidence(1.0 + (0.5 - bucket.at_top));
                findings.push(
                    DiagnosisFinding::new(DiagnosisCause::Aqm, sure, evidence).with(parameters),
                );
            }
            return findings;
        }
        let wait = if is_full { bucket.wait } else { self.long_wait };
        let queue = rate * wait + if is_shaped { 0.0 } else { self.packet };
        let bdp = stream.least_rtt.map(|rtt| rtt * rate);
        let parameters = CauseParameters {
            queue: Some(bytes(queue)),
            window_needed: bdp.map(bytes),
            ..parameters
        };
        let evidence = format!(
            "{} losses come when packets wait {:.1} ms in the median: {} bytes at {}; that tells {:.0} % \
             of them from what passed",
            self.lost,
            wait * 1e3,
            queue.round(),
            bitrate(rate),
            explained * 100.0
        );
        let sure = confidence((bucket.at_top / 0.5).max(explained / EXPLAINED));
        let cause = match bdp {
            Some(bdp) if queue < SHALLOW * bdp => Some(DiagnosisCause::ShallowBuffer),
            _ if is_shaped => None,
            _ => Some(DiagnosisCause::DropTailQueue),
        };
        findings.extend(
            cause.map(|cause| DiagnosisFinding::new(cause, sure, evidence).with(parameters)),
        );
        findings
    }

    /// Loss share of the packets that would have waited less than this.
    fn loss_below(&self, wait: f64) -> f64 {
        let near = self.passages.iter().zip(&self.waits);
        let below = near.filter(|(_, near)| near.is_some_and(|near| near < wait));
        let (mut lost, mut all) = (0.0, 0.0);
        for (passage, _) in below {
            all += 1.0;
            lost += f64::from(u8::from(passage.fate == PacketFate::Lost));
        }
        if all > 0.0 { lost / all } else { 0.0 }
    }

    fn random_loss(&self) -> Option<DiagnosisFinding> {
        self.random_loss_beside(0)
    }

    /// Finding on random loss, beside this many losses of a bucket.
    fn random_loss_beside(&self, others: usize) -> Option<DiagnosisFinding> {
        let lost = self.lost - others;
        let loss = lost as f64 / (self.passages.len() - others) as f64;
        (lost >= 3 && loss > LOSS_LEAST).then(|| {
            let evidence = format!(
                "{lost} of {} packets were lost, and neither a queue nor a bucket explains when",
                self.passages.len() - others
            );
            let sure = confidence(lost as f64 / 6.0).min(0.9);
            DiagnosisFinding::new(DiagnosisCause::RandomLoss, sure, evidence).with(
                CauseParameters {
                    loss: Probability::from_fraction(loss),
                    ..CauseParameters::default()
                },
            )
        })
    }

    /// Departure rate of packets that wait much longer than hosts and acknowledgements explain, and
    /// for so many others.
    fn queues_at(&self, packets: f64) -> Option<f64> {
        let is_long = self.long_wait > 10.0 * self.noise
            && (self.long_wait > 0.2 * self.rtt
                || self
                    .waiting_rate
                    .is_some_and(|rate| rate * self.long_wait > MANY_PACKETS * self.packet));
        self.waiting_rate
            .filter(|rate| is_long && rate * self.long_wait > packets * self.packet)
    }

    /// Finding on a shaper whose queue causes hardly any of the losses.
    fn shaper_among_random_loss(&self) -> Option<DiagnosisFinding> {
        // A short queue's rate is known only where all that wait leave at it.
        let is_one_rate = self
            .waiting_rate
            .zip(self.fastest_rate)
            .is_some_and(|(rate, fastest)| fastest < (1.0 + SAME_RATE) * rate);
        let least = match is_one_rate {
            true => QUEUE_PACKETS,
            false => LONG_QUEUE_PACKETS,
        };
        self.shaper(self.queues_at(least)?)
    }

    /// Findings without losses: packets that wait show a rate, and a burst before it.
    fn lossless(&self, stream: &HostStream) -> Vec<DiagnosisFinding> {
        let Some(rate) = self.queues_at(LONG_QUEUE_PACKETS) else {
            return Vec::new();
        };
        if let Some(found) = self.shaper(rate) {
            return vec![found];
        }
        let queue = rate * self.long_wait;
        let evidence = format!(
            "packets wait up to {:.1} ms at {} and none is dropped; the queue may hold more",
            self.long_wait * 1e3,
            bitrate(rate)
        );
        let found = DiagnosisFinding::new(DiagnosisCause::DropTailQueue, 0.6, evidence).with(
            CauseParameters {
                rate: Some(bitrate(rate)),
                queue: Some(bytes(queue)),
                queue_delay: Some(seconds(self.long_wait)),
                window_needed: stream.least_rtt.map(|rtt| bytes(rtt * rate)),
                ..CauseParameters::default()
            },
        );
        vec![found]
    }

    fn host_window(&self, stream: &HostStream) -> Option<DiagnosisFinding> {
        /// The share of acknowledgements that find a window full which holds a transfer back.
        const NEARLY_ALWAYS: f64 = 0.8;
        let window = stream.window;
        if self.loss() >= 0.001 {
            return None;
        }
        let (first, last) = (self.passages.first()?, self.passages.last()?);
        let total: f64 = self.passages.iter().map(|passage| passage.bytes).sum();
        let reached = total / (last.sent - first.sent);
        // A window beyond the BDP fills the queue, and is not what holds the transfer back.
        let uses = |window: f64| reached * self.rtt > WINDOW_USED * window;
        let found = |bytes_held: f64, sure: f64, evidence: String| {
            DiagnosisFinding::new(DiagnosisCause::HostWindow, sure, evidence).with(
                CauseParameters {
                    window: Some(bytes(bytes_held)),
                    ..CauseParameters::default()
                },
            )
        };
        if let Some(offered) = window.offered.filter(|offered| uses(*offered)) {
            let evidence = format!(
                "{} at an RTT of {:.1} ms is what a window of {offered} bytes allows",
                bitrate(reached),
                self.rtt * 1e3
            );
            let sure = confidence(reached * self.rtt / (WINDOW_USED * offered));
            return Some(found(offered, sure.max(0.7), evidence));
        }
        if self.queues_at(LONG_QUEUE_PACKETS).is_some() {
            return None;
        }
        if let Some(offered) = window.offered.filter(|_| window.full > NEARLY_ALWAYS) {
            let evidence = format!(
                "the receiver's window, of {offered} bytes as a rule, is full before {:.0} % of its \
                 acknowledgements, and {} goes through it",
                window.full * 100.0,
                bitrate(reached)
            );
            return Some(found(offered, 0.8, evidence));
        }
        let kept = window.kept.filter(|kept| uses(*kept))?;
        let evidence = format!(
            "never more than {kept} bytes are under way, and what an acknowledgement makes room for leaves at once: \
             the sender's buffer is no larger, or its congestion window is kept there"
        );
        Some(found(kept, 0.7, evidence))
    }

    fn nothing_found(&self) -> DiagnosisFinding {
        if self.lost > 0 {
            let evidence = format!("{} losses are too few to tell what drops", self.lost);
            return DiagnosisFinding::new(DiagnosisCause::Unknown, 0.6, evidence);
        }
        let evidence = format!(
            "none of {} packets was lost, and none waited longer than {:.1} ms",
            self.passages.len(),
            self.long_wait * 1e3
        );
        DiagnosisFinding::new(DiagnosisCause::None, 0.8, evidence)
    }
}

/// Noise that clocks and acknowledgements add to waits.
fn noise(place: CapturePlace) -> f64 {
    match place {
        // Stamps of a millisecond.
        CapturePlace::Receiver => 0.001,
        CapturePlace::Sender | CapturePlace::Middle => 0.000_05,
    }
}
