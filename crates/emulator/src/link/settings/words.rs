//! Text form of single settings: parser and writer of words such as `1%,burst=5` or `codel:ecn`.
//!
//! Each setting is a type of [`emulate`]'s configuration; [`SettingValue`] parses it and writes it
//! so that it reads back equal. A refusal names the error and shows the nearest correct form. No
//! file is opened here: a setting in a file is a [`FileSource`], which `resolve.rs` reads.

use std::fmt::Display;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use emulate::{
    CoDelConfig, EcnMode, GilbertElliott, JitterConfig, JitterDistribution, PacketOrder, PieConfig,
    QueueDiscipline, QueueLimit, ReorderingConfig,
};
use vocab::{Bitrate, ByteCount, Probability, format_duration, parse_duration};

/// Text for "not set" in any setting.
pub(super) const NONE: &str = "none";

/// A setting as people write it.
pub(super) trait SettingValue: Sized {
    /// Parses it.
    ///
    /// # Errors
    /// Names the error and the correct form.
    fn read(text: &str) -> Result<Self>;

    /// Writes it so that [`SettingValue::read`] gives the same again.
    fn write(&self) -> String;
}

/// Reads a setting that may be absent.
pub(super) fn read_optional<T: SettingValue>(text: &str) -> Result<Option<T>> {
    if text == NONE {
        Ok(None)
    } else {
        T::read(text).map(Some)
    }
}

impl SettingValue for Bitrate {
    fn read(text: &str) -> Result<Self> {
        let rate: Bitrate = match text {
            "0" => Bitrate::default(),
            _ => text.parse()?,
        };
        if rate == Bitrate::default() {
            bail!(
                "with a rate of zero no packet passes; for no limit remove the rate (or write `none`), and \
                 to stop the line use `outage`"
            );
        }
        Ok(rate)
    }

    fn write(&self) -> String {
        exact(self, self.bits_per_second(), "bit")
    }
}

impl SettingValue for ByteCount {
    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn write(&self) -> String {
        exact(self, self.bytes(), "B")
    }
}

impl SettingValue for Probability {
    fn read(text: &str) -> Result<Self> {
        Ok(text.parse()?)
    }

    fn write(&self) -> String {
        let short = self.to_string();
        if short.parse() == Ok(*self) {
            short
        } else {
            self.as_fraction().to_string()
        }
    }
}

impl SettingValue for Duration {
    fn read(text: &str) -> Result<Self> {
        Ok(parse_duration(text)?)
    }

    fn write(&self) -> String {
        let short = format_duration(*self);
        if parse_duration(&short) == Ok(*self) {
            short
        } else {
            format!("{}ns", self.as_nanos())
        }
    }
}

/// The short form where it is not rounded, else the number in its smallest unit.
fn exact<T: Display + FromStr + PartialEq>(value: &T, number: u64, unit: &str) -> String {
    let short = value.to_string();
    match short.parse::<T>() {
        Ok(read) if read == *value => short,
        _ => format!("{number}{unit}"),
    }
}

/// Reads the limits of a queue, as `125kB`, `100packets`, `50ms`, or several with commas.
impl SettingValue for QueueLimit {
    fn read(text: &str) -> Result<Self> {
        let mut limit = QueueLimit::default();
        for part in text.split(',').map(str::trim) {
            let packets = part
                .strip_suffix("packets")
                .or_else(|| part.strip_suffix("packet"));
            if let Some(number) = packets {
                let number = number.trim().parse().map_err(|_| {
                    anyhow!("`{part}` is not a number of packets; write it as `100packets`")
                })?;
                put(&mut limit.packets, number, part)?;
            } else if let Ok(bytes) = part.parse() {
                put(&mut limit.bytes, bytes, part)?;
            } else if let Ok(span) = parse_duration(part) {
                put(&mut limit.time, span, part)?;
            } else {
                bail!(
                    "`{part}` is not a limit of a queue; write bytes (`125kB`), packets (`100packets`), a \
                     time (`50ms`), or several with commas"
                );
            }
        }
        Ok(limit)
    }

    fn write(&self) -> String {
        let parts = [
            self.bytes.map(|bytes| bytes.write()),
            self.packets.map(|packets| format!("{packets}packets")),
            self.time.map(|span| span.write()),
        ];
        parts.into_iter().flatten().collect::<Vec<_>>().join(",")
    }
}

fn put<T>(place: &mut Option<T>, value: T, part: &str) -> Result<()> {
    if place.replace(value).is_some() {
        bail!("`{part}` is a second limit of the same kind; remove one of the two");
    }
    Ok(())
}

/// Reads `5ms`, `5ms,normal`, `5ms,pareto,shape=3,reorder`.
impl SettingValue for JitterConfig {
    fn read(text: &str) -> Result<Self> {
        let (spread, rest) = text.split_once(',').unwrap_or((text, ""));
        let spread = parse_duration(spread)?;
        let mut options = KeyValueOptions::read(rest)?;
        let order = if options.flag("reorder") {
            PacketOrder::Free
        } else {
            PacketOrder::Kept
        };
        let names = ["uniform", "normal", "exponential", "pareto", "lognormal"];
        let mut chosen = names.into_iter().filter(|name| options.flag(name));
        let name = chosen.next().unwrap_or("uniform");
        if let Some(second) = chosen.next() {
            bail!("`{name}` and `{second}` are two distributions; remove one of them");
        }
        let distribution = match name {
            "normal" => JitterDistribution::Normal { deviation: spread },
            "exponential" => JitterDistribution::Exponential { mean: spread },
            "pareto" => JitterDistribution::Pareto {
                mean: spread,
                shape: options.number("shape")?.unwrap_or(PARETO_SHAPE),
            },
            "lognormal" => JitterDistribution::LogNormal {
                median: spread,
                sigma: options.number("sigma")?.unwrap_or(LOG_NORMAL_SIGMA),
            },
            _ => JitterDistribution::Uniform { spread },
        };
        options.finish(
            "jitter",
            "a distribution (uniform, normal, exponential, pareto with shape=3, lognormal with sigma=1) and `reorder`",
        )?;
        Ok(JitterConfig {
            distribution,
            order,
        })
    }

    fn write(&self) -> String {
        let mut text = match self.distribution {
            JitterDistribution::Uniform { spread } => format!("{},uniform", spread.write()),
            JitterDistribution::Normal { deviation } => format!("{},normal", deviation.write()),
            JitterDistribution::Exponential { mean } => format!("{},exponential", mean.write()),
            JitterDistribution::Pareto { mean, shape } => {
                format!("{},pareto,shape={shape}", mean.write())
            }
            JitterDistribution::LogNormal { median, sigma } => {
                format!("{},lognormal,sigma={sigma}", median.write())
            }
        };
        if self.order == PacketOrder::Free {
            text.push_str(",reorder");
        }
        text
    }
}

/// A tail with a mean, a variance, and now and then a packet that is very late.
const PARETO_SHAPE: f64 = 3.0;
/// One packet in forty is later than seven times the median.
const LOG_NORMAL_SIGMA: f64 = 1.0;

/// Text form `1%,5ms`: the share of late packets, and their additional delay.
impl SettingValue for ReorderingConfig {
    fn read(text: &str) -> Result<Self> {
        let (probability, late_by) = text.split_once(',').ok_or_else(|| {
            anyhow!(
                "`{text}` contains no additional delay; write a share and a time, as in `1%,5ms`"
            )
        })?;
        Ok(ReorderingConfig {
            probability: probability.parse()?,
            late_by: parse_duration(late_by)?,
        })
    }

    fn write(&self) -> String {
        format!("{},{}", self.probability.write(), self.late_by.write())
    }
}

/// Queue discipline, before the line's rate is known, from which RED computes times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AqmSetting {
    /// All but RED, ready as it is.
    Ready(QueueDiscipline),
    /// RED.
    Red(RedSetting),
}

/// RED as it is written.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct RedSetting {
    pub(super) minimum: ByteCount,
    pub(super) maximum: ByteCount,
    pub(super) probability: Probability,
    pub(super) weight: f64,
    pub(super) gentle: bool,
    pub(super) ecn: EcnMode,
}

/// Floyd and Jacobson 1993, §11 (Guidelines for parameters).
const RED_WEIGHT: f64 = 0.002;

/// Reads `codel`, `codel:target=5ms,interval=100ms,ecn`, `pie:…`, `red:…`, `drop-head`.
impl SettingValue for AqmSetting {
    fn read(text: &str) -> Result<Self> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let mut options = KeyValueOptions::read(rest)?;
        let ecn = |options: &mut KeyValueOptions| {
            if options.flag("ecn") {
                EcnMode::Mark
            } else {
                EcnMode::Drop
            }
        };
        let (aqm, known) = match name {
            NONE | "drop-tail" => (AqmSetting::Ready(QueueDiscipline::DropTail), "nothing more"),
            "drop-head" => (AqmSetting::Ready(QueueDiscipline::DropHead), "nothing more"),
            "codel" => {
                let usual = CoDelConfig::default();
                let codel = CoDelConfig {
                    target: options.word("target")?.unwrap_or(usual.target),
                    interval: options.word("interval")?.unwrap_or(usual.interval),
                    ecn: ecn(&mut options),
                };
                let known = "target=5ms, interval=100ms and ecn";
                (AqmSetting::Ready(QueueDiscipline::CoDel(codel)), known)
            }
            "pie" => {
                let usual = PieConfig::default();
                let pie = PieConfig {
                    target: options.word("target")?.unwrap_or(usual.target),
                    update: options.word("update")?.unwrap_or(usual.update),
                    burst: options.word("burst")?.unwrap_or(usual.burst),
                    ecn: ecn(&mut options),
                };
                let known = "target=15ms, update=15ms, burst=150ms and ecn";
                (AqmSetting::Ready(QueueDiscipline::Pie(pie)), known)
            }
            "red" => {
                let red = RedSetting {
                    minimum: options.needed("min", RED_FORM)?,
                    maximum: options.needed("max", RED_FORM)?,
                    probability: options.needed("p", RED_FORM)?,
                    weight: options.number("weight")?.unwrap_or(RED_WEIGHT),
                    gentle: options.flag("gentle"),
                    ecn: ecn(&mut options),
                };
                (
                    AqmSetting::Red(red),
                    "min, max, p, weight=0.002, gentle and ecn",
                )
            }
            other => bail!(
                "`{other}` is not a queue discipline; use drop-tail, drop-head, codel, pie or red"
            ),
        };
        options.finish(name, known)?;
        Ok(aqm)
    }

    fn write(&self) -> String {
        let ecn = |ecn: EcnMode| if ecn == EcnMode::Mark { ",ecn" } else { "" };
        match self {
            AqmSetting::Ready(QueueDiscipline::DropHead) => "drop-head".to_owned(),
            AqmSetting::Ready(QueueDiscipline::CoDel(codel)) => format!(
                "codel:target={},interval={}{}",
                codel.target.write(),
                codel.interval.write(),
                ecn(codel.ecn)
            ),
            AqmSetting::Ready(QueueDiscipline::Pie(pie)) => format!(
                "pie:target={},update={},burst={}{}",
                pie.target.write(),
                pie.update.write(),
                pie.burst.write(),
                ecn(pie.ecn)
            ),
            AqmSetting::Ready(QueueDiscipline::DropTail | QueueDiscipline::Red(_)) => {
                "drop-tail".to_owned()
            }
            AqmSetting::Red(red) => format!(
                "red:min={},max={},p={},weight={}{}{}",
                red.minimum.write(),
                red.maximum.write(),
                red.probability.write(),
                red.weight,
                if red.gentle { ",gentle" } else { "" },
                ecn(red.ecn)
            ),
        }
    }
}

const RED_FORM: &str = "red:min=30kB,max=90kB,p=10%";

/// A token bucket in text form; the size of its second bucket may depend on the overhead.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct BucketSetting {
    pub(super) rate: Bitrate,
    pub(super) burst: ByteCount,
    pub(super) peak: Option<Bitrate>,
    pub(super) peak_burst: Option<ByteCount>,
}

/// Reads `rate=10Mbit,burst=32kB`, perhaps with `peak=20Mbit` and `peak_burst=1500B`.
impl SettingValue for BucketSetting {
    fn read(text: &str) -> Result<Self> {
        const FORM: &str = "rate=10Mbit,burst=32kB";
        let mut options = KeyValueOptions::read(text)?;
        let bucket = BucketSetting {
            rate: options.needed("rate", FORM)?,
            burst: options.needed("burst", FORM)?,
            peak: options.word("peak")?,
            peak_burst: options.word("peak_burst")?,
        };
        options.finish("a token bucket", "rate, burst, peak and peak_burst")?;
        if bucket.peak.is_none() && bucket.peak_burst.is_some() {
            bail!("`peak_burst` is what the peak's bucket holds; give `peak` as well");
        }
        Ok(bucket)
    }

    fn write(&self) -> String {
        let mut text = format!("rate={},burst={}", self.rate.write(), self.burst.write());
        if let Some(peak) = self.peak {
            text.push_str(&format!(",peak={}", peak.write()));
        }
        if let Some(burst) = self.peak_burst {
            text.push_str(&format!(",peak_burst={}", burst.write()));
        }
        text
    }
}

/// Loss as it is written.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum LossSetting {
    /// Each packet on its own.
    Random(Probability),
    /// A share of all, in runs of this mean length.
    Bursts {
        /// Lost packets of all.
        rate: Probability,
        /// The mean run, packets.
        burst: f64,
    },
    /// The four numbers of Gilbert and Elliott.
    States(GilbertElliott),
    /// Losses by packet number.
    List(NumberList),
    /// Losses by packet number, in a file.
    ListFile(PathBuf),
}

/// Reads `1%`, `1%,burst=5`, `ge:…`, `list:3,7,10-12/100`, `list:@FILE`.
impl SettingValue for LossSetting {
    fn read(text: &str) -> Result<Self> {
        if let Some(file) = text.strip_prefix("list:@") {
            return Ok(LossSetting::ListFile(file.into()));
        }
        if let Some(list) = text.strip_prefix("list:") {
            return NumberList::read(list).map(LossSetting::List);
        }
        if let Some(states) = text.strip_prefix("ge:") {
            const FORM: &str = "ge:to_bad=1%,to_good=20%";
            let mut options = KeyValueOptions::read(states)?;
            let states = GilbertElliott {
                to_bad: options.needed("to_bad", FORM)?,
                to_good: options.needed("to_good", FORM)?,
                loss_good: options.word("loss_good")?.unwrap_or(Probability::ZERO),
                loss_bad: options.word("loss_bad")?.unwrap_or_else(certain),
            };
            options.finish("ge", "to_bad, to_good, loss_good=0% and loss_bad=100%")?;
            return Ok(LossSetting::States(states));
        }
        let (rate, rest) = text.split_once(',').unwrap_or((text, ""));
        let rate: Probability = rate.parse().with_context(
            || "a loss is `1%`, `1%,burst=5`, `ge:to_bad=1%,to_good=20%` or `list:3,7,10-12`",
        )?;
        let mut options = KeyValueOptions::read(rest)?;
        let burst = options.number("burst")?;
        options.finish("a loss", "burst=5 (the mean run, packets)")?;
        Ok(match burst {
            Some(burst) => LossSetting::Bursts { rate, burst },
            None => LossSetting::Random(rate),
        })
    }

    fn write(&self) -> String {
        match self {
            LossSetting::Random(rate) => rate.write(),
            LossSetting::Bursts { rate, burst } => format!("{},burst={burst}", rate.write()),
            LossSetting::States(states) => format!(
                "ge:to_bad={},to_good={},loss_good={},loss_bad={}",
                states.to_bad.write(),
                states.to_good.write(),
                states.loss_good.write(),
                states.loss_bad.write()
            ),
            LossSetting::List(list) => format!("list:{}", list.write()),
            LossSetting::ListFile(path) => format!("list:@{}", path.display()),
        }
    }
}

/// A probability of one.
pub(super) fn certain() -> Probability {
    Probability::from_fraction(1.0).expect("one is a probability")
}

/// Numbers of packets, perhaps repeated.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberList {
    pub(super) packets: Vec<u64>,
    pub(super) period: Option<u64>,
}

/// Greatest number of packets in a loss list: enough for every second packet of ten million, 80 MB
/// of memory.
const LISTED_MAX: usize = 10_000_000;

/// Reads `3,7,10-12/100`; white space and lines separate as commas do, `#` begins a comment.
impl SettingValue for NumberList {
    fn read(text: &str) -> Result<Self> {
        let mut list = NumberList::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or("");
            list.read_line(line)
                .with_context(|| format!("line {}", index + 1))?;
        }
        if list.packets.is_empty() {
            bail!("the list contains no packet; write a list such as `3,7,10-12`");
        }
        Ok(list)
    }

    fn write(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut rest = self.packets.as_slice();
        while let Some(first) = rest.first() {
            let run = rest
                .windows(2)
                .take_while(|pair| pair[1] == pair[0].wrapping_add(1))
                .count();
            parts.push(match run {
                0 => first.to_string(),
                _ => format!("{first}-{}", rest[run]),
            });
            rest = &rest[run + 1..];
        }
        let period = self.period.map(|period| format!("/{period}"));
        parts.join(",") + &period.unwrap_or_default()
    }
}

impl NumberList {
    fn read_line(&mut self, line: &str) -> Result<()> {
        let (numbers, period) = match line.split_once('/') {
            Some((numbers, period)) => (numbers, Some(period.trim())),
            None => (line, None),
        };
        let separator = |character: char| character == ',' || character.is_whitespace();
        for part in numbers.split(separator).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (Ok(first), Ok(last)) = (first.parse::<u64>(), last.parse::<u64>()) else {
                bail!(
                    "`{part}` is not a packet number; write a number such as `7` or a range such as \
                       `10-12`, counted from 0"
                );
            };
            if last < first {
                bail!("`{part}` goes backwards; write it as `{last}-{first}`");
            }
            if last - first >= (LISTED_MAX - self.packets.len()) as u64 {
                bail!("a list names at most {LISTED_MAX} packets; give it a period (`/1000`)");
            }
            self.packets.extend(first..=last);
        }
        if let Some(period) = period {
            let number = period.parse().ok().filter(|period| *period > 0);
            self.period = Some(number.ok_or_else(|| {
                anyhow!("`{period}` is not a period; write a number of packets, as in `3,7/100`")
            })?);
        }
        Ok(())
    }
}

/// One outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutagePeriod {
    pub(super) at: Duration,
    pub(super) lasts: Duration,
    pub(super) every: Option<Duration>,
    /// Set if packets wait for the end of the outage instead of being lost.
    pub(super) hold: bool,
}

/// Outages, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct OutageList(pub(super) Vec<OutagePeriod>);

/// Reads `at=10s,for=5s`, perhaps with `every=60s` and `hold`; several are parted by `;`.
impl SettingValue for OutageList {
    fn read(text: &str) -> Result<Self> {
        const FORM: &str = "at=10s,for=5s";
        let read = |text: &str| {
            let mut options = KeyValueOptions::read(text)?;
            let outage = OutagePeriod {
                at: options.needed("at", FORM)?,
                lasts: options.needed("for", FORM)?,
                every: options.word("every")?,
                hold: options.flag("hold"),
            };
            options.finish("an outage", "at, for, every=60s and hold")?;
            if outage.lasts.is_zero() {
                bail!("the outage has no duration; give it a duration, or remove it");
            }
            Ok(outage)
        };
        text.split(';').map(read).collect::<Result<_>>().map(Self)
    }

    fn write(&self) -> String {
        let write = |outage: &OutagePeriod| {
            let every = outage
                .every
                .map(|every| format!(",every={}", every.write()));
            format!(
                "at={},for={}{}{}",
                outage.at.write(),
                outage.lasts.write(),
                every.unwrap_or_default(),
                if outage.hold { ",hold" } else { "" }
            )
        };
        self.0.iter().map(write).collect::<Vec<_>>().join(";")
    }
}

/// A file that holds a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileSource(pub(super) PathBuf);

impl SettingValue for FileSource {
    fn read(text: &str) -> Result<Self> {
        if text.is_empty() {
            bail!("the name of a file is missing");
        }
        Ok(Self(text.into()))
    }

    fn write(&self) -> String {
        self.0.display().to_string()
    }
}

/// Parts between commas, `KEY=VALUE` or a bare word; each may be taken once.
struct KeyValueOptions<'a>(Vec<(&'a str, Option<&'a str>)>);

impl<'a> KeyValueOptions<'a> {
    fn read(text: &'a str) -> Result<Self> {
        let mut parts: Vec<(&str, Option<&str>)> = Vec::new();
        for part in text
            .split(',')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim())),
                None => (part, None),
            };
            if parts.iter().any(|(other, _)| *other == key) {
                bail!("`{key}` occurs twice; remove one of the two");
            }
            parts.push((key, value));
        }
        Ok(Self(parts))
    }

    fn take(&mut self, key: &str) -> Option<Option<&'a str>> {
        let place = self.0.iter().position(|(name, _)| *name == key)?;
        Some(self.0.remove(place).1)
    }

    fn flag(&mut self, key: &str) -> bool {
        match self.take(key) {
            Some(None) => true,
            // A value where none belongs: put back, so that `finish` complains of it.
            Some(Some(value)) => {
                self.0.push(("", Some(value)));
                false
            }
            None => false,
        }
    }

    fn word<T: SettingValue>(&mut self, key: &str) -> Result<Option<T>> {
        match self.take(key) {
            None => Ok(None),
            Some(None) => bail!("`{key}` needs a value: `{key}=…`"),
            Some(Some(value)) => T::read(value).with_context(|| key.to_owned()).map(Some),
        }
    }

    fn needed<T: SettingValue>(&mut self, key: &str, form: &str) -> Result<T> {
        self.word(key)?
            .ok_or_else(|| anyhow!("`{key}` is missing; write it as `{form}`"))
    }

    fn number(&mut self, key: &str) -> Result<Option<f64>> {
        let Some(value) = self.take(key) else {
            return Ok(None);
        };
        let number = value.and_then(|value| value.parse::<f64>().ok());
        match number.filter(|number| number.is_finite()) {
            Some(number) => Ok(Some(number)),
            None => bail!("`{key}` needs a number: `{key}=3`"),
        }
    }

    fn finish(self, what: &str, known: &str) -> Result<()> {
        match self.0.first() {
            None => Ok(()),
            Some(("", Some(value))) => {
                bail!("`={value}` is not allowed here; {what} accepts {known}")
            }
            Some((key, _)) => bail!("`{key}` is unknown here; {what} accepts {known}"),
        }
    }
}
