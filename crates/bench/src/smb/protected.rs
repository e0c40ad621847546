//! Signed and encrypted sessions through a pair of nodes that have the account's key.
//!
//! ```text
//!  smbclient (each algorithm and cipher) ─┐
//!  smbprotocol (serial, with its own code ─┴─ near ══ link ══ far ── smbd
//!               for signatures and ciphers)
//! ```
//! Every session gets and puts a file: what arrives on either side must be what was sent, and the near
//! node must have answered requests. Both clients and smbd judge what the nodes signed and encrypted.
//! Nothing is timed: what such sessions reach is the bench's to say.

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cells::{AccelerationMode, SmbCell, SmbClientKind, SmbProtection};
use super::clients::ClientPython;
use super::server::{ENCRYPTED_SHARE, PASSWORD, SHARE, USER};
use super::stand::{SmbCellResult, SmbLane};
use super::torture::LINK;
use crate::lines::LinkKind;
use crate::reasons::AccelerationReason;
use host::{ProgramEnvironment, wait};
use lab::topology::LabSite;

/// File size: a few READs ahead, and little to encrypt even in debug builds.
const FILE_BYTES: u64 = 3_000_000;

/// Files of the share.
const FILE: &str = "protected.bin";
const UPLOAD: &str = "protected-upload.bin";

/// Time limit of one smbclient session, some hundred times its usual duration.
const SESSION_LIMIT: Duration = Duration::from_secs(60);

/// Time in seconds for which the serial client reads or writes.
const SERIAL_SECONDS: f64 = 0.5;

/// Protections of smbclient's sessions: a name, a share, and smbclient's options.
const SESSIONS: [(&str, &str, &[&str]); 9] = [
    ("HMAC-SHA256", SHARE, SmbProtection::Hmac.stock_options()),
    ("AES-CMAC", SHARE, SmbProtection::Cmac.stock_options()),
    ("AES-GMAC", SHARE, SmbProtection::Gmac.stock_options()),
    (
        "AES-128-CCM by SMB 3.0",
        SHARE,
        &["--max-protocol=SMB3_00", ENCRYPT],
    ),
    (
        "AES-128-CCM",
        SHARE,
        &[
            ENCRYPT,
            "--option=client smb3 encryption algorithms=AES-128-CCM",
        ],
    ),
    (
        "AES-128-GCM",
        SHARE,
        &[
            ENCRYPT,
            "--option=client smb3 encryption algorithms=AES-128-GCM",
        ],
    ),
    (
        "AES-256-CCM",
        SHARE,
        &[
            ENCRYPT,
            "--option=client smb3 encryption algorithms=AES-256-CCM",
        ],
    ),
    (
        "AES-256-GCM",
        SHARE,
        &[
            ENCRYPT,
            "--option=client smb3 encryption algorithms=AES-256-GCM",
        ],
    ),
    ("an encrypted share", ENCRYPTED_SHARE, &[]),
];
const ENCRYPT: &str = "--client-protection=encrypt";

/// Result of one session of smbclient.
#[derive(Clone, Debug)]
pub struct ProtectedExchange {
    /// Protection of the session.
    pub protection: &'static str,
    /// Both files arrived as they were sent.
    pub is_identical: bool,
    /// Accelerate stage of the near node for its flow.
    pub accelerate: AccelerationReason,
}

/// Runs an smbclient session with get and put for each algorithm and cipher.
///
/// # Errors
/// Fails when the lab does not come up, or smbclient fails.
pub fn exchange(environment: &ProgramEnvironment) -> Result<Vec<ProtectedExchange>> {
    let mut lane = stand(environment, None)?;
    let (there, back) = (
        lane.directory().join("there"),
        lane.directory().join("back"),
    );
    lane.publish(FILE, FILE_BYTES, 1)?;
    lane.publish(UPLOAD, FILE_BYTES, 2)?;
    fs::rename(lane.files().join(UPLOAD), &there)?;
    let mut exchanges = Vec::new();
    for (protection, share, options) in SESSIONS {
        let commands = format!(
            "get {FILE} {back}; put {there} {UPLOAD}; ls",
            back = back.display(),
            there = there.display()
        );
        smbclient(&lane, share, options, &commands)
            .with_context(|| format!("in a session with {protection}"))?;
        lane.check()?;
        let files = lane.files();
        let is_identical = fs::read(files.join(FILE))? == fs::read(&back)?
            && fs::read(files.join(UPLOAD))? == fs::read(&there)?;
        exchanges.push(ProtectedExchange {
            protection,
            is_identical,
            accelerate: lane.why()?,
        });
        fs::remove_file(&back)?;
        fs::remove_file(files.join(UPLOAD))?;
    }
    Ok(exchanges)
}

/// Runs the serial client's reads and writes for a moment, with each of its protections, and then
/// with leases of its own.
///
/// # Errors
/// Fails as [`exchange`] does.
pub fn exchange_serially(
    environment: &ProgramEnvironment,
    clients: &ClientPython,
) -> Result<Vec<SmbCellResult>> {
    let mut lane = stand(environment, Some(clients))?;
    lane.publish_bulk(FILE_BYTES)?;
    let mut results = Vec::new();
    let ways = [
        (SmbProtection::Hmac, false),
        (SmbProtection::Cmac, false),
        (SmbProtection::Gmac, false),
        (SmbProtection::Encrypted, false),
        (SmbProtection::Off, true),
        (SmbProtection::Cmac, true),
        (SmbProtection::Encrypted, true),
    ];
    for (protection, holds_leases) in ways {
        if holds_leases {
            lane.hold_leases();
        }
        for client in [SmbClientKind::SerialGet, SmbClientKind::SerialPut] {
            let cell = SmbCell {
                client,
                link: LinkKind::Oc1,
                one_way_delay_ms: 0,
                protection,
                mode: AccelerationMode::Application,
            };
            results.push(lane.measure(&cell, SERIAL_SECONDS, 0)?);
        }
    }
    Ok(results)
}

fn stand(environment: &ProgramEnvironment, clients: Option<&ClientPython>) -> Result<SmbLane> {
    let mut lane = SmbLane::create(environment, clients)?;
    lane.set_words(LINK.map(str::to_owned).to_vec())?;
    lane.delegate_key(true);
    lane.start_nodes_alone(AccelerationMode::Application)?;
    Ok(lane)
}

fn smbclient(lane: &SmbLane, share: &str, options: &[&str], commands: &str) -> Result<()> {
    let log = lane.logs().join("smbclient.log");
    let output = fs::File::create(&log)?;
    let mut smbclient = lane.at_the_client("smbclient")?;
    smbclient
        .arg(format!("//{}/{share}", LabSite::Far.host_address()))
        .args(["-U", &format!("{USER}%{PASSWORD}"), "-s", "/dev/null"])
        .args(options)
        .args(["-c", commands])
        .stdin(Stdio::null())
        .stderr(output.try_clone()?)
        .stdout(output);
    let mut child = smbclient.spawn().context("starting smbclient")?;
    let ended = wait::until(SESSION_LIMIT, "smbclient", || Ok(child.try_wait()?));
    if ended.is_err() {
        let _ = child.kill();
        let _ = child.wait();
    }
    ensure!(
        ended?.success(),
        "smbclient failed: {}",
        fs::read_to_string(&log)?.trim()
    );
    Ok(())
}
