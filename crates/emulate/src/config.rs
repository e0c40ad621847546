//! Configuration of a link: one [`DirectionConfig`] for each direction, and the seed of all its
//! random numbers.
//!
//! Every model of `direction.rs` has its settings here, in the order in which a packet meets them.
//! [`DirectionConfig::check`] refuses contradictory settings and those that the models cannot use,
//! and names the nearest accepted value; whether a host keeps up is not known here.

use std::sync::Arc;
use std::time::Duration;

use vocab::{Bitrate, ByteCount, Probability};

use crate::config_error::{ConfigError, DELAY_MAX, LOG_SIGMA_MAX, RATE_MAX};
use crate::schedule::LinkSchedule;
use crate::trace::DeliveryTrace;

/// One direction of a link.
///
/// Lengths are counted at one stated layer, for the rate and for the queue alike: the length of
/// the IP packet from its first header byte, plus [`overhead`] per packet.
///
/// [`overhead`]: DirectionConfig::overhead
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionConfig {
    /// Kind of packets handed in: IP packets or Ethernet frames.
    pub framing: LinkFraming,
    /// Added to each packet's IP length, for a line that is stated at a lower layer than IP: 14
    /// for Ethernet's header, 38 with its check sum, preamble and gap.
    pub overhead: ByteCount,
    /// Policer before the queue: drops packets that come faster than this.
    pub policer: Option<TokenBucket>,
    /// Queue in which packets wait for the line.
    pub queue: QueueConfig,
    /// The line: takes packets out of the queue at its rate.
    pub line: LineConfig,
    /// Loss model behind the line; a lost packet has used its time on the line.
    pub loss: LossModel,
    /// Probability that one bit of a packet arrives flipped.
    pub corruption: Probability,
    /// Probability that a packet arrives twice.
    pub duplication: Probability,
    /// Propagation delay: the time from the end of a packet's serialisation to its arrival at the
    /// other end.
    pub delay: Duration,
    /// Variation of the delay from packet to packet.
    pub jitter: Option<JitterConfig>,
    /// Packets that arrive later than those around them.
    pub reordering: Option<ReorderingConfig>,
    /// Changes of settings over time.
    pub schedule: Option<Arc<LinkSchedule>>,
}

impl Default for DirectionConfig {
    /// A wire: no limit of rate, no delay, no loss, and a queue that nothing ever waits in.
    fn default() -> Self {
        Self {
            framing: LinkFraming::Ip,
            overhead: ByteCount::new(0),
            policer: None,
            queue: QueueConfig::from(ByteCount::mebibytes(1)),
            line: LineConfig::Unlimited,
            loss: LossModel::None,
            corruption: Probability::ZERO,
            duplication: Probability::ZERO,
            delay: Duration::ZERO,
            jitter: None,
            reordering: None,
            schedule: None,
        }
    }
}

/// Kind of packets that a direction is handed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkFraming {
    /// IP packets from their first header byte.
    #[default]
    Ip,
    /// Ethernet frames from their destination address, without check sum. The 14 bytes of their
    /// header count only as far as `overhead` says.
    Ethernet,
}

impl LinkFraming {
    /// Bytes in front of the IP header.
    #[must_use]
    pub const fn header(self) -> usize {
        match self {
            LinkFraming::Ip => 0,
            LinkFraming::Ethernet => 14,
        }
    }
}

/// Queue in front of the line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueConfig {
    /// Greatest content of the queue; a packet on the line counts until its last bit has left.
    pub limit: QueueLimit,
    /// Discipline that decides which packets are dropped.
    pub discipline: QueueDiscipline,
}

impl From<ByteCount> for QueueConfig {
    /// Drop-tail, limited in bytes.
    fn from(bytes: ByteCount) -> Self {
        QueueLimit::bytes(bytes).into()
    }
}

impl From<QueueLimit> for QueueConfig {
    /// Drop-tail.
    fn from(limit: QueueLimit) -> Self {
        Self {
            limit,
            discipline: QueueDiscipline::DropTail,
        }
    }
}

/// The limits of a queue; every one that is set holds, and at least one is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueLimit {
    /// Bytes, counted as the rate counts them. A packet that does not fit in whole is too much.
    pub bytes: Option<ByteCount>,
    /// Packets of any length.
    pub packets: Option<u64>,
    /// Limit in time: the time that the line needs for all waiting packets, the new one included,
    /// at its present rate.
    pub time: Option<Duration>,
}

impl QueueLimit {
    /// Limited in bytes alone.
    #[must_use]
    pub fn bytes(limit: ByteCount) -> Self {
        Self {
            bytes: Some(limit),
            ..Self::default()
        }
    }

    /// Limited in packets alone.
    #[must_use]
    pub fn packets(limit: u64) -> Self {
        Self {
            packets: Some(limit),
            ..Self::default()
        }
    }

    /// Limited in time alone.
    #[must_use]
    pub fn time(limit: Duration) -> Self {
        Self {
            time: Some(limit),
            ..Self::default()
        }
    }
}

/// Queue discipline: decides which packets are dropped or marked. The limits of the queue apply in
/// addition.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum QueueDiscipline {
    /// The packet that finds no room.
    #[default]
    DropTail,
    /// The packets that have waited longest, until the new one fits.
    DropHead,
    /// Controlled delay, RFC 8289.
    CoDel(CoDelConfig),
    /// Proportional integral controller enhanced, RFC 8033.
    Pie(PieConfig),
    /// Random early detection, Floyd and Jacobson 1993.
    Red(RedConfig),
}

/// Treatment of a packet whose sender supports congestion marks (ECN, RFC 3168).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EcnMode {
    /// The packet is dropped like any other.
    #[default]
    Drop,
    /// The packet is marked "congestion experienced".
    Mark,
}

/// Settings of CoDel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoDelConfig {
    /// Acceptable standing waiting time; RFC 8289 §4.3 advises 5 ms. At most 1 hour.
    pub target: Duration,
    /// Time for which longer waits are tolerated; RFC 8289 §4.2 advises 100 ms. At most 1 hour.
    pub interval: Duration,
    /// Mark or drop.
    pub ecn: EcnMode,
}

impl Default for CoDelConfig {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(5),
            interval: Duration::from_millis(100),
            ecn: EcnMode::Drop,
        }
    }
}

/// Settings of PIE.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PieConfig {
    /// The waiting time that is aimed at; RFC 8033 §4.2 uses 15 ms. The weights alpha and beta do
    /// not follow it: §4.2 advises larger ones for a target that is smaller by orders of magnitude,
    /// as in a data centre, and with such a target this PIE reacts slowly.
    pub target: Duration,
    /// Update interval of the drop probability, at most 314 ms; RFC 8033 §4.2 uses 15 ms. The
    /// weights alpha and beta follow it as §4.2 says.
    pub update: Duration,
    /// The burst that passes an idle queue undropped; RFC 8033 §4.4 uses 150 ms.
    pub burst: Duration,
    /// Mark (up to a drop probability of 10 %, RFC 8033 §5.1) or drop.
    pub ecn: EcnMode,
}

impl Default for PieConfig {
    fn default() -> Self {
        Self {
            target: Duration::from_millis(15),
            update: Duration::from_millis(15),
            burst: Duration::from_millis(150),
            ecn: EcnMode::Drop,
        }
    }
}

/// Settings of RED; the average queue is counted in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RedConfig {
    /// Average queue length below which no packet is dropped.
    pub minimum: ByteCount,
    /// Everything is dropped while the average queue is at or above (in gentle mode: twice this).
    pub maximum: ByteCount,
    /// The drop probability as the average reaches the maximum.
    pub probability: Probability,
    /// The weight of the newest length in the average; Floyd advises 0.002.
    pub weight: f64,
    /// The time that a typical packet takes on the line, by which the average decays while the
    /// queue is empty: of a typical small packet in the paper (section 11), of an average one in
    /// Linux. The longer it is, the longer the average lasts.
    pub packet_time: Duration,
    /// Gentle mode: the probability rises from its maximum to one between `maximum` and twice
    /// `maximum`.
    pub gentle: bool,
    /// Mark or drop.
    pub ecn: EcnMode,
}

/// The line: takes packets out of the queue.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LineConfig {
    /// A line that carries any packet at once.
    #[default]
    Unlimited,
    /// A line of fixed rate. Zero stops the line: packets wait in the queue.
    Rate(Bitrate),
    /// A token-bucket shaper: packets leave at once while there are tokens, and wait for them.
    Shaper(TokenBucket),
    /// Recorded opportunities to deliver.
    Trace(Arc<DeliveryTrace>),
}

impl LineConfig {
    /// Long-term rate; `None` without a limit.
    #[must_use]
    pub fn rate(&self) -> Option<Bitrate> {
        match self {
            LineConfig::Unlimited => None,
            LineConfig::Rate(rate) => Some(*rate),
            LineConfig::Shaper(bucket) => Some(bucket.rate),
            LineConfig::Trace(trace) => Some(trace.mean_rate()),
        }
    }
}

/// A token bucket, for a shaper (waits) or a policer (drops). It starts full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    /// Fill rate of the bucket.
    pub rate: Bitrate,
    /// Size of the bucket. A longer packet never passes.
    pub burst: ByteCount,
    /// A second, faster and smaller bucket that must also have tokens; it limits the rate of a
    /// burst.
    pub peak: Option<PeakBucket>,
}

/// The second bucket of a [`TokenBucket`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeakBucket {
    /// Fill rate of the bucket.
    pub rate: Bitrate,
    /// Size of the bucket: with an MTU, the packets of a burst follow each other at the peak rate.
    pub burst: ByteCount,
}

/// Loss model: selects the packets that are lost behind the line. The fate of a packet depends only
/// on the seed and on its number, counted from the first packet that was handed in.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LossModel {
    /// No loss.
    #[default]
    None,
    /// Each on its own.
    Random(Probability),
    /// Loss in bursts.
    GilbertElliott(GilbertElliott),
    /// These, by number from 0.
    List(Arc<LossList>),
}

impl From<Probability> for LossModel {
    fn from(probability: Probability) -> Self {
        if probability == Probability::ZERO {
            LossModel::None
        } else {
            LossModel::Random(probability)
        }
    }
}

/// The model of Gilbert (1960) and Elliott (1963): a good and a bad state with one loss probability
/// each; after each packet the state may change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// Probability of the change from good to bad.
    pub to_bad: Probability,
    /// Probability of the change from bad to good.
    pub to_good: Probability,
    /// Loss in the good state.
    pub loss_good: Probability,
    /// Loss in the bad state.
    pub loss_bad: Probability,
}

impl GilbertElliott {
    /// The simple model: all is lost in the bad state and nothing in the good one, such that
    /// `rate` of all packets are lost, in runs of `burst` packets on average.
    ///
    /// # Errors
    /// When the burst is shorter than one packet, or the rate so high that the good runs between
    /// would be shorter than one packet.
    pub fn from_rate_and_burst(rate: Probability, burst: f64) -> Result<Self, ConfigError> {
        let rate = rate.as_fraction();
        let to_good = 1.0 / burst;
        let to_bad = rate * to_good / (1.0 - rate);
        if !burst.is_finite() || burst < 1.0 {
            return Err(ConfigError::BurstTooShort { burst });
        }
        match Probability::from_fraction(to_bad) {
            Some(to_bad) if rate < 1.0 => Ok(Self {
                to_bad,
                to_good: Probability::from_fraction(to_good).unwrap_or(Probability::ZERO),
                loss_good: Probability::ZERO,
                loss_bad: Probability::from_fraction(1.0).unwrap_or(Probability::ZERO),
            }),
            _ => Err(ConfigError::BurstTooRare {
                burst,
                most: burst / (burst + 1.0),
            }),
        }
    }

    /// The share of all packets that is lost in the long run.
    #[must_use]
    pub fn loss_rate(&self) -> f64 {
        let (to_bad, to_good) = (self.to_bad.as_fraction(), self.to_good.as_fraction());
        let bad = if to_bad + to_good > 0.0 {
            to_bad / (to_bad + to_good)
        } else {
            0.0
        };
        bad * self.loss_bad.as_fraction() + (1.0 - bad) * self.loss_good.as_fraction()
    }
}

/// Numbers of packets that are lost, counted from 0, perhaps over and over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LossList {
    /// Rising, without repetition.
    packets: Vec<u64>,
    /// Number of packets after which the list starts again.
    period: Option<u64>,
}

impl LossList {
    /// A list of packet numbers in any order, repeated every `period` packets if there is one.
    ///
    /// # Errors
    /// When a number is not below the period.
    pub fn new(mut packets: Vec<u64>, period: Option<u64>) -> Result<Self, ConfigError> {
        packets.sort_unstable();
        packets.dedup();
        if let (Some(last), Some(period)) = (packets.last(), period)
            && *last >= period
        {
            return Err(ConfigError::LossBeyondPeriod {
                packet: *last,
                period,
            });
        }
        Ok(Self { packets, period })
    }

    /// Tells whether the packet of this number is lost.
    #[must_use]
    pub fn contains(&self, packet: u64) -> bool {
        let packet = self.period.map_or(packet, |period| packet % period.max(1));
        self.packets.binary_search(&packet).is_ok()
    }
}

/// Variation of the delay. The sum is never less than zero.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JitterConfig {
    /// Distribution of the variation.
    pub distribution: JitterDistribution,
    /// Permission for packets to overtake each other.
    pub order: PacketOrder,
}

/// Distribution of the amount that is added to the delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum JitterDistribution {
    /// Uniform from −spread to +spread.
    Uniform {
        /// Half of the width.
        spread: Duration,
    },
    /// Normal about zero.
    Normal {
        /// Its standard deviation.
        deviation: Duration,
    },
    /// Exponential from zero up, as behind a lightly loaded queue.
    Exponential {
        /// Its mean.
        mean: Duration,
    },
    /// Pareto (Lomax) from zero up: mostly small, sometimes very large.
    Pareto {
        /// Its mean.
        mean: Duration,
        /// Its shape, above 1; the lower, the heavier the tail.
        shape: f64,
    },
    /// Log-normal from zero up.
    LogNormal {
        /// Its median.
        median: Duration,
        /// The standard deviation of its natural logarithm.
        sigma: f64,
    },
}

/// Effect of jitter on the order of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PacketOrder {
    /// A packet waits for the one before it, as behind a varying queue.
    #[default]
    Kept,
    /// Packets may overtake each other, as over several paths.
    Free,
}

/// Packets that come late. Those behind them overtake.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReorderingConfig {
    /// Probability that a packet is late.
    pub probability: Probability,
    /// Additional delay of a late packet.
    pub late_by: Duration,
}

impl DirectionConfig {
    /// Checks that the model can use these settings.
    ///
    /// # Errors
    /// Names the setting that is out of bounds or contradictory, and the nearest accepted value.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(policer) = &self.policer {
            self.check_bucket(policer, "policer")?;
        }
        match &self.line {
            LineConfig::Rate(rate) => check_rate(*rate)?,
            LineConfig::Shaper(bucket) => self.check_bucket(bucket, "shaper")?,
            LineConfig::Unlimited | LineConfig::Trace(_) => {}
        }
        self.check_queue()?;
        check_delay(self.delay)?;
        if let Some(jitter) = &self.jitter {
            jitter.check()?;
        }
        if let Some(reordering) = &self.reordering {
            check_delay(reordering.late_by)?;
        }
        if let Some(schedule) = &self.schedule {
            schedule.check(self)?;
        }
        Ok(())
    }

    /// The bandwidth-delay product for this line over a round trip of `round_trip`: the queue
    /// that lets one loss-based TCP connection keep the line full. Zero without a rate.
    #[must_use]
    pub fn bandwidth_delay_product(&self, round_trip: Duration) -> ByteCount {
        self.line.rate().unwrap_or_default().bytes_in(round_trip)
    }

    /// Counted length of a packet: its IP length and the overhead.
    #[must_use]
    pub(crate) fn counted_length(&self, packet: usize) -> u64 {
        packet.saturating_sub(self.framing.header()) as u64 + self.overhead.bytes()
    }

    /// Counted length of a full-size Ethernet packet.
    #[must_use]
    pub(crate) fn full_packet(&self) -> u64 {
        FULL_PACKET + self.overhead.bytes()
    }

    fn check_queue(&self) -> Result<(), ConfigError> {
        let limit = &self.queue.limit;
        let is_zero = limit.bytes == Some(ByteCount::new(0))
            || limit.packets == Some(0)
            || limit.time == Some(Duration::ZERO);
        if is_zero {
            return Err(ConfigError::QueueOfZero);
        }
        if *limit == QueueLimit::default() {
            return Err(ConfigError::QueueWithoutLimit);
        }
        if limit.time.is_some() {
            match &self.line {
                LineConfig::Rate(_) | LineConfig::Shaper(_) => {}
                LineConfig::Unlimited => return Err(ConfigError::TimeLimitWithoutRate),
                LineConfig::Trace(_) => return Err(ConfigError::TimeLimitWithTrace),
            }
        }
        match &self.queue.discipline {
            QueueDiscipline::DropTail | QueueDiscipline::DropHead => Ok(()),
            QueueDiscipline::CoDel(codel) => codel.check(),
            QueueDiscipline::Pie(pie) => pie.check(),
            QueueDiscipline::Red(red) => red.check(),
        }
    }

    fn check_bucket(&self, bucket: &TokenBucket, what: &'static str) -> Result<(), ConfigError> {
        check_rate(bucket.rate)?;
        let least = self.full_packet();
        if bucket.rate == Bitrate::default() {
            return Err(ConfigError::BucketWithoutRate { what });
        }
        if bucket.burst.bytes() < least {
            return Err(ConfigError::BurstBelowPacket {
                what,
                burst: bucket.burst,
                least: ByteCount::new(least),
            });
        }
        let Some(peak) = &bucket.peak else {
            return Ok(());
        };
        check_rate(peak.rate)?;
        if peak.rate < bucket.rate {
            return Err(ConfigError::PeakBelowRate {
                what,
                peak: peak.rate,
                rate: bucket.rate,
            });
        }
        if peak.burst.bytes() < least {
            return Err(ConfigError::BurstBelowPacket {
                what,
                burst: peak.burst,
                least: ByteCount::new(least),
            });
        }
        Ok(())
    }
}

/// An IP packet of Ethernet's usual size.
const FULL_PACKET: u64 = 1_500;

/// PIE's probability is computed no oftener than this; RFC 8033 uses 15 ms.
const PIE_UPDATE_MIN: Duration = Duration::from_millis(1);

/// The longest period between PIE's updates, in whole milliseconds. RFC 8033 §4.2 lowers beta as
/// the period grows (by half of what alpha gains); from 315 ms on, 21 times the usual one, it would
/// be zero or less, and a delay that grows would lower the probability.
const PIE_UPDATE_MAX: Duration = Duration::from_millis(314);

/// The longest target and interval of CoDel: longer than any path, it catches a slip of the unit.
const CODEL_SPAN_MAX: Duration = Duration::from_secs(3_600);

impl CoDelConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.target.is_zero() || self.interval.is_zero() {
            return Err(ConfigError::ZeroInDiscipline {
                name: "CoDel",
                what: "a target and an interval above zero; leave them out for 5 ms and 100 ms",
            });
        }
        check_span("CoDel's target", self.target, CODEL_SPAN_MAX)?;
        check_span("CoDel's interval", self.interval, CODEL_SPAN_MAX)
    }
}

impl PieConfig {
    fn check(&self) -> Result<(), ConfigError> {
        if self.target.is_zero() || self.update < PIE_UPDATE_MIN {
            return Err(ConfigError::ZeroInDiscipline {
                name: "PIE",
                what: "a target above zero and 1 ms or more between updates; leave both out for 15 ms",
            });
        }
        check_span("PIE's time between updates", self.update, PIE_UPDATE_MAX)
    }
}

fn check_span(what: &'static str, span: Duration, most: Duration) -> Result<(), ConfigError> {
    if span > most {
        return Err(ConfigError::DisciplineTooSlow { what, span, most });
    }
    Ok(())
}

impl RedConfig {
    fn check(&self) -> Result<(), ConfigError> {
        let weighs = self.weight > 0.0 && self.weight <= 1.0;
        if self.minimum >= self.maximum || !weighs {
            return Err(ConfigError::RedOutOfOrder {
                minimum: self.minimum,
                maximum: self.maximum,
                weight: self.weight,
            });
        }
        if self.packet_time.is_zero() {
            return Err(ConfigError::ZeroInDiscipline {
                name: "RED",
                what: "a rate at which a packet takes time",
            });
        }
        Ok(())
    }
}

impl JitterConfig {
    fn check(&self) -> Result<(), ConfigError> {
        match self.distribution {
            JitterDistribution::Uniform { spread } => check_delay(spread),
            JitterDistribution::Normal { deviation } => check_delay(deviation),
            JitterDistribution::Exponential { mean } => check_delay(mean),
            JitterDistribution::Pareto { mean, shape } => {
                if !(shape.is_finite() && shape > 1.0) {
                    return Err(ConfigError::ParetoShape { shape });
                }
                check_delay(mean)
            }
            JitterDistribution::LogNormal { median, sigma } => {
                if !(sigma.is_finite() && (0.0..=LOG_SIGMA_MAX).contains(&sigma)) {
                    return Err(ConfigError::LogNormalSigma { sigma });
                }
                check_delay(median)
            }
        }
    }
}

pub(crate) fn check_rate(rate: Bitrate) -> Result<(), ConfigError> {
    if rate > RATE_MAX {
        return Err(ConfigError::RateTooHigh { rate });
    }
    Ok(())
}

pub(crate) fn check_delay(delay: Duration) -> Result<(), ConfigError> {
    if delay > DELAY_MAX {
        return Err(ConfigError::DelayTooLong { delay });
    }
    Ok(())
}

/// A whole link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkConfig {
    /// Direction from end A to end B.
    pub forward: DirectionConfig,
    /// Direction from end B to end A.
    pub back: DirectionConfig,
    /// Seed of all random numbers in the link; the same seed and packets give the same losses.
    pub seed: u64,
}

impl LinkConfig {
    /// The same both ways.
    #[must_use]
    pub fn symmetric(direction: DirectionConfig, seed: u64) -> Self {
        Self {
            forward: direction.clone(),
            back: direction,
            seed,
        }
    }

    /// Checks that the model can use these settings.
    ///
    /// # Errors
    /// Names the invalid setting of one of the directions.
    pub fn check(&self) -> Result<(), ConfigError> {
        self.forward.check()?;
        self.back.check()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(discipline: QueueDiscipline) -> Result<(), ConfigError> {
        let mut config = DirectionConfig::default();
        config.queue.discipline = discipline;
        config.check()
    }

    #[test]
    fn pie_updates_as_rarely_as_its_weights_allow() {
        let pie = |update| {
            with(QueueDiscipline::Pie(PieConfig {
                update,
                ..PieConfig::default()
            }))
        };
        assert_eq!(pie(PIE_UPDATE_MAX), Ok(()));
        let refused = pie(Duration::from_millis(315)).unwrap_err().to_string();
        assert!(refused.ends_with("use 314ms or less"), "{refused}");
    }

    #[test]
    fn codel_with_a_wrong_unit_is_refused() {
        let codel = |target, interval| {
            with(QueueDiscipline::CoDel(CoDelConfig {
                target,
                interval,
                ecn: EcnMode::Drop,
            }))
        };
        assert_eq!(codel(CODEL_SPAN_MAX, CODEL_SPAN_MAX), Ok(()));
        let short = Duration::from_millis(5);
        assert!(codel(short, Duration::MAX).is_err());
        assert!(codel(Duration::MAX, short).is_err());
    }
}
