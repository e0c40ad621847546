//! Files of a workload's run with their figures: the captures' times and bytes beside the hashes of what was
//! sent and of what arrived.

use anyhow::Result;
use capture::CapturedPacket;
use serde::{Deserialize, Serialize};

use super::transfers;
use crate::workload::{FileSet, WorkloadKind, WorkloadOutcome};

/// One transferred file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeasuredFile {
    /// Its name.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// Time of the first request for its data, seconds since the Unix epoch.
    pub requested_unix_s: f64,
    /// Time from that to the last acknowledgement of the data, in seconds.
    pub elapsed_s: f64,
    /// Time from the first to the last packet of its window, in seconds.
    pub window_s: f64,
    /// Bytes over the WAN in that window, both directions, IP headers included.
    pub wan_bytes: u64,
    /// Time to open the document, in seconds, where it was opened and saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open_s: Option<f64>,
    /// Time to save the document, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub save_s: Option<f64>,
    /// BLAKE3 hash of what was sent.
    pub expected_hash: String,
    /// BLAKE3 hash of what arrived; `None` when nothing arrived.
    pub found_hash: Option<String>,
}

/// Reads the files of a run out of the captures at the client and at the link. A run that failed may have
/// none.
///
/// # Errors
/// Fails when the captures do not contain the transfers, although the client did not fail.
pub fn measured_files(
    client: &[CapturedPacket],
    wan: &[CapturedPacket],
    workload: WorkloadKind,
    label: &str,
    files: &FileSet,
    outcome: &WorkloadOutcome,
) -> Result<Vec<MeasuredFile>> {
    let names: Vec<&str> = files.iter().map(|(name, _)| name).collect();
    let transfers = match transfers(client, wan, workload, label, &names) {
        Ok(transfers) => transfers,
        // A client that failed leaves a capture that is not whole; its failure says more.
        Err(_) if outcome.failure.is_some() => Vec::new(),
        Err(error) => return Err(error),
    };
    let arrived = transfers.into_iter().zip(&outcome.arrivals);
    let measured = arrived.map(|(transfer, arrival)| MeasuredFile {
        bytes: files
            .get(&transfer.file)
            .map_or(0, |bytes| bytes.len() as u64),
        requested_unix_s: transfer.requested.as_secs_f64(),
        elapsed_s: transfer.elapsed().as_secs_f64(),
        window_s: transfer.window.as_secs_f64(),
        wan_bytes: transfer.wan_bytes,
        open_s: transfer.office.map(|office| office.open.as_secs_f64()),
        save_s: transfer.office.map(|office| office.save.as_secs_f64()),
        file: transfer.file,
        expected_hash: arrival.expected.clone(),
        found_hash: arrival.found.clone(),
    });
    Ok(measured.collect())
}
