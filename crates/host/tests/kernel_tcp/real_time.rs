//! A thread in a network namespace of its own, its TUN device, and an emulated link in real time.

use std::fs;
use std::io::Write;
use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use emulate::{Link, LinkConfig, PacketDelivery};
use host::first_process::{UnshareScope, unshare};
use host::packets::device::{LinkDevice, ReceivedPacket};
use host::packets::system::{raise_priority, sharpen_timers, wait_readable};
use host::packets::tun::TunDevice;
use host::packets::{LinkEndpoint, OffloadSetting};
use tcp::{TcpHost, emit_packet, parse_packet};
use vocab::Time;

/// Address of the kernel, and the one behind the link.
pub(crate) const KERNEL: &str = "10.9.0.1";
pub(crate) const BEHIND_LINK: &str = "10.9.0.2";
pub(crate) const PORT: u16 = 5_201;

const DEVICE: &str = "tcp0";
/// Packets that are read at once.
const READ_AT_ONCE: usize = 64;
/// Position of the source and the target in an IPv4 header.
const SOURCE_AT: usize = 12;
const TARGET_AT: usize = 16;

/// Runs `body` in a thread with a namespace and a device; `None` where that is not allowed.
pub(crate) fn in_own_namespace<T: Send>(body: impl FnOnce(TunDevice) -> T + Send) -> Option<T> {
    std::thread::scope(|scope| {
        let inside = scope.spawn(|| {
            let device = open_device()?;
            Some(body(device))
        });
        inside.join().unwrap()
    })
}

fn open_device() -> Option<TunDevice> {
    let opened = unshare(UnshareScope::Network)
        .map_err(anyhow::Error::from)
        .and_then(|()| TunDevice::create(&LinkEndpoint::here(DEVICE), OffloadSetting::Off));
    let device = match opened {
        Ok(device) => device,
        Err(error) => {
            let reason = format!("skipped: no namespace with a TUN device ({error:#})\n");
            let _ = std::io::stdout().write_all(reason.as_bytes());
            return None;
        }
    };
    let address = format!("{KERNEL}/24");
    let steps: [&[&str]; 3] = [
        &["link", "set", "lo", "up"],
        // The kernel hands over segments one by one, as `tcp` sends them.
        &["link", "set", DEVICE, "gso_max_segs", "1"],
        &["address", "add", &address, "dev", DEVICE],
    ];
    for step in steps {
        let done = Command::new("ip").args(step).status().unwrap();
        assert!(done.success(), "ip {step:?}");
    }
    for (name, value) in [
        // Nothing is remembered from one connection for the next one.
        ("tcp_no_metrics_save", "1"),
        // The windows never limit a sender.
        ("tcp_rmem", "4096 16000000 33554432"),
        ("tcp_wmem", "4096 16000000 33554432"),
    ] {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
    Some(device)
}

/// The other side of the link.
pub(crate) enum FarSide<'a> {
    /// A host of `tcp` with the address behind the link.
    Host(&'a mut TcpHost),
    /// The same kernel: each packet comes back as if from the address behind the link. Check sums stay
    /// right, because source and target change places.
    Kernel,
}

/// Clock, device and link.
pub(crate) struct RealTimeLink {
    device: TunDevice,
    link: Link,
    start: Instant,
    received: Vec<ReceivedPacket>,
    turns: u64,
    late_turns: u64,
    pauses: Vec<(Time, Time)>,
}

/// Delay behind the due time from which a turn of the link counts as late.
const LATE: Duration = Duration::from_millis(1);
/// ... from which it is kept as a pause.
const PAUSE_LEAST: Duration = Duration::from_micros(20);

impl RealTimeLink {
    pub(crate) fn new(device: TunDevice, config: LinkConfig) -> Self {
        config.check().unwrap();
        sharpen_timers();
        // Late packets come in bursts, which a shallow queue drops. Without the right it goes on.
        let _ = raise_priority();
        Self {
            device,
            link: Link::new(config),
            start: Instant::now(),
            received: Vec::new(),
            turns: 0,
            late_turns: 0,
            pauses: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        Time::from_epoch(self.start.elapsed())
    }

    /// Share of the turns that came more than a millisecond late.
    pub(crate) fn late_share(&self) -> f64 {
        self.late_turns as f64 / self.turns.max(1) as f64
    }

    /// Times between which the machine did not let the link work, since its start.
    pub(crate) fn into_pauses(self) -> Vec<(Time, Time)> {
        self.pauses
    }

    /// Carries packets until `is_done`. The forward direction leads to the listening port.
    pub(crate) fn run(
        &mut self,
        mut far: FarSide<'_>,
        mut is_done: impl FnMut(Time, &mut FarSide<'_>) -> bool,
    ) {
        loop {
            let now = self.now();
            if let Some(due) = self.link.poll_timeout()
                && due <= now
            {
                self.turns += 1;
                self.late_turns += u64::from(now.since(due) > LATE);
                if now.since(due) >= PAUSE_LEAST {
                    self.pauses.push((due, now));
                }
            }
            self.device
                .receive(READ_AT_ONCE, &mut self.received)
                .unwrap();
            for packet in std::mem::take(&mut self.received) {
                self.take(now, packet.packet);
            }
            if let FarSide::Host(host) = &mut far {
                host.handle_timeout(now);
                while let Some((addresses, segment)) = host.poll_output(now) {
                    self.take(now, emit_packet(&addresses, &segment));
                }
            }
            self.deliver(now, &mut far);
            if is_done(now, &mut far) {
                return;
            }
            self.wait(&far);
        }
    }

    /// Hands a packet to the direction that its ports name.
    fn take(&mut self, now: Time, packet: Bytes) {
        let target = packet
            .get(22..24)
            .map(|two| u16::from_be_bytes([two[0], two[1]]));
        let is_tcp = packet.first() == Some(&0x45) && packet.get(9) == Some(&6);
        match target.filter(|_| is_tcp) {
            Some(PORT) => drop(self.link.forward.handle(now, packet)),
            Some(_) => drop(self.link.back.handle(now, packet)),
            None => {}
        }
    }

    fn deliver(&mut self, now: Time, far: &mut FarSide<'_>) {
        loop {
            let next = self.link.forward.poll_output(now);
            let Some(delivery) = next.or_else(|| self.link.back.poll_output(now)) else {
                break;
            };
            match far {
                FarSide::Kernel => self.device.send(reflected(delivery)),
                FarSide::Host(host) => {
                    let to_host = parse_packet(&delivery.packet)
                        .ok()
                        .filter(|(addresses, _)| addresses.local.ip().to_string() == BEHIND_LINK);
                    match to_host {
                        Some((addresses, segment)) => host.handle(now, addresses, &segment),
                        None => self.device.send(delivery),
                    }
                }
            }
        }
        self.device.flush();
    }

    fn wait(&self, far: &FarSide<'_>) {
        let timer = match far {
            FarSide::Host(host) => host.poll_timeout(),
            FarSide::Kernel => None,
        };
        let due = timer.into_iter().chain(self.link.poll_timeout()).min();
        let span = due.map_or(Duration::from_millis(20), |due| due.since(self.now()));
        let span = span.min(Duration::from_millis(20));
        if !span.is_zero() {
            wait_readable([self.device.file()], Some(span)).unwrap();
        }
    }
}

/// The packet with source and target in each other's place.
fn reflected(mut delivery: PacketDelivery) -> PacketDelivery {
    let mut bytes = delivery.packet.to_vec();
    let (source, target) = bytes[SOURCE_AT..TARGET_AT + 4].split_at_mut(TARGET_AT - SOURCE_AT);
    source.swap_with_slice(target);
    delivery.packet = bytes.into();
    delivery
}
