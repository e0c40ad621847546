//! Reader of a packet log, which may be truncated, damaged, or a stranger's: the length of every
//! line and the number of all entries are limited, and errors name the line.

use std::io::{BufRead, Read, Write};

use anyhow::{Context, Result, anyhow, bail};
use emulate::LinkFraming;
use serde::de::DeserializeOwned;

use super::super::packet_log::{
    COLUMNS, DELIVERED, FATES, FLAGS, HELD, LogReport, MAGIC, SettingsRow, UNTAKEN, framing_name,
    heading_name,
};
use super::super::record::PacketDirection;

/// A row takes 32 bytes in memory; these are 3.2 GB.
const ROWS_MAX: usize = 100_000_000;

/// More changes of settings than anyone makes by hand.
const CHANGES_MAX: usize = 10_000;

/// The longest line: settings with lists of lost packets in them.
const LINE_MAX: usize = 1 << 20;

/// Greatest length of a row: four numbers of 20 digits and the longest words.
const ROW_MAX: usize = 160;

/// Greatest number of characters of the log that a message repeats.
const SHOWN_MAX: usize = 60;

/// The longest IP packet behind a header of Ethernet and two tags.
pub(super) const PACKET_MAX: u32 = 65_535 + 22;

/// No link runs for longer: ten years.
const TIME_MAX_NS: u64 = 10 * 366 * 86_400 * 1_000_000_000;

/// A log in memory.
#[derive(Debug)]
pub(super) struct ReplayLog {
    /// The time of day of the link's time 0.
    pub(super) started: Option<jiff::Timestamp>,
    pub(super) framing: LinkFraming,
    /// Changes of settings; the first row has the settings at the start.
    pub(super) changes: Vec<SettingsRow>,
    pub(super) rows: [Vec<LogRow>; 2],
    /// Report in its last line.
    pub(super) end: Option<LogReport>,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogRow {
    pub(super) index: u64,
    pub(super) arrived: u64,
    pub(super) at: u64,
    pub(super) length: u32,
    pub(super) ecn: u8,
    pub(super) fate: LoggedFate,
}

/// Fate and flags of a packet, as indices into [`FATES`] and [`FLAGS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LoggedFate {
    what: u8,
    flags: u8,
}

impl LoggedFate {
    fn read(what: &str, flags: &str) -> Result<Self> {
        let place = |words: &[&str], word: &str| {
            let place = words.iter().position(|known| *known == word)?;
            u8::try_from(place).ok()
        };
        let fate = Self {
            what: place(&FATES, what).ok_or_else(|| anyhow!("`{}` is no fate", shown(what)))?,
            flags: place(&FLAGS, flags)
                .ok_or_else(|| anyhow!("`{}` are no flags", shown(flags)))?,
        };
        match (fate.what(), flags) {
            (DELIVERED, _) | (HELD, "copy") | (_, "") => {}
            (HELD, _) => bail!("a packet that is held has no flags but `copy`"),
            _ => bail!("a packet that was dropped has no flags"),
        }
        Ok(fate)
    }

    pub(super) fn what(self) -> &'static str {
        FATES[usize::from(self.what)]
    }

    pub(super) fn flags(self) -> &'static str {
        FLAGS[usize::from(self.flags)]
    }

    /// Tells whether the link's models dropped the packet.
    pub(super) fn is_dropped(self) -> bool {
        !matches!(self.what(), DELIVERED | UNTAKEN | HELD)
    }

    pub(super) fn is_copy(self) -> bool {
        self.flags().ends_with("copy")
    }
}

impl ReplayLog {
    pub(super) fn read(mut input: impl BufRead) -> Result<Self> {
        let mut line = Vec::new();
        next_line(&mut input, &mut line).context("line 1")?;
        if line != MAGIC.as_bytes() {
            bail!("this is no packet log; its first line would be `{MAGIC}`");
        }
        let mut log = Self {
            started: None,
            framing: LinkFraming::Ip,
            changes: Vec::new(),
            rows: [Vec::new(), Vec::new()],
            end: None,
        };
        for number in 2_u64.. {
            let end = next_line(&mut input, &mut line).with_context(|| format!("line {number}"))?;
            match end {
                // What was being written when the disk was full or the process killed.
                InputEnd::OfFile => break,
                InputEnd::OfLine => log
                    .take_line(&line)
                    .with_context(|| format!("line {number}"))?,
            }
        }
        for rows in &mut log.rows {
            rows.shrink_to_fit();
        }
        Ok(log)
    }

    /// Text about missing rows, as far as the log itself tells. `None` if it has an end whose
    /// numbers are right and that reports no lost record.
    pub(super) fn missing(&self) -> Option<String> {
        let rows = self.rows.iter().map(Vec::len).sum::<usize>() as u64;
        match &self.end {
            None => Some(
                "the log has no end, because its writer was killed or its disk was full; what came behind its last whole line is not compared".to_owned(),
            ),
            Some(LogReport { lost_records: lost @ 1.., .. }) => Some(format!(
                "by its last line the log lacks {lost} records, which found no room on their way to its file"
            )),
            Some(LogReport { records, .. }) if *records != rows => Some(format!(
                "by its last line the log has {records} records, and there are {rows}"
            )),
            Some(_) => None,
        }
    }

    /// Writes the log again, as far as it was understood, with only the parts that a replay needs.
    pub(super) fn write(&self, out: &mut impl Write) -> Result<()> {
        writeln!(out, "{MAGIC}")?;
        if let Some(started) = self.started {
            writeln!(out, "# started: {started}")?;
        }
        writeln!(out, "# framing: {}", framing_name(self.framing))?;
        for change in &self.changes {
            writeln!(out, "# set: {}", serde_json::to_string(change)?)?;
        }
        writeln!(out, "{COLUMNS}")?;
        for (heading, rows) in [PacketDirection::Forward, PacketDirection::Back]
            .into_iter()
            .zip(&self.rows)
        {
            for row in rows {
                writeln!(
                    out,
                    "{},{},{},{},{},{},{},{}",
                    heading_name(heading),
                    row.index,
                    row.arrived,
                    row.length,
                    row.ecn,
                    row.fate.what(),
                    row.at,
                    row.fate.flags()
                )?;
            }
        }
        if let Some(end) = &self.end {
            writeln!(out, "# end: {}", serde_json::to_string(end)?)?;
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Result<()> {
        let line = std::str::from_utf8(line).map_err(|_| anyhow!("this is no text"))?;
        if let Some(comment) = line.strip_prefix("# ") {
            let (name, value) = comment.split_once(": ").unwrap_or((comment, ""));
            match name {
                "started" => {
                    let time = value.parse();
                    self.started =
                        Some(time.map_err(|_| anyhow!("`{}` is no time", shown(value)))?);
                }
                "framing" => {
                    self.framing = [LinkFraming::Ip, LinkFraming::Ethernet]
                        .into_iter()
                        .find(|framing| framing_name(*framing) == value)
                        .ok_or_else(|| anyhow!("`{}` is no framing", shown(value)))?;
                }
                "set" if self.changes.len() == CHANGES_MAX => {
                    bail!("a log of more than {CHANGES_MAX} changes of settings is not replayed")
                }
                "set" => {
                    let change = read_json(value).context("these are no settings")?;
                    self.changes.push(change);
                }
                "end" => self.end = Some(read_json(value).context("this is no log's end")?),
                _ => {}
            }
            return Ok(());
        }
        if line == COLUMNS {
            return Ok(());
        }
        let (way, row) = read_row(line)?;
        if self.rows[way].len() == ROWS_MAX {
            bail!("a log of more than {ROWS_MAX} packets is not replayed; log for a shorter time");
        }
        self.rows[way].push(row);
        Ok(())
    }
}

fn read_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|error| anyhow!("{}", cut(&error.to_string(), 5 * SHOWN_MAX)))
}

enum InputEnd {
    OfLine,
    OfFile,
}

/// Reads a line without its end.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> Result<InputEnd> {
    line.clear();
    let limit = LINE_MAX as u64 + 1;
    input
        .by_ref()
        .take(limit)
        .read_until(b'\n', line)
        .context("cannot read the log")?;
    if line.last() == Some(&b'\n') {
        line.pop();
        return Ok(InputEnd::OfLine);
    }
    if line.len() > LINE_MAX {
        bail!("a line of more than {LINE_MAX} bytes is none of a packet log");
    }
    Ok(InputEnd::OfFile)
}

fn read_row(line: &str) -> Result<(usize, LogRow)> {
    if line.len() > ROW_MAX {
        bail!("a row has at most {ROW_MAX} bytes, and not {}", line.len());
    }
    let fields: Vec<&str> = line.split(',').collect();
    let [direction, index, arrived, length, ecn, what, at, flags] = fields[..] else {
        bail!(
            "a row has {} fields, and not {}",
            COLUMNS.split(',').count(),
            fields.len()
        );
    };
    let way = [PacketDirection::Forward, PacketDirection::Back]
        .into_iter()
        .position(|heading| heading_name(heading) == direction)
        .ok_or_else(|| anyhow!("`{}` is no direction", shown(direction)))?;
    let number = |text: &str| -> Result<u64> {
        text.parse()
            .map_err(|_| anyhow!("`{}` is no whole number", shown(text)))
    };
    let time = |text: &str| match number(text)? {
        time @ ..=TIME_MAX_NS => Ok(time),
        time => bail!("{time} ns are more than ten years"),
    };
    let row = LogRow {
        index: number(index)?,
        arrived: time(arrived)?,
        at: time(at)?,
        length: u32::try_from(number(length)?).context("too long for a packet")?,
        ecn: u8::try_from(number(ecn)?)
            .ok()
            .filter(|ecn| *ecn <= 0b11)
            .context("the ECN bits are 0 to 3")?,
        fate: LoggedFate::read(what, flags)?,
    };
    if row.length > PACKET_MAX {
        bail!("{} bytes are more than a packet can have", row.length);
    }
    Ok((way, row))
}

fn shown(text: &str) -> &str {
    cut(text, SHOWN_MAX)
}

fn cut(text: &str, length: usize) -> &str {
    &text[..text.floor_char_boundary(length)]
}
