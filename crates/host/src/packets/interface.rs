//! Existing interface that a bridge uses.
//!
//! It is checked first: an interface that cannot carry Ethernet frames, or whose use would cut this
//! host off, is refused before anything is changed. Then it is brought up, set to show packets as
//! they are on the wire, and hidden from this host's own network stack. All changes are reverted
//! when it is released. The kernel itself undoes promiscuous mode and the hiding when a process
//! dies; only `up` and the offloads stay changed then.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, Result, anyhow, bail};

use super::bpf::{self, AttachedProgram, FilterDirection};
use super::interface_system::{self as system, OffloadFeature};
use super::interface_use;
use super::namespace::{NetworkNamespace, within};

/// An interface in use; dropping it puts it back as it was.
#[derive(Debug)]
pub struct ClaimedInterface {
    name: String,
    index: i32,
    mtu: usize,
    /// Number of the interface's network namespace in the kernel.
    namespace_id: u64,
    driver: String,
    receive_queues: u32,
    socket: OwnedFd,
    was_up: bool,
    switched_off: Vec<OffloadFeature>,
    /// Filters that keep this host out, in both directions.
    hidden: Vec<AttachedProgram>,
    /// Says to other links that it is taken: a name that one process at a time can have in this
    /// network namespace, and that goes with the process.
    claim: Option<UnixListener>,
}

impl ClaimedInterface {
    /// Looks at an interface without changing it.
    ///
    /// # Errors
    /// When there is none of this name, or it cannot be an end of a bridge.
    pub fn find(name: &str, namespace: Option<&NetworkNamespace>) -> Result<Self> {
        in_namespace(namespace, || Self::find_here(name)).with_context(|| match namespace {
            Some(namespace) => format!("cannot bridge {name} in {namespace}"),
            None => format!("cannot bridge {name}"),
        })
    }

    fn find_here(name: &str) -> Result<Self> {
        let socket = system::question_socket().context("cannot open a socket")?;
        let index = system::index(&socket, name).map_err(|error| explain_missing(&error))?;
        let flags = system::flags(&socket, name)?;
        let hardware = system::hardware(&socket, name)?;
        if flags & libc::IFF_LOOPBACK != 0 {
            bail!("it is the loopback device, which leads nowhere; name an Ethernet interface");
        }
        if hardware != libc::ARPHRD_ETHER {
            bail!(
                "it carries no Ethernet frames (a TUN device or a tunnel, hardware type {hardware}); name an Ethernet interface, or let `trunkline emulate run` make its own TUN devices with --device-a and --device-b"
            );
        }
        let found = interface_use::of_interface(index)
            .context("the kernel does not list what it is used for")?;
        if let Some(found) = found {
            bail!("{}", found.explain(name));
        }
        Ok(Self {
            name: name.to_owned(),
            index,
            mtu: system::mtu(&socket, name)?,
            namespace_id: fs::metadata("/proc/thread-self/ns/net")
                .context("/proc is not there")?
                .ino(),
            // Not every driver answers; the answers only choose among messages and queues.
            driver: system::driver(&socket, name).unwrap_or_default(),
            receive_queues: system::receive_queues(&socket, name).map_or(1, |count| count.max(1)),
            was_up: flags & libc::IFF_UP != 0,
            switched_off: Vec::new(),
            hidden: Vec::new(),
            claim: None,
            socket,
        })
    }

    /// Brings it up, switches `features` off, and hides it from this host.
    ///
    /// # Errors
    /// When another link has it, or the user may not.
    pub fn take(
        &mut self,
        namespace: Option<&NetworkNamespace>,
        features: &[OffloadFeature],
    ) -> Result<()> {
        self.claim(namespace)?;
        // Before it comes up, so that this host announces no address of its own on it.
        self.hide(namespace);
        self.prepare(features)
    }

    /// Brings it up and switches `features` off, and leaves it visible to this host's network stack,
    /// whose queueing discipline then sends the frames.
    ///
    /// # Errors
    /// When another program of ours has it, or the user may not.
    pub fn take_visible(
        &mut self,
        namespace: Option<&NetworkNamespace>,
        features: &[OffloadFeature],
    ) -> Result<()> {
        self.claim(namespace)?;
        self.prepare(features)
    }

    fn claim(&mut self, namespace: Option<&NetworkNamespace>) -> Result<()> {
        let index = self.index;
        self.claim = Some(in_namespace(namespace, move || claim(index))?);
        Ok(())
    }

    fn prepare(&mut self, features: &[OffloadFeature]) -> Result<()> {
        for feature in features {
            self.switch_off(*feature);
        }
        if !self.was_up {
            system::set_up(&self.socket, &self.name, true).with_context(|| {
                format!(
                    "cannot bring {} up; it takes CAP_NET_ADMIN: run as root",
                    self.name
                )
            })?;
        }
        Ok(())
    }

    fn hide(&mut self, namespace: Option<&NetworkNamespace>) {
        let index = self.index;
        for way in [FilterDirection::In, FilterDirection::Out] {
            match in_namespace(namespace, || Ok(bpf::attach_drop_filter(index, way)?)) {
                Ok(attached) => self.hidden.push(attached),
                Err(error) => tracing::info!(
                    interface = self.name,
                    ?way,
                    error = format!("{error:#}"),
                    "this host's own network stack hears or speaks on a bridged interface; before Linux 6.6 it cannot be kept out"
                ),
            }
        }
    }

    fn switch_off(&mut self, feature: OffloadFeature) {
        if !matches!(system::feature(&self.socket, &self.name, feature), Ok(true)) {
            return;
        }
        match system::set_feature(&self.socket, &self.name, feature, false) {
            Ok(()) => self.switched_off.push(feature),
            Err(error) => {
                tracing::warn!(interface = self.name, ?feature, %error, "an offload stays on");
            }
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn index(&self) -> i32 {
        self.index
    }

    /// The longest payload of its frames.
    pub fn mtu(&self) -> usize {
        self.mtu
    }

    /// Returns the number of receive queues.
    pub fn receive_queues(&self) -> u32 {
        self.receive_queues
    }

    /// Returns `true` if the other end is an interface of this machine as well.
    pub fn is_veth(&self) -> bool {
        self.driver == "veth"
    }

    /// Returns `true` if it and `other` are the same interface.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.index == other.index && self.namespace_id == other.namespace_id
    }

    /// Says whether large packets may be handed to it to be split.
    pub fn splits_large_packets(&self) -> bool {
        matches!(
            system::feature(&self.socket, &self.name, OffloadFeature::TcpSegmentation),
            Ok(true)
        )
    }

    /// Judges what a socket of this interface was told.
    ///
    /// # Errors
    /// When the interface is gone. One that is only down may come up again.
    pub fn check_socket_error(&self, error: &io::Error) -> Result<()> {
        if !system::exists(&self.socket, self.index) {
            bail!(
                "the interface {} is gone ({error}); it was deleted or moved to another network namespace, and the link has ended",
                self.name
            );
        }
        tracing::warn!(interface = self.name, %error, "nothing passes until the interface is up again");
        Ok(())
    }
}

impl Drop for ClaimedInterface {
    fn drop(&mut self) {
        if !system::exists(&self.socket, self.index) {
            return;
        }
        for feature in self.switched_off.drain(..) {
            if let Err(error) = system::set_feature(&self.socket, &self.name, feature, true) {
                tracing::warn!(interface = self.name, ?feature, %error, "an offload stays off");
            }
        }
        if !self.was_up
            && let Err(error) = system::set_up(&self.socket, &self.name, false)
        {
            tracing::warn!(interface = self.name, %error, "the interface stays up");
        }
    }
}

/// Two links over one interface would each pass every packet on.
fn claim(index: i32) -> Result<UnixListener> {
    let address = SocketAddr::from_abstract_name(format!("trunkline-bridge-{index}"))?;
    UnixListener::bind_addr(&address).map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => {
            anyhow!("another link bridges it already, or a profiler measures through it; `trunkline emulate status` shows the links")
        }
        _ => anyhow!(error).context("cannot be marked as taken"),
    })
}

/// Runs `work` where the interface is.
pub fn in_namespace<T: Send>(
    namespace: Option<&NetworkNamespace>,
    work: impl FnOnce() -> Result<T> + Send,
) -> Result<T> {
    let file = namespace.map(NetworkNamespace::open).transpose()?;
    within(file.as_ref().map(AsFd::as_fd), work)
}

fn explain_missing(error: &io::Error) -> anyhow::Error {
    match error.raw_os_error() {
        Some(libc::ENODEV) => {
            anyhow!("there is no such interface; `ip link` shows those there are")
        }
        _ => anyhow!("the kernel does not say which interface that is: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unbridgeable_interface_is_refused_with_reason() {
        let missing = ClaimedInterface::find("no-such-device", None).unwrap_err();
        assert!(format!("{missing:#}").contains("no such interface"));
        let loopback = ClaimedInterface::find("lo", None).unwrap_err();
        assert!(format!("{loopback:#}").contains("loopback"));
    }
}
