//! Causes that a two-ended measurement shows.
//!
//! Each detector is a function from the observations to a [`DiagnosisFinding`] or nothing, and
//! several may apply; only the kind of bottleneck (policer, shaper, or a line with a queue) is a
//! single decision.

use std::time::Duration;

use vocab::{Bitrate, ByteCount, Probability};

use super::finding::{CauseParameters, DiagnosisCause, DiagnosisFinding};
use super::observation::{LoadStage, SizeProbe, TcpRun, TcpSample, TwoEnded};
use super::statistics::{confidence, quantile};
use super::stream::{OverloadObservation, QuietObservation, SAME_RATE, StageSeries, overload};

/// A queue below this share of the BDP is too shallow: one connection of CUBIC or Reno, backing off
/// to 0.7 or 0.5 of its window, then leaves the line idle.
const SHALLOW: f64 = 0.5;
/// Bursts below this many packets are no bucket: a plain line has one packet.
const BURST_PACKETS: f64 = 3.0;
/// Greatest queue, in packets, behind a larger bucket that still polices: tbf(8) with a limit of
/// two packets.
const POLICING_QUEUE_PACKETS: f64 = 2.5;
/// Loss below this, or seen on fewer packets, is not reported: RFC 8337 asks for runs of at least
/// thousands between losses.
const LOSS_LEAST: f64 = 0.0003;
const LOSSES_LEAST: usize = 3;
/// Least share of early drops that shows a managed queue: hosts that stop cause some.
const EARLY_SHARE: f64 = 0.03;
/// Random loss above which the losses of TCP say nothing of the queue.
const LOSS_HIDES_QUEUE: f64 = 0.004;
/// Directions whose rates differ by more than this factor are asymmetric.
const ASYMMETRIC: f64 = 1.25;
/// The share of the time with data to send in which a window must have held the sender back.
const WINDOW_LIMITED_SHARE: f64 = 0.3;
/// ... and the least share of window / baseline RTT that must have been reached.
const WINDOW_FILLED: f64 = 0.6;
/// Share of the requested rate below which the sender itself is the limit.
pub(super) const SENT_SHARE: f64 = 0.95;
/// Answers that come in less than this share of the baseline RTT come from somewhere nearer.
const NEARER: f64 = 0.7;
/// ... and are at least this much earlier, more than clocks and hosts err.
const NEARER_BY: Duration = Duration::from_millis(2);

/// A stage is read beside the longest one if it lasts for this share of it.
const LONG_ENOUGH: f64 = 0.25;

/// Finds the limits of one direction of a path; at least one finding, the most confident first.
#[must_use]
pub fn diagnose(observed: &TwoEnded) -> Vec<DiagnosisFinding> {
    let seen = StageObservation::of(observed);
    let mut findings: Vec<DiagnosisFinding> = Vec::new();
    findings.extend(seen.bottleneck(observed));
    findings.extend(seen.random_loss());
    findings.extend(seen.cross_traffic());
    findings.extend(seen.asymmetric_path(observed));
    findings.extend(black_hole(&observed.size_probes));
    // A host that overloads the path is not what limits it, even where it did not keep its own rate.
    if seen.overloads.is_empty() {
        findings.extend(slow_sender(&observed.stages));
    }
    for detector in [host_window, middlebox, idle_sender] {
        let found = observed
            .runs
            .iter()
            .find_map(|run| detector(observed, &seen, run));
        findings.extend(found);
    }
    if findings.is_empty() || (seen.died && seen.overloads.is_empty()) {
        findings.push(seen.nothing_found(observed));
    }
    let order = |a: &DiagnosisFinding, b: &DiagnosisFinding| b.confidence.total_cmp(&a.confidence);
    findings.sort_by(order);
    findings
}

/// Observations from the stages of a measurement.
struct StageObservation {
    /// Bytes of a packet.
    packet: f64,
    quiet: QuietObservation,
    /// Packets and losses that the quiet loss was counted over.
    quiet_packets: usize,
    quiet_lost: usize,
    /// Overloaded stages, the one nearest to 1.5 times the rate and above it first.
    overloads: Vec<OverloadObservation>,
    /// Bytes per second that got through, of stages that were not overloaded.
    carried: Option<f64>,
    /// Set if the path stopped carrying anything in mid-stage.
    died: bool,
}

impl StageObservation {
    fn of(observed: &TwoEnded) -> Self {
        let mut all: Vec<StageSeries> =
            observed.stages.iter().filter_map(StageSeries::of).collect();
        all.sort_by(|a, b| a.sent_rate().total_cmp(&b.sent_rate()));
        let died = all.iter().any(StageSeries::died);
        all.retain(|series| !series.died());
        let mut seen = Self {
            packet: all.last().map_or(1500.0, |series| series.packet),
            quiet: QuietObservation::default(),
            quiet_packets: 0,
            quiet_lost: 0,
            overloads: Vec::new(),
            carried: None,
            died,
        };
        // From slow to fast: what the slowest stages lose is what is lost anyhow.
        for series in &all {
            let quiet = match seen.quiet_packets {
                0 => QuietObservation {
                    loss: series.unexplained_loss_count() as f64 / series.delay.len() as f64,
                    noise: series.noise(),
                },
                _ => seen.quiet,
            };
            match overload(series, quiet) {
                Some(overload) => seen.overloads.push(overload),
                None => {
                    seen.quiet_packets += series.delay.len();
                    seen.quiet_lost += series.unexplained_loss_count();
                    seen.quiet.loss = seen.quiet_lost as f64 / seen.quiet_packets as f64;
                    seen.quiet.noise = series.noise();
                    seen.carried = Some(series.sent_rate());
                }
            }
        }
        if seen.leave_out_what_a_stutter_makes(&all, observed) {
            seen.overloads = all
                .iter()
                .filter_map(|series| overload(series, seen.quiet))
                .collect();
        }
        let distance = |overload: &OverloadObservation| {
            let times = (overload.offered / overload.rate * 1e6) as i64;
            let is_small = times < 1_450_000;
            (is_small, if is_small { -times } else { times })
        };
        seen.overloads.sort_by_key(distance);
        // What only climbs to the rate may end before a queue is full.
        let longest = seen.overloads.iter().map(|over| over.lasted);
        let longest = longest.fold(0.0, f64::max);
        seen.overloads
            .retain(|over| over.lasted >= LONG_ENOUGH * longest);
        seen
    }

    /// Removes the effects of a sender that stutters below the rate: it sends some packets at once,
    /// which wait for each other without noise of the hosts' clocks; where the queue is short they
    /// fill it now and then, and these losses are not random. Tells whether there were such
    /// effects, so that overloads must be evaluated again.
    fn leave_out_what_a_stutter_makes(&mut self, all: &[StageSeries], observed: &TwoEnded) -> bool {
        /// A queue below this share of the BDP is filled by a sender's stutter.
        const SHORT: f64 = 0.05;
        let by_rate =
            |a: &&OverloadObservation, b: &&OverloadObservation| a.rate.total_cmp(&b.rate);
        let Some((rate, queue)) = self
            .overloads
            .iter()
            .max_by(by_rate)
            .map(|over| (over.rate, over.queue))
        else {
            return false;
        };
        let before = (self.quiet.noise, self.quiet_lost);
        let quiet = self.quiet;
        let below = || {
            all.iter()
                .filter(|series| overload(series, quiet).is_none())
        };
        if let Some(fastest) = below().next_back() {
            self.quiet.noise = fastest.noise_beside_backlog(rate);
        }
        let baseline = observed.baseline_rtt.unwrap_or_default().as_secs_f64();
        if queue <= SHORT * rate * baseline && self.quiet_lost >= LOSSES_LEAST {
            let lost = |series: &StageSeries| series.lost_beside_queue(rate, queue);
            self.quiet_lost = below().map(lost).sum();
            self.quiet.loss = self.quiet_lost as f64 / self.quiet_packets.max(1) as f64;
        }
        before != (self.quiet.noise, self.quiet_lost)
    }

    /// The bottleneck's rate, in bytes per second.
    fn rate(&self) -> Option<f64> {
        self.overloads.first().map(|overload| overload.rate)
    }

    fn bdp(&self, observed: &TwoEnded) -> Option<f64> {
        Some(self.rate()? * observed.baseline_rtt?.as_secs_f64())
    }

    /// Policer, shaper, queue; AQM; shallow.
    fn bottleneck(&self, observed: &TwoEnded) -> Vec<DiagnosisFinding> {
        let Some(over) = self.overloads.first() else {
            return Vec::new();
        };
        let packets = |bytes: f64| bytes / self.packet;
        let uncertain = 4.0 * over.rate * self.quiet.noise;
        let bursts = over.burst > BURST_PACKETS * self.packet + uncertain;
        let polices = over.lost > 0
            && bursts
            && packets(over.queue) < POLICING_QUEUE_PACKETS
            && over.burst > 2.0 * over.queue;
        // Without a slower stage nobody knows what is lost anyhow, and a sender that hardly keeps the line busy loses in
        // a short queue as a policer would have it.
        if polices && self.quiet_packets == 0 && over.rate_error.is_none() {
            return Vec::new();
        }
        let rate = Some(bitrate(over.rate));
        let said = format!(
            "{} was offered and {} got through",
            bitrate(over.offered),
            bitrate(over.rate)
        );
        if polices {
            let margin = (over.burst / (BURST_PACKETS * self.packet))
                .min(1.0 + over.burst / over.queue.max(self.packet));
            let evidence = format!(
                "{said}; packets are dropped while none waits (longest wait {:.3} ms), after {} bytes \
                 beyond the rate had passed",
                over.longest_wait * 1e3,
                over.burst.round(),
            );
            let found =
                DiagnosisFinding::new(DiagnosisCause::Policer, confidence(margin), evidence);
            return vec![found.with(CauseParameters {
                rate,
                burst: Some(bytes(over.burst)),
                ..CauseParameters::default()
            })];
        }
        let mut findings = Vec::new();
        if bursts {
            let margin = over.burst / (BURST_PACKETS * self.packet + uncertain);
            let evidence = format!(
                "{said}; the first {} bytes beyond the rate passed without waiting, then packets waited \
                 up to {:.1} ms",
                over.burst.round(),
                over.longest_wait * 1e3,
            );
            let found = DiagnosisFinding::new(DiagnosisCause::Shaper, confidence(margin), evidence);
            findings.push(found.with(CauseParameters {
                rate,
                burst: Some(bytes(over.burst)),
                queue: (over.lost > 0).then(|| bytes(over.queue)),
                queue_delay: Some(seconds(over.longest_wait)),
                ..CauseParameters::default()
            }));
        }
        if let Some(found) = self.aqm(observed, over) {
            findings.push(found);
            return findings;
        }
        findings.extend(self.queue(observed, over, bursts));
        findings
    }

    fn queue(
        &self,
        observed: &TwoEnded,
        over: &OverloadObservation,
        is_shaped: bool,
    ) -> Option<DiagnosisFinding> {
        // The wait of the last packet that fits is the queue less that packet; a bucket's packet
        // leaves when its last token comes, so its own length is in its wait.
        let own = if is_shaped { 0.0 } else { self.packet };
        let queue = over.queue + own;
        let is_limit = self.losses_of(over) > LOSSES_LEAST as f64;
        let bdp = self.bdp(observed);
        // The very longest wait before a queue that is kept full is a host's.
        let longest_wait = match is_limit {
            true => over.queue / over.rate,
            false => over.longest_wait,
        };
        let parameters = CauseParameters {
            rate: Some(bitrate(over.rate)),
            queue: Some(bytes(queue)),
            queue_delay: Some(seconds(longest_wait)),
            window_needed: bdp.map(bytes),
            ..CauseParameters::default()
        };
        let wait = match longest_wait * over.rate < 0.1 * self.packet {
            true => "packets hardly wait".to_owned(),
            false => format!("packets wait up to {:.3} ms", longest_wait * 1e3),
        };
        let rate = bitrate(over.rate);
        let filled = format!("{wait} at {rate}: {} bytes", queue.round());
        // A queue of a few packets is shallow for any path that a packet does not fill.
        match bdp {
            Some(bdp) if is_limit && queue < SHALLOW * bdp => {
                let evidence = format!(
                    "{filled}, then they are dropped; that is {:.1} % of the BDP of {} bytes",
                    100.0 * queue / bdp,
                    bdp.round()
                );
                let sure = confidence(SHALLOW * bdp / queue);
                Some(
                    DiagnosisFinding::new(DiagnosisCause::ShallowBuffer, sure, evidence)
                        .with(parameters),
                )
            }
            _ if is_shaped => None,
            _ if is_limit => {
                let evidence = format!("{filled}, and only then are they dropped");
                let sure = bdp.map_or(0.9, |bdp| confidence(queue / (SHALLOW * bdp)));
                Some(
                    DiagnosisFinding::new(DiagnosisCause::DropTailQueue, sure, evidence)
                        .with(parameters),
                )
            }
            _ => {
                let evidence = format!("{filled} and are not yet dropped; it may hold more");
                Some(
                    DiagnosisFinding::new(DiagnosisCause::DropTailQueue, 0.6, evidence)
                        .with(parameters),
                )
            }
        }
    }

    /// Losses in an overload beyond those that are always there.
    fn losses_of(&self, over: &OverloadObservation) -> f64 {
        let sent = over.lost as f64 / (1.0 - over.rate / over.offered).max(0.01);
        over.lost as f64 - 2.0 * sent * self.quiet.loss
    }

    fn aqm(&self, observed: &TwoEnded, over: &OverloadObservation) -> Option<DiagnosisFinding> {
        let parameters = CauseParameters {
            rate: Some(bitrate(over.rate)),
            queue_delay: Some(seconds(over.longest_wait)),
            ..CauseParameters::default()
        };
        if over.dropped_early > over.early_by_chance.max(EARLY_SHARE * over.lost as f64) {
            let evidence = format!(
                "{:.0} of {} drops came while the queue was shorter than its longest ({:.1} ms)",
                over.dropped_early,
                over.lost,
                over.longest_wait * 1e3
            );
            let sure = confidence(over.dropped_early / over.early_by_chance);
            return Some(
                DiagnosisFinding::new(DiagnosisCause::Aqm, sure, evidence).with(parameters),
            );
        }
        let (early, all, usual) = self.early_tcp_losses(observed, over)?;
        let evidence = format!(
            "{early} of {all} losses of TCP came at {:.1} ms of queueing, though the queue can hold \
             {:.1} ms",
            usual * 1e3,
            1e3 * over.queue / over.rate
        );
        Some(DiagnosisFinding::new(DiagnosisCause::Aqm, 0.8, evidence).with(parameters))
    }

    /// Loss events of TCP well below the queueing delay that the stream has seen: their number, the
    /// number of all events, and the delay. `None` where random loss explains them.
    fn early_tcp_losses(
        &self,
        observed: &TwoEnded,
        over: &OverloadObservation,
    ) -> Option<(usize, usize, f64)> {
        /// Least number of loss events for a diagnosis.
        const LEAST_EVENTS: usize = 3;
        /// Segments below which losses end in time-outs, when the queue is long empty again.
        const LEAST_WINDOW: u32 = 8;
        /// A queue that is only dropped from when full is at its longest then; smoothing takes off some.
        const EARLY: f64 = 0.75;
        /// Bytes of a packet that are not its segment's: headers of IPv4 and TCP with time stamps.
        const HEADERS: f64 = 52.0;
        // A queue that fills and empties within a round trip shows in no smoothed RTT.
        let baseline = observed.baseline_rtt?.as_secs_f64();
        if over.queue < 10.0 * self.packet || over.longest_wait < 0.5 * baseline {
            return None;
        }
        // Of a queue that the stream keeps full; its very longest wait may be a host's.
        let full_wait = over.queue / over.rate;
        let (mut waits, mut resent, mut sent) = (Vec::new(), 0.0, 0.0);
        // While the rest drains nothing is sampled: how long the queue was at its losses nobody knows.
        for samples in observed.runs.iter().flat_map(TcpRun::while_written) {
            let least = samples.iter().map(|sample| sample.info.rtt_min).min()?;
            let base = observed.baseline_rtt.unwrap_or(least).min(least);
            let mut was_resending = false;
            for trio in samples.windows(3) {
                let resent = |sample: &TcpSample| sample.info.bytes_retransmitted;
                let is_resending = resent(&trio[2]) > resent(&trio[1]);
                let is_small = trio[1].info.congestion_window < LEAST_WINDOW;
                // What is resent over many samples was lost at one time, when it began.
                if is_resending && !was_resending && !is_small {
                    let rtt = trio.iter().map(|sample| sample.info.rtt).max()?;
                    let wait = rtt.saturating_sub(base).as_secs_f64();
                    // A queue that counts packets is full with fewer bytes of smaller ones, which is what
                    // TCP is left with behind a black hole.
                    let size = f64::from(trio[1].info.segment_bytes) + HEADERS;
                    let is_known = trio[1].info.segment_bytes > 0;
                    let share = if is_known {
                        (size / self.packet).min(1.0)
                    } else {
                        1.0
                    };
                    waits.push((wait, wait < EARLY * full_wait * share));
                }
                was_resending = is_resending;
            }
            let last = samples.last()?.info;
            resent += last.bytes_retransmitted.bytes() as f64;
            sent += last.bytes_sent.bytes() as f64;
        }
        // Where chance alone takes that much, TCP never fills the queue, managed or not.
        if resent < 3.0 * self.quiet.loss * sent || self.quiet.loss > LOSS_HIDES_QUEUE {
            return None;
        }
        let early = waits.iter().filter(|(_, is_early)| *is_early).count();
        let all = waits.len();
        let mut waits: Vec<f64> = waits.into_iter().map(|(wait, _)| wait).collect();
        let usual = quantile(&mut waits, 0.5)?;
        (all >= LEAST_EVENTS && 10 * early >= 7 * all).then_some((early, all, usual))
    }

    fn random_loss(&self) -> Option<DiagnosisFinding> {
        let loss = self.quiet.loss;
        if self.quiet_lost < LOSSES_LEAST || loss < LOSS_LEAST {
            return None;
        }
        let evidence = format!(
            "{} of {} packets were lost below the bottleneck's rate, where nothing waits",
            self.quiet_lost, self.quiet_packets
        );
        let sure = confidence(self.quiet_lost as f64 / LOSSES_LEAST as f64);
        Some(
            DiagnosisFinding::new(DiagnosisCause::RandomLoss, sure, evidence).with(
                CauseParameters {
                    loss: Probability::from_fraction(loss),
                    ..CauseParameters::default()
                },
            ),
        )
    }

    fn cross_traffic(&self) -> Option<DiagnosisFinding> {
        let over = self.overloads.first()?;
        let parameters = CauseParameters {
            rate: Some(bitrate(over.rate)),
            ..CauseParameters::default()
        };
        let found = |sure: f64, evidence: String| {
            Some(
                DiagnosisFinding::new(DiagnosisCause::CrossTraffic, sure, evidence)
                    .with(parameters),
            )
        };
        // Where hosts may have left the line idle most of the time, nobody knows who used it.
        let is_known = over.rate_error.is_some();
        if is_known && over.straying > over.straying_by_chance {
            let evidence = format!(
                "what gets through strays by {:.0} bytes from a steady rate, chance and the hosts explain {:.0}",
                over.straying, over.straying_by_chance
            );
            return found(
                confidence(over.straying / over.straying_by_chance),
                evidence,
            );
        }
        let mixed_at = over.mixed_at.filter(|_| is_known);
        if let Some(back_to_back) = mixed_at.filter(|_| over.queue > 1.5 * self.packet) {
            let evidence = format!(
                "packets that follow each other come at {}, all together only at {}",
                bitrate(back_to_back),
                bitrate(over.carried)
            );
            return found(
                confidence(10.0 * (back_to_back / over.carried - 1.0)),
                evidence,
            );
        }
        // A rate that hosts may have changed is compared by what they left of it for sure; and what loses some of less
        // than gets through elsewhere is a short queue that the sender's stutter fills.
        let fastest = self.overloads.iter().map(|over| over.rate);
        let fastest = fastest.fold(0.0, f64::max);
        let rates = || {
            let overloads = self.overloads.iter();
            let overloads = overloads.filter(|over| over.offered > fastest * (1.0 + SAME_RATE));
            overloads.filter_map(|over| Some((over.rate, over.rate_error?)))
        };
        let least = rates().min_by(|a, b| a.0.total_cmp(&b.0))?;
        let most = rates().max_by(|a, b| a.0.total_cmp(&b.0))?;
        let by_hosts = least.1 + most.1;
        let (least, most) = (least.0, most.0);
        if most > least * (1.0 + SAME_RATE + by_hosts) {
            let evidence = format!(
                "the more is offered the more gets through: {} and {}",
                bitrate(least),
                bitrate(most)
            );
            return found(confidence((most / least - 1.0) / SAME_RATE), evidence);
        }
        None
    }

    fn asymmetric_path(&self, observed: &TwoEnded) -> Option<DiagnosisFinding> {
        let reverse = observed.reverse_rate?;
        let other = reverse.bits_per_second() as f64 / 8.0;
        let this = self.rate()?;
        let factor = (this / other).max(other / this);
        (factor > ASYMMETRIC).then(|| {
            let evidence = format!(
                "{} in this direction, {reverse} in the other",
                bitrate(this)
            );
            let sure = confidence(factor / ASYMMETRIC);
            DiagnosisFinding::new(DiagnosisCause::AsymmetricPath, sure, evidence).with(
                CauseParameters {
                    rate: Some(bitrate(this)),
                    reverse_rate: Some(reverse),
                    ..CauseParameters::default()
                },
            )
        })
    }

    fn nothing_found(&self, observed: &TwoEnded) -> DiagnosisFinding {
        match self.carried {
            _ if self.died => DiagnosisFinding::new(
                DiagnosisCause::Unknown,
                0.9,
                "the path stopped carrying packets in the middle of a stage".to_owned(),
            ),
            Some(carried) => {
                let evidence = format!(
                    "all {} packets got through at {} without waiting",
                    self.quiet_packets,
                    bitrate(carried)
                );
                DiagnosisFinding::new(DiagnosisCause::None, 0.95, evidence)
            }
            None => {
                let evidence = format!(
                    "{} stages and {} transfers hold too little to tell",
                    observed.stages.len(),
                    observed.runs.len()
                );
                DiagnosisFinding::new(DiagnosisCause::Unknown, 0.9, evidence)
            }
        }
    }
}

/// Finding on sizes that never get through while smaller ones do, without an ICMP message (RFC 4821
/// §3).
fn black_hole(probes: &[SizeProbe]) -> Option<DiagnosisFinding> {
    /// RFC 8899 §5.1.2 (Constants): MAX_PROBES.
    const MOST_PROBES: u32 = 3;
    let passed = probes.iter().filter(|probe| probe.answered > 0);
    let largest = passed.map(|probe| probe.size).max()?;
    let vanished: Vec<&SizeProbe> = probes
        .iter()
        .filter(|probe| probe.size > largest && probe.answered == 0 && probe.sent >= MOST_PROBES)
        .collect();
    if vanished.is_empty() || vanished.iter().any(|probe| probe.was_refused) {
        return None;
    }
    let sent: u32 = vanished.iter().map(|probe| probe.sent).sum();
    let evidence = format!(
        "{sent} packets above {} bytes vanished without a word, smaller ones got through",
        largest.bytes()
    );
    let sure = confidence(f64::from(sent) / f64::from(MOST_PROBES) + 1.0);
    Some(
        DiagnosisFinding::new(DiagnosisCause::MtuBlackHole, sure, evidence).with(CauseParameters {
            path_mtu: Some(largest),
            ..CauseParameters::default()
        }),
    )
}

/// Stages that went out slower than they were asked to.
fn slow_sender(stages: &[LoadStage]) -> Option<DiagnosisFinding> {
    let share = |stage: &LoadStage| {
        let (first, last) = (stage.packets.first()?, stage.packets.last()?);
        let span = last.sent.since(first.sent).as_secs_f64();
        let bits = (stage.packets.len() - 1) as f64 * stage.packet.bytes() as f64 * 8.0;
        let share = bits / span / stage.offered.bits_per_second() as f64;
        share.is_finite().then_some((share, stage.offered))
    };
    let (least, offered) = stages
        .iter()
        .filter_map(share)
        .min_by(|a, b| a.0.total_cmp(&b.0))?;
    (least < SENT_SHARE).then(|| {
        let sent = bitrate(offered.bits_per_second() as f64 * least / 8.0);
        let evidence = format!("{sent} was sent where {offered} was to be");
        let sure = confidence((1.0 - least) / (1.0 - SENT_SHARE));
        DiagnosisFinding::new(DiagnosisCause::TestHostLimited, sure, evidence).with(
            CauseParameters {
                rate: Some(sent),
                ..CauseParameters::default()
            },
        )
    })
}

/// Finding on a window smaller than the path needs, by the kernel's own accounting of its waits.
fn host_window(
    observed: &TwoEnded,
    seen: &StageObservation,
    run: &TcpRun,
) -> Option<DiagnosisFinding> {
    let (mut busy, mut waited, mut window, mut acknowledged) = (0.0, 0.0, 0, 0);
    let mut span: f64 = 0.0;
    for samples in run.while_written() {
        let (first, last) = (samples.first()?, samples.last()?);
        busy += last.info.busy.as_secs_f64();
        let limited = last.info.receive_window_limited + last.info.send_buffer_limited;
        waited += limited.as_secs_f64();
        // The handshake's window may be another one than that of the run.
        let windows = samples.iter().filter_map(|sample| sample.info.peer_window);
        let mut windows: Vec<u64> = windows.map(ByteCount::bytes).collect();
        windows.sort_unstable();
        window += windows.get(windows.len() / 2).copied().unwrap_or_default();
        acknowledged += last.info.bytes_acknowledged.bytes();
        span = span.max(last.at.since(first.at).as_secs_f64());
    }
    let share = waited / busy;
    let reached = acknowledged as f64 / span;
    // A window beyond the BDP fills queues, and is not what holds the transfer back.
    let is_filled = observed
        .baseline_rtt
        .is_none_or(|rtt| reached * rtt.as_secs_f64() > WINDOW_FILLED * window as f64);
    let is_short = is_filled && seen.rate().is_none_or(|rate| reached < 0.93 * rate);
    if share.is_nan() || share < WINDOW_LIMITED_SHARE || !is_short {
        return None;
    }
    let evidence = format!(
        "a window held TCP back for {:.0} % of the time; {} were reached with a window of {window} bytes",
        share * 100.0,
        bitrate(reached)
    );
    let sure = confidence(1.0 + share / WINDOW_LIMITED_SHARE);
    Some(
        DiagnosisFinding::new(DiagnosisCause::HostWindow, sure, evidence).with(CauseParameters {
            window: Some(ByteCount::new(window)),
            window_needed: seen.bdp(observed).map(bytes),
            ..CauseParameters::default()
        }),
    )
}

/// TCP that is answered sooner than the path's far end can answer.
fn middlebox(observed: &TwoEnded, _: &StageObservation, run: &TcpRun) -> Option<DiagnosisFinding> {
    let baseline = observed.baseline_rtt?;
    let samples = run.connections.iter().flatten();
    let least = samples
        .map(|sample| sample.info.rtt_min)
        .filter(|rtt| *rtt > Duration::ZERO)
        .min()?;
    let is_nearer = least < baseline.mul_f64(NEARER) && least + NEARER_BY < baseline;
    is_nearer.then(|| {
        let evidence = format!(
            "TCP is answered after {:.2} ms, the far end needs {:.2} ms",
            least.as_secs_f64() * 1e3,
            baseline.as_secs_f64() * 1e3
        );
        let margin = NEARER * baseline.as_secs_f64() / least.as_secs_f64();
        DiagnosisFinding::new(DiagnosisCause::Middlebox, confidence(margin), evidence).with(
            CauseParameters {
                answered_after: Some(least),
                ..CauseParameters::default()
            },
        )
    })
}

/// A sender that had nothing to send for much of the run.
fn idle_sender(_: &TwoEnded, _: &StageObservation, run: &TcpRun) -> Option<DiagnosisFinding> {
    /// Less of the time than this with data to send.
    const BUSY_SHARE: f64 = 0.8;
    let shares = run.while_written().filter_map(|samples| {
        let (first, last) = (samples.first()?, samples.last()?);
        let span = last.at.since(first.at).as_secs_f64();
        (span > 0.0).then(|| last.info.busy.saturating_sub(first.info.busy).as_secs_f64() / span)
    });
    let busy = shares.min_by(f64::total_cmp)?;
    (busy < BUSY_SHARE).then(|| {
        let evidence = format!(
            "the sender had data to send for {:.0} % of the run",
            busy * 100.0
        );
        let sure = confidence((1.0 - busy) / (1.0 - BUSY_SHARE));
        DiagnosisFinding::new(DiagnosisCause::TestHostLimited, sure, evidence)
    })
}

pub(super) fn bitrate(bytes_per_second: f64) -> Bitrate {
    Bitrate::from_bits_per_second((bytes_per_second * 8.0).round() as u64)
}

pub(super) fn bytes(bytes: f64) -> ByteCount {
    ByteCount::new(bytes.round().max(0.0) as u64)
}

pub(super) fn seconds(seconds: f64) -> Duration {
    Duration::from_secs_f64(seconds.max(0.0))
}
