//! Connection to a host's network without root: a program that turns packets into sockets.
//!
//! ```text
//!   command's namespace ═ link ═ gateway's namespace ── pasta or slirp4netns ── the host's sockets
//! ```
//! Both programs want to be started as the ordinary user they serve, outside the user namespace
//! that the link lives in. So a process for it is split off first; it waits for the namespaces'
//! names, starts the program, and ends it when its pipe is closed, which also happens when this
//! process is killed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, PipeWriter, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::room::NamespaceThread;
use host::first_process::{self as kernel, ForkSide};
use host::{command, rootless, wait};

/// Time limit for the program to configure its device; it usually takes some milliseconds.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time limit for IPv6 after IPv4 is ready.
const V6_LIMIT: Duration = Duration::from_secs(2);

/// The device that the program makes.
pub(super) const DEVICE: &str = "gateway0";

/// The programs that can do it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GatewayProgram {
    /// The program of passt: IPv4, IPv6 and ping.
    Pasta,
    /// IPv4.
    Slirp4netns,
}

/// A program to be started, or running.
#[derive(Debug)]
pub(super) struct UserGateway {
    kind: GatewayProgram,
    /// The process that starts and ends it.
    keeper: u32,
    /// Open as long as it is wanted.
    wanted: Option<PipeWriter>,
    messages: File,
}

impl UserGateway {
    /// Splits off the process that will start the program; to be called while this process has a
    /// single thread and before it enters a user namespace.
    pub(super) fn prepare(search_path: Option<&OsString>) -> Result<Self> {
        let (kind, program) = find(search_path)?;
        let messages = kernel::memory_file().context("cannot make a file in memory")?;
        let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
        match kernel::fork().context("cannot start a process for the gateway")? {
            ForkSide::Child => {
                drop(writer);
                keep(kind, &program, reader, &messages);
                kernel::exit_now(0)
            }
            ForkSide::Parent(keeper) => Ok(Self {
                kind,
                keeper,
                wanted: Some(writer),
                messages,
            }),
        }
    }

    /// Starts the program in `room`, and waits until it has made its device and a default route.
    /// `host_leads_v6` says whether the host has a way into IPv6 to share.
    pub(super) fn start(&mut self, room: &NamespaceThread, host_leads_v6: bool) -> Result<()> {
        let user = format!("/proc/{}/ns/user", std::process::id());
        let line = format!("{user}\n{}\n", room.path());
        if let Some(pipe) = &mut self.wanted {
            pipe.write_all(line.as_bytes())
                .context("the process for the gateway has ended")?;
        }
        let started = wait::until(START_LIMIT, "the gateway's default route", || {
            if kernel::has_ended(self.keeper) {
                bail!("it has ended");
            }
            room.run(|| {
                let routes = std::fs::read_to_string("/proc/thread-self/net/route")?;
                Ok(has_default_route(&routes).then_some(()))
            })
        });
        started.with_context(|| {
            let mut text = String::new();
            // What cannot be read cannot be shown.
            let _ = self.messages.rewind();
            let _ = self.messages.read_to_string(&mut text);
            format!(
                "{} did not connect the command to the network; it says: {}",
                self.kind.name(),
                text.trim()
            )
        })?;
        // pasta configures IPv6 a moment after IPv4, and not on every host that has it.
        if host_leads_v6 && self.kind == GatewayProgram::Pasta {
            let v6 = wait::until(V6_LIMIT, "the gateway's IPv6 route", || {
                room.run(|| {
                    let routes = std::fs::read_to_string("/proc/thread-self/net/ipv6_route")?;
                    Ok(has_default_route_v6(&routes).then_some(()))
                })
            });
            if v6.is_err() {
                tracing::info!("the gateway program offers no IPv6");
            }
        }
        Ok(())
    }
}

impl Drop for UserGateway {
    fn drop(&mut self) {
        drop(self.wanted.take());
        kernel::wait_for_end(self.keeper);
    }
}

impl GatewayProgram {
    fn name(self) -> &'static str {
        match self {
            GatewayProgram::Pasta => "pasta",
            GatewayProgram::Slirp4netns => "slirp4netns",
        }
    }

    fn arguments(self, user: &str, network: &str) -> Vec<String> {
        let words: Vec<&str> = match self {
            // No port of the host leads to the command, and none of the command's loopback out.
            GatewayProgram::Pasta => vec![
                "--foreground",
                "--quiet",
                "--config-net",
                "--ns-ifname",
                DEVICE,
                "-t",
                "none",
                "-u",
                "none",
                "-T",
                "none",
                "-U",
                "none",
                "--userns",
                user,
                "--netns",
                network,
            ],
            GatewayProgram::Slirp4netns => vec![
                "--configure",
                "--mtu=1500",
                "--netns-type=path",
                "--userns-path",
                user,
                network,
                DEVICE,
            ],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

/// The program to use, and where it is.
fn find(search_path: Option<&OsString>) -> Result<(GatewayProgram, PathBuf)> {
    // Started by the host's root, pasta becomes nobody, who may not enter root's namespaces. The
    // root of a user namespace, which maps part of all users only, stays who it is.
    let is_root =
        host::kernel::effective_user() == 0 && rootless::mapped_user_ids() >= u64::from(u32::MAX);
    let candidates: &[GatewayProgram] = if is_root {
        &[GatewayProgram::Slirp4netns]
    } else {
        &[GatewayProgram::Pasta, GatewayProgram::Slirp4netns]
    };
    for kind in candidates {
        if let Some(path) = find_program(kind.name(), search_path) {
            return Ok((*kind, path));
        }
    }
    if is_root {
        bail!(
            "for root the gateway program is slirp4netns, which is not installed (apt-get install slirp4netns); NAT needs no program but nft, and CAP_NET_ADMIN and CAP_SYS_ADMIN, which a container gets by --cap-add NET_ADMIN --cap-add SYS_ADMIN"
        );
    }
    bail!(
        "without root the command's packets need a gateway program, and neither pasta nor slirp4netns is installed; install one (as root: apt-get install passt, or slirp4netns), or run as root"
    )
}

/// Finds a program in the caller's PATH or the system's directories.
pub(super) fn find_program(name: &str, search_path: Option<&OsString>) -> Option<PathBuf> {
    search_path
        .into_iter()
        .flat_map(std::env::split_paths)
        .map(|directory| directory.join(name))
        .find(|candidate| candidate.is_file())
        .or_else(|| command::find(name))
}

/// The life of the process that starts and ends the program.
fn keep(kind: GatewayProgram, program: &Path, pipe: std::io::PipeReader, messages: &File) {
    let mut lines = BufReader::new(pipe);
    let mut line = || {
        let mut text = String::new();
        lines.read_line(&mut text).ok()?;
        Some(text.trim_end().to_owned()).filter(|text| !text.is_empty())
    };
    let (Some(user), Some(network)) = (line(), line()) else {
        return;
    };
    let (Ok(output), Ok(errors)) = (messages.try_clone(), messages.try_clone()) else {
        return;
    };
    let child = Command::new(program)
        .args(kind.arguments(&user, &network))
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(errors)
        // A key on the terminal is for the command.
        .process_group(0)
        .spawn();
    let mut child = match child {
        Ok(child) => child,
        Err(error) => {
            // Whoever waits reads it there.
            let _ = writeln!(&*messages, "{}: {error}", program.display());
            return;
        }
    };
    if let Ok(end) = kernel::watch(child.id()) {
        let pipe = lines.get_ref().as_fd();
        while let Ok([false, false]) | Err(_) = kernel::wait_readable([pipe, end.as_fd()], None) {}
    }
    // It may have ended already.
    let _ = child.kill();
    let _ = child.wait();
}

/// Tells whether /proc/net/route has a route to 0.0.0.0/0.
fn has_default_route(table: &str) -> bool {
    table.lines().skip(1).any(|line| {
        let mut columns = line.split_whitespace();
        columns.nth(1) == Some("00000000") && columns.nth(5) == Some("00000000")
    })
}

/// Tells whether /proc/net/ipv6_route has a route to ::/0 that is not the kernel's own reject
/// route.
fn has_default_route_v6(table: &str) -> bool {
    table.lines().any(|line| {
        line.starts_with("00000000000000000000000000000000 00 ") && line.ends_with(DEVICE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_route_is_one_to_everywhere() {
        let head =
            "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n";
        let default = "gateway0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n";
        let lan = "gateway0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n";
        assert!(has_default_route(&format!("{head}{lan}{default}")));
        assert!(!has_default_route(&format!("{head}{lan}")));
        assert!(!has_default_route(""));
        let zeros = "00000000000000000000000000000000";
        let refusal = format!("{zeros} 00 {zeros} 00 {zeros} ffffffff 1 0 00200200       lo\n");
        let default = format!(
            "{zeros} 00 {zeros} 00 20010db8000100000000000000000001 00000400 1 0 00000003 gateway0\n"
        );
        assert!(has_default_route_v6(&format!("{refusal}{default}")));
        assert!(!has_default_route_v6(&refusal));
    }
}
