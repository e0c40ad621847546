//! Tests of the rates that a host of a given capacity lets through, refuses and advises.

use std::path::PathBuf;

use emulate::QueueConfig;

use super::*;
use crate::link::settings::LinkSettings;

fn rate(text: &str) -> Bitrate {
    text.parse().unwrap()
}

fn gigabits(number: f64) -> Bitrate {
    Bitrate::from_bits_per_second((number * 1e9) as u64)
}

fn seen(number: f64) -> ObservedCapacity {
    ObservedCapacity {
        rate: gigabits(number),
        date: now(),
        by: CapacitySource::Probe,
        probes: 1,
    }
}

fn link(rate: &str) -> LinkConfig {
    let direction = DirectionConfig {
        line: LineConfig::Rate(rate.parse().unwrap()),
        delay: Duration::from_millis(20),
        queue: QueueConfig::from(ByteCount::new(500_000)),
        ..DirectionConfig::default()
    };
    LinkConfig::symmetric(direction, 1)
}

/// A simulated host that carries these rates, one probe after the other, the last one for all later
/// probes; a line above them lets through slightly more than can be kept.
fn host(carries: &[f64]) -> impl FnMut(Bitrate) -> ProbeResult {
    let carries: Vec<Bitrate> = carries.iter().copied().map(gigabits).collect();
    let mut probe = 0;
    move |line| {
        let carried = carries[probe.min(carries.len() - 1)];
        probe += 1;
        ProbeResult {
            came: line.min(of_percent(carried, 110)),
            is_kept: line <= carried,
            by: CapacitySource::Probe,
        }
    }
}

fn ask(known: &mut KnownCapacity, asked: &str, carries: &[f64]) -> Result<(), SettingRefusal> {
    let asked = rate(asked);
    if known.seen.iter().any(|seen| seen.rate >= asked) {
        return Ok(());
    }
    let (learnt, verdict) = judge(asked, DeviceKind::Tun, known.clone(), host(carries));
    *known = learnt;
    verdict
}

#[test]
fn refusal_names_a_setting_that_is_accepted() {
    let mut known = KnownCapacity {
        seen: vec![seen(1.0)],
        refused: None,
    };
    let text = ask(&mut known, "10Gbit", &[3.0]).unwrap_err().to_string();
    assert!(text.contains("10Gbit asked"), "{text}");
    // 3.3 came through, of which 95 % twice is kept; two probes for it, two for these.
    assert!(text.contains("--rate 2.9Gbit"), "{text}");
    assert!(text.contains("by 4 probes"), "{text}");
    assert_eq!(ask(&mut known, "2.9Gbit", &[0.1]), Ok(()));
}

#[test]
fn one_busy_instant_refuses_nothing() {
    let mut known = KnownCapacity::default();
    assert_eq!(ask(&mut known, "2Gbit", &[0.5, 3.0]), Ok(()));
    assert_eq!(known.seen[0].probes, 2);
    // Nor do three where they come near.
    let mut known = KnownCapacity::default();
    assert_eq!(ask(&mut known, "2Gbit", &[1.6, 1.9, 1.8, 2.1]), Ok(()));
}

#[test]
fn answer_near_the_limit_is_repeatable() {
    // This host carries 8.8 at one time and 10.5 at another.
    let mut known = KnownCapacity::default();
    assert!(ask(&mut known, "10Gbit", &[8.8]).is_err());
    let at_its_limit = [10.5, 8.8, 10.5, 10.5, 8.8];
    let text = ask(&mut known, "10Gbit", &at_its_limit)
        .unwrap_err()
        .to_string();
    assert!(text.contains("it was refused at"), "{text}");
    assert!(text.contains("--force"), "{text}");
    assert!(ask(&mut known, "11Gbit", &[11.5, 10.5]).is_err());
    // What was not refused is looked at anew, and the refusal stands.
    assert_eq!(ask(&mut known, "9.8Gbit", &[10.5]), Ok(()));
    assert!(ask(&mut known, "10Gbit", &[10.5, 8.8]).is_err());
    assert_eq!(ask(&mut known, "10Gbit", &[10.5]), Ok(()));
    // What was allowed once stays allowed.
    assert_eq!(ask(&mut known, "10Gbit", &[1.0]), Ok(()));
}

/// A host that was busy at the first request carries the rate as soon as it is idle again, though
/// not 125 % of it; the user need not wait for an hour.
#[test]
fn rate_refused_on_a_busy_host_is_reprobed() {
    let mut known = KnownCapacity::default();
    assert!(ask(&mut known, "10Gbit", &[2.0]).is_err());
    assert!(known.refused.is_some());
    assert_eq!(ask(&mut known, "10Gbit", &[10.5]), Ok(()));
    assert_eq!(known.refused, None);
    assert_eq!(known.most(), rate("10Gbit"));
    // One busy instant among the probes does not matter either.
    let mut known = KnownCapacity::default();
    assert!(ask(&mut known, "10Gbit", &[2.0]).is_err());
    assert_eq!(
        ask(&mut known, "10Gbit", &[10.5, 2.0, 10.5, 10.5, 10.5]),
        Ok(())
    );
}

#[test]
fn refused_rate_can_be_forced_but_memory_cannot() {
    let mut known = KnownCapacity::default();
    let refusal = ask(&mut known, "10Gbit", &[2.0]).unwrap_err();
    let forced = refusal.forced().unwrap();
    assert!(
        forced.starts_with("10Gbit forced; this host carried 1.9Gbit"),
        "{forced}"
    );
    let folder = tempfile::tempdir().unwrap();
    let live = |to: &str| {
        let next = said(to);
        check_live(&link("1Mbit"), &next, DeviceKind::Tun, folder.path()).unwrap_err()
    };
    let forced = live("--rate 10Gbit").forced().unwrap();
    assert!(forced.contains("was not known"), "{forced}");
    assert_eq!(live("--rate 10Gbit --delay 600s").forced(), None);
}

#[test]
fn running_link_is_judged_by_known_results_only() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    let live = |from: &str, to: &str| check_live(&link(from), &link(to), DeviceKind::Tun, state);
    assert_eq!(live("1Mbit", "100Mbit"), Ok(()));
    assert_eq!(live("2Gbit", "1Gbit"), Ok(()));
    let text = live("1Mbit", "1Gbit").unwrap_err().to_string();
    assert!(text.contains("use --rate 100Mbit"), "{text}");
    assert!(text.contains("emulate calibrate --device tun"), "{text}");
    NoteFiles::at(state, DeviceKind::Tun).write(&KnownCapacity {
        seen: vec![seen(1.5)],
        refused: None,
    });
    assert_eq!(live("1Mbit", "1Gbit"), Ok(()));
    let text = live("1Mbit", "2Gbit").unwrap_err().to_string();
    assert!(text.contains("use --rate 1.5Gbit"), "{text}");
}

/// Link configuration from its words.
fn said(words: &str) -> LinkConfig {
    let mut settings = LinkSettings::default();
    for pair in words.split_whitespace().collect::<Vec<_>>().chunks(2) {
        let name = pair[0].strip_prefix("--").unwrap();
        settings.set_by_name(name, pair[1]).unwrap();
    }
    settings.resolve().unwrap().config
}

/// Advice that replaces some words, each with the words that it does not replace.
fn advised(words: &str, refusal: &str) -> Vec<String> {
    let (_, advice) = refusal
        .split_once("; use ")
        .unwrap_or_else(|| panic!("{words}: {refusal}"));
    // Behind the last setting comes what is to be done without one.
    let settings = advice.split(", or ").filter(|one| one.starts_with("--"));
    let words: Vec<&str> = words.split_whitespace().collect();
    let each = settings.map(|one| {
        let new: Vec<&str> = one
            .split_whitespace()
            .filter(|word| *word != "with")
            .collect();
        let is_kept = |pair: &&[&str]| !new.contains(&pair[0]);
        let kept = words.chunks(2).filter(is_kept).flatten().copied();
        kept.chain(new.iter().copied())
            .collect::<Vec<_>>()
            .join(" ")
    });
    each.collect()
}

#[test]
fn advised_setting_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path();
    NoteFiles::at(state, DeviceKind::Tun).write(&KnownCapacity {
        seen: vec![seen(3.15)],
        refused: None,
    });
    let start = |words: &str| {
        let known = || NoteFiles::at(state, DeviceKind::Tun).read(Timestamp::now());
        check_by(&said(words), DeviceKind::Tun, known, host(&[3.0])).1
    };
    let live = |words: &str| check_live(&link("1Mbit"), &said(words), DeviceKind::Tun, state);
    for (words, hints) in [
        // Memory would hold 7 Mbit/s, and no host 1 Tbit/s.
        ("--delay 600s --rate 1Tbit", &["--rate 2.3Mbit"][..]),
        ("--delay 100ms --rate 1Tbit", &["--rate 3.1Gbit"]),
        // A queue that was named stays as long as it is.
        (
            "--delay 1s --rate 1Tbit --queue 500MB",
            &["B with --rate 3.1Gbit"],
        ),
        (
            "--delay 2s --rate 3Gbit --queue 15kB",
            &["--delay 1.431s", "--rate 2.1Gbit"],
        ),
        (
            "--delay 2s --rate 1Tbit --queue 15kB",
            &["--delay 1.385s with --rate 3.1Gbit", "--rate 2.1Gbit"],
        ),
        (
            "--rate 1Mbit --rate-back 1Tbit",
            &["use --rate-back 3.1Gbit"],
        ),
        ("--rate 1Tbit --rate-back 1Mbit", &["use --rate 3.1Gbit"]),
        (
            "--rate 500Gbit --rate-back 1Tbit --delay 3s",
            &["--rate 470Mbit --rate-back 470Mbit"],
        ),
        (
            "--rate 1Gbit --delay 1s --jitter 10s,exponential",
            &["--rate 20Mbit"],
        ),
    ] {
        for check in [&start as &dyn Fn(&str) -> _, &live] {
            let refusal: Result<(), SettingRefusal> = check(words);
            let text = refusal.unwrap_err().to_string();
            for hint in hints {
                assert!(text.contains(hint), "{words}: {text}");
            }
            let advised = advised(words, &text);
            assert!(advised.len() >= hints.len(), "{words}: {text}");
            for other in advised {
                assert_eq!(check(&other), Ok(()), "{words}: {other}: {text}");
            }
        }
    }
}

#[test]
fn recorded_line_is_rated_by_its_best_second() {
    // 200 Mbit/s in one second of ten; the last opportunity and the next first are at once.
    let times = (0..10_000).filter(|at| *at < 1_000 || *at == 9_999);
    let times = times.flat_map(|at| (0..17).map(move |_| format!("{at}\n")));
    let trace = emulate::DeliveryTrace::parse_mahimahi(&times.collect::<String>()).unwrap();
    assert!(trace.mean_rate() < UNASKED);
    let recorded = DirectionConfig {
        line: LineConfig::Trace(trace.into()),
        ..DirectionConfig::default()
    };
    assert_eq!(fastest(&recorded), Some(rate("204204kbit")));
}

#[test]
fn rates_are_rounded_down_to_two_digits() {
    for (from, to) in [(3_199_999_999, 3_100_000_000), (7, 7), (0, 0), (99, 99)] {
        let rounded = rounded_down(Bitrate::from_bits_per_second(from));
        assert_eq!(rounded.bits_per_second(), to);
    }
}

#[test]
fn slow_links_are_never_asked_about() {
    let environment = ProgramEnvironment {
        program: PathBuf::from("/nonexistent"),
        arguments: Vec::new(),
        user_namespace: host::rootless::UserNamespaceMembership::No,
    };
    let nowhere = Path::new("/nonexistent");
    let checked = check(&link("100Mbit"), DeviceKind::Tun, &environment, nowhere);
    assert_eq!(checked, Ok(()));
}

#[test]
fn models_are_asked_once_without_a_device() {
    let environment = ProgramEnvironment {
        program: PathBuf::from("/nonexistent"),
        arguments: Vec::new(),
        user_namespace: host::rootless::UserNamespaceMembership::No,
    };
    let mut prober = CapacityProber {
        environment: &environment,
        device: DeviceKind::Tun,
        stand: None,
        models: OnceCell::from(5e9),
    };
    assert!(!prober.look(rate("6Gbit")).is_kept);
    let look = prober.look(rate("5Gbit"));
    assert!(look.is_kept);
    assert_eq!(look.by, CapacitySource::Models);
}
