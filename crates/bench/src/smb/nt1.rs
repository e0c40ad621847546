//! Sessions of SMB 1 through a pair of nodes: a stock smbclient that speaks NT1, and another beside the
//! server that wants the file which the first has open.
//!
//! ```text
//!  smbclient -m NT1 ── near ══ link ══ far ── smbd ── smbclient -m NT1
//!    get · put · open, and waits             get of the open file, in the meantime
//!    get · put, by IPv6
//! ```
//! What arrives on either side must be what was sent, and the near node must have answered requests. The
//! first client is in a shell while the second reads, and cannot give an oplock back: that the second is
//! served at all is the nodes' doing, and smbd would let it wait for longer than it is given here.

use std::fs;
use std::io::Write;
use std::net::IpAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cells::AccelerationMode;
use super::server::{PASSWORD, SHARE, USER};
use super::stand::{NT1_OPTIONS, SmbLane};
use super::torture::LINK;
use crate::reasons::AccelerationReason;
use host::{ProgramEnvironment, wait};
use lab::topology::LabSite;

/// File size, some fifty READs.
const FILE_BYTES: u64 = 3_000_000;

/// Files of the share.
const FILE: &str = "nt1.bin";
const UPLOAD: &str = "nt1-upload.bin";
const UPLOAD_BY_IPV6: &str = "nt1-upload-by-ipv6.bin";

/// Time limit of a session, some twenty times its usual duration.
const SESSION_LIMIT: Duration = Duration::from_secs(60);

/// Time limit of the second client. smbd gives a holder of an oplock 35 s before it revokes the
/// oplock (measured on Samba 4.17); a node without a message from its peer gives it back after 12
/// s.
const BREAK_LIMIT: Duration = Duration::from_secs(11);

/// Result of one session.
#[derive(Clone, Debug)]
pub struct LegacyExchange {
    /// Files arrived as they were sent, here and beside the server.
    pub is_identical: bool,
    /// Accelerate stage of the near node for its flow.
    pub accelerate: AccelerationReason,
}

/// Runs a session that gets and puts a file, while another client reads the file that the first has
/// open, and then one over IPv6.
///
/// # Errors
/// Fails when the lab does not come up, or a client fails.
pub fn exchange(environment: &ProgramEnvironment) -> Result<[LegacyExchange; 2]> {
    let mut lane = SmbLane::create(environment, None)?;
    lane.set_words(LINK.map(str::to_owned).to_vec())?;
    lane.start_nodes_alone(AccelerationMode::Application)?;
    let in_directory = |name: &str| lane.directory().join(name);
    let (there, back, beside) = (
        in_directory("there"),
        in_directory("back"),
        in_directory("beside"),
    );
    let (opened, read) = (in_directory("opened"), in_directory("read"));
    lane.publish(FILE, FILE_BYTES, 1)?;
    lane.publish(UPLOAD, FILE_BYTES, 2)?;
    fs::rename(lane.files().join(UPLOAD), &there)?;
    // smbclient runs a line behind an exclamation mark in a shell; `open` holds a file open until the
    // session ends.
    let commands = format!(
        "get {FILE} {back}\nput {there} {UPLOAD}\nopen {UPLOAD}\n\
         !touch {opened}; while [ ! -e {read} ]; do sleep 0.05; done\n",
        back = back.display(),
        there = there.display(),
        opened = opened.display(),
        read = read.display(),
    );
    let server = IpAddr::from(LabSite::Far.host_address());
    let mut first = SmbclientSession::start(&lane, LabSite::Near, server, &commands)?;
    wait::until(SESSION_LIMIT, "a file that is open", || {
        ensure!(
            first.child.try_wait()?.is_none(),
            "smbclient ended: {}",
            first.said()
        );
        Ok(opened.exists().then_some(()))
    })?;
    let commands = format!("get {UPLOAD} {}\n", beside.display());
    SmbclientSession::start(&lane, LabSite::Far, server, &commands)?
        .finish(BREAK_LIMIT)
        .context("beside the server")?;
    fs::write(&read, "")?;
    first.finish(SESSION_LIMIT)?;
    lane.check()?;
    let files = lane.files();
    let is_identical = fs::read(files.join(FILE))? == fs::read(&back)?
        && fs::read(files.join(UPLOAD))? == fs::read(&there)?
        && fs::read(&beside)? == fs::read(&there)?;
    let accelerate = lane.why()?;
    Ok([
        LegacyExchange {
            is_identical,
            accelerate,
        },
        exchange_by_ipv6(&mut lane)?,
    ])
}

/// Runs a session over IPv6 without a second client: `get` of the first session's file, and `put`.
fn exchange_by_ipv6(lane: &mut SmbLane) -> Result<LegacyExchange> {
    let back = lane.directory().join("back-by-ipv6");
    let commands = format!(
        "get {UPLOAD} {back}\nput {back} {UPLOAD_BY_IPV6}\n",
        back = back.display(),
    );
    let server = LabSite::Far.host_address_v6().into();
    SmbclientSession::start(lane, LabSite::Near, server, &commands)?
        .finish(SESSION_LIMIT)
        .context("by IPv6")?;
    lane.check()?;
    let [first, second] = [UPLOAD, UPLOAD_BY_IPV6].map(|name| fs::read(lane.files().join(name)));
    let first = first?;
    Ok(LegacyExchange {
        is_identical: first == fs::read(&back)? && first == second?,
        accelerate: lane.why()?,
    })
}

/// A running smbclient; dropping it ends it.
struct SmbclientSession {
    child: Child,
    log: std::path::PathBuf,
}

impl SmbclientSession {
    fn start(lane: &SmbLane, site: LabSite, server: IpAddr, commands: &str) -> Result<Self> {
        let log = lane.logs().join(format!("smbclient-{}.log", site.host()));
        let output = fs::File::create(&log)?;
        let mut smbclient: Command = lane.at(site, "smbclient")?;
        smbclient
            .arg(format!("//server/{SHARE}"))
            .args(["-I", &server.to_string()])
            .args(["-U", &format!("{USER}%{PASSWORD}"), "-s", "/dev/null"])
            .args(NT1_OPTIONS)
            .stdin(Stdio::piped())
            .stderr(output.try_clone()?)
            .stdout(output);
        let mut child = smbclient.spawn().context("starting smbclient")?;
        // It ends with its input.
        let mut input = child.stdin.take().context("it was to have an input")?;
        input.write_all(commands.as_bytes())?;
        Ok(Self { child, log })
    }

    fn said(&self) -> String {
        let text = fs::read_to_string(Path::new(&self.log)).unwrap_or_default();
        text.trim().to_owned()
    }

    fn finish(mut self, limit: Duration) -> Result<()> {
        let status = wait::until(limit, "smbclient", || Ok(self.child.try_wait()?))?;
        let said = self.said();
        ensure!(
            status.success() && !said.contains("NT_STATUS_"),
            "smbclient failed: {said}"
        );
        Ok(())
    }
}

impl Drop for SmbclientSession {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
