//! Replay of a log: its arrivals go through the same models again, in virtual time.
//!
//! The two directions are independent, so each is replayed by itself: packets are handed in by
//! number at their arrival times, settings change where the log says so, and each fate, its time,
//! and the order of deliveries are compared with the log. The log does not have the packets' bytes,
//! but it has the parts that the models read: the length and the two ECN bits.
//!
//! A log with missing records (a writer that was too slow or was killed) is replayed up to the
//! first missing packet. Missing records are distinguished from packets that the log itself
//! accounts for (those that the host did not take out of the model). The log is not trusted:
//! `log.rs` reads it within limits, and `files.rs` finds the files that it names.

mod drops;
mod files;
mod log;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use emulate::{DirectionConfig, Link, LinkConfig, LinkDirection, LinkFraming, PacketRecord};
use serde::Serialize;
use vocab::Time;

use super::packet_log::{SettingsRow, UNTAKEN, fate};
use super::record::PacketDirection;
pub use drops::{LoggedDrop, logged_drops};
use files::ReplayFiles;
use log::{LogRow, PACKET_MAX, ReplayLog};

/// Number of differences that are listed; the others are counted.
const TOLD_MAX: usize = 20;

/// Result of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayReport {
    /// Forward.
    pub forward: ReplayedDirection,
    /// Back.
    pub back: ReplayedDirection,
    /// Text for each of the first differences.
    pub differences: Vec<String>,
    /// Text for each part that was not compared and that the log itself accounts for.
    pub left_out: Vec<String>,
    /// Text for each gap of the log; packets that depend on it were not compared.
    pub missing: Vec<String>,
}

/// Result for one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReplayedDirection {
    /// Packets handed in.
    pub packets: u64,
    /// Fates that agree completely: outcome, time and flags.
    pub agreeing: u64,
    /// Fates that are not.
    pub differing: u64,
    /// Rows that were not compared.
    pub not_compared: u64,
}

impl ReplayReport {
    /// Tells whether everything that was compared is the same.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.forward.differing + self.back.differing == 0
    }

    /// Tells whether the log has no gap, so that everything could be compared except the parts that
    /// it accounts for itself.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }
}

/// Replays the log in this file.
///
/// # Errors
/// Fails when it cannot be read, is no log, or names files that have changed.
pub fn replay(path: &Path) -> Result<ReplayReport> {
    let read = || ReplayLog::read(BufReader::with_capacity(1 << 20, File::open(path)?));
    let log = read().with_context(|| path.display().to_string())?;
    let missing = log.missing();
    let mut report = ReplayReport::default();
    let mut files = ReplayFiles::for_log(path);
    let mut configs = Vec::new();
    for row in &log.changes {
        configs.push(config(row, log.framing, &mut files)?);
    }
    let Some(first) = configs.first() else {
        bail!("the log has no settings; is its head missing?");
    };
    let link = Link::new(first.clone());
    let [forward_rows, back_rows] = log.rows;
    let of = |way: usize| -> Vec<ReplayedChange> {
        log.changes
            .iter()
            .zip(&configs)
            .skip(1)
            .map(|(row, config)| ReplayedChange {
                at: Time::from_nanos(row.at_ns),
                next: row.next[way],
                config: match way {
                    0 => config.forward.clone(),
                    _ => config.back.clone(),
                },
            })
            .collect()
    };
    let replay = |direction, rows, changes, heading, report: &mut ReplayReport| {
        DirectionReplay {
            direction,
            framing: log.framing,
            heading,
            is_whole: missing.is_none(),
            headers: HashMap::new(),
        }
        .run(rows, changes, report)
    };
    report.forward = replay(
        link.forward,
        forward_rows,
        of(0),
        PacketDirection::Forward,
        &mut report,
    );
    report.back = replay(
        link.back,
        back_rows,
        of(1),
        PacketDirection::Back,
        &mut report,
    );
    report.missing.extend(missing);
    Ok(report)
}

/// Reads a log and writes it again: for tests that feed arbitrary bytes to the reader.
///
/// # Errors
/// The first line that is none of a log's.
pub fn rewritten(log: &[u8]) -> Result<Vec<u8>> {
    let mut written = Vec::new();
    ReplayLog::read(log)?.write(&mut written)?;
    Ok(written)
}

fn config(row: &SettingsRow, framing: LinkFraming, files: &mut ReplayFiles) -> Result<LinkConfig> {
    let mut config = files.settings(row)?.resolve()?.config;
    config.forward.framing = framing;
    config.back.framing = framing;
    Ok(config)
}

/// A change of settings, seen from one way.
struct ReplayedChange {
    at: Time,
    next: u64,
    config: DirectionConfig,
}

/// One direction being replayed.
struct DirectionReplay {
    direction: LinkDirection,
    framing: LinkFraming,
    heading: PacketDirection,
    /// Set if the log reports no missing row.
    is_whole: bool,
    /// The longest packet header of each ECN code point, from which the others are cut.
    headers: HashMap<u8, Bytes>,
}

impl DirectionReplay {
    fn run(
        mut self,
        rows: Vec<LogRow>,
        changes: Vec<ReplayedChange>,
        report: &mut ReplayReport,
    ) -> ReplayedDirection {
        let mut way = ReplayedDirection::default();
        let arrivals = arrivals(&rows);
        let name = super::packet_log::heading_name(self.heading);
        let whole = arrivals
            .iter()
            .enumerate()
            .take_while(|(number, row)| row.index == *number as u64)
            .count();
        if whole < arrivals.len() {
            report.missing.push(format!(
                "{name}: packet {whole} is not in the log; the {} packets behind it are not compared",
                arrivals.len() - whole
            ));
        }
        // A packet that is missing may have pushed out others, but none that had ended before it
        // can have come.
        let is_whole = self.is_whole && whole == arrivals.len();
        let until = match whole.checked_sub(1) {
            Some(last) if !is_whole => arrivals[last].arrived,
            _ => u64::MAX,
        };
        let known = LogCoverage {
            packets: whole as u64,
            until,
            is_whole,
        };
        let last_at = rows.iter().map(|row| row.at).max().unwrap_or(0);
        let made = self.play(&arrivals[..whole], &changes, last_at);
        way.packets = whole as u64;
        compare(name, &rows, &made, &known, &mut way, report);
        way
    }

    /// Hands in all packets and collects all records.
    fn play(
        &mut self,
        arrivals: &[&LogRow],
        changes: &[ReplayedChange],
        last_at: u64,
    ) -> Vec<PacketRecord> {
        let mut made = Vec::new();
        self.direction.keep_records(true);
        let mut changes = changes.iter().peekable();
        for row in arrivals {
            while let Some(change) = changes.next_if(|change| change.next <= row.index) {
                self.change(change, &mut made);
            }
            let packet = self.packet(row);
            let now = Time::from_nanos(row.arrived);
            self.direction.handle(now, packet);
            self.drain(now, &mut made);
        }
        for change in changes {
            self.change(change, &mut made);
        }
        while let Some(at) = self
            .direction
            .poll_timeout()
            .filter(|at| at.as_nanos() <= last_at)
        {
            self.drain(at, &mut made);
        }
        // What is lost at the line's end has its fate then, and the time to wait for is that at
        // which it would have arrived.
        let last = Time::from_nanos(last_at);
        self.drain(last, &mut made);
        self.direction.record_held(last);
        self.drain(last, &mut made);
        made
    }

    fn change(&mut self, change: &ReplayedChange, made: &mut Vec<PacketRecord>) {
        self.direction.set_config(change.at, change.config.clone());
        self.drain(change.at, made);
    }

    fn drain(&mut self, now: Time, made: &mut Vec<PacketRecord>) {
        while self.direction.poll_output(now).is_some() {}
        while let Some(record) = self.direction.poll_record() {
            made.push(record);
        }
    }

    /// An IPv4 header as far as the models look, and zeros.
    fn packet(&mut self, row: &LogRow) -> Bytes {
        let ecn = row.ecn;
        let framing = self.framing;
        let make = || {
            let mut packet = vec![0; PACKET_MAX as usize];
            let at = framing.header();
            if at > 0
                && let Some(kind) = packet.get_mut(at - 2..at)
            {
                kind.copy_from_slice(&[0x08, 0x00]);
            }
            if let Some(header) = packet.get_mut(at..at + 2) {
                header.copy_from_slice(&[0x45, ecn]);
            }
            Bytes::from(packet)
        };
        let whole = self.headers.entry(ecn).or_insert_with(make);
        whole.slice(..row.length as usize)
    }
}

/// One row for each packet, by number.
fn arrivals(rows: &[LogRow]) -> Vec<&LogRow> {
    let mut arrivals: Vec<&LogRow> = rows.iter().filter(|row| !row.fate.is_copy()).collect();
    arrivals.sort_by_key(|row| row.index);
    // A copy that was not taken out is not told from its original.
    arrivals.dedup_by_key(|row| row.index);
    arrivals
}

/// Part of one direction that a log covers.
struct LogCoverage {
    /// The packets that it has without a gap.
    packets: u64,
    /// Time until which no missing packet can have had an effect.
    until: u64,
    /// Set if no packet is missing.
    is_whole: bool,
}

/// Compares each fate by number, and the deliveries by order.
fn compare(
    name: &str,
    rows: &[LogRow],
    made: &[PacketRecord],
    known: &LogCoverage,
    way: &mut ReplayedDirection,
    report: &mut ReplayReport,
) {
    let key = |index: u64, is_copy: bool| (index, is_copy);
    let mut again: HashMap<(u64, bool), (&PacketRecord, usize)> =
        HashMap::with_capacity(made.len());
    let mut place = 0;
    for record in made {
        let (what, _, flags) = fate(&record.ending);
        let is_copy = flags.ends_with("copy");
        again.insert(key(record.index, is_copy), (record, place));
        place += usize::from(what == "delivered");
    }
    // The model delivers what the host did not take out of it in time.
    let untaken: HashSet<u64> = rows
        .iter()
        .filter(|row| row.fate.what() == UNTAKEN)
        .map(|row| row.index)
        .collect();
    if !untaken.is_empty() {
        report.left_out.push(format!(
            "{name}: {} packets arrived in the model and were not taken out in time; they are not compared",
            untaken.len()
        ));
    }
    again.retain(|(index, _), _| !untaken.contains(index));
    let mut last_place = None;
    for row in rows {
        if row.index >= known.packets || row.at >= known.until || untaken.contains(&row.index) {
            way.not_compared += 1;
            continue;
        }
        let label = || {
            let copy = if row.fate.is_copy() { ", copy" } else { "" };
            format!("{name} packet {}{copy}", row.index)
        };
        let mut differ = |difference: String| {
            way.differing += 1;
            if report.differences.len() < TOLD_MAX {
                report.differences.push(difference);
            }
        };
        let Some((record, place)) = again.remove(&key(row.index, row.fate.is_copy())) else {
            differ(format!(
                "{}: {} at {} ns in the log, and no fate in the replay",
                label(),
                row.fate.what(),
                row.at
            ));
            continue;
        };
        let (what, at, flags) = fate(&record.ending);
        if (what, at.as_nanos(), flags) != (row.fate.what(), row.at, row.fate.flags()) {
            differ(format!(
                "{}: {} {} at {} ns in the log, {what} {flags} at {} ns in the replay",
                label(),
                row.fate.what(),
                row.fate.flags(),
                row.at,
                at.as_nanos()
            ));
            continue;
        }
        if what == "delivered" {
            if last_place.is_some_and(|last| place < last) {
                differ(format!("{}: delivered in another order", label()));
                continue;
            }
            last_place = Some(place);
        }
        way.agreeing += 1;
    }
    // What the replay has beyond the log: a copy, for instance, that the log does not know.
    let last = rows.iter().map(|row| row.at).max().unwrap_or(0);
    let is_compared = |record: &PacketRecord| {
        let (_, at, flags) = fate(&record.ending);
        // Of two a log that is not whole may lack the copy, which leaves no gap.
        let may_lack = !known.is_whole && flags.ends_with("copy");
        record.index < known.packets && at.as_nanos() < known.until.min(last) && !may_lack
    };
    for (record, _) in again
        .into_values()
        .filter(|(record, _)| is_compared(record))
    {
        way.differing += 1;
        if report.differences.len() < TOLD_MAX {
            let (what, at, _) = fate(&record.ending);
            report.differences.push(format!(
                "{name} packet {}: {what} at {} ns in the replay, and not in the log",
                record.index,
                at.as_nanos()
            ));
        }
    }
}
