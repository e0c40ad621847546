//! A virtual machine at one of the lab's sites: Debian's cloud kernel, whose own client for file
//! shares (cifs.ko) is what people mount shares with. The lab's own kernel need not have that client.
//!
//! ```text
//!  host ── control (virtio port, lines of JSON) ──► agent.py ── system calls ──► cifs.ko
//!   └──── tap0 ── eth0 ────────────────────────────────────────────────────────────┘
//! ```
//! [`MachineImage`] makes a kernel and an initramfs from Debian's packages: busybox, the smallest
//! Python, and the modules with what they depend on. [`VirtualMachine`] boots them in QEMU, without
//! KVM, behind a TAP device of a host's namespace, and carries out one request at a time. A
//! machine that does not answer in time is not used again. QEMU is a process of the lab's run: it
//! ends with the value, with the lab, and with the next lab's sweep after a kill.
//!
//! The machine has no disk. Nothing that it does outlasts it.

mod archive;
mod image;
mod modules;

use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::topology::{LabSite, LabTopology};
use host::process::{LaunchConfig, RunningProcess};
use host::run::LabRun;
use host::wait;

pub use image::MachineImage;

/// QEMU's program.
pub const PROGRAM: &str = "qemu-system-x86_64";

/// Memory, in MiB: the kernel, the initramfs and Python take 60, and the rest is page cache.
const MEMORY_MIB: u32 = 256;

/// Time limit for the machine to boot: 10 s on a free processor, 50 s on a busy one.
const BOOT_LIMIT: Duration = Duration::from_secs(120);

/// Interval at which a wait for an answer looks at QEMU and at interruptions.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Longest answer: a listing of some ten thousand names.
const ANSWER_LIMIT: usize = 4 << 20;

/// Name of the control port in the machine; `agent.py` looks for it.
const PORT: &str = "trunkline.control";

/// A running machine; dropping it ends it.
#[derive(Debug)]
pub struct VirtualMachine {
    process: RunningProcess,
    control: UnixStream,
    /// Bytes received after the last answer.
    received: Vec<u8>,
    address: Ipv4Addr,
    last_id: u64,
    /// A request ended without its answer, which may still come.
    is_out_of_step: bool,
}

impl VirtualMachine {
    /// Boots a machine behind the host of a site, and waits until its agent is ready.
    ///
    /// # Errors
    /// Fails when QEMU does not start or the machine does not boot; the message shows the end of its
    /// console.
    pub fn boot(
        run: &LabRun,
        topology: &LabTopology,
        site: LabSite,
        image: &MachineImage,
        logs: &Path,
    ) -> Result<Self> {
        let port = topology.attach_machine(site)?;
        let directory = run.subdirectory(&format!("machine-{}", site.host()))?;
        let initramfs = directory.join("initramfs");
        image.write_initramfs(&initramfs)?;
        let socket = directory.join("control");
        let name = format!("machine-{}", site.host());
        let launch = LaunchConfig {
            name: &name,
            namespace: &topology.namespace(site.host()),
            program: Path::new(PROGRAM),
            logs,
        };
        let append = format!(
            "console=ttyS0 quiet panic=-1 lab.address={}/30 lab.gateway={}",
            port.address, port.gateway
        );
        let memory = MEMORY_MIB.to_string();
        let control = format!(
            "socket,id=control,path={},server=on,wait=off",
            socket.display()
        );
        let agent = format!("virtserialport,chardev=control,name={PORT}");
        let tap = format!("tap,id=lan,ifname={},script=no,downscript=no", port.device);
        let (kernel, initramfs) = (image.kernel(), initramfs.display().to_string());
        let kernel = kernel.display().to_string();
        let arguments = [
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-machine",
            "q35",
            // KVM inside another machine may accept the machine and never run it.
            "-accel",
            "tcg",
            "-cpu",
            "max",
            "-smp",
            "1",
            "-m",
            &memory,
            "-kernel",
            &kernel,
            "-initrd",
            &initramfs,
            "-append",
            &append,
            "-serial",
            "stdio",
            "-device",
            "virtio-serial-pci",
            "-chardev",
            &control,
            "-device",
            &agent,
            "-netdev",
            &tap,
            "-device",
            "virtio-net-pci,netdev=lan,romfile=",
        ];
        let mut process = RunningProcess::start(run, &launch, arguments)?;
        let control = wait::until(BOOT_LIMIT, "the machine's control port", || {
            process.check()?;
            Ok(UnixStream::connect(&socket).ok())
        })?;
        control.set_read_timeout(Some(LOOK_EVERY))?;
        let mut machine = Self {
            process,
            control,
            received: Vec::new(),
            address: port.address,
            last_id: 0,
            is_out_of_step: false,
        };
        machine
            .answer(BOOT_LIMIT)
            .with_context(|| format!("booting the machine; its console:\n{}", machine.console()))?;
        Ok(machine)
    }

    /// The machine's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// The last lines of its console.
    #[must_use]
    pub fn console(&self) -> String {
        self.process.log_end()
    }

    /// Has the agent carry out an action, and returns its result.
    ///
    /// # Errors
    /// Fails when the action fails in the machine, does not end within `limit`, or the machine has
    /// ended. After a limit the machine cannot be used any more.
    pub fn request(&mut self, limit: Duration, action: &str, fields: Value) -> Result<Value> {
        if self.is_out_of_step {
            bail!("the machine has not answered an earlier request; boot another one");
        }
        self.last_id += 1;
        let mut request = json!({ "id": self.last_id, "do": action });
        if let (Some(request), Value::Object(fields)) = (request.as_object_mut(), fields) {
            request.extend(fields);
        }
        // Until the answer is there.
        self.is_out_of_step = true;
        let said = self
            .control
            .write_all(format!("{request}\n").as_bytes())
            .map_err(anyhow::Error::from)
            .and_then(|()| self.answer(limit))
            .with_context(|| {
                let console = self.console();
                format!("the machine carries out {action}; its console:\n{console}")
            })?;
        self.is_out_of_step = false;
        if let Some(error) = said["error"].as_str() {
            bail!("{action} failed in the machine: {error}");
        }
        Ok(said["ok"].clone())
    }

    /// Runs a command of busybox's shell in the machine, and returns what it printed.
    ///
    /// # Errors
    /// Fails as [`Self::request`] does, and when the command fails; the message has its output.
    pub fn shell(&mut self, limit: Duration, command: &str) -> Result<String> {
        let fields = json!({ "command": command, "limit_s": limit.as_secs() });
        // The agent ends the command itself.
        let outcome = self.request(limit + Duration::from_secs(30), "shell", fields)?;
        let output = outcome["output"].as_str().unwrap_or_default();
        match outcome["status"].as_i64() {
            Some(0) => Ok(output.to_owned()),
            status => bail!(
                "`{command}` failed in the machine ({status:?}): {}",
                output.trim()
            ),
        }
    }

    /// Checks that the machine still runs.
    ///
    /// # Errors
    /// Fails when it has ended.
    pub fn check(&mut self) -> Result<()> {
        self.process.check()
    }

    /// Waits for the answer to the last request.
    fn answer(&mut self, limit: Duration) -> Result<Value> {
        let began = Instant::now();
        let mut buffer = [0; 16 << 10];
        loop {
            while let Some(end) = self.received.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.received.drain(..=end).collect();
                let said: Value = serde_json::from_slice(&line).with_context(|| {
                    format!("the machine said {}", String::from_utf8_lossy(&line))
                })?;
                if said["id"].as_u64() == Some(self.last_id) {
                    return Ok(said);
                }
            }
            if self.received.len() > ANSWER_LIMIT {
                bail!("its answer has more than {ANSWER_LIMIT} bytes");
            }
            if began.elapsed() > limit {
                bail!("no answer within {} s", limit.as_secs());
            }
            wait::not_interrupted()?;
            self.process.check()?;
            match self.control.read(&mut buffer) {
                Ok(0) => bail!("the machine closed its control port"),
                Ok(count) => self.received.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("reading the machine's control port"),
            }
        }
    }
}
