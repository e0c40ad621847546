//! The sender of a run: it waits for due packets, builds and stamps them, and hands batches to the
//! kernel.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use host::packets::packet_system::{BATCH_FRAMES, FrameSender, is_transient};
use host::packets::system;
use profile::{AddressFamily, OutgoingPacket, PacketContent, emulated_endpoints};
use vocab::Time;

use super::{NextHops, RunShared};
use crate::probe::{MacAddress, ProbeShape, ProbeTemplate, write_number};

/// Time between the start of a run and its first packet, in which both threads start.
pub(super) const PREPARATION: Duration = Duration::from_millis(20);

/// Packets of one batch. While one is sent, the stamps of user space grow old.
const BATCH: usize = 32;
/// Waits longer than this are spent asleep, except for the last part, in which a timer may be late.
const SLEEP_MIN: Duration = Duration::from_micros(250);
const TIMER_LATENESS: Duration = Duration::from_micros(150);
/// Longest sleep, after which the sender looks whether it should stop.
const SLEEP_MAX: Duration = Duration::from_millis(20);
/// Longest wait of traffic in a closed loop, which may have a new packet at each arrival.
const CLOSED_LOOP_WAIT: Duration = Duration::from_micros(30);

/// Attempts to hand a frame to a kernel that has no room, and the pause between them.
const ATTEMPTS_MAX: u32 = 50;
const ATTEMPT_PAUSE: Duration = Duration::from_micros(20);

/// Templates that are kept; with more flows they are built again.
const TEMPLATES_MAX: usize = 16_384;

const ETHERTYPE_IPV4: [u8; 2] = [0x08, 0x00];
const ETHERTYPE_IPV6: [u8; 2] = [0x86, 0xdd];

/// Work of the sender thread.
#[derive(Debug)]
pub(super) struct SenderTask<'a> {
    pub(super) shared: &'a RunShared,
    pub(super) senders: &'a [&'a FrameSender],
    pub(super) macs: &'a [MacAddress],
    pub(super) next_hops: &'a NextHops,
    pub(super) run: u16,
    pub(super) family: AddressFamily,
    pub(super) is_closed_loop: bool,
}

/// Key of a template: flow, input, output and size.
type TemplateKey = (u32, u16, u16, u32);

/// Packets of one batch with their frames, in the same order.
#[derive(Debug, Default)]
struct FrameBatch {
    packets: Vec<OutgoingPacket>,
    frames: Vec<Vec<u8>>,
    templates: HashMap<TemplateKey, ProbeTemplate>,
}

impl SenderTask<'_> {
    /// Sends until the traffic ends or the run is stopped.
    pub(super) fn run(self) -> Result<()> {
        system::sharpen_timers();
        let _ = system::raise_priority();
        let outcome = self.send_all();
        let has_failed = outcome.is_err();
        self.shared
            .sender_failed
            .store(has_failed, Ordering::Release);
        self.shared.sender_ended.store(true, Ordering::Release);
        outcome
    }

    fn send_all(&self) -> Result<()> {
        let mut batch = FrameBatch {
            frames: vec![Vec::new(); BATCH],
            ..FrameBatch::default()
        };
        while !self.shared.stop.load(Ordering::Relaxed) {
            let (now, next) = self.take_due(&mut batch.packets);
            if batch.packets.is_empty() {
                match next {
                    Some(at) => self.wait(at.since(now)),
                    // An arrival may still bring a packet; there is none once all have their record.
                    None if self.is_closed_loop && !self.shared.machine().is_finished() => {
                        thread::sleep(CLOSED_LOOP_WAIT);
                    }
                    None => return Ok(()),
                }
                continue;
            }
            self.build(&mut batch)?;
            self.hand_over(&batch)?;
        }
        Ok(())
    }

    /// Takes out the packets that are due; returns the time now and that of the next packet.
    fn take_due(&self, packets: &mut Vec<OutgoingPacket>) -> (Time, Option<Time>) {
        packets.clear();
        let now = self.shared.clock.now();
        let mut machine = self.shared.machine();
        while packets.len() < BATCH
            && let Some(packet) = machine.poll_output(now)
        {
            // Replaced by the kernel's stamp, unless that is lost.
            machine.handle_sent(packet.sequence, now);
            packets.push(packet);
        }
        let next = machine.next_packet();
        drop(machine);
        if let Some(first) = packets.first() {
            let late = now.since(first.due).as_nanos() as u64;
            self.shared.latest_ns.fetch_max(late, Ordering::Relaxed);
        }
        let made = packets.len() as u64;
        // Before they are sent, so that the reader of the rings finds their numbers.
        self.shared.made.fetch_add(made, Ordering::Release);
        (now, next)
    }

    fn wait(&self, span: Duration) {
        let span = if self.is_closed_loop {
            span.min(CLOSED_LOOP_WAIT)
        } else {
            span
        };
        if span > SLEEP_MIN {
            thread::sleep((span - TIMER_LATENESS).min(SLEEP_MAX));
            return;
        }
        let until = self.shared.clock.now() + span;
        while self.shared.clock.now() < until {
            std::hint::spin_loop();
        }
    }

    fn build(&self, batch: &mut FrameBatch) -> Result<()> {
        let stamp = self.shared.clock.now().as_nanos();
        let FrameBatch {
            packets,
            frames,
            templates,
        } = batch;
        for (packet, frame) in packets.iter().zip(frames) {
            let next_hop = self
                .next_hops
                .get(usize::from(packet.input))
                .and_then(|outputs| *outputs.get(usize::from(packet.output))?)
                .context("the plan names the ports of all its packets")?;
            match &packet.content {
                PacketContent::Datagram => {
                    let key = (packet.flow, packet.input, packet.output, packet.size);
                    if !templates.contains_key(&key) {
                        if templates.len() >= TEMPLATES_MAX {
                            templates.clear();
                        }
                        templates.insert(key, self.template(packet, next_hop)?);
                    }
                    templates[&key].write(packet.sequence as u32, stamp, frame);
                }
                PacketContent::Tcp(content) => {
                    let source = self.macs[usize::from(packet.input)];
                    let kind = match content.first() {
                        Some(first) if first >> 4 == 6 => ETHERTYPE_IPV6,
                        _ => ETHERTYPE_IPV4,
                    };
                    frame.clear();
                    frame.extend_from_slice(&next_hop);
                    frame.extend_from_slice(&source);
                    frame.extend_from_slice(&kind);
                    let start = frame.len();
                    frame.extend_from_slice(content);
                    write_number(&mut frame[start..], packet.sequence as u16);
                }
            }
        }
        Ok(())
    }

    fn template(&self, packet: &OutgoingPacket, next_hop: MacAddress) -> Result<ProbeTemplate> {
        let endpoints = emulated_endpoints(self.family, packet.flow, packet.input, packet.output);
        let shape = ProbeShape {
            source: endpoints.source,
            destination: endpoints.destination,
            source_mac: self.macs[usize::from(packet.input)],
            next_hop,
            packet_bytes: u16::try_from(packet.size).unwrap_or(u16::MAX),
            run: self.run,
            input: packet.input as u8,
            output: packet.output as u8,
            flow: packet.flow,
        };
        Ok(ProbeTemplate::new(&shape)?)
    }

    /// Hands the frames to the kernel, those of one port together.
    fn hand_over(&self, batch: &FrameBatch) -> Result<()> {
        const { assert!(BATCH <= BATCH_FRAMES) };
        let mut start = 0;
        for run in batch.packets.chunk_by(|one, next| one.input == next.input) {
            let frames = &batch.frames[start..start + run.len()];
            start += run.len();
            let input = usize::from(run[0].input);
            self.send_through(self.senders[input], run, frames)
                .with_context(|| format!("port {input} does not send any more"))?;
        }
        Ok(())
    }

    fn send_through(
        &self,
        sender: &FrameSender,
        packets: &[OutgoingPacket],
        frames: &[Vec<u8>],
    ) -> Result<()> {
        let mut sent = 0;
        let mut attempts = 0;
        while sent < frames.len() {
            let error = match sender.send(&frames[sent..]) {
                Ok(count) => {
                    sent += count;
                    attempts = 0;
                    continue;
                }
                Err(error) => error,
            };
            if !is_transient(&error) {
                let mut machine = self.shared.machine();
                for packet in &packets[sent..] {
                    machine.handle_unsent(packet.sequence);
                }
                let refused = (packets.len() - sent) as u64;
                self.shared.refused.fetch_add(refused, Ordering::Relaxed);
                bail!("{error}; the interface is down or gone");
            }
            if attempts < ATTEMPTS_MAX {
                attempts += 1;
                thread::sleep(ATTEMPT_PAUSE);
            } else {
                self.shared.refused.fetch_add(1, Ordering::Relaxed);
                self.shared.machine().handle_unsent(packets[sent].sequence);
                sent += 1;
                attempts = 0;
            }
        }
        Ok(())
    }
}
