//! Tests of links in virtual time, their logs, and the replay of those.

use std::fs;
use std::time::{Duration, SystemTime};

use vocab::SeededRandom;

use super::*;
use crate::link::packet_log::{
    DELIVERED, FATES, FLAGS, HELD, LogFiles, LogHead, LogReport, LogReports, MAGIC, PacketLog,
};
use crate::link::record::{LinkRecord, RecordSink};
use crate::link::settings::LinkSettings;

fn settings(words: &[(&str, &str)]) -> LinkSettings {
    let mut settings = LinkSettings::default();
    for (name, word) in words {
        settings.set_by_name(name, word).unwrap();
    }
    settings
}

fn hand_out(link: &mut Link, sink: &mut dyn RecordSink) {
    for (heading, direction) in [
        (PacketDirection::Forward, &mut link.forward),
        (PacketDirection::Back, &mut link.back),
    ] {
        while let Some(record) = direction.poll_record() {
            assert!(sink.offer_last(LinkRecord { heading, record }));
        }
    }
}

/// Time after which every packet counts as held for good: a minute after the last packet came.
const END: Time = Time::from_nanos(62_000_000_000);

/// Writes rows alone.
fn run_logged(csv: &Path, words: &[(&str, &str)], changes: &[(&str, &str)]) -> LogReport {
    let files = LogFiles {
        csv: Some(csv.to_owned()),
        pcapng: None,
    };
    run(&files, words, changes).log.unwrap()
}

/// A link in virtual time, polled at odd moments, with its log.
fn run(files: &LogFiles, words: &[(&str, &str)], changes: &[(&str, &str)]) -> LogReports {
    let mut settings = settings(words);
    let resolved = settings.resolve().unwrap();
    let (log, mut sink) = PacketLog::create(files).unwrap();
    log.begin(LogHead {
        started: SystemTime::now(),
        ends: ["left".to_owned(), "right".to_owned()],
        framing: LinkFraming::Ip,
        settings: settings.clone(),
        files: resolved.files,
        forced: None,
    });
    let mut link = Link::new(resolved.config);
    link.forward.keep_records(true);
    link.back.keep_records(true);
    let mut random = SeededRandom::from_seed(9);
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
                let mut change = LinkSettings::default();
                change.set_by_name(name, word).unwrap();
                settings.overlay(change);
            }
            let resolved = settings.resolve().unwrap();
            log.announce(&settings, &resolved, None).unwrap();
            link.set_config(now, resolved.config);
            let next =
                [&link.forward, &link.back].map(|direction| direction.counters().offered.packets);
            sink.changed(now, next);
        }
    }
    let mut at = now;
    while at < END {
        at = link.poll_timeout().unwrap_or(END).min(END);
        while link.forward.poll_output(at).is_some() {}
        while link.back.poll_output(at).is_some() {}
        hand_out(&mut link, sink.as_mut());
    }
    link.forward.record_held(END);
    link.back.record_held(END);
    hand_out(&mut link, sink.as_mut());
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
fn every_fate_is_replayed_across_settings_changes() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let changes = [("rate", "5Mbit"), ("loss", "none"), ("delay-back", "1ms")];
    let written = run_logged(&csv, &EVERYTHING, &changes);
    assert_eq!((written.lost_records, &written.error), (0, &None));
    let report = replay(&csv).unwrap();
    assert!(report.agrees(), "{report:#?}");
    assert!(report.is_whole(), "{report:#?}");
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
fn loss_as_last_event_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let words = [
        ("rate", "1Mbit"),
        ("delay", "10ms"),
        ("loss", "100%"),
        ("loss-back", "none"),
    ];
    let written = run_logged(&csv, &words, &[]);
    let report = replay(&csv).unwrap();
    assert!(report.agrees(), "{report:#?}");
    let agreeing = report.forward.agreeing + report.back.agreeing;
    assert_eq!(agreeing, written.records, "{report:#?}");
}

#[test]
fn a_fate_that_was_tampered_with_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    run_logged(&csv, &EVERYTHING, &[]);
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
    assert!(report.missing[0].contains(&format!("packet {number} is not")));
    assert!(report.forward.not_compared > 0);
}

#[test]
fn a_log_that_lacks_something_is_not_whole() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    run_logged(&csv, &EVERYTHING, &[]);
    let whole = fs::read_to_string(&csv).unwrap();
    let report = replay(&csv).unwrap();
    assert!(report.agrees() && report.is_whole(), "{report:#?}");
    let lines: Vec<&str> = whole.lines().collect();
    let without = |number: usize| {
        let rest = lines.iter().enumerate().filter(|(at, _)| *at != number);
        let rest: String = rest.map(|(_, line)| format!("{line}\n")).collect();
        rest
    };
    let last = lines.len() - 1;
    let copy = lines
        .iter()
        .position(|line| line.ends_with("copy"))
        .unwrap();
    let lost = |text: &str| text.replace("\"lost_records\":0", "\"lost_records\":1");
    for (what, text, hint) in [
        ("its end", without(last), "has no end"),
        ("its last row", without(last - 1), "and there are"),
        ("a row", without(last / 2), "and there are"),
        // A writer that was too slow says so itself.
        ("lost records", lost(&whole), "lacks 1 records"),
        ("a lost copy", lost(&without(copy)), "lacks 1 records"),
        (
            "its tail",
            whole[..whole.len() * 3 / 4].to_owned(),
            "has no end",
        ),
    ] {
        fs::write(&csv, text).unwrap();
        let report = replay(&csv).unwrap();
        assert!(report.agrees(), "{what}: {report:#?}");
        let said = report.missing.last().map_or("", String::as_str);
        assert!(said.contains(hint), "{what}: {report:#?}");
    }
    // What is missing and not accounted for is a difference where it can be told.
    fs::write(&csv, without(copy)).unwrap();
    assert!(!replay(&csv).unwrap().is_whole());
}

#[test]
fn packets_held_by_a_stopped_line_are_replayed() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    // Those that wait push out others, which has its reason in the log only if they are in it.
    let words = [
        ("rate", "8Mbit"),
        ("queue", "20packets"),
        ("aqm", "drop-head"),
        ("duplicate", "20%"),
        ("delay-back", "500s"),
        ("outage", "at=200ms,for=2h,hold"),
        ("outage-back", "none"),
    ];
    let written = run_logged(&csv, &words, &[]);
    let text = fs::read_to_string(&csv).unwrap();
    let held = |way: &str| {
        let held = |line: &&str| line.starts_with(way) && line.contains(",held,");
        text.lines().filter(held).count()
    };
    assert_eq!(held("forward"), 20);
    assert!(held("back") > 1_000 && text.contains(",copy"));
    let report = replay(&csv).unwrap();
    assert!(report.agrees() && report.is_whole(), "{report:#?}");
    let agreeing = report.forward.agreeing + report.back.agreeing;
    assert_eq!(agreeing, written.records, "{report:#?}");
}

#[test]
fn traces_and_outages_replay_from_the_same_files() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("trace"), "0\n1\n1\n3\n4\n").unwrap();
    fs::write(
        path("rates.csv"),
        "# repeat 500ms\ntime,rate,loss\n0,4Mbit,0%\n0.2,0,\n0.3,9Mbit,5%\n",
    )
    .unwrap();
    let (trace, rates) = (path("trace"), path("rates.csv"));
    let words = [
        ("trace", trace.to_str().unwrap()),
        ("outage", "at=100ms,for=50ms,every=300ms"),
        ("trace-back", rates.to_str().unwrap()),
        ("outage-back", "none"),
        ("aqm-back", "drop-head"),
        ("queue", "20kB"),
    ];
    let written = run_logged(&path("log.csv"), &words, &[("delay", "3ms")]);
    let report = replay(&path("log.csv")).unwrap();
    assert!(report.agrees(), "{report:#?}");
    let agreeing = report.forward.agreeing + report.back.agreeing;
    assert_eq!(agreeing, written.records, "{report:#?}");
    assert!(agreeing >= 4_000, "{report:#?}");

    fs::write(&trace, "0\n1\n1\n3\n5\n").unwrap();
    let error = format!("{:#}", replay(&path("log.csv")).unwrap_err());
    assert!(error.contains("no longer what it was"), "{error}");
}

fn head(settings: &str, files: &str) -> String {
    format!(
        "{MAGIC}\n# set: {{\"at_ns\":0,\"next\":[0,0],\"settings\":{{{settings}}},\"files\":[{files}]}}\n"
    )
}

fn refusal(path: &Path, text: &str) -> String {
    fs::write(path, text).unwrap();
    format!("{:#}", replay(path).unwrap_err())
}

#[test]
fn file_that_is_no_log_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.csv");
    let refused = |text: &str| refusal(&path, text);
    let row = |rest: &str| format!("{}{rest}\n", head("", ""));
    assert!(refused("time,rate\n").contains("no packet log"));
    assert!(refused(&format!("{MAGIC}\n")).contains("no settings"));
    for (text, word) in [
        ("forward,1,2", "line 3"),
        ("up,0,1,40,0,delivered,2,", "`up` is no direction"),
        ("back,0,1,99999,0,delivered,2,", "more than a packet"),
        ("back,0,1,40,4,delivered,2,", "ECN"),
        ("back,0,1,40,0,eaten,2,", "`eaten` is no fate"),
        ("back,0,1,40,0,delivered,2,late", "`late` are no flags"),
        ("back,0,1,40,0,lost,2,copy", "has no flags"),
        ("back,0,1,40,0,held,2,marked", "no flags but `copy`"),
        ("# end: {\"records\":1}", "no log's end"),
        ("back,0,1,40,0,delivered,18446744073709551615,", "ten years"),
        ("back,-1,1,40,0,delivered,2,", "`-1` is no whole number"),
    ] {
        let error = refused(&row(text));
        assert!(error.contains(word), "{text}: {error}");
    }
    assert!(refused(&format!("{MAGIC}\n# set: {{}}\n")).contains("no settings"));
    // Long lines are neither kept nor repeated.
    let error = refused(&row(&"x".repeat(100_000)));
    assert!(error.contains("at most 160 bytes") && error.len() < 500);
    let error = refused(&format!("{MAGIC}\n{}", "# x".repeat(1 << 20)));
    assert!(
        error.contains("more than 1048576 bytes") && error.len() < 500,
        "{error}"
    );
    let error = refused(&head(&format!("\"rate\":\"{}\"", "9".repeat(100_000)), ""));
    assert!(error.len() < 1_000, "{} bytes", error.len());
    let error = refused(&row("").replacen("# set", "# set: {}\n# set", 1));
    assert!(error.contains("line 2"), "{error}");
}

#[test]
fn a_log_without_limits_ends_at_one() {
    let error = format!("{:#}", replay(Path::new("/dev/zero")).unwrap_err());
    assert!(error.contains("more than 1048576 bytes"), "{error}");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log.csv");
    let one = head("", "");
    let set = one.lines().nth(1).unwrap();
    let text = format!("{MAGIC}\n{}", format!("{set}\n").repeat(10_001));
    assert!(refusal(&path, &text).contains("more than 10000 changes"));
}

#[test]
fn log_cannot_name_an_arbitrary_file_to_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let log = path("log.csv");
    let named = |file: &Path| {
        let file = file.display();
        let hash = blake3::hash(b"0\n1\n").to_hex();
        head(
            &format!("\"trace\":\"{file}\""),
            &format!("{{\"path\":\"{file}\",\"blake3\":\"{hash}\"}}"),
        )
    };
    // Without a hash nothing is opened, whichever word names it.
    for word in [
        "\"trace\":\"/etc/shadow\"",
        "\"schedule-back\":\"/etc/shadow\"",
        "\"loss\":\"list:@/etc/shadow\"",
    ] {
        let error = refusal(&log, &head(word, ""));
        assert!(error.contains("has no hash of it"), "{word}: {error}");
    }
    // What is another file shows nothing of itself.
    fs::write(path("secret"), "root:hunter2\n").unwrap();
    let error = refusal(&log, &named(&path("secret")));
    assert!(error.contains("no longer what it was"), "{error}");
    assert!(!error.contains("hunter2"), "{error}");
    // Nothing waits for a pipe, reads a device without an end, or what the kernel makes up.
    let pipe = std::process::Command::new("mkfifo")
        .arg(path("pipe"))
        .status();
    assert!(pipe.unwrap().success());
    for odd in [path("pipe"), "/dev/zero".into(), directory.path().into()] {
        let error = refusal(&log, &named(&odd));
        assert!(error.contains("no ordinary file"), "{error}");
    }
    let error = refusal(&log, &named(Path::new("/proc/self/environ")));
    assert!(error.contains("empty"), "{error}");
    let huge = File::create(path("huge")).unwrap();
    huge.set_len(513 << 20).unwrap();
    let error = refusal(&log, &named(&path("huge")));
    assert!(error.contains("the longest that is read"), "{error}");
    let error = refusal(&log, &named(&path("nowhere")));
    assert!(
        error.contains("neither there nor beside the log"),
        "{error}"
    );
}

#[test]
fn log_can_be_moved_with_its_files() {
    let directory = tempfile::tempdir().unwrap();
    let (there, here) = (
        directory.path().join("there"),
        directory.path().join("here"),
    );
    for folder in [&there, &here] {
        fs::create_dir(folder).unwrap();
    }
    fs::write(there.join("trace"), "0\n1\n1\n3\n").unwrap();
    fs::write(there.join("lost"), "3,7,10-12\n").unwrap();
    let words = [
        ("trace", there.join("trace").display().to_string()),
        ("loss", format!("list:@{}", there.join("lost").display())),
    ];
    let words = words.each_ref().map(|(name, word)| (*name, word.as_str()));
    let written = run_logged(&there.join("log.csv"), &words, &[]);
    for name in ["log.csv", "trace", "lost"] {
        fs::rename(there.join(name), here.join(name)).unwrap();
    }
    let report = replay(&here.join("log.csv")).unwrap();
    assert!(report.agrees(), "{report:#?}");
    let agreeing = report.forward.agreeing + report.back.agreeing;
    assert_eq!(agreeing, written.records, "{report:#?}");
}

#[test]
fn truncated_log_is_replayed_up_to_its_end() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let words = [
        ("aqm", "drop-head"),
        ("rate", "3Mbit"),
        ("queue", "6packets"),
    ];
    run_logged(&csv, &words, &[]);
    let text = fs::read(&csv).unwrap();
    for share in 2..20 {
        fs::write(&csv, &text[..text.len() * share / 20]).unwrap();
        let report = replay(&csv).unwrap();
        assert!(report.agrees(), "{report:#?}");
        assert!(report.forward.agreeing > 50, "{report:#?}");
        let said = report.missing.last().unwrap();
        assert!(said.contains("has no end"), "{report:#?}");
    }
}

#[test]
fn packets_the_host_left_behind_are_not_compared() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    run_logged(&csv, &EVERYTHING, &[]);
    let text = fs::read_to_string(&csv).unwrap();
    let mut thrown_away = 0;
    let lines = text.lines().map(|line| {
        let fields: Vec<&str> = line.split(',').collect();
        match fields[..] {
            ["forward", index, arrived, length, ecn, "delivered", at, _]
                if index.ends_with('7') =>
            {
                thrown_away += 1;
                format!("forward,{index},{arrived},{length},{ecn},untaken,{at},\n")
            }
            _ => format!("{line}\n"),
        }
    });
    let changed: String = lines.collect();
    fs::write(&csv, changed).unwrap();
    let report = replay(&csv).unwrap();
    assert!(report.agrees(), "{report:#?}");
    assert!(report.is_whole(), "{report:#?}");
    assert_eq!(report.forward.not_compared, thrown_away, "{report:#?}");
    assert!(
        report.left_out[0].contains("not taken out in time"),
        "{report:#?}"
    );
}

/// Every fate that the writer knows, the reader knows.
#[test]
fn written_log_can_be_read() {
    let mut text = head("", "");
    for (index, what) in FATES.iter().enumerate() {
        let can_have = |flags: &&&str| match *what {
            DELIVERED => true,
            HELD => matches!(**flags, "" | "copy"),
            _ => flags.is_empty(),
        };
        for flags in FLAGS.iter().filter(can_have) {
            text += &format!("back,{index},1,40,0,{what},2,{flags}\n");
        }
    }
    let written = rewritten(text.as_bytes()).unwrap();
    assert_eq!(rewritten(&written).unwrap(), written);
    let rows = |text: &[u8]| {
        text.split(|byte| *byte == b'\n')
            .filter(|line| line.starts_with(b"back"))
            .count()
    };
    assert_eq!(rows(&written), rows(text.as_bytes()));
}

#[test]
fn a_capture_is_written_beside_the_rows() {
    let directory = tempfile::tempdir().unwrap();
    let files = LogFiles {
        csv: None,
        pcapng: Some(directory.path().join("log.pcapng")),
    };
    let written = run(&files, &EVERYTHING, &[]).capture.unwrap();
    let length = fs::metadata(files.pcapng.unwrap()).unwrap().len();
    assert!(length > written.records * 60, "{length} bytes");
}

/// The writer writes into a pipe that nothing reads until the link has ended.
#[test]
fn settings_change_survives_a_stalled_writer() {
    const PACKETS: u64 = 60_000;
    const CHANGES: u64 = 200;
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let (go, wait) = std::sync::mpsc::channel();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut file = File::open(pipe).unwrap();
            wait.recv().unwrap();
            let mut text = String::new();
            std::io::Read::read_to_string(&mut file, &mut text).unwrap();
            text
        }
    });
    let files = LogFiles {
        csv: Some(pipe),
        pcapng: None,
    };
    let (log, mut sink) = PacketLog::create(&files).unwrap();
    let mut settings = settings(&[("loss", "10%")]);
    let resolved = settings.resolve().unwrap();
    log.begin(LogHead {
        started: SystemTime::now(),
        ends: ["left".to_owned(), "right".to_owned()],
        framing: LinkFraming::Ip,
        settings: settings.clone(),
        files: resolved.files,
        forced: None,
    });
    let mut link = Link::new(resolved.config);
    link.forward.keep_records(true);
    let packet = Bytes::from(vec![0x45; 40]);
    for number in 0..PACKETS {
        let now = Time::from_nanos(number * 1_000);
        link.forward.handle(now, packet.clone());
        while link.forward.poll_output(now).is_some() {}
        while let Some(record) = link.forward.poll_record() {
            let heading = PacketDirection::Forward;
            sink.offer(LinkRecord { heading, record });
        }
        if number % (PACKETS / CHANGES) == 150 {
            settings
                .set_by_name("loss", &format!("{}%", 1 + number % 7))
                .unwrap();
            let resolved = settings.resolve().unwrap();
            log.announce(&settings, &resolved, None).unwrap();
            link.set_config(now, resolved.config);
            sink.changed(now, [number + 1, 0]);
        }
    }
    drop(sink);
    go.send(()).unwrap();
    let report = log.finish().log.unwrap();
    let text = reader.join().unwrap();
    assert!(report.lost_records > 0, "the writer kept up: {report:?}");
    let changes = text.lines().filter(|line| line.starts_with("# set: "));
    assert_eq!(changes.count() as u64, 1 + CHANGES);
    let csv = directory.path().join("log.csv");
    fs::write(&csv, &text).unwrap();
    let again = replay(&csv).unwrap();
    assert!(again.agrees() && !again.is_whole(), "{again:#?}");
    assert!(again.forward.agreeing > 1_000, "{again:#?}");
}

#[test]
fn changes_beyond_the_writers_limit_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let files = LogFiles {
        csv: Some(csv.clone()),
        pcapng: None,
    };
    let (log, mut sink) = PacketLog::create(&files).unwrap();
    let settings = settings(&[]);
    let resolved = settings.resolve().unwrap();
    // Before it has its head the writer writes nothing.
    let mut announced = 0;
    let error = loop {
        match log.announce(&settings, &resolved, None) {
            Ok(()) => announced += 1,
            Err(error) => break error.to_string(),
        }
        sink.changed(Time::ZERO, [0, 0]);
    };
    assert!(error.contains("changes of settings behind"), "{error}");
    log.begin(LogHead {
        started: SystemTime::now(),
        ends: ["left".to_owned(), "right".to_owned()],
        framing: LinkFraming::Ip,
        settings,
        files: Vec::new(),
        forced: None,
    });
    drop(sink);
    assert_eq!(log.finish().log.unwrap().error, None);
    let text = fs::read_to_string(&csv).unwrap();
    assert_eq!(text.matches("# set: ").count(), 1 + announced);
}

#[test]
fn full_disk_ends_only_its_own_file() {
    let directory = tempfile::tempdir().unwrap();
    let csv = directory.path().join("log.csv");
    let files = LogFiles {
        csv: Some(csv.clone()),
        pcapng: Some("/dev/full".into()),
    };
    let LogReports { log, capture } = run(&files, &EVERYTHING, &[]);
    let (log, capture) = (log.unwrap(), capture.unwrap());
    assert!(capture.error.is_some(), "{capture:?}");
    assert_eq!((log.lost_records, &log.error), (0, &None));
    assert_eq!((capture.records, capture.lost_records), (0, log.records));
    let report = replay(&csv).unwrap();
    assert!(report.agrees() && report.is_whole(), "{report:#?}");
}
