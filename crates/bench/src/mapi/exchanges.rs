//! Mail clients through a pair of nodes that accelerate MAPI, compared with the same actions beside
//! the server.
//!
//! Nothing is timed: the rates are the bench's to say.

use std::path::Path;

use anyhow::Result;

use super::cells::{ContentState, MailAction, MailClient, MailMode, MailProtection, MapiCell};
use super::clients::{HttpMailPort, MailRoute};
use super::stand::{InterruptedSend, MapiCellResult, MapiLane, TicketOutcome};
use crate::lines::LinkKind;
use host::ProgramEnvironment;
use lab::topology::LabSite;

/// The link: some milliseconds, so that a server ahead of its client shows.
const LINK: [&str; 6] = ["--rate", "100Mbit", "--delay", "5ms", "--queue", "250kB"];

/// The same link, which loses packets.
const LOSSY_LINK: [&str; 8] = [
    "--rate", "100Mbit", "--delay", "5ms", "--queue", "250kB", "--loss", "1%",
];

/// A link on which a message takes some seconds.
const SLOW_LINK: [&str; 6] = ["--rate", "20Mbit", "--delay", "20ms", "--queue", "250kB"];
/// Size of an attachment on it.
const SLOW_BYTES: u64 = 8_000_000;

/// Size of an attachment, some hundred calls.
const ATTACHMENT_BYTES: u64 = 3_000_000;
/// Size of an attachment that the nodes know.
const KNOWN_BYTES: u64 = 8_000_000;
/// Characters of a synchronised message.
const BODY: usize = 1_000;

/// Results of clients that log in with a ticket.
#[derive(Clone, Debug)]
pub struct KerberosResults {
    /// Actions through nodes that have the service's keytab.
    pub with_keytab: Vec<MapiCellResult>,
    /// An action through nodes without it.
    pub without_keytab: MapiCellResult,
    /// Error of a client with an expired ticket, through the nodes.
    pub expired_through: String,
    /// Error of the same client beside the server.
    pub expired_direct: String,
}

/// Outcomes of transfers in which the client's ticket expires, through the nodes and beside the
/// server.
#[derive(Clone, Debug)]
pub struct TicketOutcomes {
    /// A save and a send; the server goes on.
    pub outlived: [[TicketOutcome; 2]; 2],
    /// A send; the server refuses each later call.
    pub refused: [TicketOutcome; 2],
}

/// Runs actions of both clients, without protection and with NTLM.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails.
pub fn exchange(
    environment: &ProgramEnvironment,
    python: &Path,
    actions: &[MailAction],
) -> Result<Vec<MapiCellResult>> {
    let mut lane = lane(environment, python)?;
    lane.start_nodes(MailMode::Application)?;
    lane.start_server()?;
    let protections = [MailProtection::None, MailProtection::NtlmPrivacy];
    carry_out(&mut lane, &MailClient::ALL, &protections, actions)
}

/// Runs actions of a client that uses MAPI over HTTP.
///
/// # Errors
/// Fails when the lab does not come up, or the client fails.
pub fn exchange_by_http(
    environment: &ProgramEnvironment,
    python: &Path,
    port: HttpMailPort,
    actions: &[MailAction],
) -> Result<Vec<MapiCellResult>> {
    let mut lane = lane(environment, python)?;
    lane.set_route(MailRoute {
        is_ipv6: false,
        port,
    })?;
    lane.start_nodes(MailMode::Application)?;
    lane.start_server()?;
    let clients = [MailClient::Outlook2013];
    carry_out(&mut lane, &clients, &[MailProtection::None], actions)
}

/// Saves and sends attachments by IPv6, over a link that loses packets, with clients of both carriers.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails.
pub fn exchange_by_ipv6_with_loss(
    environment: &ProgramEnvironment,
    python: &Path,
) -> Result<Vec<MapiCellResult>> {
    let mut lane = MapiLane::create(environment, python)?;
    lane.set_words(LOSSY_LINK.map(str::to_owned).to_vec())?;
    lane.set_content(ATTACHMENT_BYTES, 1_000, BODY)?;
    lane.set_route(MailRoute {
        is_ipv6: true,
        port: HttpMailPort::Own,
    })?;
    lane.start_nodes(MailMode::Application)?;
    lane.start_server()?;
    let clients = [MailClient::Outlook2003, MailClient::Outlook2013];
    let actions = [MailAction::SaveAttachment, MailAction::SendAttachment];
    carry_out(&mut lane, &clients, &[MailProtection::None], &actions)
}

/// Runs actions of both clients with Kerberos, and log-ons that fail.
///
/// # Errors
/// Fails when the lab does not come up, a client fails that should not, or one succeeds with an
/// expired ticket.
pub fn exchange_by_kerberos(
    environment: &ProgramEnvironment,
    python: &Path,
    actions: &[MailAction],
) -> Result<KerberosResults> {
    let mut lane = lane(environment, python)?;
    // These nodes start before there is a realm, so they have no keytab.
    lane.start_nodes(MailMode::Application)?;
    lane.create_realm()?;
    lane.start_server()?;
    let without = cell(
        MailClient::Outlook2003,
        MailAction::SaveAttachment,
        MailProtection::KerberosPrivacy,
    );
    let without_keytab = lane.measure(&without, None)?;
    lane.start_nodes(MailMode::Application)?;
    let protections = [MailProtection::KerberosPrivacy];
    let with_keytab = carry_out(&mut lane, &MailClient::ALL, &protections, actions)?;
    Ok(KerberosResults {
        with_keytab,
        without_keytab,
        expired_through: lane.expired_log_on(LabSite::Near)?,
        expired_direct: lane.expired_log_on(LabSite::Far)?,
    })
}

/// Runs transfers in which the client's ticket expires.
///
/// # Errors
/// Fails when the lab does not come up.
pub fn tickets_that_expire(
    environment: &ProgramEnvironment,
    python: &Path,
) -> Result<TicketOutcomes> {
    let mut lane = lane(environment, python)?;
    lane.create_realm()?;
    lane.start_nodes(MailMode::Application)?;
    lane.start_server()?;
    let outlived = [
        lane.expire_in_transfer(MailAction::SaveAttachment)?,
        lane.expire_in_transfer(MailAction::SendAttachment)?,
    ];
    lane.start_server_with(true)?;
    let refused = lane.expire_in_transfer(MailAction::SendAttachment)?;
    Ok(TicketOutcomes { outlived, refused })
}

/// Saves an attachment that the nodes know from a file server, and one that they know from the other
/// client, and then lists the folder, as a client does before it saves.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails.
pub fn known_attachments(
    environment: &ProgramEnvironment,
    python: &Path,
) -> Result<Vec<MapiCellResult>> {
    let mut lane = lane(environment, python)?;
    lane.set_content(KNOWN_BYTES, 1_000, BODY)?;
    lane.start_nodes(MailMode::Application)?;
    lane.start_server()?;
    let mut results = Vec::new();
    for client in MailClient::ALL {
        for protection in [MailProtection::None, MailProtection::NtlmPrivacy] {
            let mut cell = cell(client, MailAction::SaveAttachment, protection);
            lane.fetch_from_share()?;
            results.push(lane.measure_now(&cell, None)?);
            cell.state = ContentState::Again;
            results.push(lane.measure(&cell, None)?);
            cell.action = MailAction::List;
            results.push(lane.measure_now(&cell, None)?);
        }
    }
    Ok(results)
}

/// A lane with a link and content, without nodes.
fn lane(environment: &ProgramEnvironment, python: &Path) -> Result<MapiLane> {
    let mut lane = MapiLane::create(environment, python)?;
    lane.set_words(LINK.map(str::to_owned).to_vec())?;
    lane.set_content(ATTACHMENT_BYTES, 1_000, BODY)?;
    Ok(lane)
}

const fn cell(client: MailClient, action: MailAction, protection: MailProtection) -> MapiCell {
    MapiCell {
        client,
        action,
        link: LinkKind::Oc1,
        one_way_delay_ms: 5,
        protection,
        mode: MailMode::Application,
        state: ContentState::First,
    }
}

fn carry_out(
    lane: &mut MapiLane,
    clients: &[MailClient],
    protections: &[MailProtection],
    actions: &[MailAction],
) -> Result<Vec<MapiCellResult>> {
    let mut results = Vec::new();
    for client in clients {
        for protection in protections {
            for action in actions {
                results.push(lane.measure(&cell(*client, *action, *protection), None)?);
            }
        }
    }
    Ok(results)
}

/// Sends messages with these clients, and kills each node in the middle of one.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails at another time.
pub fn interrupted_sends(
    environment: &ProgramEnvironment,
    python: &Path,
    clients: &[MailClient],
) -> Result<Vec<InterruptedSend>> {
    let mut lane = MapiLane::create(environment, python)?;
    lane.set_words(SLOW_LINK.map(str::to_owned).to_vec())?;
    lane.set_content(SLOW_BYTES, 1_000, BODY)?;
    let mut results = Vec::new();
    for client in clients {
        for site in [LabSite::Near, LabSite::Far] {
            // The watchdog's new process of the node killed before is not ours to kill.
            lane.start_nodes(MailMode::Application)?;
            lane.start_server()?;
            results.push(lane.interrupt_send(*client, site)?);
        }
    }
    Ok(results)
}
