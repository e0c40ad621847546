//! Tests of the settings that are accepted, of those that are refused, and of their meaning.

use std::fs;

use emulate::{
    DirectionConfig, JitterConfig, JitterDistribution, LineConfig, LossModel, PacketOrder,
    QueueDiscipline, QueueLimit,
};
use vocab::Bitrate;

use super::words::{NumberList, RedSetting};
use super::*;

fn settings(words: &[(&str, &str)]) -> LinkSettings {
    let mut settings = LinkSettings::default();
    for (name, value) in words {
        settings.set_by_name(name, value).unwrap();
    }
    settings
}

fn resolved(words: &[(&str, &str)]) -> emulate::LinkConfig {
    settings(words).resolve().unwrap().config
}

fn refusal(words: &[(&str, &str)]) -> String {
    let mut settings = LinkSettings::default();
    for (name, value) in words {
        if let Err(error) = settings.set_by_name(name, value) {
            return format!("{error:#}");
        }
    }
    match settings.resolve() {
        Err(error) => format!("{error:#}"),
        Ok(resolved) => panic!("{words:?} should be refused, and is {resolved:?}"),
    }
}

fn rate(direction: &DirectionConfig) -> Option<u64> {
    direction.line.rate().map(Bitrate::bits_per_second)
}

/// Reads and writes back, and reads that again.
fn round_trip<T: SettingValue + PartialEq + std::fmt::Debug>(texts: &[&str]) {
    for text in texts {
        let value = T::read(text).unwrap_or_else(|error| panic!("{text}: {error:#}"));
        let written = value.write();
        let again = T::read(&written).unwrap_or_else(|error| panic!("{written}: {error:#}"));
        assert_eq!(again, value, "{text} became {written}");
    }
}

#[test]
fn every_word_reads_back_as_it_was_written() {
    round_trip::<Bitrate>(&["64kbit", "51.84Mbit", "1234567bit", "10Gbit/s"]);
    round_trip::<QueueLimit>(&[
        "125kB",
        "100packets",
        "1packet",
        "50ms",
        "64KiB,10packets,2ms",
    ]);
    round_trip::<JitterConfig>(&[
        "5ms",
        "5ms,normal",
        "5ms,exponential,reorder",
        "5ms,pareto,shape=2.5",
        "1.5ms,lognormal,sigma=1.48",
    ]);
    round_trip::<LossSetting>(&[
        "0%",
        "0.05%",
        "0.0005",
        "1%,burst=5",
        "1%,burst=2.5",
        "ge:to_bad=1%,to_good=20%",
        "ge:to_bad=1%,to_good=20%,loss_good=0.1%,loss_bad=90%",
        "list:3,7,10-12",
        "list:0-4/100",
        "list:@losses.txt",
    ]);
    round_trip::<AqmSetting>(&[
        "drop-tail",
        "drop-head",
        "codel",
        "codel:ecn",
        "codel:target=2ms,interval=50ms",
        "pie:target=20ms,update=30ms,burst=100ms,ecn",
        "red:min=30kB,max=90kB,p=10%",
        "red:min=30kB,max=90kB,p=2%,weight=0.01,gentle,ecn",
    ]);
    round_trip::<BucketSetting>(&[
        "rate=10Mbit,burst=32kB",
        "burst=32kB,rate=10Mbit,peak=20Mbit,peak_burst=3000B",
    ]);
    round_trip::<OutageList>(&[
        "at=10s,for=5s",
        "at=10s,for=5s,every=60s,hold",
        "at=1s,for=100ms;at=2s,for=100ms",
    ]);
    round_trip::<emulate::ReorderingConfig>(&["1%,5ms"]);
}

#[test]
fn invalid_word_is_refused_with_the_valid_ones() {
    let mut wrong = Vec::new();
    for (name, value, hint) in [
        ("rate", "0", "no limit"),
        ("rate", "10", "51.84Mbit"),
        ("rate", "fast", "51.84Mbit"),
        ("delay", "15", "250ms"),
        ("delay", "700s", "600s"),
        ("loss", "150%", "1%,burst=5"),
        ("loss", "1%,bursts=5", "burst=5"),
        ("loss", "1%,burst=0.5", "least is 1"),
        ("loss", "99%,burst=2", "lose at most"),
        ("loss", "ge:to_bad=1%", "to_good"),
        ("loss", "list:7-3", "3-7"),
        ("loss", "list:7/3", "period of 3"),
        ("loss", "list:", "contains no packet"),
        ("loss", "list:0-99999999999", "at most"),
        ("loss", "list:@/nowhere/losses", "/nowhere/losses"),
        ("jitter", "5ms,gauss", "normal"),
        ("jitter", "5ms,normal,uniform", "two distributions"),
        ("jitter", "5ms,pareto,shape=1", "above 1"),
        ("jitter", "5ms,normal,shape=3", "shape"),
        ("queue", "0", "no full-size packet"),
        ("queue", "0packets", "least is 1 packet"),
        ("queue", "1kB", "1500B or more"),
        ("queue", "50ms", "needs a rate"),
        ("queue", "ten", "100packets"),
        ("queue", "10kB,20kB", "second limit"),
        ("aqm", "fq", "codel"),
        ("aqm", "codel:target=0", "above zero"),
        ("aqm", "codel:ecn=yes", "not allowed"),
        ("aqm", "red:min=1kB,max=2kB", "red:min=30kB"),
        ("aqm", "red:min=9kB,max=2kB,p=1%", "needs the rate"),
        ("shaper", "rate=1Mbit", "burst"),
        ("shaper", "rate=1Mbit,burst=100B", "1.5kB or more"),
        (
            "shaper",
            "rate=2Mbit,burst=2kB,peak=1Mbit",
            "below its rate",
        ),
        (
            "police",
            "rate=1Mbit,burst=2kB,peak_burst=2kB",
            "give `peak`",
        ),
        ("reorder", "1%", "1%,5ms"),
        ("outage", "at=1s", "for"),
        ("outage", "at=1s,for=0s", "no duration"),
        ("outage", "at=1s,for=5s,every=6s", "more than 6s"),
        ("outage", "at=1s,for=5s;at=2s,for=1s", "overlap"),
        ("outage", "at=1s,for=5s,hold", "needs a `rate`"),
        ("trace", "/nowhere/trace", "/nowhere/trace"),
        ("overhead", "two", "1500B"),
        ("overhead", "18446744073709549568B", "more than a packet"),
        ("preset", "4g", "lte"),
        ("seed", "-1", "2^64"),
        ("speed", "1Mbit", "it has rate, delay"),
    ] {
        let refusal = refusal(&[(name, value)]);
        if !refusal.contains(hint) {
            wrong.push(format!("{name}={value}: {refusal}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn back_direction_defaults_to_forward() {
    let link = resolved(&[("rate", "10Mbit"), ("delay", "5ms"), ("delay-back", "7ms")]);
    assert_eq!(rate(&link.back), Some(10_000_000));
    assert_eq!(link.forward.delay.as_millis(), 5);
    assert_eq!(link.back.delay.as_millis(), 7);
    // 10 Mbit/s times 12 ms, which is below the least.
    assert_eq!(
        link.forward.queue.limit,
        QueueLimit::bytes(super::resolve::QUEUE_MIN)
    );
}

#[test]
fn the_default_queue_is_rate_times_round_trip() {
    let link = resolved(&[
        ("rate", "10Mbit"),
        ("rate-back", "1Gbit"),
        ("delay", "50ms"),
    ]);
    assert_eq!(
        link.forward.queue.limit.bytes,
        Some(ByteCount::new(125_000))
    );
    assert_eq!(
        link.back.queue.limit.bytes,
        Some(ByteCount::new(12_500_000))
    );
    let shaped = resolved(&[("shaper", "rate=8Mbit,burst=3kB"), ("delay", "50ms")]);
    assert_eq!(
        shaped.forward.queue.limit.bytes,
        Some(ByteCount::new(100_000))
    );
}

#[test]
fn two_words_for_the_line_contradict_each_other() {
    let both = refusal(&[("rate", "1Mbit"), ("shaper", "rate=1Mbit,burst=2kB")]);
    assert!(both.contains("`rate` and `shaper` contradict"), "{both}");
    // Also when they are laid over something together.
    let mut settings = LinkSettings::default();
    settings.overlay(self::settings(&[
        ("rate", "1Mbit"),
        ("shaper", "rate=1Mbit,burst=2kB"),
    ]));
    assert!(settings.resolve().is_err());
    // Each way for itself, they do not.
    let link = resolved(&[("rate", "1Mbit"), ("shaper-back", "rate=2Mbit,burst=2kB")]);
    assert!(matches!(link.forward.line, LineConfig::Rate(_)));
    assert!(matches!(link.back.line, LineConfig::Shaper(_)));
}

#[test]
fn flags_override_a_preset_word_by_word() {
    let link = resolved(&[("preset", "3g-waas"), ("loss", "1%")]);
    assert_eq!(rate(&link.forward), Some(112_000));
    assert_eq!(rate(&link.back), Some(1_550_000));
    assert!(matches!(link.back.loss, LossModel::Random(_)));
    // What the preset names for the way back stays, as it does where a file or a flag names it.
    let slower = resolved(&[("preset", "3g-waas"), ("rate", "64kbit")]);
    assert_eq!(rate(&slower.forward), Some(64_000));
    assert_eq!(rate(&slower.back), Some(1_550_000));
    let shaped = resolved(&[("preset", "3g-waas"), ("shaper", "rate=1Mbit,burst=2kB")]);
    assert!(matches!(shaped.forward.line, LineConfig::Shaper(_)));
    assert_eq!(rate(&shaped.back), Some(1_550_000));
    let same = resolved(&[("preset", "t1"), ("rate", "64kbit")]);
    assert_eq!(rate(&same.back), Some(64_000));
    let bare = resolved(&[("preset", "leo"), ("loss", "none"), ("jitter", "none")]);
    assert_eq!(bare.forward.loss, LossModel::None);
    assert_eq!(bare.back.jitter, None);
}

#[test]
fn laying_words_over_others_replaces_only_those() {
    let mut running = settings(&[("rate", "10Mbit"), ("rate-back", "2Mbit"), ("delay", "5ms")]);
    running.overlay(settings(&[("rate", "5Mbit"), ("loss", "1%")]));
    let link = running.resolve().unwrap().config;
    assert_eq!(
        (rate(&link.forward), rate(&link.back)),
        (Some(5_000_000), Some(2_000_000))
    );
    assert_eq!(link.back.delay.as_millis(), 5);
    // Another word for the line takes the first one's place.
    running.overlay(settings(&[("shaper", "rate=1Mbit,burst=2kB")]));
    let link = running.resolve().unwrap().config;
    assert!(matches!(link.forward.line, LineConfig::Shaper(_)));
    assert_eq!(rate(&link.back), Some(2_000_000));
}

#[test]
fn preset_replaces_all_settings_of_running_link() {
    let started = settings(&[("rate", "64kbit"), ("delay-back", "3ms"), ("seed", "7")]);
    let changed = |over: &[(&str, &str)]| {
        let mut running = started.clone();
        running.overlay(settings(&[("loss", "2%")]));
        running.change(settings(over));
        running.resolve().unwrap().config
    };
    let as_started = |words: &[(&str, &str)]| resolved(&[words, &[("seed", "7")]].concat());
    for over in [
        &[("preset", "lte")][..],
        &[("preset", "lte"), ("loss", "1%")],
        &[("preset", "none")],
    ] {
        assert_eq!(changed(over), as_started(over), "{over:?}");
    }
    // Without one only what is named changes.
    let link = changed(&[("delay", "5ms")]);
    assert_eq!(rate(&link.forward), Some(64_000));
    assert!(matches!(link.forward.loss, LossModel::Random(_)));
}

#[test]
fn settings_read_back_from_json_as_they_were() {
    let written = settings(&[
        ("preset", "lte"),
        ("seed", "18446744073709551615"),
        ("jitter", "5ms,normal,reorder"),
        ("loss-back", "1%,burst=5"),
    ]);
    let text = serde_json::to_string(&written).unwrap();
    assert_eq!(
        serde_json::from_str::<LinkSettings>(&text).unwrap(),
        written
    );
    let refused = serde_json::from_str::<LinkSettings>(r#"{"rate":"0"}"#).unwrap_err();
    assert!(refused.to_string().contains("no limit"), "{refused}");
}

#[test]
fn a_file_says_the_same_words() {
    let file = "preset = \"leo\"\nseed = 7\n[forward]\nrate = \"10Mbit\"\noverhead = 14\noutage = [\"at=1s,for=1s\", \"at=3s,for=1s\"]\n[back]\nrate = \"2Mbit\"\n";
    let read = super::file::parse(file).unwrap();
    let named = settings(&[
        ("preset", "leo"),
        ("seed", "7"),
        ("rate", "10Mbit"),
        ("overhead", "14"),
        ("outage", "at=1s,for=1s;at=3s,for=1s"),
        ("rate-back", "2Mbit"),
    ]);
    assert_eq!(read, named);
    for (text, hint) in [
        ("rate = \"1Mbit\"", "[forward]"),
        ("[forward]\nrate-back = \"1Mbit\"", "under [back]"),
        ("[forward]\nspeed = 1", "it has rate"),
        ("[forward", "not valid TOML"),
        ("[forward]\nrate = { bits = 1 }", "must be a text"),
    ] {
        let error = format!("{:#}", super::file::parse(text).unwrap_err());
        assert!(error.contains(hint), "{text}: {error}");
    }
}

#[test]
fn files_are_found_from_where_the_settings_lie() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("trace"), "# made up\n1\n2\n4\n").unwrap();
    fs::write(path("rates.csv"), "time,rate\n0,3Mbit\n5,9Mbit\n").unwrap();
    fs::write(path("losses"), "# seen\n3 7\n10-12\n/100\n").unwrap();
    fs::write(path("delays.csv"), "time,delay\n0,10ms\n5,20ms\n").unwrap();
    fs::write(
        path("link.toml"),
        "[forward]\ntrace = \"trace\"\nloss = \"list:@losses\"\n[back]\ntrace = \"rates.csv\"\ndelay = \"100ms\"\n",
    )
    .unwrap();
    let link = LinkSettings::from_file(&path("link.toml")).unwrap();
    let ResolvedSettings { config, files } = link.resolve().unwrap();
    assert!(matches!(config.forward.line, LineConfig::Trace(_)));
    assert!(matches!(&config.forward.loss, LossModel::List(list) if list.contains(112)));
    assert_eq!(rate(&config.back), Some(3_000_000));
    // By the highest rate: 9 Mbit/s times 100 ms.
    assert_eq!(config.back.queue.limit.bytes, Some(ByteCount::new(112_500)));
    assert_eq!(files.len(), 3);
    assert_eq!(link.files().count(), 3);

    let mut no_line = LinkSettings::default();
    no_line
        .set_by_name("trace", path("delays.csv").to_str().unwrap())
        .unwrap();
    let error = format!("{:#}", no_line.resolve().unwrap_err());
    assert!(error.contains("name the file as `schedule`"), "{error}");

    fs::write(path("trace"), "1\n2\n1\n").unwrap();
    let error = format!("{:#}", link.resolve().unwrap_err());
    assert!(error.contains("line 3"), "{error}");
}

#[test]
fn an_outage_goes_back_to_what_was_before() {
    let link = resolved(&[
        ("rate", "1Mbit"),
        ("loss", "2%"),
        ("outage", "at=1s,for=2s,every=10s"),
    ]);
    let schedule = link.forward.schedule.unwrap();
    assert_eq!(schedule.repeat().unwrap().as_secs(), 10);
    let [begin, end] = schedule.steps() else {
        panic!("{schedule:?}");
    };
    assert_eq!((begin.at.as_secs(), end.at.as_secs()), (1, 3));
    assert_eq!(end.change.loss, Some(link.forward.loss));
    let held = resolved(&[("rate", "1Mbit"), ("outage", "at=1s,for=2s,hold")]);
    let schedule = held.back.schedule.unwrap();
    assert_eq!(schedule.steps()[0].change.rate, Some(Bitrate::default()));
    assert_eq!(schedule.steps()[1].change.rate, held.back.line.rate());
}

#[test]
fn the_parts_mean_what_the_models_call_them() {
    let link = resolved(&[
        ("rate", "12Mbit"),
        ("jitter", "5ms,reorder"),
        ("aqm", "red:min=30kB,max=90kB,p=10%"),
        ("shaper-back", "rate=1Mbit,burst=2kB,peak=2Mbit"),
        ("overhead", "14"),
    ]);
    let jitter = link.forward.jitter.unwrap();
    assert!(matches!(
        jitter.distribution,
        JitterDistribution::Uniform { .. }
    ));
    assert_eq!(jitter.order, PacketOrder::Free);
    let QueueDiscipline::Red(red) = link.forward.queue.discipline else {
        panic!("{:?}", link.forward.queue);
    };
    // 1,514 bytes at 12 Mbit/s.
    assert_eq!(red.packet_time.as_nanos(), 1_009_333);
    let LineConfig::Shaper(bucket) = link.back.line else {
        panic!("{:?}", link.back.line);
    };
    assert_eq!(bucket.peak.unwrap().burst, ByteCount::new(1_514));
    let words = described(&link.forward);
    assert!(words.contains(&("rate", "12Mbit".to_owned())), "{words:?}");
    let aqm = words.iter().find(|(name, _)| *name == "aqm").unwrap();
    assert!(matches!(
        AqmSetting::read(&aqm.1).unwrap(),
        AqmSetting::Red(RedSetting { .. })
    ));
}

#[test]
fn burst_losses_are_described_as_configured() {
    for loss in ["2%,burst=3", "0.05%,burst=5", "10%,burst=1.5"] {
        let link = resolved(&[("loss", loss)]);
        assert!(described(&link.forward).contains(&("loss", loss.to_owned())));
    }
    let states = "ge:to_bad=1%,to_good=20%,loss_good=0.1%,loss_bad=90%";
    let link = resolved(&[("loss", states)]);
    assert!(described(&link.forward).contains(&("loss", states.to_owned())));
}

/// One word of the settings in force, forward and back.
fn in_force(words: &[(&str, &str)], key: SettingKey) -> [Option<String>; 2] {
    let mut settings = LinkSettings::default();
    for (name, word) in words {
        settings.set_by_name(name, word).unwrap();
    }
    let config = settings.resolve().unwrap().config;
    [
        (SettingDirection::Forward, &config.forward),
        (SettingDirection::Back, &config.back),
    ]
    .map(|(way, direction)| {
        let words = settings.in_force(way, direction).unwrap();
        let found = words.into_iter().find(|(name, _)| *name == key.name());
        found.map(|(_, word)| word)
    })
}

#[test]
fn settings_in_force_keep_the_original_words() {
    let both = |word: &str| [Some(word.to_owned()), Some(word.to_owned())];
    let outage = "at=10s,for=5s,every=60s";
    assert_eq!(
        in_force(&[("outage", outage)], SettingKey::Outage),
        both(outage)
    );
    let list = "list:3,7,10-12/100";
    assert_eq!(in_force(&[("loss", list)], SettingKey::Loss), both(list));
    let long = format!("list:{}", vec!["1"; 100].join(","));
    assert_eq!(in_force(&[("loss", &long)], SettingKey::Loss), both("list"));
    let named = [("loss", list), ("loss-back", "none")];
    assert_eq!(
        in_force(&named, SettingKey::Loss),
        [Some(list.to_owned()), Some("0%".to_owned())]
    );

    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let schedule = file("schedule.csv", "time,delay\n1,5ms\n");
    assert_eq!(
        in_force(&[("schedule", &schedule)], SettingKey::Schedule),
        both(&format!("{schedule} (1 changes)"))
    );
    let trace = file("trace.csv", "time,rate\n0,5Mbit\n1,6Mbit\n");
    assert_eq!(
        in_force(&[("trace", &trace)], SettingKey::Trace),
        both(&format!("{trace} (CSV)"))
    );
    let trace = file("trace.mahimahi", "1\n2\n");
    let said = in_force(&[("trace", &trace)], SettingKey::Trace)[0]
        .clone()
        .unwrap();
    assert!(said.starts_with(&format!("{trace} (")), "{said}");
    assert!(said.contains("on average"), "{said}");
    // A flag over a preset, or over a trace below it, is what counts.
    assert_eq!(
        in_force(&[("preset", "lte"), ("rate", "7Mbit")], SettingKey::Rate),
        [Some("7Mbit".to_owned()), Some("27.12Mbit".to_owned())]
    );
}

#[test]
fn negative_values_are_named_as_such() {
    for (name, word) in [("delay", "-5ms"), ("rate-back", "-1Mbit"), ("loss", "-.5%")] {
        let error = LinkSettings::default().set_by_name(name, word).unwrap_err();
        let error = format!("{error:#}");
        assert!(
            error.contains("below zero") && error.contains(word),
            "{error}"
        );
    }
}

#[test]
fn written_settings_are_read_or_refused() {
    const PIECES: [&str; 48] = [
        "0",
        "1",
        "7",
        "10",
        "99",
        "1e308",
        "nan",
        "inf",
        "-",
        "18446744073709551615",
        "99999999999999999999",
        ",",
        ",",
        ",",
        ";",
        ":",
        "/",
        "%",
        "%",
        "ms",
        "s",
        "h",
        "Mbit",
        "kB",
        "B",
        "packets",
        "burst=",
        "ge:",
        "to_bad=",
        "to_good=",
        "list:",
        "at=",
        "for=",
        "every=",
        "hold",
        "codel",
        "pie:",
        "red:min=",
        "max=",
        "p=",
        "weight=",
        "rate=",
        "peak=",
        "shape=",
        "sigma=",
        "pareto",
        "lognormal",
        "reorder",
    ];
    let mut random = vocab::SeededRandom::from_seed(3);
    let mut read = 0;
    for _ in 0..60_000 {
        let mut settings = LinkSettings::default();
        for _ in 0..=random.below(3) {
            let names: Vec<SettingName> = SettingName::all().collect();
            let name = names[random.below(names.len() as u64) as usize];
            let word: String = (0..=random.below(6))
                .map(|_| PIECES[random.below(PIECES.len() as u64) as usize])
                .collect();
            // A list of ten million packets is read well, and takes its time.
            if word.contains("list:") && word.len() > 14 {
                continue;
            }
            read += u64::from(settings.set(name, &word).is_ok());
        }
        // Either is right; what must not happen is a panic.
        let _ = settings.resolve();
    }
    assert!(read > 1_000, "only {read} words were well written");
}

#[test]
fn a_list_is_written_in_runs() {
    let list = NumberList::read("3,7,8,9,20/50").unwrap();
    assert_eq!(list.write(), "3,7-9,20/50");
}

#[test]
fn a_file_without_an_end_is_refused() {
    let endless = std::path::Path::new("/dev/zero");
    let error = super::resolve::bounded(endless, 1 << 16).unwrap_err();
    assert!(error.to_string().contains("longer than 65536 bytes"));
    let error = super::file::read(endless).unwrap_err();
    assert!(
        format!("{error:#}").contains("if the file is a trace"),
        "{error:#}"
    );
}
