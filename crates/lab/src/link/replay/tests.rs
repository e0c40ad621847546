//! Links in virtual time, their logs, and what a replay makes of those.

use std::time::{Duration, SystemTime};

use vocab::Random;

use super::*;
use crate::link::packet_log::{LogFiles, LogHead, LogReport, PacketLog};
use crate::link::record::{LinkRecord, RecordSink};
use crate::link::settings::Settings;

fn settings(words: &[(&str, &str)]) -> Settings {
    let mut settings = Settings::default();
    for (name, word) in words {
        settings.set_by_name(name, word).unwrap();
    }
    settings
}

fn hand_out(link: &mut Link, sink: &mut dyn RecordSink) {
    for (heading, direction) in [
        (Heading::Forward, &mut link.forward),
        (Heading::Back, &mut link.back),
    ] {
        while let Some(record) = direction.poll_record() {
            assert!(sink.offer_last(LinkRecord { heading, record }));
        }
    }
}

/// A link in virtual time, polled at odd moments, with its log.
fn run(files: &LogFiles, words: &[(&str, &str)], changes: &[(&str, &str)]) -> LogReport {
    let mut settings = settings(words);
    let resolved = settings.resolve().unwrap();
    let (log, mut sink) = PacketLog::create(files).unwrap();
    log.begin(LogHead {
        started: SystemTime::now(),
        ends: ["left".to_owned(), "right".to_owned()],
        framing: Framing::Ip,
        settings: settings.clone(),
        files: resolved.files,
    });
    let mut link = Link::new(resolved.config);
    link.forward.keep_records(true);
    link.back.keep_records(true);
    let mut random = Random::from_seed(9);
    let mut now = Time::ZERO;
    for number in 0..4_000_u64 {
        now += Duration::from_nanos(random.below(600_000));
        let mut packet = vec![0; 40 + random.below(1_461) as usize];
        packet[0] = 0x45;
        packet[1] = (number % 4) as u8;
        let direction = match number % 3 {
            0 => &mut link.back,
            _ => &mut link.forward,
        };
        direction.handle(now, packet.into());
        if random.below(4) == 0 {
            while link.forward.poll_output(now).is_some() {}
            while link.back.poll_output(now).is_some() {}
            hand_out(&mut link, sink.as_mut());
        }
        if number == 2_000 && !changes.is_empty() {
            for (name, word) in changes {
                let mut change = Settings::default();
                change.set_by_name(name, word).unwrap();
                settings.overlay(change);
            }
            let resolved = settings.resolve().unwrap();
            log.announce(&settings, &resolved);
            link.set_config(now, resolved.config);
            let next =
                [&link.forward, &link.back].map(|direction| direction.counters().offered.packets);
            sink.changed(now, next);
        }
    }
    while let Some(at) = link.poll_timeout() {
        while link.forward.poll_output(at).is_some() {}
        while link.back.poll_output(at).is_some() {}
        hand_out(&mut link, sink.as_mut());
    }
    drop(sink);
    log.finish()
}

const EVERYTHING: [(&str, &str); 12] = [
    ("seed", "77"),
    ("rate", "20Mbit"),
    ("rate-back", "3Mbit"),
    ("delay", "8ms"),
    ("jitter", "3ms,lognormal,reorder"),
    ("loss", "2%,burst=3"),
    ("duplicate", "1%"),
    ("corrupt", "1%"),
    ("reorder", "2%,4ms"),
    ("queue", "30kB,25packets"),
    ("aqm-back", "codel:target=1ms,interval=10ms,ecn"),
    ("police", "rate=12Mbit,burst=4kB"),
];

#[test]
fn every_fate_is_had_again_through_a_change_of_settings() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let files = LogFiles {
        csv: Some(csv.clone()),
        pcapng: None,
    };
    let changes = [("rate", "5Mbit"), ("loss", "none"), ("delay-back", "1ms")];
    let written = run(&files, &EVERYTHING, &changes);
    assert_eq!((written.lost_records, &written.error), (0, &None));
    let report = replay(&csv).unwrap();
    assert!(report.agrees(), "{report:#?}");
    assert_eq!(report.left_out, Vec::<String>::new());
    assert_eq!(report.forward.packets + report.back.packets, 4_000);
    let agreeing = report.forward.agreeing + report.back.agreeing;
    assert_eq!(agreeing, written.records, "{report:#?}");
    // It would prove little if nothing happened to the packets.
    let text = fs::read_to_string(&csv).unwrap();
    for word in [
        "queue_full",
        "policed",
        "lost",
        "copy",
        "corrupted",
        "marked",
        "delivered",
    ] {
        assert!(text.contains(word), "no packet was {word}");
    }
}

#[test]
fn a_fate_that_was_tampered_with_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let files = LogFiles {
        csv: Some(csv.clone()),
        pcapng: None,
    };
    run(&files, &EVERYTHING, &[]);
    let text = fs::read_to_string(&csv).unwrap();
    let row = text
        .lines()
        .find(|line| line.starts_with("forward") && line.ends_with("delivered,"))
        .unwrap_or_else(|| {
            text.lines()
                .find(|line| line.contains(",delivered,"))
                .unwrap()
        });
    let fields: Vec<&str> = row.split(',').collect();
    let later = (fields[6].parse::<u64>().unwrap() + 1).to_string();
    let mut tampered: Vec<&str> = fields.clone();
    tampered[6] = &later;
    fs::write(&csv, text.replace(row, &tampered.join(","))).unwrap();
    let report = replay(&csv).unwrap();
    assert_eq!(report.forward.differing, 1, "{report:#?}");
    assert!(!report.agrees());
    assert!(report.differences[0].contains(&later), "{report:#?}");

    // A packet that is missing ends what is compared.
    let number = fields[1];
    let missing: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with(&format!("forward,{number},")))
        .collect();
    fs::write(&csv, missing.join("\n")).unwrap();
    let report = replay(&csv).unwrap();
    assert!(report.agrees(), "{report:#?}");
    assert!(report.left_out[0].contains(&format!("packet {number} is not")));
    assert!(report.forward.not_compared > 0);
}

#[test]
fn recorded_lines_and_outages_are_had_again_from_the_same_files_only() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("trace"), "0\n1\n1\n3\n4\n").unwrap();
    fs::write(
        path("rates.csv"),
        "# repeat 500ms\ntime,rate,loss\n0,4Mbit,0%\n0.2,0,\n0.3,9Mbit,5%\n",
    )
    .unwrap();
    let (trace, rates) = (path("trace"), path("rates.csv"));
    let files = LogFiles {
        csv: Some(path("log.csv")),
        pcapng: None,
    };
    let words = [
        ("trace", trace.to_str().unwrap()),
        ("outage", "at=100ms,for=50ms,every=300ms"),
        ("trace-back", rates.to_str().unwrap()),
        ("outage-back", "none"),
        ("aqm-back", "drop-head"),
        ("queue", "20kB"),
    ];
    let written = run(&files, &words, &[("delay", "3ms")]);
    let report = replay(&path("log.csv")).unwrap();
    assert!(report.agrees(), "{report:#?}");
    let agreeing = report.forward.agreeing + report.back.agreeing;
    assert_eq!(agreeing, written.records, "{report:#?}");
    assert!(agreeing >= 4_000, "{report:#?}");

    fs::write(&trace, "0\n1\n1\n3\n5\n").unwrap();
    let error = format!("{:#}", replay(&path("log.csv")).unwrap_err());
    assert!(error.contains("no longer what it was"), "{error}");
}

#[test]
fn what_is_no_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.csv");
    let refused = |text: &str| {
        fs::write(&path, text).unwrap();
        format!("{:#}", replay(&path).unwrap_err())
    };
    let head = |rest: &str| {
        format!(
            "{MAGIC}\n# set: {{\"at_ns\":0,\"next\":[0,0],\"settings\":{{}},\"files\":[]}}\n{rest}\n"
        )
    };
    assert!(refused("time,rate\n").contains("no packet log"));
    assert!(refused(MAGIC).contains("no settings"));
    assert!(refused(&head("forward,1,2")).contains("line 3"));
    assert!(refused(&head("up,0,1,40,0,delivered,2,")).contains("`up` is no direction"));
    assert!(refused(&head("back,0,1,99999,0,delivered,2,")).contains("more than a packet"));
    assert!(refused(&format!("{MAGIC}\n# set: {{}}\n")).contains("no settings"));
}

#[test]
fn a_capture_is_written_beside_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let files = LogFiles {
        csv: None,
        pcapng: Some(directory.path().join("log.pcapng")),
    };
    let written = run(&files, &EVERYTHING, &[]);
    let length = fs::metadata(files.pcapng.unwrap()).unwrap().len();
    assert!(length > written.records * 60, "{length} bytes");
}

#[test]
fn a_full_disk_ends_the_log_and_not_the_link() {
    let files = LogFiles {
        csv: Some("/dev/full".into()),
        pcapng: None,
    };
    let report = run(&files, &EVERYTHING, &[]);
    assert!(report.error.is_some(), "{report:?}");
    assert!(report.lost_records > 0, "{report:?}");
}
