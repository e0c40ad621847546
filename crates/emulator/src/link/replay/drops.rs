//! Drops in a packet log: when, in which direction and how long each packet was that the link's models
//! dropped.

use std::fs::File;
use std::io::BufReader;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::record::PacketDirection;
use super::log::ReplayLog;

/// A packet that the models of a link dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoggedDrop {
    /// Time of day at which the packet entered the link, since 1970.
    pub entered: Duration,
    /// Direction of the packet.
    pub heading: PacketDirection,
    /// Length of the packet; of an IP packet, from the first byte of its header on.
    pub bytes: u32,
}

/// Reads the drops out of a packet log. A log that lacks rows gives the drops of the others.
///
/// # Errors
/// Fails when the file cannot be read, is no log, or does not say when the link started.
pub fn logged_drops(path: &Path) -> Result<Vec<LoggedDrop>> {
    let read = || -> Result<Vec<LoggedDrop>> {
        let log = ReplayLog::read(BufReader::with_capacity(1 << 20, File::open(path)?))?;
        let started = log
            .started
            .context("the log does not say when it started")?;
        let started = Duration::try_from(started.duration_since(jiff::Timestamp::UNIX_EPOCH))
            .context("the log started before 1970")?;
        let headings = [PacketDirection::Forward, PacketDirection::Back];
        let rows = headings.into_iter().zip(&log.rows);
        let drops = rows.flat_map(|(heading, rows)| {
            let dropped = rows.iter().filter(|row| row.fate.is_dropped());
            dropped.map(move |row| LoggedDrop {
                entered: started.saturating_add(Duration::from_nanos(row.arrived)),
                heading,
                bytes: row.length,
            })
        });
        Ok(drops.collect())
    };
    read().with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_read_with_time_direction_and_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log.csv");
        let log = |started: &str| {
            format!(
                "# trunkline packet log, version 1\n{started}# framing: ip\n\
                 direction,index,arrived_ns,length_bytes,ecn,fate,at_ns,flags\n\
                 forward,0,5,1500,0,delivered,9,\n\
                 forward,1,1000000,52,0,lost,2000000,\n\
                 back,0,1500000000,1500,0,queue_full,1500000000,\n\
                 back,1,1500000001,1500,0,untaken,1500000002,\n\
                 back,2,1500000002,1500,0,held,1500000003,\n"
            )
        };
        std::fs::write(&path, log("# started: 1970-01-01T00:00:10.5Z\n")).unwrap();
        let drops = logged_drops(&path).unwrap();
        let expected = [
            (10_501, PacketDirection::Forward, 52),
            (12_000, PacketDirection::Back, 1_500),
        ];
        let expected = expected.map(|(milliseconds, heading, bytes)| LoggedDrop {
            entered: Duration::from_millis(milliseconds),
            heading,
            bytes,
        });
        assert_eq!(drops, expected);
        std::fs::write(&path, log("")).unwrap();
        let error = logged_drops(&path).unwrap_err();
        assert!(
            format!("{error:#}").contains("when it started"),
            "{error:#}"
        );
    }
}
