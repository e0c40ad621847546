//! Resolution of words into the core's configuration: presets, defaults for the back direction,
//! files, the default queue, and contradictions.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use emulate::{
    DeliveryTrace, DirectionConfig, GilbertElliott, JitterConfig, LineConfig, LinkConfig,
    LinkSchedule, LossList, LossModel, PeakBucket, QueueConfig, QueueDiscipline, QueueLimit,
    RedConfig, ReorderingConfig, ScheduleStep, SettingsChange, TokenBucket,
};
use serde::{Deserialize, Serialize};
use vocab::{Bitrate, ByteCount, Probability};

use super::words::{
    AqmSetting, BucketSetting, FileSource, LossSetting, NONE, NumberList, OutageList, OutagePeriod,
    SettingValue, certain, read_optional,
};
use super::{LinkSettings, QUEUE_DEFAULT, SettingDirection, SettingKey, SettingName};
use crate::link::presets;

/// Ten full-size packets: an initial window of TCP (RFC 6928) passes even a link without delay.
pub(crate) const QUEUE_MIN: ByteCount = ByteCount::new(15_000);

/// The IP packet that the devices' MTU allows.
const FULL_PACKET: u64 = 1_500;

/// The longest IP packet; no layer below adds as much.
const OVERHEAD_MAX: ByteCount = ByteCount::new(65_535);

/// A trace of ten minutes at 1 Gbit/s has 350 MB.
const LONGEST_FILE: u64 = 512 << 20;

/// Settings, ready for the models.
#[derive(Clone, Debug, PartialEq)]
pub struct ResolvedSettings {
    /// Configuration of the link.
    pub config: LinkConfig,
    /// The files that it came from, so that a log can say whether they are still the same.
    pub files: Vec<UsedFile>,
}

/// A file that settings came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedFile {
    /// Path of the file.
    pub path: PathBuf,
    /// The BLAKE3 of its content, hexadecimal.
    pub blake3: String,
}

pub(super) fn resolve(settings: &LinkSettings) -> Result<ResolvedSettings> {
    let settings = over_preset(settings)?;
    let mut opened = OpenedFiles::default();
    let mut direction = |way| DirectionDraft::new(&DirectionWords::of(&settings, way), &mut opened);
    let named = |way: &str| format!("the way {way}");
    let forward = direction(SettingDirection::Forward).with_context(|| named("forward"))?;
    let back = direction(SettingDirection::Back).with_context(|| named("back"))?;
    let round_trip = forward.config.delay + back.config.delay;
    let config = LinkConfig {
        forward: forward
            .finish(round_trip)
            .with_context(|| named("forward"))?,
        back: back.finish(round_trip).with_context(|| named("back"))?,
        seed: settings.seed(),
    };
    Ok(ResolvedSettings {
        config,
        files: opened.used,
    })
}

/// The preset's words, overridden by the named ones.
fn over_preset(settings: &LinkSettings) -> Result<LinkSettings> {
    let mut all = match settings.preset() {
        Some(name) => presets::find(name)?.settings(),
        None => LinkSettings::default(),
    };
    all.overlay(settings.clone());
    Ok(all)
}

/// Words that apply to one direction: those that name it, and otherwise the forward ones.
struct DirectionWords<'a> {
    settings: &'a LinkSettings,
    way: SettingDirection,
}

impl<'a> DirectionWords<'a> {
    fn of(settings: &'a LinkSettings, way: SettingDirection) -> Self {
        Self { settings, way }
    }

    /// The word that applies, and the name it was given under.
    fn find(&self, key: SettingKey) -> Option<(SettingName, &'a str)> {
        self.find_all(&[key]).into_iter().next()
    }

    /// Setting that defines the line.
    fn find_line(&self) -> Result<Option<(SettingName, &'a str)>> {
        match self.find_all(&[SettingKey::Rate, SettingKey::Shaper, SettingKey::Trace])[..] {
            [] => Ok(None),
            [only] => Ok(Some(only)),
            [(first, _), (second, _), ..] => bail!(
                "`{first}` and `{second}` contradict each other, because each defines the line; \
                 remove one of them"
            ),
        }
    }

    fn find_all(&self, keys: &[SettingKey]) -> Vec<(SettingName, &'a str)> {
        let under = |way| -> Vec<(SettingName, &'a str)> {
            keys.iter()
                .filter_map(|key| {
                    let name = SettingName { key: *key, way };
                    self.settings.get(name).map(|word| (name, word))
                })
                .collect()
        };
        let own = under(self.way);
        if own.is_empty() && self.way == SettingDirection::Back {
            under(SettingDirection::Forward)
        } else {
            own
        }
    }

    fn read<T: SettingValue>(&self, key: SettingKey) -> Result<Option<T>> {
        let Some((name, word)) = self.find(key) else {
            return Ok(None);
        };
        read_optional(word).with_context(|| format!("`{name}`"))
    }
}

/// A direction that still lacks its queue, which depends on the other one's delay.
struct DirectionDraft {
    config: DirectionConfig,
    limit: Option<QueueLimit>,
    aqm: AqmSetting,
}

impl DirectionDraft {
    fn new(words: &DirectionWords<'_>, opened: &mut OpenedFiles) -> Result<Self> {
        let overhead = words.read(SettingKey::Overhead)?.unwrap_or_default();
        if overhead > OVERHEAD_MAX {
            bail!(
                "`overhead`: {overhead} for each packet is more than a packet has; 14 counts as Ethernet's header does, 38 as its wire"
            );
        }
        let mut config = DirectionConfig {
            overhead,
            policer: words
                .read::<BucketSetting>(SettingKey::Police)?
                .map(|bucket| bucket.ready(overhead)),
            corruption: words
                .read(SettingKey::Corrupt)?
                .unwrap_or(Probability::ZERO),
            duplication: words
                .read(SettingKey::Duplicate)?
                .unwrap_or(Probability::ZERO),
            delay: words.read(SettingKey::Delay)?.unwrap_or_default(),
            jitter: words.read::<JitterConfig>(SettingKey::Jitter)?,
            reordering: words.read::<ReorderingConfig>(SettingKey::Reorder)?,
            ..DirectionConfig::default()
        };
        let mut scheduled = Vec::new();
        if let Some((name, word)) = words.find_line()? {
            let schedule =
                set_line(&mut config, name, word, opened).with_context(|| format!("`{name}`"))?;
            scheduled.extend(schedule.map(|schedule| (name, schedule)));
        }
        if let Some((name, word)) = words.find(SettingKey::Loss)
            && let Some(loss) = read_optional::<LossSetting>(word)?
        {
            config.loss = loss.ready(opened).with_context(|| format!("`{name}`"))?;
        }
        if let Some((name, word)) = words.find(SettingKey::Schedule)
            && let Some(FileSource(path)) = read_optional(word)?
        {
            let schedule = opened
                .schedule(&path)
                .with_context(|| format!("`{name}`"))?;
            scheduled.push((name, schedule));
        }
        if let Some((name, word)) = words.find(SettingKey::Outage)
            && let Some(outages) = read_optional::<OutageList>(word)?
        {
            let schedule = outages
                .schedule(&config)
                .with_context(|| format!("`{name}`"))?;
            scheduled.push((name, Arc::new(schedule)));
        }
        if let [(first, _), (second, _), ..] = scheduled.as_slice() {
            bail!(
                "`{first}` and `{second}` both change the link over time; write both into one schedule (a rate of 0 or a loss of 100% is an outage)"
            );
        }
        config.schedule = scheduled.pop().map(|(_, schedule)| schedule);
        let limit = match words.find(SettingKey::Queue) {
            Some((_, QUEUE_DEFAULT)) | None => None,
            Some((name, word)) => {
                let limit = QueueLimit::read(word).with_context(|| format!("`{name}`"))?;
                check_queue(&limit, overhead).with_context(|| format!("`{name}`"))?;
                Some(limit)
            }
        };
        let aqm = words
            .read(SettingKey::Aqm)?
            .unwrap_or(AqmSetting::Ready(QueueDiscipline::DropTail));
        Ok(Self { config, limit, aqm })
    }

    fn finish(self, round_trip: Duration) -> Result<DirectionConfig> {
        let Self {
            mut config,
            limit,
            aqm,
        } = self;
        let limit = limit.unwrap_or_else(|| QueueLimit::bytes(default_queue(&config, round_trip)));
        let discipline = match aqm {
            AqmSetting::Ready(discipline) => discipline,
            AqmSetting::Red(red) => {
                let rate = config.line.rate().ok_or_else(|| {
                    anyhow!(
                        "`aqm`: RED needs the rate of the line; set `rate`, `shaper` or `trace`"
                    )
                })?;
                QueueDiscipline::Red(RedConfig {
                    minimum: red.minimum,
                    maximum: red.maximum,
                    probability: red.probability,
                    weight: red.weight,
                    packet_time: rate
                        .time_for(ByteCount::new(FULL_PACKET + config.overhead.bytes())),
                    gentle: red.gentle,
                    ecn: red.ecn,
                })
            }
        };
        config.queue = QueueConfig { limit, discipline };
        config.check()?;
        Ok(config)
    }
}

/// Default queue: rate times round trip, which lets one TCP connection keep the line full; by the
/// highest rate where it changes.
pub(crate) fn default_queue(config: &DirectionConfig, round_trip: Duration) -> ByteCount {
    let scheduled = config
        .schedule
        .iter()
        .flat_map(|schedule| schedule.steps())
        .filter_map(|step| step.change.rate);
    let highest = config.line.rate().into_iter().chain(scheduled).max();
    highest
        .unwrap_or_default()
        .bytes_in(round_trip)
        .max(QUEUE_MIN)
}

fn check_queue(limit: &QueueLimit, overhead: ByteCount) -> Result<()> {
    let least = FULL_PACKET + overhead.bytes();
    match limit.bytes {
        Some(bytes) if bytes.bytes() < least => bail!(
            "no full-size packet fits into a queue of {bytes}, because the packet on the line counts too; \
             use {least}B or more, or a number of packets such as `1packet`"
        ),
        _ => Ok(()),
    }
}

/// Sets the line; a recorded one may bring changes of delay and loss with it.
fn set_line(
    config: &mut DirectionConfig,
    name: SettingName,
    word: &str,
    opened: &mut OpenedFiles,
) -> Result<Option<Arc<LinkSchedule>>> {
    match name.key {
        SettingKey::Shaper => {
            if let Some(bucket) = read_optional::<BucketSetting>(word)? {
                config.line = LineConfig::Shaper(bucket.ready(config.overhead));
            }
        }
        SettingKey::Trace => {
            if let Some(FileSource(path)) = read_optional(word)? {
                return match opened.trace(&path)? {
                    LineRecording::Opportunities(trace) => {
                        config.line = LineConfig::Trace(trace);
                        Ok(None)
                    }
                    LineRecording::Rates(schedule, first) => {
                        config.line = LineConfig::Rate(first);
                        Ok(Some(schedule))
                    }
                };
            }
        }
        _ => {
            if let Some(rate) = read_optional::<Bitrate>(word)? {
                config.line = LineConfig::Rate(rate);
            }
        }
    }
    Ok(None)
}

impl BucketSetting {
    fn ready(self, overhead: ByteCount) -> TokenBucket {
        let full = ByteCount::new(FULL_PACKET + overhead.bytes());
        TokenBucket {
            rate: self.rate,
            burst: self.burst,
            peak: self.peak.map(|rate| PeakBucket {
                rate,
                burst: self.peak_burst.unwrap_or(full),
            }),
        }
    }
}

impl LossSetting {
    fn ready(self, opened: &mut OpenedFiles) -> Result<LossModel> {
        let listed = |list: NumberList| -> Result<LossModel> {
            let list = LossList::new(list.packets, list.period)?;
            Ok(LossModel::List(Arc::new(list)))
        };
        match self {
            LossSetting::Random(rate) => Ok(rate.into()),
            LossSetting::Bursts { rate, .. } if rate == Probability::ZERO => Ok(LossModel::None),
            LossSetting::Bursts { rate, burst } => Ok(LossModel::GilbertElliott(
                GilbertElliott::from_rate_and_burst(rate, burst)?,
            )),
            LossSetting::States(states) => Ok(LossModel::GilbertElliott(states)),
            LossSetting::List(list) => listed(list),
            LossSetting::ListFile(path) => {
                let text = opened.read(&path)?;
                let list = NumberList::read(&text).with_context(|| path.display().to_string())?;
                listed(list)
            }
        }
    }
}

impl OutageList {
    fn schedule(&self, config: &DirectionConfig) -> Result<LinkSchedule> {
        let mut outages = self.0.clone();
        outages.sort_by_key(|outage| outage.at);
        let every = outages.first().and_then(|outage| outage.every);
        if outages.iter().any(|outage| outage.every != every) {
            bail!(
                "all outages of a direction must repeat together; give all of them the same `every`, \
                 or remove `every`"
            );
        }
        for pair in outages.windows(2) {
            if pair[1].at < pair[0].at + pair[0].lasts {
                bail!(
                    "the outages at {} and {} overlap; write them as one outage",
                    pair[0].at.write(),
                    pair[1].at.write()
                );
            }
        }
        if let (Some(last), Some(every)) = (outages.last(), every)
            && last.at + last.lasts >= every
        {
            bail!(
                "the outage at {} lasts {}, so it does not end before it repeats after {}; use an `every` \
                 of more than {}",
                last.at.write(),
                last.lasts.write(),
                every.write(),
                (last.at + last.lasts).write()
            );
        }
        let mut steps = Vec::new();
        for outage in outages {
            let (begin, end) = outage.changes(config)?;
            steps.push(ScheduleStep {
                at: outage.at,
                change: begin,
            });
            steps.push(ScheduleStep {
                at: outage.at + outage.lasts,
                change: end,
            });
        }
        Ok(LinkSchedule::new(steps, every)?)
    }
}

impl OutagePeriod {
    /// Changes at its beginning and at its end.
    fn changes(&self, config: &DirectionConfig) -> Result<(SettingsChange, SettingsChange)> {
        if !self.hold {
            let loss = |loss| SettingsChange {
                loss: Some(loss),
                ..SettingsChange::default()
            };
            return Ok((loss(certain().into()), loss(config.loss.clone())));
        }
        let LineConfig::Rate(usual) = config.line else {
            bail!("an outage with `hold` needs a `rate`; set a rate, or remove `hold`");
        };
        let rate = |rate| SettingsChange {
            rate: Some(rate),
            ..SettingsChange::default()
        };
        Ok((rate(Bitrate::default()), rate(usual)))
    }
}

enum LineRecording {
    Opportunities(Arc<DeliveryTrace>),
    /// With the rate that holds until the first change.
    Rates(Arc<LinkSchedule>, Bitrate),
}

/// Reads a file of at most so many bytes. A device or a pipe has no length and may never end.
pub(super) fn bounded(path: &Path, longest: u64) -> Result<Vec<u8>> {
    let mut content = Vec::new();
    let mut file = fs::File::open(path)?.take(longest + 1);
    file.read_to_end(&mut content)?;
    if content.len() as u64 > longest {
        bail!("it is longer than {longest} bytes, which is the most that is read");
    }
    Ok(content)
}

/// Files read so far, each once.
#[derive(Default)]
struct OpenedFiles {
    used: Vec<UsedFile>,
    traces: BTreeMap<PathBuf, Arc<DeliveryTrace>>,
    schedules: BTreeMap<PathBuf, Arc<LinkSchedule>>,
}

impl OpenedFiles {
    fn read(&mut self, path: &Path) -> Result<String> {
        let about = || format!("cannot read {}", path.display());
        let content = bounded(path, LONGEST_FILE).with_context(about)?;
        let used = UsedFile {
            path: path.to_owned(),
            blake3: blake3::hash(&content).to_hex().to_string(),
        };
        if !self.used.contains(&used) {
            self.used.push(used);
        }
        String::from_utf8(content).map_err(|_| anyhow!("{} is not text", path.display()))
    }

    fn schedule(&mut self, path: &Path) -> Result<Arc<LinkSchedule>> {
        if let Some(schedule) = self.schedules.get(path) {
            return Ok(Arc::clone(schedule));
        }
        let text = self.read(path)?;
        let schedule =
            Arc::new(LinkSchedule::from_csv(&text).with_context(|| path.display().to_string())?);
        self.schedules
            .insert(path.to_owned(), Arc::clone(&schedule));
        Ok(schedule)
    }

    /// mahimahi's if the first line that says anything is a number by itself, else CSV.
    fn trace(&mut self, path: &Path) -> Result<LineRecording> {
        if let Some(trace) = self.traces.get(path) {
            return Ok(LineRecording::Opportunities(Arc::clone(trace)));
        }
        let text = self.read(path)?;
        let first = text
            .lines()
            .map(str::trim)
            .find(|line| !line.is_empty() && !line.starts_with('#'));
        if first.is_none_or(|first| first.parse::<f64>().is_ok()) {
            let trace =
                DeliveryTrace::parse_mahimahi(&text).with_context(|| path.display().to_string())?;
            let trace = Arc::new(trace);
            self.traces.insert(path.to_owned(), Arc::clone(&trace));
            return Ok(LineRecording::Opportunities(trace));
        }
        let schedule = self.schedule(path)?;
        let mut rates = schedule.steps().iter().filter_map(|step| step.change.rate);
        let Some(first) = rates.next() else {
            bail!(
                "{} contains no rates, so it does not define a line; name the file as `schedule`",
                path.display()
            );
        };
        Ok(LineRecording::Rates(schedule, first))
    }
}

/// Describes all settings of a direction in words; a file is described by the word that named it.
#[must_use]
pub fn described(config: &DirectionConfig) -> Vec<(&'static str, String)> {
    let mut words = Vec::new();
    match &config.line {
        LineConfig::Unlimited => words.push(("rate", "unlimited".to_owned())),
        LineConfig::Rate(rate) => words.push(("rate", rate.write())),
        LineConfig::Shaper(bucket) => words.push(("shaper", bucket_words(bucket).write())),
        LineConfig::Trace(trace) => words.push((
            "trace",
            format!(
                "{} on average over {}",
                trace.mean_rate(),
                trace.period().write()
            ),
        )),
    }
    words.push(("delay", config.delay.write()));
    if let Some(jitter) = &config.jitter {
        words.push(("jitter", jitter.write()));
    }
    words.push(("loss", loss_words(&config.loss)));
    words.push(("queue", config.queue.limit.write()));
    words.push(("aqm", discipline_words(&config.queue.discipline)));
    if config.overhead.bytes() > 0 {
        words.push(("overhead", config.overhead.write()));
    }
    if let Some(policer) = &config.policer {
        words.push(("police", bucket_words(policer).write()));
    }
    if let Some(schedule) = &config.schedule {
        let repeat = schedule
            .repeat()
            .map(|repeat| format!(", again every {}", repeat.write()));
        words.push((
            "schedule",
            format!(
                "{} changes{}",
                schedule.steps().len(),
                repeat.unwrap_or_default()
            ),
        ));
    }
    for (name, share) in [
        ("duplicate", config.duplication),
        ("corrupt", config.corruption),
    ] {
        if share > Probability::ZERO {
            words.push((name, share.write()));
        }
    }
    if let Some(reordering) = &config.reordering {
        words.push(("reorder", reordering.write()));
    }
    words
}

/// All resulting settings, with the original words where the configuration alone has lost them:
/// file names, outages, lists.
pub(super) fn in_force(
    settings: &LinkSettings,
    way: SettingDirection,
    config: &DirectionConfig,
) -> Result<Vec<(&'static str, String)>> {
    let settings = over_preset(settings)?;
    let named = DirectionWords::of(&settings, way);
    let written = |key| {
        let word = named.find(key).map(|(_, word)| word);
        word.filter(|word| *word != NONE)
    };
    let trace = named
        .find_line()?
        .filter(|(name, word)| name.key == SettingKey::Trace && *word != NONE);
    let mut words = described(config);
    for (name, word) in &mut words {
        match (*name, trace) {
            ("rate" | "trace", Some((_, file))) => {
                // A line with a schedule of its own has one rate among many.
                let what = if *name == "trace" {
                    word.as_str()
                } else {
                    "CSV"
                };
                (*name, *word) = ("trace", format!("{file} ({what})"));
            }
            ("schedule", _) => {
                if let Some(file) = written(SettingKey::Schedule) {
                    *word = format!("{file} ({word})");
                } else if let Some(outages) = written(SettingKey::Outage) {
                    (*name, *word) = ("outage", outages.to_owned());
                }
            }
            ("loss", _) => {
                let list = written(SettingKey::Loss).filter(|loss| loss.starts_with("list:"));
                if let Some(list) = list.filter(|list| list.len() <= LIST_SHOWN) {
                    *word = list.to_owned();
                }
            }
            _ => {}
        }
    }
    Ok(words)
}

/// The longest list that is repeated.
const LIST_SHOWN: usize = 60;

fn bucket_words(bucket: &TokenBucket) -> BucketSetting {
    BucketSetting {
        rate: bucket.rate,
        burst: bucket.burst,
        peak: bucket.peak.map(|peak| peak.rate),
        peak_burst: bucket.peak.map(|peak| peak.burst),
    }
}

fn loss_words(loss: &LossModel) -> String {
    match loss {
        LossModel::None => "0%".to_owned(),
        LossModel::Random(rate) => rate.write(),
        LossModel::GilbertElliott(states) => bursts(states)
            .unwrap_or(LossSetting::States(*states))
            .write(),
        LossModel::List(_) => "list".to_owned(),
    }
}

/// Rate and mean run, where the four numbers can be expressed by them.
fn bursts(states: &GilbertElliott) -> Option<LossSetting> {
    const DIGITS: f64 = 1e9;
    let rounded = |number: f64| (number * DIGITS).round() / DIGITS;
    let rate = Probability::from_fraction(rounded(states.loss_rate()))?;
    let burst = rounded(1.0 / states.to_good.as_fraction());
    let again = GilbertElliott::from_rate_and_burst(rate, burst).ok()?;
    let is_near = |one: Probability, other: Probability| {
        (one.as_fraction() - other.as_fraction()).abs() < 1.0 / DIGITS
    };
    let is_same = is_near(again.to_bad, states.to_bad)
        && is_near(again.to_good, states.to_good)
        && again.loss_good == states.loss_good
        && again.loss_bad == states.loss_bad;
    is_same.then_some(LossSetting::Bursts { rate, burst })
}

fn discipline_words(discipline: &QueueDiscipline) -> String {
    match discipline {
        QueueDiscipline::Red(red) => AqmSetting::Red(super::words::RedSetting {
            minimum: red.minimum,
            maximum: red.maximum,
            probability: red.probability,
            weight: red.weight,
            gentle: red.gentle,
            ecn: red.ecn,
        })
        .write(),
        other => AqmSetting::Ready(*other).write(),
    }
}
