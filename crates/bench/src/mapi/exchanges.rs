//! Mail clients through a pair of nodes that accelerate MAPI, compared with the same actions beside
//! the server.
//!
//! Nothing is timed: the rates are the bench's to say.

use std::path::Path;

use anyhow::Result;

use super::cells::{ContentState, MailAction, MailClient, MailMode, MailProtection, MapiCell};
use super::stand::{InterruptedSend, MapiCellResult, MapiLane};
use crate::lines::LinkKind;
use host::ProgramEnvironment;
use lab::topology::LabSite;

/// The link: some milliseconds, so that a server ahead of its client shows.
const LINK: [&str; 6] = ["--rate", "100Mbit", "--delay", "5ms", "--queue", "250kB"];

/// A link on which a message takes some seconds.
const SLOW_LINK: [&str; 6] = ["--rate", "20Mbit", "--delay", "20ms", "--queue", "250kB"];
/// Size of an attachment on it.
const SLOW_BYTES: u64 = 8_000_000;

/// Size of an attachment, some hundred calls.
const ATTACHMENT_BYTES: u64 = 3_000_000;
/// Characters of a synchronised message.
const BODY: usize = 1_000;

/// Runs actions of both clients, with each protection.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails.
pub fn exchange(
    environment: &ProgramEnvironment,
    python: &Path,
    actions: &[MailAction],
) -> Result<Vec<MapiCellResult>> {
    let mut lane = MapiLane::create(environment, python)?;
    lane.set_words(LINK.map(str::to_owned).to_vec())?;
    lane.set_content(ATTACHMENT_BYTES, 1_000, BODY)?;
    lane.start_nodes(MailMode::Application)?;
    lane.start_server()?;
    let mut results = Vec::new();
    for client in MailClient::ALL {
        for protection in MailProtection::ALL {
            for action in actions {
                let cell = MapiCell {
                    client,
                    action: *action,
                    link: LinkKind::Oc1,
                    one_way_delay_ms: 5,
                    protection,
                    mode: MailMode::Application,
                    state: ContentState::First,
                };
                results.push(lane.measure(&cell, None)?);
            }
        }
    }
    Ok(results)
}

/// Sends messages with both clients, and kills each node in the middle of one.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails at another time.
pub fn interrupted_sends(
    environment: &ProgramEnvironment,
    python: &Path,
) -> Result<Vec<InterruptedSend>> {
    let mut lane = MapiLane::create(environment, python)?;
    lane.set_words(SLOW_LINK.map(str::to_owned).to_vec())?;
    lane.set_content(SLOW_BYTES, 1_000, BODY)?;
    lane.start_nodes(MailMode::Application)?;
    let mut results = Vec::new();
    for client in MailClient::ALL {
        for site in [LabSite::Near, LabSite::Far] {
            lane.start_server()?;
            results.push(lane.interrupt_send(client, site)?);
        }
    }
    Ok(results)
}
