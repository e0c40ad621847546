//! The lab's network: five namespaces in a row, with the emulated link in the middle.
//!
//! ```text
//!  client        near             wan                        far          server
//!  lan0 ─────── lan0  wan0 ───── near  tun-a ≈≈≈≈≈ tun-b  far ───── wan0  lan0 ─────── lan0
//! ```
//! In the WAN's namespace a packet that comes in from `near` is routed to `tun-a` and one from
//! `far` to `tun-b`, whatever its destination; the emulator carries packets from one device to
//! the other, and only then are they routed to the other side. With the emulator stopped the
//! devices are gone and an `unreachable` route of last resort is what is left: nothing arrives.
//!
//! All veth devices and the emulator have their segmentation offloads off unless a user asks for
//! them, so that captures see the packets of at most 1500 bytes that a wire would carry. Client and server use CUBIC by a
//! route attribute (`congctl`), which holds for unmodified programs where the sysctl is refused.
//! Every setting that the kernel may silently ignore is read back.
//!
//! It starts nothing: servers, nodes and the emulator are started in its namespaces by others.

mod addresses;
mod machine_port;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use host::process::{LaunchConfig, RunningProcess};
use host::run::{LabRun, namespace_path};
use host::{command, kernel, wait};

pub use addresses::{LabSite, is_host};
pub use machine_port::MachinePort;

/// The emulator's device that packets from the near side go into.
pub const TUN_NEAR: &str = "tun-a";
/// The emulator's device that packets from the far side go into.
pub const TUN_FAR: &str = "tun-b";
/// The congestion control of client and server.
pub const HOST_CONGESTION_CONTROL: &str = "cubic";

/// Offloads that would let packets of up to 64 kB pass as one.
const OFFLOADS: [&str; 3] = ["tso", "gso", "gro"];

/// Time limit for the emulator to open its two devices.
const EMULATOR_START_LIMIT: Duration = Duration::from_secs(10);

/// Permission for devices to use segmentation offload, which handles runs of packets as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OffloadMode {
    /// Offloads are off.
    Off,
    /// Offloads stay as the kernel has them.
    Kept,
}

/// Arguments for the emulated link, as `trunkline emulate run` takes them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkArguments(pub Vec<String>);

/// The namespaces and all that connects them.
#[derive(Debug)]
pub struct LabTopology {
    id: String,
    sites: Vec<LabSite>,
    offloads: OffloadMode,
}

impl LabTopology {
    /// Makes the namespaces, devices, addresses and routes for `sites`.
    ///
    /// # Errors
    /// When the kernel refuses something, or accepted it and did not do it.
    pub fn create(run: &LabRun, sites: &[LabSite]) -> Result<Self> {
        Self::create_with(run, sites, OffloadMode::Off)
    }

    /// Creates the topology as [`Self::create`] does, with the given offloads.
    ///
    /// # Errors
    /// Fails as [`Self::create`] does.
    pub fn create_with(run: &LabRun, sites: &[LabSite], offloads: OffloadMode) -> Result<Self> {
        let topology = Self {
            id: run.id().to_owned(),
            sites: sites.to_vec(),
            offloads,
        };
        run.make_namespace("wan")?;
        for site in sites {
            run.make_namespace(site.host())?;
            run.make_namespace(site.node())?;
        }
        topology.configure_kernel()?;
        topology.connect()?;
        topology.keep_the_link_quiet()?;
        if offloads == OffloadMode::Off {
            topology.switch_offloads_off()?;
        }
        Ok(topology)
    }

    /// The name of the namespace with this role.
    #[must_use]
    pub fn namespace(&self, role: &str) -> String {
        format!("tl{}-{role}", self.id)
    }

    /// The file of the namespace with this role.
    #[must_use]
    pub fn namespace_file(&self, role: &str) -> PathBuf {
        namespace_path(&self.namespace(role))
    }

    /// The sites beside the WAN.
    #[must_use]
    pub fn sites(&self) -> &[LabSite] {
        &self.sites
    }

    fn roles(&self) -> Vec<&'static str> {
        let mut roles = vec!["wan"];
        for site in &self.sites {
            roles.extend([site.host(), site.node()]);
        }
        roles
    }

    /// Makes settings that must be in force before the first device appears, so that devices start
    /// with them.
    fn configure_kernel(&self) -> Result<()> {
        for role in self.roles() {
            let routes = !matches!(role, "client" | "server" | "server3");
            kernel::in_network_namespace(&self.namespace_file(role), || {
                let set = |name: &str, value: &str| {
                    std::fs::write(format!("/proc/sys/net/{name}"), value)
                };
                for scope in ["all", "default"] {
                    // The far node sends with the client's address, and the WAN routes by
                    // interface: both look like spoofing to the reverse path filter.
                    set(&format!("ipv4/conf/{scope}/rp_filter"), "0")?;
                    set(&format!("ipv4/conf/{scope}/send_redirects"), "0")?;
                    set(&format!("ipv6/conf/{scope}/accept_dad"), "0")?;
                    set(&format!("ipv6/conf/{scope}/accept_ra"), "0")?;
                    set(&format!("ipv6/conf/{scope}/router_solicitations"), "0")?;
                }
                // What one pass learnt about the path must not help the next one.
                set("ipv4/tcp_no_metrics_save", "1")?;
                // Servers run as whoever started the lab.
                set("ipv4/ip_unprivileged_port_start", "0")?;
                if routes {
                    set("ipv4/ip_forward", "1")?;
                    set("ipv6/conf/all/forwarding", "1")?;
                }
                Ok(())
            })
            .with_context(|| format!("setting up the kernel in the namespace {role}"))?;
        }
        Ok(())
    }

    fn connect(&self) -> Result<()> {
        for role in self.roles() {
            self.ip(role, "link set lo up\n")?;
        }
        for site in &self.sites {
            let (host, node) = (site.host(), site.node());
            self.ip(
                host,
                &format!(
                    "link add lan0 type veth peer name lan0 netns {}\n",
                    self.namespace(node)
                ),
            )?;
            self.ip(
                node,
                &format!(
                    "link add wan0 type veth peer name {node} netns {}\n",
                    self.namespace("wan")
                ),
            )?;
            self.ip(
                host,
                &format!(
                    "address add {}/24 dev lan0\naddress add {}/64 dev lan0 nodad\nlink set lan0 up\n",
                    site.host_address(),
                    site.host_address_v6()
                ),
            )?;
            self.ip(
                node,
                &format!(
                    "address add {}/24 dev lan0\naddress add {}/64 dev lan0 nodad\nlink set lan0 up\n\
                     address add {}/30 dev wan0\naddress add {}/64 dev wan0 nodad\nlink set wan0 up\n",
                    site.gateway(),
                    site.gateway_v6(),
                    site.wan_address(),
                    site.wan_address_v6()
                ),
            )?;
            self.ip(
                "wan",
                &format!(
                    "address add {}/30 dev {node}\naddress add {}/64 dev {node} nodad\nlink set {node} up\n",
                    site.wan_gateway(),
                    site.wan_gateway_v6()
                ),
            )?;
        }
        for site in &self.sites {
            self.add_routes(*site)?;
        }
        Ok(())
    }

    fn add_routes(&self, site: LabSite) -> Result<()> {
        self.ip(
            site.host(),
            &format!(
                "route add default via {} congctl {HOST_CONGESTION_CONTROL}\n\
                 -6 route add default via {} congctl {HOST_CONGESTION_CONTROL}\n",
                site.gateway(),
                site.gateway_v6()
            ),
        )?;
        self.ip(
            site.node(),
            &format!(
                "route add default via {}\n-6 route add default via {}\n",
                site.wan_gateway(),
                site.wan_gateway_v6()
            ),
        )?;
        let node = site.node();
        let table = 100 + u32::from(site.number());
        // Metric 4294967295 is the last resort: the emulator's route, once there, goes first.
        self.ip(
            "wan",
            &format!(
                "route add {} via {}\n-6 route add {} via {}\n\
                 rule add iif {node} lookup {table} priority {table}\n\
                 -6 rule add iif {node} lookup {table} priority {table}\n\
                 route add unreachable default metric 4294967295 table {table}\n\
                 -6 route add unreachable default metric 4294967295 table {table}\n",
                site.prefix(),
                site.wan_address(),
                site.prefix_v6(),
                site.wan_address_v6(),
            ),
        )
    }

    /// Disables link-local addresses on devices that the WAN's namespace gets from now on, which
    /// are the emulator's: their packets would cross the measured link. The veths need such an
    /// address, because a router without one does not resolve its neighbours.
    fn keep_the_link_quiet(&self) -> Result<()> {
        kernel::in_network_namespace(&self.namespace_file("wan"), || {
            std::fs::write("/proc/sys/net/ipv6/conf/default/addr_gen_mode", "1")
        })
        .context("keeping the emulator's devices quiet")
    }

    fn switch_offloads_off(&self) -> Result<()> {
        for role in self.roles() {
            let devices: &[&str] = match role {
                "wan" => &self
                    .sites
                    .iter()
                    .map(|site| site.node())
                    .collect::<Vec<_>>(),
                "client" | "server" | "server3" => &["lan0"],
                _ => &["lan0", "wan0"],
            };
            for device in devices {
                let mut ethtool = command::new("ethtool");
                ethtool.args(["-K", device]);
                for offload in OFFLOADS {
                    ethtool.args([offload, "off"]);
                }
                kernel::prepare_child(&mut ethtool, Some(&self.namespace_file(role)))?;
                command::finish("ethtool", &mut ethtool, None)?;
                let mut show = command::new("ethtool");
                show.args(["-k", device]);
                kernel::prepare_child(&mut show, Some(&self.namespace_file(role)))?;
                let features = command::finish("ethtool", &mut show, None)?;
                for feature in [
                    "tcp-segmentation-offload",
                    "generic-segmentation-offload",
                    "generic-receive-offload",
                ] {
                    ensure!(
                        features.contains(&format!("{feature}: off")),
                        "{feature} stayed on at {device} in {role} although it was switched off"
                    );
                }
            }
        }
        Ok(())
    }

    /// Starts the emulator in the WAN's namespace and leads the traffic between `near` and the
    /// other sites through it.
    ///
    /// With a third site its packets share the far side's end of the link.
    ///
    /// # Errors
    /// When the emulator does not come up.
    pub fn start_emulator(
        &self,
        run: &LabRun,
        logs: &std::path::Path,
        link: &LinkArguments,
    ) -> Result<RunningProcess> {
        let launch = LaunchConfig {
            name: "emulator",
            namespace: &self.namespace("wan"),
            program: &run.environment().program,
            logs,
        };
        let mut arguments: Vec<String> = ["emulate", "run"].map(str::to_owned).to_vec();
        arguments.extend(["--device-a", TUN_NEAR, "--device-b", TUN_FAR].map(str::to_owned));
        if self.offloads == OffloadMode::Off {
            // WAN bytes are counted in a capture at its device, which must hold single packets.
            arguments.push("--no-offloads".to_owned());
        }
        arguments.extend(link.0.iter().cloned());
        let log = logs.join("emulator.log");
        let before = std::fs::read_to_string(&log).unwrap_or_default().len();
        let mut emulator = RunningProcess::start(run, &launch, arguments)?;
        emulator.wait_ready(EMULATOR_START_LIMIT, "to print \"ready\"", || {
            let text = std::fs::read_to_string(&log).unwrap_or_default();
            Ok(text[before.min(text.len())..]
                .lines()
                .any(|line| line.trim_end() == "ready"))
        })?;
        self.route_through_emulator()?;
        Ok(emulator)
    }

    /// Joins the nodes of two sites by one pair of devices, with their addresses as they are and
    /// nothing between them. There is no way back to the WAN's namespace.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn join_directly(&self, one: LabSite, other: LabSite) -> Result<()> {
        for site in [one, other] {
            self.ip(site.node(), "link del wan0\n")?;
        }
        self.ip(
            one.node(),
            &format!(
                "link add wan0 type veth peer name wan0 netns {}\n",
                self.namespace(other.node())
            ),
        )?;
        for site in [one, other] {
            self.ip(
                site.node(),
                &format!(
                    "address add {}/32 dev wan0\nlink set wan0 up\nroute add default dev wan0\n",
                    site.wan_address()
                ),
            )?;
        }
        Ok(())
    }

    /// Leads the traffic between two sites straight through the WAN's namespace, without an emulator.
    ///
    /// # Errors
    /// Fails when the kernel refuses, for example because an emulator runs.
    pub fn lead_past_emulator(&self, one: LabSite, other: LabSite) -> Result<()> {
        self.change_direct_routes("add", one, other)
    }

    /// Ends what [`Self::lead_past_emulator`] began; an emulator can start then.
    ///
    /// # Errors
    /// Fails when the kernel refuses.
    pub fn lead_to_emulator(&self, one: LabSite, other: LabSite) -> Result<()> {
        self.change_direct_routes("del", one, other)
    }

    fn change_direct_routes(&self, action: &str, one: LabSite, other: LabSite) -> Result<()> {
        for (from, to) in [(one, other), (other, one)] {
            let table = 100 + u32::from(from.number());
            let (gateway, device) = (to.wan_address(), to.node());
            self.ip(
                "wan",
                &format!("route {action} default via {gateway} dev {device} table {table}\n"),
            )?;
        }
        Ok(())
    }

    /// Gives `from`'s node a route to `to`'s gateway address that no node intercepts, with this
    /// congestion control for the traffic that `from` sends on it.
    ///
    /// # Errors
    /// Fails when the kernel refuses, for example because it does not have the congestion control.
    pub fn pass_by(&self, from: LabSite, to: LabSite, congestion_control: &str) -> Result<()> {
        self.ip(
            from.node(),
            &format!(
                "route replace {}/32 via {} src {} congctl {congestion_control}\n",
                to.gateway(),
                from.wan_gateway(),
                from.gateway()
            ),
        )
    }

    /// Routes traffic from each side into the emulator's devices; needed each time they appear,
    /// because a device takes its routes with it.
    fn route_through_emulator(&self) -> Result<()> {
        for site in &self.sites {
            let table = 100 + u32::from(site.number());
            let device = match site {
                LabSite::Near => TUN_NEAR,
                LabSite::Far | LabSite::Third => TUN_FAR,
            };
            self.ip(
                "wan",
                &format!(
                    "route add default dev {device} table {table}\n\
                     -6 route add default dev {device} metric 1 table {table}\n"
                ),
            )?;
        }
        Ok(())
    }

    /// Checks that `command` really is in force: opens a connection from the client to `port` of
    /// the server and asks both ends' sockets.
    ///
    /// Returns the congestion control of client and server.
    ///
    /// # Errors
    /// When either end uses another one.
    pub fn verify_congestion_control(&self, port: u16) -> Result<(String, String)> {
        let address = std::net::SocketAddr::from((LabSite::Far.host_address(), port));
        let stream = kernel::in_network_namespace(&self.namespace_file("client"), || {
            std::net::TcpStream::connect_timeout(&address, Duration::from_secs(10))
        })
        .with_context(|| format!("connecting from the client to {address}"))?;
        let client = kernel::congestion_control(&stream)?;
        let local = stream.local_addr()?.port();
        let server = wait::until(Duration::from_secs(5), "the server's socket", || {
            let sockets = self.sockets("server", &format!("dport = :{local}"))?;
            Ok(sockets
                .split_whitespace()
                .find(|word| ["cubic", "bbr", "reno"].contains(word))
                .map(str::to_owned))
        })?;
        for (end, name) in [("client", &client), ("server", &server)] {
            ensure!(
                name == HOST_CONGESTION_CONTROL,
                "the {end} uses {name} although its route says {HOST_CONGESTION_CONTROL}"
            );
        }
        Ok((client, server))
    }

    /// Output of `ss -tinH` for the established TCP sockets that `filter` selects in `role`.
    ///
    /// # Errors
    /// When ss fails.
    pub fn sockets(&self, role: &str, filter: &str) -> Result<String> {
        let mut ss = command::new("ss");
        ss.args(["-tinH", "state", "established"]);
        ss.args(filter.split_whitespace());
        kernel::prepare_child(&mut ss, Some(&self.namespace_file(role)))?;
        command::finish("ss", &mut ss, None)
    }

    /// Runs a batch of ip(8) commands in a namespace; those that start with `-6` come last,
    /// because a batch is of one family.
    fn ip(&self, role: &str, batch: &str) -> Result<()> {
        let (v6, v4): (Vec<&str>, Vec<&str>) = batch
            .lines()
            .partition(|line| line.trim().starts_with("-6"));
        for (family, lines) in [("-4", v4), ("-6", v6)] {
            let lines: Vec<&str> = lines
                .iter()
                .map(|line| line.trim().trim_start_matches("-6 "))
                .collect();
            if lines.is_empty() {
                continue;
            }
            let arguments = ["-n", &self.namespace(role), family, "-batch", "-"];
            // `-4` would keep `address add` from taking IPv6 addresses.
            let arguments = arguments.iter().filter(|argument| **argument != "-4");
            command::run_with_input("ip", arguments, &(lines.join("\n") + "\n"))
                .with_context(|| format!("configuring the namespace {role}:\n{batch}"))?;
        }
        Ok(())
    }
}
