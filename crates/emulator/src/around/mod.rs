//! A link around one command: the command runs in a network namespace of its own, and the link is
//! its only connection.
//!
//! ```text
//!   command ── tlc-N ═══ the link ═══ tlw-N ── NAT ── the host's network            (as root)
//!   command ── tlc-N ═══ the link ═══ tlw-N ── NAT ── pasta or slirp4netns          (else)
//!   its own namespace                 the host's, or one for the gateway
//! ```
//! Forward is what the command sends. The caller makes the link between [`CommandNetwork::devices`], then
//! [`CommandNetwork::connect`] gives both ends addresses (`addresses.rs`), a way on (`nat.rs`,
//! `user_gateway.rs`) and names (`resolver.rs`), and [`CommandNetwork::run`] starts the command and waits.
//!
//! The command keeps the caller's user, group, directory, environment, files and terminal. Its
//! mounts are the host's, except for `/etc/resolv.conf` where that must differ, and it sees only
//! its own processes: they end with it, so that none of them continues after the link is gone. The
//! namespaces have no names, and disappear with this process even when it is killed; `nat.rs`
//! describes the parts of a link made as root that may stay until the next one starts.

mod addresses;
mod nat;
mod resolver;
mod room;
mod user_gateway;
mod user_namespace;

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use addresses::LinkAddresses;
use host::first_process::{
    self as kernel, ArrivedSignal, MountKind, PassedCapabilities, UnshareScope,
};
use nat::{GatewayServices, HostLock, NatRules};
use resolver::{DnsForwarder, ResolverConfig};
use room::NamespaceThread;
use user_gateway::UserGateway;

use crate::link::LinkEndpoint;
use host::command;

/// Connection of the command's packets from the link to the host's network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GatewayChoice {
    /// NAT where this process may configure the host's network, otherwise a gateway program.
    #[default]
    Automatic,
    /// NAT in the host's network namespace, which needs root.
    Nat,
    /// A gateway program, pasta or slirp4netns, which uses the host's network as any program does.
    User,
}

/// Outcome of the command.
#[derive(Debug)]
pub enum CommandOutcome {
    /// With this exit code; 128 and the signal's number if a signal ended it.
    Code(u8),
    /// The command could not be started.
    NotStarted(io::Error),
    /// The link failed under it, and it was asked to stop.
    WithoutLink,
}

/// Place of the link's far end.
#[derive(Debug)]
enum FarEndPlace {
    /// The host's network namespace.
    Host,
    /// A namespace of its own, behind a gateway program.
    Behind(UserGateway, NamespaceThread),
}

/// Network environment of a command; dropping it removes everything that was made.
#[derive(Debug)]
pub struct CommandNetwork {
    forwarder: Option<DnsForwarder>,
    nat: Option<NatRules>,
    resolv_conf: Option<String>,
    passed_on: PassedCapabilities,
    inside: NamespaceThread,
    outside: FarEndPlace,
    addresses: Option<LinkAddresses>,
}

impl Drop for CommandNetwork {
    fn drop(&mut self) {
        drop(self.forwarder.take());
        if let (Some(nat), FarEndPlace::Host) = (self.nat.take(), &self.outside) {
            nat.remove(&HostLock::wait());
        }
        // All else is in namespaces that go with the fields.
    }
}

/// Interval of the check for a failed link. Signals and the command's end are noticed at once.
const LOOK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// Greatest time for packets that the command sent before its end to leave the link.
const DRAIN_LIMIT: Duration = Duration::from_secs(5);
/// Interval of the check for that.
const DRAIN_PAUSE: Duration = Duration::from_millis(2);

impl CommandNetwork {
    /// Makes the namespaces. It must be called before this process starts any thread: as an
    /// unprivileged user it moves into a user namespace. The signals that [`CommandNetwork::run`]
    /// passes on are blocked from now on. `search_path` is the caller's PATH, for the gateway
    /// program.
    ///
    /// # Errors
    /// Fails when the system does not allow it or lacks a program; the message says what to do.
    pub fn prepare(gateway: GatewayChoice, search_path: Option<&OsString>) -> Result<Self> {
        kernel::block_signals().context("cannot block signals")?;
        for (program, package) in [("ip", "iproute2"), ("nft", "nftables")] {
            if command::find(program).is_none() {
                bail!(
                    "the program {program} is missing; install it with apt-get install {package}"
                );
            }
        }
        let is_privileged = user_namespace::is_privileged();
        let is_by_program = match gateway {
            GatewayChoice::Automatic => !is_privileged,
            GatewayChoice::Nat if !is_privileged => bail!(
                "--gateway nat changes the host's network, which takes root (CAP_NET_ADMIN and CAP_SYS_ADMIN); leave it out to use a gateway program"
            ),
            GatewayChoice::Nat => false,
            GatewayChoice::User => true,
        };
        let program = is_by_program
            .then(|| UserGateway::prepare(search_path))
            .transpose()?;
        let passed_on = if is_privileged {
            PassedCapabilities::AsFound
        } else {
            user_namespace::enter()?;
            PassedCapabilities::NetAdmin
        };
        let outside = match program {
            Some(program) => FarEndPlace::Behind(program, NamespaceThread::open("gateway")?),
            None => FarEndPlace::Host,
        };
        Ok(Self {
            forwarder: None,
            nat: None,
            resolv_conf: None,
            passed_on,
            inside: NamespaceThread::open("command")?,
            outside,
            addresses: None,
        })
    }

    /// The devices to make the link between: the command's, and the world's. Their names are
    /// unique on this host.
    #[must_use]
    pub fn devices(&self) -> (LinkEndpoint, LinkEndpoint) {
        let number = std::process::id();
        let near = LinkEndpoint {
            device: format!("tlc-{number}"),
            namespace: Some(self.inside.namespace()),
        };
        let far = LinkEndpoint {
            device: format!("{}{number}", nat::DEVICE),
            namespace: match &self.outside {
                FarEndPlace::Host => None,
                FarEndPlace::Behind(_, room) => Some(room.namespace()),
            },
        };
        (near, far)
    }

    /// Gives both ends addresses, and the far end a connection, once the link has made the devices.
    ///
    /// # Errors
    /// Fails when the network cannot be configured; the message says what to do.
    pub fn connect(&mut self) -> Result<()> {
        let (near, far) = self.devices();
        let local = local_resolvers();
        let is_needed = !local.local.is_empty();
        if let FarEndPlace::Behind(program, room) = &mut self.outside {
            program.start(room, addresses::leads_somewhere_v6(&routes("-6")))?;
        }
        let is_host = matches!(self.outside, FarEndPlace::Host);
        let world = self.outside.run(move || {
            let turn = HostLock::wait();
            if is_host {
                nat::sweep(&turn)?;
            }
            connect_world(&turn, &far.device, is_host, is_needed)
        });
        let world = world.context("cannot connect the link to the network")?;
        self.nat = Some(world.nat);
        let addresses = world.addresses;
        let leads_v6 = world.leads_v6;
        self.inside
            .run(move || connect_command(&near.device, &addresses, leads_v6))
            .context("cannot configure the command's network")?;
        self.addresses = Some(addresses);
        if let (Some(upstream), Some(listening)) = (local.local.first(), world.listening) {
            self.forwarder =
                Some(DnsForwarder::start(listening, upstream).context("cannot forward names")?);
        }
        if is_needed {
            self.resolv_conf = Some(local.text_with(addresses.gateway));
        }
        Ok(())
    }

    /// The addresses of both ends, once connected.
    #[must_use]
    pub fn addresses(&self) -> Option<LinkAddresses> {
        self.addresses
    }

    /// Text about host settings that may block the command's packets; `None` if nothing was found.
    #[must_use]
    pub fn obstacles(&self) -> Option<String> {
        if !matches!(self.outside, FarEndPlace::Host) {
            return None;
        }
        let chains = nat::obstacles();
        (!chains.is_empty()).then(|| {
            format!(
                "this host's firewall may drop forwarded packets (chain {}); if the command reaches no \
                 other host, add a rule that accepts its packets (for Docker: iptables -I DOCKER-USER -i \
                 'tlw-+' -j ACCEPT, and the same with -o), or use --gateway user",
                chains.join(", ")
            )
        })
    }

    /// Runs the command to its end. Signals to this process are passed on to it, except for those
    /// of the terminal's keys, which it receives itself. `link_runs` is polled to notice a failed
    /// link.
    ///
    /// # Errors
    /// Fails when the namespaces cannot be completed.
    pub fn run(
        &mut self,
        command: &[OsString],
        link_runs: impl Fn() -> bool,
    ) -> Result<CommandOutcome> {
        let terminal = File::open("/dev/tty").ok();
        let foreground = terminal.as_ref().and_then(kernel::foreground);
        let mut child = match self.start(command)? {
            Ok(child) => child,
            Err(error) => return Ok(CommandOutcome::NotStarted(error)),
        };
        let mut ended = None;
        let status = loop {
            if let Some(status) = child.try_wait().context("cannot wait for the command")? {
                break status;
            }
            if ended.is_none() && !link_runs() {
                ended = Some(CommandOutcome::WithoutLink);
                pass_on(&child, libc::SIGTERM);
            }
            match kernel::wait_for_signal(LOOK_AGAIN_AFTER) {
                ArrivedSignal::FromProcess(signal) => pass_on(&child, signal),
                ArrivedSignal::FromTerminal(_) | ArrivedSignal::Child | ArrivedSignal::Nothing => {}
            }
        };
        // A shell that had the terminal knows no number of a group out here to give it back to.
        if let (Some(terminal), Some(group)) = (&terminal, foreground)
            && kernel::foreground(terminal) != Some(group)
        {
            kernel::set_foreground(terminal, group);
        }
        // Only a signal from outside its namespace ends the first process without a code.
        let code = status.code().and_then(|code| u8::try_from(code).ok());
        Ok(ended.unwrap_or(CommandOutcome::Code(
            code.unwrap_or(128 + libc::SIGKILL as u8),
        )))
    }

    /// Waits until the link holds no packet of the command, as `is_empty` tells, for at most a few
    /// seconds, or until a signal comes: the command's last packets are still in flight when it
    /// ends.
    pub fn drain(&self, is_empty: impl Fn() -> bool) {
        let start = Instant::now();
        // Once may be too early: what was sent last may not have been read by the link yet.
        let mut looks_empty = 0;
        while looks_empty < 2 && start.elapsed() < DRAIN_LIMIT {
            looks_empty = if is_empty() { looks_empty + 1 } else { 0 };
            match kernel::wait_for_signal(DRAIN_PAUSE) {
                ArrivedSignal::Nothing | ArrivedSignal::Child => {}
                ArrivedSignal::FromTerminal(_) | ArrivedSignal::FromProcess(_) => return,
            }
        }
    }

    fn start(&self, words: &[OsString]) -> Result<io::Result<Child>> {
        let [program, arguments @ ..] = words else {
            bail!("no command was given");
        };
        let mut command = Command::new(program);
        command.args(arguments);
        let starter = kernel::watch_self().context("cannot watch this process")?;
        kernel::start_behind_first_process(&mut command, starter, self.passed_on);
        let resolv_conf = self.resolv_conf.clone();
        self.inside.run(move || {
            kernel::unshare(UnshareScope::MountsAndProcesses)
                .map_err(user_namespace::explain_refusal)
                .context("cannot make a mount and a process namespace")?;
            kernel::mount(MountKind::KeepToOurselves, OsStr::new("/"))
                .context("cannot keep mounts private")?;
            if let Some(text) = resolv_conf {
                put_over_resolv_conf(&text).context("cannot replace /etc/resolv.conf")?;
            }
            Ok(command.spawn())
        })
    }
}

impl FarEndPlace {
    /// Does something where the link's far end is.
    fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match self {
            FarEndPlace::Host => work(),
            FarEndPlace::Behind(_, room) => room.run(work),
        }
    }
}

/// The setup at the link's far end.
struct FarEndSetup {
    addresses: LinkAddresses,
    nat: NatRules,
    leads_v6: bool,
    listening: Option<resolver::ForwarderSockets>,
}

/// Configures the far end, in its namespace.
fn connect_world(turn: &HostLock, device: &str, is_host: bool, names: bool) -> Result<FarEndSetup> {
    let routes_v6 = routes("-6");
    let addresses = LinkAddresses::choose(&(routes("-4") + &routes_v6))?;
    address(
        device,
        addresses.gateway.into(),
        addresses.gateway_v6.into(),
    )?;
    // Where something answers for every address of the host, it answers for the gateway's too.
    let listening = names.then(|| resolver::listen(addresses.gateway));
    let listening = match listening {
        Some(Err(error)) if error.kind() != io::ErrorKind::AddrInUse => {
            return Err(error).context("cannot listen for questions at the gateway");
        }
        other => other.and_then(Result::ok),
    };
    let services = if is_host {
        GatewayServices {
            v4: Some(Ipv4Addr::LOCALHOST),
            names: listening.is_some(),
        }
    } else {
        // The gateway programs take their own router's address for the host's loopback.
        GatewayServices {
            v4: default_gateway(&routes("-4")),
            names: listening.is_some(),
        }
    };
    let nat = NatRules::set_up(turn, device, &addresses, &services)?;
    Ok(FarEndSetup {
        addresses,
        nat,
        leads_v6: addresses::leads_somewhere_v6(&routes_v6),
        listening,
    })
}

/// Configures the command's end, in its namespace.
fn connect_command(device: &str, addresses: &LinkAddresses, leads_v6: bool) -> Result<()> {
    command::run("ip", ["link", "set", "lo", "up"])?;
    address(
        device,
        addresses.command.into(),
        addresses.command_v6.into(),
    )?;
    let gateway = addresses.gateway.to_string();
    command::run("ip", ["route", "add", "default", "via", &gateway])?;
    if leads_v6 && has_ipv6() {
        let gateway = addresses.gateway_v6.to_string();
        command::run("ip", ["-6", "route", "add", "default", "via", &gateway])?;
    }
    // A new namespace lets nobody ping without privileges; most systems let everybody.
    let (_, group) = kernel::user_and_group();
    let allow = |groups: String| fs::write("/proc/sys/net/ipv4/ping_group_range", groups);
    // In a user namespace there is the own group alone.
    if let Err(error) =
        allow("0 2147483647".to_owned()).or_else(|_| allow(format!("{group} {group}")))
    {
        tracing::debug!(%error, "ping needs privileges");
    }
    Ok(())
}

fn address(device: &str, v4: IpAddr, v6: IpAddr) -> Result<()> {
    let v4 = format!("{v4}/{}", addresses::PREFIX);
    command::run("ip", ["address", "add", &v4, "dev", device])?;
    if has_ipv6() {
        let v6 = format!("{v6}/{}", addresses::PREFIX_V6);
        command::run("ip", ["address", "add", &v6, "dev", device, "nodad"])?;
    }
    Ok(())
}

/// Tells whether this thread's network namespace supports IPv6.
fn has_ipv6() -> bool {
    fs::read_to_string("/proc/sys/net/ipv6/conf/default/disable_ipv6")
        .is_ok_and(|value| value.trim() == "0")
}

/// All routes of an address family; empty where the family is not supported.
fn routes(family: &str) -> String {
    command::run("ip", [family, "route", "show", "table", "all"]).unwrap_or_default()
}

/// The router of the first default route.
fn default_gateway(routes: &str) -> Option<Ipv4Addr> {
    let line = routes
        .lines()
        .find(|line| line.starts_with("default via "))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

fn local_resolvers() -> ResolverConfig {
    ResolverConfig::parse(&fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

const RESOLV_CONF: &str = "/etc/resolv.conf";

/// Mounts another file over /etc/resolv.conf, only in this thread's mount namespace. The file
/// exists only in memory, so it leaves nothing behind.
fn put_over_resolv_conf(text: &str) -> Result<()> {
    // Any directory does: what is in it is covered for as long as this takes, for this thread.
    const COVERED: &str = "/tmp";
    let file = Path::new(COVERED).join("resolv.conf");
    // It may be a link to a file below the directory that is covered.
    let target = fs::canonicalize(RESOLV_CONF)?;
    let target_file = File::open(&target)?;
    kernel::mount(MountKind::Memory, OsStr::new(COVERED))?;
    let put = || -> Result<()> {
        fs::write(&file, text)?;
        let target = format!(
            "/proc/thread-self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&target_file.as_fd())
        );
        kernel::mount(MountKind::Bind(file.as_os_str()), OsStr::new(&target))?;
        Ok(())
    };
    let done = put();
    kernel::unmount(OsStr::new(COVERED))?;
    done
}

fn pass_on(child: &Child, signal: libc::c_int) {
    if let Err(error) = kernel::pass_on_signal(child.id(), signal) {
        tracing::debug!(signal, %error, "the command has just ended");
    }
}
